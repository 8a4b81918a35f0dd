"""Manifests: a tree's list of files with their sha256, and what of a tree is not as its manifest says."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Iterator, List, Tuple

from kdeploy_agent.errors import AgentError

MANIFEST = "manifest.sha256"


def verify(tree: Path, manifest: str) -> Tuple[int, int]:
    """Compare every file of a placed tree with its manifest, and the manifest with its sha256; gives files and bytes.

    Raises `integrity` naming the first files that differ, are missing, are too many or are no plain files.
    """
    wrong, count, size = compare(tree, manifest)
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise AgentError(
            "integrity",
            f"{len(wrong)} of the files of {tree.name} are not what was declared: {', '.join(wrong[:5])}{more}",
            "apply again: the tree is placed anew from the bundle",
        )
    return count, size


def compare(tree: Path, manifest: str) -> Tuple[List[str], int, int]:
    """The same, giving every file that is not right (`PATH: differs`, sorted), then files and bytes.

    Raises `integrity` when the manifest itself is not the declared one: nothing can be compared then.
    """
    try:
        listing = (tree / MANIFEST).read_bytes()
    except OSError as fault:
        raise AgentError("integrity", f"{tree.name} has no {MANIFEST}") from fault
    found = hashlib.sha256(listing).hexdigest()
    if found != manifest:
        raise AgentError("integrity", f"{MANIFEST} of {tree.name} has sha256 {found}, not {manifest}")
    expected = dict(_entries(listing))
    wrong: List[str] = []
    count, size = 1, len(listing)
    for path, name in _walk(tree):
        if name == MANIFEST:
            continue
        if path.is_symlink() or not path.is_file():
            wrong.append(f"{name}: not a plain file")
            continue
        digest, length = _hash(path)
        count, size = count + 1, size + length
        wanted = expected.pop(name, None)
        if wanted is None:
            wrong.append(f"{name}: not in the manifest")
        elif wanted != digest:
            wrong.append(f"{name}: differs")
    wrong.extend(f"{name}: missing" for name in expected)
    return sorted(wrong), count, size


def _entries(listing: bytes) -> Iterator[Tuple[str, str]]:
    for line in listing.decode("utf-8").rstrip("\n").split("\n"):  # a name may hold what else ends lines
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64:
            raise AgentError("integrity", f"{MANIFEST} has a line that is not '<sha256>  <path>': {line[:120]!r}")
        yield name, digest


def _walk(tree: Path) -> Iterator[Tuple[Path, str]]:
    for parent, folders, names in os.walk(str(tree)):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in [*names, *links]:
            path = Path(parent, name)
            yield path, path.relative_to(tree).as_posix()


def _hash(path: Path) -> Tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size
