"""A tree comes to its place: what the live one has is linked when it is ours, and what was there is never lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kdeploy_agent.ground import files, manifests
from kdeploy_agent.trees import placing

from .conftest import Rig
from .test_store import placed


def test_what_the_live_tree_has_as_well_is_linked(rig: Rig) -> None:
    rig.apply("one")
    live = placed(rig, "one")
    assert rig.receive("two").ok["files"] == 11
    new = placed(rig, "two")
    shared = {
        path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file() and path.stat().st_nlink > 1
    }
    every = {path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file()}
    assert every - shared == {"manifest.sha256", "sglang/__init__.py", "sglang/patched.py"}
    for tree, name in ((live, "one"), (new, "two")):
        manifests.verify(tree, rig.trees[name].manifest)
        assert {stat.S_IMODE(path.stat().st_mode) for path in [tree, *tree.rglob("*")]} == {0o444, 0o555}


def test_a_live_tree_that_was_edited_lends_nothing(rig: Rig) -> None:
    """An editor that writes in place writes into every tree that shares the file; each is placed anew."""
    served = rig.apply("one")
    live = placed(rig, "one")
    for name in ("crlf.txt", "sglang/srt/server_args.py"):
        (live / name).chmod(0o644)
        (live / name).write_text("# edited\n")
    assert rig.receive("two").ok["files"] == 11
    assert (placed(rig, "two") / "crlf.txt").read_bytes() == b"windows\r\nlines\r\n"
    order = rig.order(rig.release("two"))
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    assert rig.decide(order, accept=False).ok["state"] == "ROLLED_BACK"
    manifests.verify(live, rig.trees["one"].manifest)
    rig.serves(served)


def test_an_edit_in_place_of_a_shared_file_is_mended_in_both(rig: Rig) -> None:
    served = rig.apply("one")
    assert rig.receive("two").ok
    shared = placed(rig, "one") / "crlf.txt"
    assert shared.stat().st_ino == (placed(rig, "two") / "crlf.txt").stat().st_ino
    shared.chmod(0o644)
    shared.write_text("edited\n")
    order = rig.order(rig.release("two"))
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    manifests.verify(placed(rig, "two"), rig.trees["two"].manifest)
    assert rig.decide(order, accept=False).ok["state"] == "ROLLED_BACK"
    manifests.verify(placed(rig, "one"), rig.trees["one"].manifest)
    rig.serves(served)


WRITER = """
import os, sys, itertools
for number in itertools.count():
    os.makedirs(sys.argv[1], exist_ok=True)
    try:
        open(f"{sys.argv[1]}/{number % 5000}", "w").close()
    except FileNotFoundError:
        pass
"""


@contextlib.contextmanager
def written_all_the_time(folder: Path) -> Iterator[None]:
    """Somebody compiles: files appear in the folder, which is made again whenever it is gone."""
    (folder / "0").parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)]) as writer:
        end = time.monotonic() + 20
        while len(list(folder.iterdir())) < 200 and time.monotonic() < end:
            time.sleep(0.02)
        try:
            yield
        finally:
            writer.kill()


def edit(path: Path) -> None:
    path.chmod(0o644)
    path.write_text("# edited\n")


def test_a_tree_whose_cache_is_written_meanwhile_is_placed_anew(rig: Rig) -> None:
    """What compiles there all the time never lets the cache's folder become empty; the tree was lost over that."""
    served = rig.apply("one")
    edit(placed(rig, "one") / "crlf.txt")
    (rig.layout.cache(served["tree"]) / "stale").write_text("compiled from an edited file")
    with written_all_the_time(rig.layout.cache(served["tree"]) / "triton"):
        assert rig.receive("one").ok["files"] == 11
    manifests.verify(placed(rig, "one"), rig.trees["one"].manifest)
    assert not (rig.layout.cache(served["tree"]) / "stale").exists()
    assert [path.name for path in rig.layout.trees.iterdir()] == [served["tree"]]
    assert list(rig.layout.caches.glob("*.aside"))  # the server that runs may be reading there
    rig.apply("two")
    assert not list(rig.layout.caches.glob("*.aside"))


