"""A tree becomes a folder: written beside its place, every file compared, read-only, synced, renamed."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, FrozenSet, Optional, Set, Tuple

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, manifests
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import adopted
from kdeploy_agent.trees import archive, serving
from kdeploy_agent.trees.git import git

_SPARE_BYTES = 256 * 1024 * 1024
_SPARE_INODES = 1000


def place(layout: Layout, tree: Path, commit: str, manifest: str) -> Tuple[int, int]:
    """Put the tree of `commit` at `tree`, from the store; gives files and bytes.

    What the live tree has as well is linked, while it is right. Raises `integrity` when a file is not as the manifest
    says, `preflight` when the disk cannot hold them: then what was at `tree` is as it was.
    """
    listing = git(layout, "ls-tree", "-r", "-l", "-z", commit).split("\0")[:-1]
    sizes = {name: int(about.split()[3]) for about, _, name in (entry.partition("\t") for entry in listing)}
    need(layout.home, sum(sizes.values()), len(sizes) * 2, f"tree {tree.name}")
    for twin in (_twin(layout, tree, commit), None):
        try:
            partial = _write(layout, tree, commit, set(sizes), twin)
            return _install(layout, tree, partial, manifest)
        except (AgentError, OSError):
            if twin is None:  # else somebody edited the live tree: what was linked may be that
                raise
    raise AssertionError("the second time returns or raises")


@dataclass(frozen=True)
class _Twin:
    """A placed tree, and which files of another commit are not the same in it."""

    folder: Path
    changed: FrozenSet[str]


def _twin(layout: Layout, tree: Path, commit: str) -> Optional[_Twin]:
    """The live or the known-good tree, when it is another one than `tree`."""
    for release in (layout.live(), layout.good()):
        document = serving.find_release(layout, release) if release else None
        if document is None or adopted.is_adopted(document) or layout.tree(document["tree"]) == tree:
            continue
        try:
            told = git(layout, "diff-tree", "-r", "-z", "--no-renames", "--name-only", document["commit"], commit)
        except AgentError:  # its commit is not in the store
            continue
        return _Twin(layout.tree(document["tree"]), frozenset(told.split("\0")[:-1]))
    return None


def _write(layout: Layout, tree: Path, commit: str, names: Set[str], twin: Optional[_Twin]) -> Path:
    """Write files beside the place of `tree`. Links are made in a tenth of the time that a filesystem needs for files.

    Where two trees share a file, whoever writes into it changes both; each is placed anew before it serves.
    """
    partial = tree.with_name(tree.name + ".partial")
    index = tree.with_name(tree.name + ".index")
    files.discard(partial)
    files.discard(index)
    partial.mkdir(parents=True)
    missing = names - _link(twin, partial, names) if twin is not None else names
    place = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(partial)}
    git(layout, "read-tree", commit, **place)
    git(layout, "checkout-index", "--quiet", "--stdin", "-z", given="\0".join(sorted(missing)), **place)
    files.wipe(index)
    return partial


def _link(twin: _Twin, partial: Path, names: Set[str]) -> Set[str]:
    """Link what is the same; gives the names of what is linked. Some filesystems and some owners let nobody link.

    Somebody may have put links or files of his own into the live tree: what is not ours is not shared, since it would
    be protected with the tree.
    """
    linked = set()
    folders: Dict[str, bool] = {}
    root, we = f"{os.path.realpath(str(twin.folder.parent))}/{twin.folder.name}", os.geteuid()
    for name in sorted(names - twin.changed):
        folder = os.path.dirname(name)  # noqa: PTH120 - of thousands of files
        if folder not in folders:
            (partial / folder).mkdir(parents=True, exist_ok=True)
            there = os.path.join(root, folder).rstrip("/")  # noqa: PTH118
            folders[folder] = os.path.realpath(there) == there
        with contextlib.suppress(OSError):
            seen = os.lstat(f"{root}/{name}")
            if folders[folder] and stat.S_ISREG(seen.st_mode) and seen.st_uid == we:
                os.link(f"{root}/{name}", f"{partial}/{name}", follow_symlinks=False)
                linked.add(name)
    return linked


def place_archive(layout: Layout, tree: Path, packed: Path, manifest: str) -> Tuple[int, int]:
    """The same from a gzipped tar of its files."""
    partial = tree.with_name(tree.name + ".partial")
    files.discard(partial)
    partial.mkdir(parents=True)

    def room(size: int, count: int) -> None:
        need(layout.home, size, count, f"tree {tree.name}")

    try:
        with packed.open("rb") as file:
            archive.unpack(file, partial, room)
        return _install(layout, tree, partial, manifest)
    except BaseException:
        files.discard(partial)  # without a store nothing can be taken up where it stopped
        raise


def _install(layout: Layout, tree: Path, partial: Path, manifest: str) -> Tuple[int, int]:
    """Put a tree that was written beside its place there, when every file of it is right.

    Its cache goes first: what was compiled from an edited file could serve on. A server that runs may be compiling
    there at this moment, so that it is only renamed; retention removes it.
    """
    count, size = manifests.verify(partial, manifest)
    files.protect(partial)
    files.sync_filesystem(partial)
    files.put_aside(layout.cache(tree.name))
    drifted = files.put_aside(tree)
    try:
        partial.replace(tree)
    except OSError:
        if drifted is not None:
            drifted.replace(tree)
        raise
    files.sync_folder(tree.parent)
    if drifted is not None:
        files.discard(drifted)
    return count, size


def need(folder: Path, size: int, inodes: int, what: str) -> None:
    """Raise `preflight` when the disk of a folder cannot take so many bytes and inodes more."""
    space = files.free_space(folder)
    free = space.f_bavail * space.f_frsize
    if free < size + _SPARE_BYTES:
        raise AgentError(
            "preflight",
            f"{what} needs {(size + _SPARE_BYTES) >> 20} MB on the disk of {folder}, {free >> 20} MB are free",
            "make room, or set another root",
        )
    if space.f_files and space.f_favail < inodes + _SPARE_INODES:  # some filesystems count no inodes and say 0
        raise AgentError("preflight", f"{what} needs {inodes} inodes on {folder}, {space.f_favail} are free")
