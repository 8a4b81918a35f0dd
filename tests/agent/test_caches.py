"""Bytecode that a full disk, or a machine that lost power, left half written: what was proven starts all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.trees import caches

from .conftest import Rig, environment

TREE = "0" * 40


def bytecode(layout: Layout, tree: str = TREE, module: str = "long") -> list[Path]:
    return sorted((layout.cache(tree) / "pycache").rglob(f"{module}.*.pyc"))


def compiled(layout: Layout, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Import a module of several blocks with the tree's caches."""
    folder.mkdir(exist_ok=True)
    (folder / "long.py").write_text("".join(f"name_{number} = {number * 7!r} * 'x'\n" for number in range(3000)))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), **caches.variables(layout, TREE)}
    return subprocess.run([sys.executable, "-c", "import long"], env=env, capture_output=True, timeout=60)


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_what_ends_at_a_blocks_end_is_removed_before_it_can_be_read(tmp_path: Path, blocks: int) -> None:
    layout = Layout(tmp_path, "local")
    assert compiled(layout, tmp_path / "code").returncode == 0
    (whole,) = bytecode(layout)
    whole.write_bytes(whole.read_bytes()[: 4096 * blocks])
    if blocks:  # the fault itself: Python believes what it finds
        assert compiled(layout, tmp_path / "code").returncode == 1  # EOFError, or ValueError: it depends on where
    caches.sweep(layout, TREE)
    assert not whole.exists()
    assert compiled(layout, tmp_path / "code").returncode == 0
    caches.sweep(layout, TREE)
    assert whole.exists()


def test_a_half_that_was_not_renamed_is_removed(tmp_path: Path) -> None:
    layout = Layout(tmp_path, "local")
    compiled(layout, tmp_path / "code")
    (whole,) = bytecode(layout)
    half = whole.with_name(whole.name + ".140243")
    half.write_bytes(b"half")
    caches.sweep(layout, TREE)
    assert whole.exists() and not half.exists()


def test_no_cache_is_no_fault(tmp_path: Path) -> None:
    layout = Layout(tmp_path, "local")
    caches.sweep(layout, TREE)
    assert not caches.drop_bytecode(layout, TREE)


def test_the_host_comes_back_with_torn_bytecode(rig: Rig) -> None:
    release = rig.apply("one")
    rig.close()
    torn = bytecode(rig.layout, release["tree"], "*")
    assert torn
    for path in torn:  # not at a block's end: power was lost before the pages were written
        path.write_bytes(path.read_bytes()[:-8])
    argv = [sys.executable, "-m", "kdeploy_agent", "boot", str(rig.layout.root), "local"]
    said = subprocess.run(argv, env=environment(), check=True, capture_output=True, timeout=60).stdout.decode()
    assert "once more, without its bytecode" in said
    assert f"{release['id']} serves again" in said
    rig.serves(release)