def test_a_tree_that_cannot_be_put_in_place_leaves_what_was_there(rig: Rig) -> None:
    assert rig.receive("one").ok
    tree = placed(rig, "one")
    partial = tree.with_name("partial")
    shutil.copytree(tree, partial)
    edit(tree / "crlf.txt")
    real, seen = Path.replace, []

    def replace(path: Path, target: Path) -> Any:
        seen.append(path)
        if path == partial:
            raise OSError(28, "No space left on device")
        return real(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing.Path, "replace", replace)
        with pytest.raises(OSError, match="No space"):
            placing._install(rig.layout, tree, partial, rig.trees["one"].manifest)
    assert partial in seen and (tree / "crlf.txt").read_text() == "# edited\n"
    assert sorted(path.name for path in rig.layout.trees.iterdir()) == sorted([tree.name, partial.name])


def test_a_leftover_of_a_tree_goes_with_the_next_release(rig: Rig) -> None:
    served = rig.apply("one")
    for name in (f"{served['tree']}.drifted", f"{served['tree']}.16f.aside"):
        (rig.layout.trees / name / "folder").mkdir(parents=True)
    (rig.layout.home / "store.git.damaged.16f.aside").mkdir()
    rig.apply("two")
    assert {path.name for path in rig.layout.trees.iterdir()} == {rig.trees[name].tree for name in ("one", "two")}
    assert not list(rig.layout.home.glob("*.aside"))


def test_what_somebody_writes_into_is_discarded_as_far_as_can_be(tmp_path: Path) -> None:
    folder = tmp_path / "triton"
    with written_all_the_time(folder):
        before = folder.stat().st_ino
        files.discard(folder)
        assert not folder.exists() or folder.stat().st_ino != before
    for path in tmp_path.glob("*.aside"):
        files.discard(path)
    assert not list(tmp_path.glob("*.aside"))


@pytest.mark.parametrize("where", ["", "sglang", "sglang/srt"], ids=["tree", "folder", "folder below"])
def test_a_link_out_of_the_live_tree_is_not_followed(rig: Rig, where: str) -> None:
    """Somebody's working copy is not protected with the tree, nor does it become a part of one."""
    rig.apply("one")
    live = placed(rig, "one")
    mine = rig.layout.root.with_name("working-copy")
    shutil.copytree(live / where, mine)
    subprocess.run(["chmod", "-R", "u+w", str(mine), str(live)], check=True)
    shutil.rmtree(live / where)
    (live / where).symlink_to(mine)
    assert rig.receive("two").ok["files"] == 11
    assert {path.stat().st_nlink for path in mine.rglob("*") if path.is_file()} == {1}
    assert all(path.stat().st_mode & stat.S_IWUSR for path in mine.rglob("*"))
    assert not any(path.is_symlink() for path in placed(rig, "two").rglob("*"))
    manifests.verify(placed(rig, "two"), rig.trees["two"].manifest)
    assert rig.receive("one").ok["files"] == 11  # placed anew, without touching what the link pointed to
    assert (mine / Path("sglang/srt/server_args.py").relative_to(where)).is_file()


def test_a_file_of_another_user_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may link it may not protect it: such a host could not be pushed to."""
    twin = placing._Twin(tmp_path / "live", frozenset())
    for name in ("one.py", "folder/two.py"):
        (tmp_path / "live" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "live" / name).write_text("pass\n")
    (tmp_path / "live" / "link.py").symlink_to("one.py")
    names = {"one.py", "folder/two.py", "link.py"}
    (tmp_path / "ours").mkdir()
    assert placing._link(twin, tmp_path / "ours", names) == {"one.py", "folder/two.py"}
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert placing._link(twin, tmp_path / "theirs", names) == set()


def test_when_linking_fails_everything_is_written(rig: Rig) -> None:
    rig.apply("one")
    assert rig.receive("two").ok
    tree, about = placed(rig, "three"), rig.trees["three"]
    assert rig.receive("three").ok
    files.wipe(tree)
    real, links = manifests.verify, []

    def verify(folder: Path, manifest: str) -> Any:
        if folder.name == f"{tree.name}.partial":  # tests run side by side
            links.append((folder / "crlf.txt").stat().st_nlink)
        if len(links) == 1:
            raise PermissionError(1, "Operation not permitted")
        return real(folder, manifest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "manifests", SimpleNamespace(verify=verify))
        assert placing.place(rig.layout, tree, about.commit, about.manifest)[0] == 11
    assert links == [3, 1]
    manifests.verify(tree, about.manifest)
