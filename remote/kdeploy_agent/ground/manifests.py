"""Manifests: a tree's list of files with their sha256, and what of a tree is not as its manifest says."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Iterator, List, Tuple

from kdeploy_agent.errors import AgentError

MANIFEST = "manifest.sha256"

_BLOCK = 1 << 18  # a larger one costs more to be made than it saves


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
    for path, name, plain in _walk(str(tree)):
        if name == MANIFEST:
            continue
        if not plain:
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


def _walk(folder: str, prefix: str = "") -> Iterator[Tuple[str, str, bool]]:
    """Path, name in the tree, and whether it is a plain file, of all that is below a folder and is none itself."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{prefix}{entry.name}/")
        else:
            yield entry.path, prefix + entry.name, entry.is_file(follow_symlinks=False)


def _hash(path: str) -> Tuple[str, int]:
    """sha256 and bytes of a plain file; thousands are read, so that each call to the system counts."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        digest, size = hashlib.sha256(), 0
        while True:
            block = os.read(handle, _BLOCK)
            digest.update(block)
            size += len(block)
            if not block:
                return digest.hexdigest(), size
    finally:
        os.close(handle)
