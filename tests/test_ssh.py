"""Hosts by SSH, against a real sshd: who may be talked to, how commands arrive, what happens when lines break."""

from __future__ import annotations

import getpass
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kdeploy import agent
from kdeploy.errors import ExitCode, KdeployError, Location, PreflightError, RemoteError, UnreachableError
from kdeploy.host import Ask, Host
from kdeploy.transport import ConnectionLost, settings, ssh
from kdeploy.transport.settings import CONFIG, Way
from kdeploy.transport.ssh import SSHTransport
from tests.hosts.proxy import Wire
from tests.sshd import ADDRESS, Sshd, free_port, keygen

WHERE = Location("profiles/hosts.yaml", 3, 5)


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    server = Sshd(tmp_path / "sshd")
    server.configure()
    monkeypatch.setenv(CONFIG, str(server.config))
    with server.runs():
        yield server


def way(sshd: Sshd, **changes: Any) -> Way:
    values = {"address": ADDRESS, "port": sshd.port, "key": str(sshd.key), **changes}
    return Way(**values)


def reach(
    sshd: Sshd, root: str | None = None, sudo: bool = False, python: str = sys.executable, **changes: Any
) -> Host:
    """A host whose root is in the test's folder."""
    transport = SSHTransport("box", way(sshd, **changes), python, sudo, WHERE)
    return Host(transport, str(sshd.folder / "root") if root is None else root, "test")


def refused(host: Host) -> UnreachableError:
    """The error that says the host cannot be reached; it names the line of hosts.yaml."""
    with host, pytest.raises(UnreachableError) as caught:
        host.call("facts")
    assert caught.value.code == ExitCode.UNREACHABLE
    assert caught.value.where == WHERE
    assert caught.value.hint
    return caught.value


def test_what_a_host_answers(sshd: Sshd) -> None:
    with reach(sshd) as host:
        assert host.call("facts")["root"] == str(sshd.folder / "root")
        assert host.call("history") == {"transactions": []}
        assert [len(one) for one in host.ask([Ask("history", {}), Ask("history", {})])] == [1, 1]


# Who may be talked to.


def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_command_that_adds_it(sshd: Sshd) -> None:
    sshd.known.write_text("")
    fault = refused(reach(sshd))
    shown = subprocess.run(["ssh-keygen", "-lf", f"{sshd.host_key}.pub"], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[1] in fault.message
    assert f"ssh -F {sshd.config} -p {sshd.port} {getpass.getuser()}@{ADDRESS}" in str(fault.hint)
    assert sshd.known.read_text() == ""


def test_a_changed_key_is_refused_with_the_line_of_the_old_one(sshd: Sshd) -> None:
    other = Path(f"{keygen(sshd.folder / 'other')}.pub").read_text()
    sshd.trust(key=other)
    fault = refused(reach(sshd))
    assert "has changed" in fault.message
    assert fault.details[0].startswith(f"another is known: {sshd.known}:1")
    command = str(fault.hint).partition("then: ")[2]
    subprocess.run(shlex.split(command), check=True, capture_output=True, timeout=10)
    assert "is not known" in refused(reach(sshd)).message


def test_a_revoked_key_is_refused(sshd: Sshd) -> None:
    sshd.known.write_text(f"[{ADDRESS}]:{sshd.port} {sshd.public}\n@revoked * {sshd.public}\n")
    assert "is revoked" in refused(reach(sshd)).message


def test_a_hashed_name_is_known(sshd: Sshd) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(sshd.known)], check=True, capture_output=True, timeout=10)
    assert sshd.known.read_text().startswith("|1|")
    with reach(sshd) as host:
        host.call("history")


def test_another_type_of_key_than_ours_is_not_asked_for(sshd: Sshd, tmp_path: Path) -> None:
    """A host with keys of two types shows the one that we know, not the one it would rather show."""
    second = Sshd(tmp_path / "second")
    keygen(second.folder / "rsa", "rsa")
    rsa = " ".join((second.folder / "rsa.pub").read_text().split()[:2])
    second.options.append(f"HostKey {second.folder}/rsa")
    second.trust(key=rsa)
    sshd.known.write_text(second.known.read_text())
    with second.runs(), reach(second) as host:
        host.call("history")


