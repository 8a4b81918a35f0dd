"""How a host is reached, as far as it can be told without one: ssh's own settings, and what known_hosts files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdeploy.errors import UnreachableError
from kdeploy.transport import known_hosts
from kdeploy.transport.known_hosts import Entry
from kdeploy.transport.settings import CONFIG, Way, arguments, hops, read, settle

ONE, TWO = "AAAAC3NzaC1lZDI1NTE5AAAAIA==", "AAAAC3NzaC1lZDI1NTE5AAAAIB=="


def entry(names: str, key: str = ONE, kind: str = "ssh-ed25519", marker: str = "") -> Entry:
    return Entry("known", 1, marker, tuple(names.split(",")), kind, key)


@pytest.mark.parametrize(
    ("names", "name", "fits"),
    [
        ("gpu1", "gpu1", True),
        ("GPU1", "gpu1", True),
        ("gpu1,10.0.0.1", "10.0.0.1", True),
        ("*.lab", "gpu1.lab", True),
        ("gpu?.lab", "gpu12.lab", False),
        ("*.lab,!gpu1.lab", "gpu1.lab", False),
        ("[gpu1]:2222", "[gpu1]:2222", True),
        ("gpu1", "[gpu1]:2222", False),
        ("|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg=", "gpu1", False),
        ("|1|nonsense", "gpu1", False),
        ("g[p]u1", "gpu1", False),
    ],
)
def test_which_hosts_a_line_speaks_of(names: str, name: str, fits: bool) -> None:
    assert entry(names).matches(name) == fits


@pytest.mark.parametrize(
    ("entries", "verdict"),
    [
        ([], "unknown"),
        ([entry("other")], "unknown"),
        ([entry("[gpu]:22022")], "known"),
        ([entry("[gpu]:22022", TWO)], "changed"),
        ([entry("[gpu]:22022", TWO, "ssh-rsa")], "changed"),
        ([entry("[gpu]:22022", TWO), entry("[gpu]:22022")], "known"),
        ([entry("gpu")], "known"),
        ([entry("gpu", TWO)], "unknown"),
        ([entry("[gpu]:22022"), entry("*", marker="@revoked")], "revoked"),
        ([entry("[gpu]:22022", marker="@cert-authority")], "unknown"),
    ],
)
def test_what_is_thought_of_a_key(entries: list[Entry], verdict: str) -> None:
    names = known_hosts.names_of("gpu", 22022, None)
    assert known_hosts.judge(entries, names, "ssh-ed25519", ONE).verdict == verdict


def test_an_alias_stands_for_host_and_port() -> None:
    assert known_hosts.names_of("10.0.0.1", 22022, "gpu") == ("gpu",)
    assert known_hosts.names_of("gpu", 22, None) == ("gpu",)


def test_files_that_are_damaged_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_bytes(b"# a comment\n\ngpu ssh-ed25519\n\xff\xfe\n  gpu ssh-ed25519 " + ONE.encode() + b" who\n")
    found = known_hosts.read([str(tmp_path / "none"), str(path)])
    assert [(one.line, one.names) for one in found] == [(5, ("gpu",))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bastion", (Way("bastion"),)),
        ("me@bastion:2222", (Way("bastion", 2222, "me"),)),
        ("a, me@b:1", (Way("a"), Way("b", 1, "me"))),
        ("ssh://me@bastion:2222", (Way("bastion", 2222, "me"),)),
        ("me@[::1]:2222", (Way("::1", 2222, "me"),)),
    ],
)
def test_hosts_on_the_way(text: str, found: tuple[Way, ...]) -> None:
    assert hops(text) == found


@pytest.mark.parametrize("text", ["a b", "a:b", "a,,b", "-oProxyCommand=id x", ",".join("abcdefghij")])
def test_what_is_no_way(text: str) -> None:
    with pytest.raises(UnreachableError):
        hops(text)


def test_no_address_is_taken_for_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG, "/dev/null")
    assert arguments(Way("-oProxyCommand=id"))[-2:] == ["--", "-oProxyCommand=id"]
    with pytest.raises(UnreachableError):
        settle(Way("-oProxyCommand=id", 22, "me"))


def test_what_ssh_says_is_read_with_its_tokens() -> None:
    said = (
        "hostname 10.0.0.1\nport 2222\nuser me\nidentityfile ~/.ssh/%h\nidentityfile /k/%%x\n"
        "userknownhostsfile /a/known /b/known\nglobalknownhostsfile /etc/known\nproxycommand nc %h %p\n"
        "identityagent SSH_AUTH_SOCK\nconnecttimeout 7\nidentitiesonly yes\nproxyjump none\n"
    )
    found = read(Way("gpu"), said, {"SSH_AUTH_SOCK": "/agent"})
    assert found.keys == (f"{Path.home()}/.ssh/10.0.0.1", "/k/%x")
    assert found.known_hosts == ("/a/known", "/b/known", "/etc/known")
    assert (found.proxy_command, found.jumps) == ("nc 10.0.0.1 2222", ())
    assert (found.agent, found.connect_s, found.only_keys) == ("/agent", 7, True)
    assert found.place == "me@10.0.0.1:2222"
    assert read(Way("gpu"), "identityagent none\n", {"SSH_AUTH_SOCK": "/agent"}).agent is None
    assert read(Way("gpu"), "proxycommand x\n", {}).agent is None
    assert read(Way("gpu", jump="b"), "proxycommand x\n", {}).proxy_command is None
