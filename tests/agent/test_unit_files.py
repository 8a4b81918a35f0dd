"""What is written for systemd, as text: no character of a path or a release changes what a line means."""

from __future__ import annotations

from pathlib import Path

import pytest
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import systemd, unit_files
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


def unit(service: str = "s", grace_s: float = 2.5, **changes: str) -> tuple[Layout, Spec]:
    layout = Layout(Path("/opt/k d"), service)
    return layout, Spec("server", "r1", ("/venv/bin/python",), {}, "/", "/tmp/x", (8000,), grace_s, **changes)


def test_a_server_restarts_only_once_it_is_trusted() -> None:
    layout, spec = unit()
    lines = unit_files.server(layout, spec, ["/usr/bin/python3", "exec"], {"A": "1 $ %"}, False).splitlines()
    assert {"Restart=no", "KillMode=mixed", "TimeoutStopSec=2500ms", 'Environment="A=1 $ %%"'} <= set(lines)
    assert {"StartLimitIntervalSec=600", "StartLimitBurst=3", "RestartPreventExitStatus=78"} <= set(lines)
    assert "Restart=always" in unit_files.server(layout, spec, ["/usr/bin/python3"], {}, True)
    assert "TimeoutStopSec=1ms" in unit_files.server(*unit(grace_s=0), ["/usr/bin/python3"], {}, True)


def test_whose_unit_it_is() -> None:
    layout, spec = unit("x")
    text = unit_files.server(layout, spec, ["/a"], {}, False)
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
    assert systemd._note({**SHOWN, **changes}, refused, gave_up) == note