def test_an_alias_of_ssh_config_with_port_user_key_and_host_key_alias(sshd: Sshd) -> None:
    sshd.trust(name="gpu-box")
    included = sshd.folder / "more"
    included.write_text(f"Host gpu\n  HostName {ADDRESS}\n  Port {sshd.port}\n  HostKeyAlias gpu-box\n")
    block = (
        f"Include {included}\nHost gpu\n  User {getpass.getuser()}\n  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n"
    )
    sshd.configure(block)
    with reach(sshd, address="gpu", port=None, key=None) as host:
        host.call("history")


@pytest.mark.parametrize("by", ["ssh_config", "hosts.yaml"])
def test_through_another_host(sshd: Sshd, tmp_path: Path, by: str) -> None:
    """The way to the second goes through the first, whose key is looked at as well."""
    second = Sshd(tmp_path / "second", [f"AllowUsers {getpass.getuser()}"])
    jump = f"{getpass.getuser()}@{ADDRESS}:{sshd.port}"
    block = f"Host far\n  HostName {ADDRESS}\n  Port {second.port}\n  IdentityFile {second.key}\n"
    block += f"  ProxyJump {jump}\n" if by == "ssh_config" else ""
    first = f"Match host {ADDRESS}\n  IdentityFile {sshd.key}\n"
    both = sshd.known.read_text() + second.known.read_text()
    sshd.configure(block, first)
    sshd.known.write_text(both)
    options: dict[str, Any] = {"address": "far", "port": None, "key": None}
    if by == "hosts.yaml":
        options["jump"] = jump
    with second.runs():
        with reach(sshd, **options) as host:
            host.call("history")
        assert "Accepted publickey" in (sshd.folder / "log").read_text()
        sshd.known.write_text(second.known.read_text())
        fault = refused(reach(sshd, **options))
        assert f":{sshd.port} is not known" in fault.message


def test_a_proxy_command(sshd: Sshd) -> None:
    relay = sshd.folder / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        "link = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): link.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := link.recv(65536): os.write(1, data)\n"
    )
    sshd.configure(f"Host {ADDRESS}\n  ProxyCommand {sys.executable} {relay} %h %p\n")
    with reach(sshd) as host:
        host.call("history")


def test_keys_that_are_refused_are_named(sshd: Sshd) -> None:
    other = keygen(sshd.folder / "other")
    fault = refused(reach(sshd, key=str(other)))
    assert "lets none of our keys in" in fault.message
    assert str(other) in fault.details[0]


def test_an_encrypted_key_without_an_agent_asks_nothing(sshd: Sshd) -> None:
    locked = keygen(sshd.folder / "locked", passphrase="open sesame")
    fault = refused(reach(sshd, key=str(locked)))
    assert any(str(locked) in line and "ssh-add" in line for line in fault.details)


def test_an_encrypted_key_that_the_agent_holds(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    held = sshd.folder / "agent"
    keeper = subprocess.Popen(["ssh-agent", "-D", "-a", str(held)], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 5
        while not held.exists() and time.monotonic() < end:
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(held))
        subprocess.run(["ssh-add", "-q", str(sshd.key)], check=True, timeout=10)
        change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(sshd.key)]
        subprocess.run(change, check=True, timeout=10)
        sshd.config.write_text(sshd.config.read_text().replace("IdentityAgent none", ""))
        with reach(sshd) as host:
            host.call("history")
        with reach(sshd, key=None) as host:
            host.call("history")
    finally:
        keeper.terminate()
        keeper.wait()


# What cannot be reached.


def test_a_name_that_is_not_known(sshd: Sshd) -> None:
    assert "the name nowhere.invalid is not known" in refused(reach(sshd, address="nowhere.invalid")).message


def test_a_port_where_nobody_listens(sshd: Sshd) -> None:
    assert "refuses connections" in refused(reach(sshd, port=free_port())).message


