"""The house stays in order: layers, lint, format, types. One of each tool, run as a developer would."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

TOOLS = {
    "layers": ["-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
    "lint": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "."],
    "types": ["-m", "mypy"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_is_content(tool: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "remote")}  # the agent's layers are held as well
    done = subprocess.run(
        [sys.executable, *TOOLS[tool]], cwd=REPOSITORY, env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_a_machine_is_committed() -> None:
    """No path of somebody's machine in a tracked text file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    home = re.compile(rb"(?<![\w.}])/(root|home/[a-z]\w*|Users/\w+)/[\w.]")
    paths = [name.decode() for name in listed.split(b"\0") if name]
    found = [path for path in paths if (REPOSITORY / path).is_file() and home.search((REPOSITORY / path).read_bytes())]
    assert not found


def test_sources_are_small_rooms() -> None:
    """A file that grows past 300 lines is two rooms."""
    large = {
        str(path.relative_to(REPOSITORY)): lines
        for folder in ("kdeploy", "remote")
        for path in (REPOSITORY / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 300
    }
    assert not large
