"""Bytecode that a full disk, or a machine that lost power, left half written: what was proven starts all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kdeploy_agent.change.switch import Failed, Switch
from kdeploy_agent.ground import files
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping.supervised import Supervised
from kdeploy_agent.trees import caches

from .conftest import Rig, environment

TREE = "0" * 40


def bytecode(layout: Layout, tree: str = TREE, module: str = "long") -> list[Path]:
    return sorted((layout.cache(tree) / "pycache").rglob(f"{module}.*.pyc"))


def compiled(layout: Layout, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Import a module of several blocks with the tree's caches."""
    folder.mkdir(exist_ok=True)
    if not (folder / "long.py").exists():  # written again, it would be compiled again
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
    said = boot(rig)
    assert "once more, without its bytecode" in said
    assert f"{release['id']} serves again" in said
    rig.serves(release)


def boot(rig: Rig) -> str:
    argv = [sys.executable, "-m", "kdeploy_agent", "boot", str(rig.layout.root), "local"]
    return subprocess.run(argv, env=environment(), check=True, capture_output=True, timeout=60).stdout.decode()


@pytest.mark.parametrize("what", ["file", "dangling", "loop"])
def test_what_is_no_folder_makes_way_for_one(tmp_path: Path, what: str) -> None:
    layout = Layout(tmp_path, "local")
    cache = layout.cache(TREE)
    cache.parent.mkdir(parents=True)
    if what == "file":
        cache.write_text("")
    else:
        cache.symlink_to(tmp_path / "a disk that is not there" if what == "dangling" else cache)
    assert caches.prepare(layout, TREE) == ""
    assert cache.is_dir() and not cache.is_symlink()
    assert caches.prepare(layout, TREE) == ""


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path, "local")
    assert compiled(layout, tmp_path / "code").returncode == 0
    (whole,) = bytecode(layout)
    whole.write_bytes(b"")

    def unlink(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    assert caches.prepare(layout, TREE) == f"{layout.cache(TREE)} cannot be used: Read-only file system"
    whole.write_bytes(b"whole")
    monkeypatch.setattr(os, "access", lambda path, how: False)  # nothing to remove: the disk is asked
    assert caches.prepare(layout, TREE) == f"{layout.cache(TREE)} cannot be written"


def test_bytecode_goes_while_somebody_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path, "local")
    assert compiled(layout, tmp_path / "code").returncode == 0

    def rmtree(path: str) -> None:
        raise OSError(39, "Directory not empty", path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert caches.drop_bytecode(layout, TREE)
    assert not bytecode(layout)


def test_no_cache_bars_the_way_back(rig: Rig) -> None:
    release = rig.apply("one")
    rig.close()
    files.wipe(rig.layout.caches)
    rig.layout.caches.write_text("no folder can be made here")
    said = boot(rig)
    assert "cannot be used" in said and f"{release['id']} serves again" in said
    rig.serves(release)
    found = {one["check"]: one for one in rig.agent("precheck", {"release": release}).ok["findings"]}
    assert found["caches"]["warn"] and "Not a directory" in found["caches"]["detail"]


@pytest.mark.parametrize(("said", "starts"), [("EOFError: marshal data too short", 2), ("CUDA out of memory", 1)])
def test_bytecode_goes_only_when_it_may_be_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, starts: int
) -> None:
    layout = Layout(tmp_path, "local")
    units, began = Supervised(layout), []
    (layout.cache(TREE) / "pycache").mkdir(parents=True)

    def start(*_: object) -> None:
        began.append(said)
        raise Failed("the server did not become ready")

    switch = Switch(layout, units, lambda _: None)
    monkeypatch.setattr(units, "words", lambda *_: ["Traceback", said])
    monkeypatch.setattr(switch, "start", start)
    with pytest.raises(Failed):
        switch.serve({"id": "r1", "tree": TREE})
    assert len(began) == starts and (layout.cache(TREE) / "pycache").exists() is (starts == 1)


@pytest.mark.parametrize(
    ("said", "torn"),
    [
        ("EOFError: marshal data too short", True),
        ("ValueError: bad marshal data (unknown type code)", True),
        ("EOFError: Ran out of input", True),
        ('File "<frozen importlib._bootstrap>", line 1\nSystemError: unknown opcode', True),
        ("SystemError: of a library", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
        ("", False),
    ],
)
def test_what_torn_bytecode_says(said: str, torn: bool) -> None:
    assert caches.torn(said) is torn
