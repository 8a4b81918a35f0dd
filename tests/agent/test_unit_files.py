"""What is written for systemd, as text: no character of a path or a release changes what a line means."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import unit_ends, unit_files
from kdeploy_agent.keeping.units import Spec


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["/bin/a", "b c"], '"/bin/a" "b c"'),
        (["/opt/$x/%n", "$x", "%n"], '"/opt/$x/%%n" "$$x" "%%n"'),
        (["/a", 'say "é\\n"'], '"/a" "say \\"é\\\\n\\""'),
        (["/a", "two\nlines\u2028", ";"], '"/a" "two\\x0alines\\xe2\\x80\\xa8" ";"'),
    ],
)
def test_a_command_line(argv: list[str], line: str) -> None:
    assert unit_files.command(argv) == line
    assert [unit_files.said(one) for one in re.findall(r'"((?:[^"\\]|\\.)*)"', line)] == argv


def unit(service: str = "s", grace_s: float = 2.5, **changes: str) -> tuple[Layout, Spec]:
    layout = Layout(Path("/opt/k d"), service)
    return layout, Spec("server", "r1", ("/venv/bin/python",), {}, "/", "/tmp/x", (8000,), grace_s, **changes)


def test_a_unit_is_the_same_for_every_release() -> None:
    """Systemd reads all of its units again when one differs: what a release changes is in the spec."""
    layout, spec = unit()
    lines = unit_files.server(layout, spec, ["/usr/bin/python3", "exec"], {"A": "1 $ %"}).splitlines()
    assert {"Restart=always", "KillMode=mixed", "TimeoutStopSec=2500ms", 'Environment="A=1 $ %%"'} <= set(lines)
    assert {"StartLimitIntervalSec=600", "StartLimitBurst=3", "RestartPreventExitStatus=78"} <= set(lines)
    assert "TimeoutStopSec=1ms" in unit_files.server(*unit(grace_s=0), ["/usr/bin/python3"], {})
    other = dataclasses.replace(spec, release="r2", argv=("/b",), env={"B": "2"}, tree="t", manifest="m", ports=(1,))
    assert unit_files.server(layout, other, ["/usr/bin/python3", "exec"], {"A": "1 $ %"}).splitlines() == lines


def test_whose_unit_it_is() -> None:
    layout, spec = unit("x")
    text = unit_files.server(layout, spec, ["/a"], {})
    assert unit_files.owner(text) == unit_files.owned(layout)
    assert unit_files.owner(text) != unit_files.owned(Layout(Path("/opt/k d"), "x-server"))
    assert unit_files.owner("[Service]\nExecStart=/a\n") == ""
    # What the owner is asked for: one service's server is named like another one's boot unit.
    assert unit_files.Names("x").unit("server") == unit_files.Names("x-server").boot


SHOWN = {
    "LoadState": "loaded",
    "ActiveState": "failed",
    "Result": "exit-code",
    "ExecMainCode": "1",
    "ExecMainStatus": "3",
}


@pytest.mark.parametrize(
    ("changes", "refused", "gave_up", "note"),
    [
        ({}, "", False, "exited with 3; not restarted"),
        ({"ExecMainCode": "2", "ExecMainStatus": "9"}, "", False, "killed by signal 9; not restarted"),
        ({}, "", True, "exited with 3; gave up after 3 restarts in 10 minutes"),
        ({"ActiveState": "activating"}, "", False, "exited with 3; restarting"),
        ({"Result": "oom-kill"}, "", False, "out of memory: the kernel killed it; not restarted"),
        ({"Result": "trigger-limit-hit"}, "", False, "systemd gave it up (trigger-limit-hit); not restarted"),
        ({"LoadState": "not-found"}, "", False, "it was not started since the host booted"),
        ({}, "a file differs", False, "not started: a file differs; not restarted"),
    ],
)
def test_how_it_ended(changes: dict[str, str], refused: str, gave_up: bool, note: str) -> None:
    assert unit_ends.note({**SHOWN, **changes}, refused, gave_up) == note


@pytest.mark.parametrize(
    ("changes", "kept", "note"),
    [
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "", "exited with 3; not restarted"),
        ({"ExecMainStatus": "78"}, "exit-code exited 1\n", "exited with 1; not restarted"),
        ({"ExecMainStatus": "78"}, "signal killed KILL\n", "killed by signal 9; not restarted"),
        ({"ExecMainStatus": "78"}, "core-dump dumped SEGV\n", "killed by signal 11; not restarted"),
        ({"ExecMainStatus": "78"}, "oom-kill killed TERM\n", "out of memory: the kernel killed it; not restarted"),
        ({"ExecMainStatus": "78"}, "", "exited with 78; not restarted"),
        ({"ExecMainStatus": "4"}, "exit-code exited 1\n", "exited with 4; not restarted"),
    ],
)
def test_a_candidate_ends_once(changes: dict[str, str], kept: str, note: str) -> None:
    """Systemd would restart it, `exec` says no, and what people are told is how it ended itself."""
    shown = {**SHOWN, "SubState": "failed", "NRestarts": "1", **changes}
    told = unit_ends.of_candidate(shown, kept)
    assert unit_ends.note(told, "", False) == note
    assert told["NRestarts"] == ("0" if kept and told["ExecMainStatus"] != "4" else "1")