def test_a_host_that_says_nothing(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CONNECT_S", 0.5)
    with socket.create_server((ADDRESS, 0)) as silent:
        fault = refused(reach(sshd, port=silent.getsockname()[1]))
    assert "within 0 s" in fault.message or "within 1 s" in fault.message


def test_what_is_no_ssh_server(sshd: Sshd) -> None:
    def talk(server: socket.socket) -> None:
        with server.accept()[0] as link:
            link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200)

    with socket.create_server((ADDRESS, 0)) as web:
        threading.Thread(target=talk, args=(web,), daemon=True).start()
        assert "no SSH server" in refused(reach(sshd, port=web.getsockname()[1])).message


# How commands arrive.


def test_words_arrive_as_they_were_sent(sshd: Sshd) -> None:
    """Nothing is read by the shell on the way: not in an argument, not in a request."""
    words = ["$(touch /tmp/never)", "a'b\"c", "`id`", "two\nlines", "ä→€", "", "*", "-n", "\\", "!!", "%s"]
    transport = SSHTransport("box", way(sshd))
    channel = transport.open([sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *words])
    said = channel.line(20).decode()
    channel.close()
    transport.close()
    assert said.strip() == ascii(words)
    assert ssh.command(["a b", "$c"], sudo=True) == "sudo -n -- 'a b' '$c'"


def test_umlauts_arrive_whatever_the_locale(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    root = str(sshd.folder / "Wurzel → ä 'x' $(id)")
    with reach(sshd, root=root) as host:
        assert host.call("facts")["root"] == root
        with pytest.raises(KdeployError, match="'ä' is not a release id"):
            host.call("evidence", {"release": "ä"})
    assert (Path(root) / "agent").is_dir()


def test_a_login_shell_that_talks(sshd: Sshd) -> None:
    """~/.bashrc that prints must not break the protocol, not even without an end of line."""
    noise = "echo Welcome; echo '{\"event\": \"result\"}'; echo '[1]'; printf 'no end of line'; echo oops >&2\n"
    (sshd.home / ".bashrc").write_text(noise)
    with reach(sshd) as host:
        assert host.call("history") == {"transactions": []}


def test_a_login_shell_that_runs_nothing(sshd: Sshd, tmp_path: Path) -> None:
    deaf = Sshd(tmp_path / "deaf", ["ForceCommand /usr/sbin/nologin"])
    sshd.known.write_text(deaf.known.read_text())
    with deaf.runs(), reach(deaf) as host, pytest.raises(RemoteError, match="the agent did not start") as caught:
        host.call("facts")
    assert "not available" in caught.value.message
    assert "login shell" in str(caught.value.hint)


def test_no_python(sshd: Sshd) -> None:
    with reach(sshd, python="python9") as host, pytest.raises(PreflightError, match="there is no python9"):
        host.call("facts")


def test_a_python_that_is_too_old(sshd: Sshd) -> None:
    """A stand-in that says it is 3.6: the agent's first lines are read by it, and no more."""
    code = "import runpy, sys; sys.version_info = (3, 6, 9); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    text = f'#!/bin/sh\nshift 2\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n'
    sshd.program("python-old", text)
    with (
        reach(sshd, python="python-old") as host,
        pytest.raises(PreflightError, match=r"is 3\.6: the agent needs 3\.8"),
    ):
        host.call("facts")


def test_sudo_that_works(sshd: Sshd) -> None:
    """A stand-in for sudo that says so, and insists on never being asked for a password."""
    sshd.program("sudo", f'#!/bin/sh\necho "$1 $2" > {sshd.folder}/sudo\nshift 2\nexec "$@"\n')
    with reach(sshd, sudo=True) as host:
        host.call("history")
    assert (sshd.folder / "sudo").read_text() == "-n --\n"


def test_sudo_that_wants_a_password(sshd: Sshd) -> None:
    sshd.program("sudo", "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    with reach(sshd, sudo=True) as host, pytest.raises(PreflightError, match="a password is required") as caught:
        host.call("history")
    assert "NOPASSWD" in str(caught.value.hint)


def test_the_root_is_the_hosts_choice_by_our_rights(sshd: Sshd) -> None:
    sshd.program("id", "#!/bin/sh\necho 1000\n")
    with reach(sshd, root="") as host:
        assert host.root == str(sshd.home / ".local/share/kdeploy")
        assert host.call("facts")["root"] == host.root


# The agent's file.


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "a folder that cannot be"])
def test_a_damaged_agent_heals(sshd: Sshd, damage: str) -> None:
    with reach(sshd) as host:
        host.call("history")
    (file,) = (sshd.folder / "root/agent").glob("*.pyz*")
    assert file.name == agent.name()
    content = file.read_bytes()
    if damage == "a folder that cannot be":
        with reach(sshd, root="/proc/nothing") as host, pytest.raises(RemoteError, match="cannot be written") as caught:
            host.call("history")
        assert "`root:`" in str(caught.value.hint)
        return
    file.write_bytes({"cut": content[:1000], "changed": content[:-1] + b"x", "empty": b""}[damage])
    with reach(sshd) as host:
        host.call("history")
    assert [one.read_bytes() for one in (sshd.folder / "root/agent").glob("*.pyz*")] == [content]


