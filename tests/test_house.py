"""The house stays in order: layers, lint, format, types. One of each tool, run as a developer would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    done = subprocess.run(
        [sys.executable, *TOOLS[tool]], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_a_machine_is_committed() -> None:
    """No path of somebody's machine in a tracked text file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    homes = [b"/" + name for name in (b"root/", b"home/" + Path.home().name.encode() + b"/")]
    found = [
        name.decode()
        for name in listed.split(b"\0")
        if name and any(home in (REPOSITORY / name.decode()).read_bytes() for home in homes)
    ]
    assert not found


def test_sources_are_small_rooms() -> None:
    """A file that grows past 260 lines is two rooms."""
    large = {
        str(path.relative_to(REPOSITORY)): lines
        for folder in ("kdeploy", "remote")
        for path in (REPOSITORY / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 300
    }
    assert not large
