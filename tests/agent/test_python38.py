"""Hosts have old Pythons: every module parses as 3.8, and the whole way runs on one where there is one."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from .conftest import REMOTE, Rig, parse

OLD = sorted(Path.home().glob(".pyenv/versions/3.[89].*/bin/python3"))


@pytest.mark.parametrize("module", sorted(path.relative_to(REMOTE).as_posix() for path in REMOTE.rglob("*.py")))
def test_every_module_parses(module: str) -> None:
    source = (REMOTE / module).read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    own = {"kdeploy_agent", *sys.stdlib_module_names}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= own


@pytest.mark.skipif(not OLD, reason="no Python 3.8 or 3.9 on this machine")
def test_the_whole_way_on_an_old_python(rig: Rig) -> None:
    rig.python = str(OLD[0])
    first = rig.apply("one")
    assert rig.receive("two").ok
    answer = rig.agent("begin", rig.order(rig.release("two", STANDIN="die")), KDEPLOY_CRASH_AT="CANDIDATE:done")
    assert answer.ok["state"] == "ROLLED_BACK"
    rig.serves(first)
    assert all(one["ok"] for one in rig.agent("precheck", {"release": first}).ok["findings"])


def test_as_one_zip_file(rig: Any) -> None:
    """The form in which it travels: detached processes must come from the same file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        zipped.writestr("__main__.py", "from kdeploy_agent.__main__ import main\n\nmain()\n")
        for path in REMOTE.rglob("*.py"):
            zipped.write(path, path.relative_to(REMOTE))
    agent = rig.layout.root / "agent" / "agent-test.pyz"
    agent.parent.mkdir(parents=True)
    agent.write_bytes(packed.getvalue())
    rig.command = [sys.executable, str(agent)]
    release = rig.apply("one")
    rig.serves(release)
    supervisor = rig.units.supervisor("server")
    line = Path(f"/proc/{supervisor}/cmdline").read_text().split("\0")
    assert line[1:3] == [str(agent), "supervise"]
    assert all(one["ok"] for one in rig.agent("precheck", {"release": release}).ok["findings"])
    unknown = subprocess.run([sys.executable, str(agent), "nope"], input=b"", capture_output=True, check=False)
    assert unknown.returncode == 1 and "verbs:" in parse(unknown.stdout).error["hint"]