# Lines that break.


@pytest.fixture
def wire(sshd: Sshd) -> Iterator[Wire]:
    with Wire(ADDRESS, (ADDRESS, sshd.port)).laid() as laid:
        sshd.known.write_text(sshd.known.read_text() + f"[{ADDRESS}]:{laid.port} {sshd.public}\n")
        yield laid


def test_trips(sshd: Sshd, wire: Wire) -> None:
    """After connecting: the channel, then the command with what is asked ahead of it; each further question is one."""
    with reach(sshd) as host:
        host.call("history")  # brings the agent
    with reach(sshd, port=wire.port) as host:
        host.transport._connect()  # type: ignore[attr-defined]
        time.sleep(0.3)  # what a server says after letting us in
        wire.reset()
        host.call("facts")
        assert wire.turns <= 3
        list(host.ask([Ask("history", {}), Ask("history", {}), Ask("history", {})]))
        assert wire.turns <= 4
    assert wire.connections == 0


def test_a_line_that_goes_dead_is_told_within_the_deadline(
    sshd: Sshd, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reach(sshd, port=wire.port) as host:
        host.call("history")
        monkeypatch.setattr(ssh, "SILENCE_S", 1.0)
        wire.die()
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="nothing was heard for 1 s"):
            host.call("history")
        assert time.monotonic() - began < 10
    assert ConnectionLost("").code == ExitCode.UNREACHABLE


def test_a_line_that_is_cut(sshd: Sshd, wire: Wire) -> None:
    with reach(sshd, port=wire.port) as host:
        host.call("history")
        wire.cut()
        with pytest.raises(ConnectionLost):
            host.call("history")
        host.reconnect()
        assert host.call("history") == {"transactions": []}


def test_a_large_push(sshd: Sshd) -> None:
    with reach(sshd) as host:
        host.call("history")
        request = {"tree": "a" * 40, "commit": "b" * 40, "manifest": "c" * 64}
        with pytest.raises(RemoteError, match="unbundle failed"):
            host.call("receive", request, payload=b"\n" + bytes(8 << 20))


# Connecting ahead.


def test_what_is_connected_ahead_is_there_when_it_is_asked(sshd: Sshd) -> None:
    with reach(sshd) as host:
        host.approach()
        host.approach()
        assert host.call("history") == {"transactions": []}
    assert (sshd.folder / "log").read_text().count("Accepted publickey") == 1


def test_what_went_wrong_ahead_is_told_when_it_is_asked(sshd: Sshd) -> None:
    host = reach(sshd, port=free_port())
    host.approach()
    assert "refuses connections" in refused(host).message
    host = reach(sshd, jump="no way")
    host.approach()
    assert "is not a host to go through" in refused(host).message


def test_who_turns_back_leaves_no_connection(sshd: Sshd) -> None:
    host = reach(sshd)
    host.approach()
    host.close()
    end = time.monotonic() + 20
    while left := [one for one in threading.enumerate() if "paramiko" in str(type(one)) or "Connecting" in str(one)]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
