"""The supervisor and /proc: restarts and logs that end, pids that come again, locks that die with their holder."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kdeploy_agent.asking import logs
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, journal, locking, processes, systemctl
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import becoming, supervisor
from kdeploy_agent.keeping.supervised import Supervised
from kdeploy_agent.keeping.units import MARK, RESTARTS, Spec, banner, tail

from .conftest import REMOTE


def spec(rig: Any, script: str, *, port: int = 0, grace_s: float = 1.0) -> Spec:
    folder = rig.layout.home / "cwd"
    folder.mkdir(parents=True, exist_ok=True)
    env = {"PATH": "/usr/bin:/bin", MARK: rig.units.mark("server"), "KDEPLOY_RELEASE": "r1"}
    ports = (port,) if port else ()
    argv = (sys.executable, "-u", "-c", script)
    return Spec("server", "r1", argv, env, str(folder), str(rig.layout.units / "server.tmp"), ports, grace_s)


def wait(condition: Any, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_candidate_is_never_restarted(rig: Any) -> None:
    rig.units.start(spec(rig, "import sys; print('last words'); sys.exit(3)"))
    wait(lambda: rig.units.status("server").note)
    status = rig.units.status("server")
    assert (status.alive, status.restarts, status.note) == (False, 0, "exited with 3; not restarted")
    assert "last words" in rig.units.tail("server", 10)


def test_a_trusted_one_is_restarted_three_times_then_given_up(rig: Any) -> None:
    rig.units.start(spec(rig, "import time; time.sleep(0.4); raise SystemExit(9)"))
    rig.units.allow_restarts("server")  # the policy is read when the process ends, not when it starts
    wait(lambda: "gave up" in rig.units.status("server").note)
    status = rig.units.status("server")
    assert status.restarts == RESTARTS == 3 and not status.alive
    assert status.note == "exited with 9; gave up after 3 restarts in 10 minutes"
    wait(lambda: not rig.units.members("server"))


def test_stop_during_restarts_ends_them(rig: Any) -> None:
    rig.units.start(spec(rig, "import time; time.sleep(0.2)"))
    rig.units.allow_restarts("server")
    wait(lambda: rig.units.status("server").restarts >= 1)
    rig.units.stop("server")
    time.sleep(1.5)
    assert not rig.units.members("server")


def test_a_process_without_its_supervisor_is_still_found(rig: Any) -> None:
    rig.units.start(spec(rig, "import time; time.sleep(600)"))
    os.kill(rig.units.supervisor("server"), signal.SIGKILL)
    wait(lambda: rig.units.supervisor("server") == 0)
    assert rig.units.status("server").alive
    rig.units.stop("server")
    assert not rig.units.members("server") and not rig.units.status("server").alive


def test_a_child_that_wiped_its_environment_goes_with_its_parent(rig: Any) -> None:
    script = (
        "import subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = subprocess.Popen(sleep, env={}, start_new_session=True)\n"
        "print('child', child.pid)\n"
        "time.sleep(600)\n"
    )
    rig.units.start(spec(rig, script))
    wait(lambda: any("child" in line for line in rig.units.tail("server", 5)))
    pid = int(rig.units.tail("server", 1)[0].split()[1])
    assert pid in rig.units.members("server")
    rig.units.stop("server")
    assert processes.identity(pid) is None


def test_a_stranger_on_the_port_is_named(rig: Any) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        rig.units.start(spec(rig, "import time; time.sleep(600)", port=port))
        rig.units._dies_within_s = 0.2
        with pytest.raises(AgentError, match=rf"port {port} is still held by process {os.getpid()} \(.*pytest"):
            rig.units.stop("server")
    rig.units.stop("server")  # and again, once the port is free: nothing left to do


def test_a_pid_that_came_again_is_another_process(rig: Any) -> None:
    """Pid and boot are right, the start time is not: that is what a reused pid looks like."""
    said = {"pid": os.getpid(), "identity": "boot/1", "child": os.getpid(), "child_identity": "boot/1", "release": "r1"}
    files.write(rig.units.path("server", "pid"), files.canonical(said))
    assert rig.units.status("server").alive is False and rig.units.supervisor("server") == 0
    rig.units.stop("server")  # would end this test run if it trusted the number
    mine = processes.identity(os.getpid())
    assert mine is not None and processes.is_same(os.getpid(), mine)


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    wait(lambda: processes.identity(child.pid) is None)
    child.wait()


def test_a_log_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "unit.log"
    with log.open("ab") as writer:  # the process keeps the file open, as a server does
        writer.write(b"x" * (supervisor.LOG_LIMIT + 1))
        writer.flush()
        supervisor._rotate(log)
        writer.write(b"after\n")
    assert log.read_bytes() == b"after\n"
    assert log.with_name("unit.log.1").stat().st_size == supervisor.LOG_LIMIT + 1


def test_scratch_is_emptied_before_each_start(rig: Any) -> None:
    one = spec(rig, "import time; time.sleep(600)")
    Path(one.scratch).mkdir(parents=True)
    (Path(one.scratch) / "socket-of-last-time").write_text("")
    rig.units.start(one)
    assert list(Path(one.scratch).iterdir()) == []
    rig.units.stop("server")


def test_the_spec_is_for_the_owner_only(rig: Any) -> None:
    one = dataclasses.replace(spec(rig, "pass"), env={MARK: rig.units.mark("server"), "API_KEY": "secret"})
    rig.units.start(one)
    assert rig.units.path("server", "json").stat().st_mode & 0o077 == 0
    assert Spec.read(rig.units.path("server", "json")) == one


def test_tail_begins_where_the_last_start_did(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("start\nold\nstart\nnew\n")
    assert tail(log, 10, since="start") == ["new"]
    assert tail(log, 10) == ["start", "old", "start", "new"]
    assert tail(tmp_path / "none", 10) == []


def test_a_torn_line_does_not_count(tmp_path: Path) -> None:
    book = journal.Journal(tmp_path / "journal.jsonl")
    book.append(txn="t1", state="PREPARED", phase="intent", release="r1", goal="apply", by="me")
    with book.path.open("ab") as file:
        file.write(b'{"txn": "t1", "state": "PREPARED", "pha')  # the power went here
    last = book.last()
    assert last is not None and (last.state, last.phase) == ("PREPARED", "intent")
    book.append(txn="t1", state="PREPARED", phase="done")
    last = book.last()
    assert last is not None and (last.phase, last.release) == ("done", "r1")
    with book.path.open("ab") as file:
        file.write(b"\0" * 100)  # what some filesystems leave at the end after a power failure
    assert book.last() == last
    assert book.path.read_bytes().count(b"\n") == 3


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert locking.holder(path) is None and not path.exists()
    script = (
        "import sys, time; from pathlib import Path; from kdeploy_agent.ground import locking\n"
        f"lock = locking.take(Path({str(path)!r}), 'ann@desk', 'apply', 't1')\n"
        "print('held', flush=True); time.sleep(60)\n"
    )
    env = {"PYTHONPATH": str(REMOTE), "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        held = locking.holder(path)
        assert held is not None and (held["by"], held["txn"], held["pid"]) == ("ann@desk", "t1", child.pid)
        with pytest.raises(AgentError, match=f"ann@desk .*apply since .* UTC, process {child.pid}"):
            locking.take(path, "bob@desk", "apply", "t2")
        child.kill()
    assert locking.holder(path) is None
    locking.take(path, "bob@desk", "apply", "t2").release()


def test_the_first_answer_stands(tmp_path: Path) -> None:
    assert files.write_once(tmp_path / "decision", b"no")
    assert not files.write_once(tmp_path / "decision", b"yes")
    assert (tmp_path / "decision").read_bytes() == b"no"
    assert list(tmp_path.iterdir()) == [tmp_path / "decision"]


@pytest.mark.parametrize(
    ("text", "since", "lines"),
    [
        ("a\n\nb\n", "", ["a", "", "b"]),
        ("a\nstart\nb\n", "start", ["b"]),
        ("start\na\nstart\n", "start", []),
        ("bar 1%\rbar 99%\n\rnext", "", ["bar 99%", "next"]),
        ("", "", []),
    ],
)
def test_the_last_lines_of_a_log(tmp_path: Any, text: str, since: str, lines: list[str]) -> None:
    from kdeploy_agent.keeping.units import tail

    log = tmp_path / "log"
    log.write_bytes(text.encode())
    assert tail(log, 100, since) == lines


def scanned(rig: Any) -> list[str]:
    found = logs.scan_log(rig.units.log("server"), ["Traceback"])
    return [one["text"] for one in found["matches"]]


def test_a_banner_that_a_server_prints_hides_nothing(rig: Any) -> None:
    log = rig.units.path("server", "log")
    log.parent.mkdir(parents=True)
    log.write_text("Traceback of the release before\n")
    script = f"print('Traceback mine'); print({banner('r1')!r}); import time; time.sleep(600)"
    rig.units.start(spec(rig, script))
    wait(lambda: log.read_text().count("starting release") == 2)
    assert scanned(rig) == ["Traceback mine"]


def test_a_rotation_hides_nothing(rig: Any) -> None:
    log = rig.units.path("server", "log")
    log.parent.mkdir(parents=True)
    log.write_text("Traceback of the release before\n")
    fill = f"import sys, time; print('Traceback mine'); sys.stdout.write('x' * {supervisor.LOG_LIMIT} + '\\n')"
    rig.units.start(spec(rig, f"{fill}; sys.stdout.flush(); time.sleep(600)"))
    wait(lambda: rig.units.log_start("server")[1] is not None)
    with log.open("a") as file:
        file.write("Traceback after\n")
    assert scanned(rig) == ["Traceback mine", "Traceback after"]


def test_one_endless_line_does_not_hold_up_the_scan() -> None:
    began = time.monotonic()
    assert logs.mask("x" * 200_000 + " api_key='a'") == "x" * 200_000 + " api_key=(withheld)"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("text", ["{}", "[]", "null", "7", '{"name": "server", "argv": null}', '{"name": "server"}'])
def test_a_spec_of_somebody_elses_json_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    assert Spec.read(tmp_path / "server.json") is None


@pytest.mark.parametrize("text", ["{}", "[]"])
def test_a_service_whose_spec_was_damaged_is_told_and_applied_anew(rig: Any, text: str) -> None:
    rig.apply("one")
    rig.units.path("server", "json").write_text(text)
    assert rig.facts()["current"]
    assert any(one["what"] == "server" for one in rig.agent("verify").ok["drifts"])
    rig.serves(rig.apply("two"))
    rig.units.path("server", "json").write_text(text)
    assert rig.agent("stop", {"by": "tester@here"}).ok["ran"]
    rig.stopped()


@pytest.mark.parametrize("trusted", [True, False])
def test_a_full_disk_bars_no_restart_of_what_was_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    layout = Layout(tmp_path, "local")
    one = Spec("server", "r1", ("/bin/true",), {}, "/", str(layout.units / "server.tmp"), (), 1.0)
    files.write(layout.units / "server.json", files.canonical(dataclasses.asdict(one)))
    if trusted:
        files.write(layout.units / "server.restart", b"always\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    became: list[Spec] = []
    monkeypatch.setattr(becoming, "files", SimpleNamespace(write=full, canonical=files.canonical, wipe=files.wipe))
    monkeypatch.setattr(becoming, "become", lambda _, spec: became.append(spec))
    becoming.execute(layout, "server", lambda _, spec: None)
    assert became == ([one] if trusted else [])  # a candidate that left no trace would be started again and again


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nsleep 600\n", "#!/bin/sh\necho first\nsleep 600\n"])
def test_a_journal_that_cannot_be_had_takes_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    if program is not None:
        (tmp_path / "journalctl").write_text(program)
        (tmp_path / "journalctl").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin" if program else str(tmp_path)
    monkeypatch.setattr(systemctl, "_environment", lambda: {"PATH": path})
    began = time.monotonic()
    with pytest.raises(AgentError, match="cannot run journalctl" if program is None else "says nothing for 1 s"):
        list(systemctl.journal("_PID=1", within_s=1.0))
    assert time.monotonic() - began < 15


def test_last_words_that_cannot_be_had_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = Supervised(Layout(tmp_path, "local"))

    def cannot(*_: object) -> list[str]:
        raise AgentError("fault", "journalctl says nothing for 5 s")

    monkeypatch.setattr(units, "tail", cannot)
    assert units.words("server", 5) == ["kdeploy: its last words could not be had: journalctl says nothing for 5 s"]


def test_a_full_disk_does_not_end_a_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path, "local")
    one = Spec("server", "r1", ("/bin/true",), {}, "/", str(layout.units / "server.tmp"), (), 1.0)
    keeper = supervisor._Supervisor(layout, Supervised(layout), one, lambda _, spec: None)
    keeper.starts, keeper.child = [1.0], os.getpid()
    keeper.say("")
    keeper.starts.append(2.0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervisor, "files", SimpleNamespace(write=full, canonical=files.canonical))
    keeper.say("")
    assert (keeper.units.status("server").alive, keeper.units.status("server").restarts) == (True, 1)
