"""The git fast-import stream of a stage: pure text building, so that ids repeat on every machine.

One stream makes all commits in one process, whatever their number (git-fast-import(1)).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kdeploy.patching.patch import MANIFEST as MANIFEST

# Pinned author, committer and dates give the same commit ids everywhere. The date is that of SGLang 0.5.11's era: it
# means nothing but must never change.
IDENTITY = "kdeploy <kdeploy@localhost> 1767225600 +0000"

VERSION_FILE = "sglang/_version.py"


@dataclass(frozen=True)
class Commit:
    """One commit: its message, and the files it changes (None: deleted; else content and executable bit)."""

    message: str
    changes: Mapping[str, tuple[bytes, bool] | None]


def commits(ref: str, parent: str | None, series: Iterable[Commit]) -> Iterator[bytes]:
    """The stream that puts `series` on top of `parent` (a commit id) and leaves `ref` at the last one."""
    for number, commit in enumerate(series):
        message = commit.message.encode()
        yield f"commit {ref}\nauthor {IDENTITY}\ncommitter {IDENTITY}\ndata {len(message)}\n".encode() + message + b"\n"
        if number == 0 and parent is not None:
            yield f"from {parent}\n".encode()
        for path, change in sorted(commit.changes.items()):
            if change is None:
                yield b"D " + _quoted(path) + b"\n"
                continue
            content, executable = change
            mode = "100755" if executable else "100644"
            yield f"M {mode} inline ".encode() + _quoted(path) + f"\ndata {len(content)}\n".encode() + content + b"\n"
    yield b"done\n"


def manifest(digests: Mapping[str, str]) -> bytes:
    """The text of `manifest.sha256` in `sha256sum -c` form: every file of the tree but itself, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items())).encode()


def stamp(version_file: bytes, engine_version: str, version: str) -> bytes | None:
    """`sglang/_version.py` saying `version`; None when the file does not say `engine_version` exactly once."""
    for quote in (b"'", b'"'):
        old = b"__version__ = version = " + quote + engine_version.encode() + quote
        if version_file.count(old) == 1:
            return version_file.replace(old, b"__version__ = version = " + quote + version.encode() + quote)
    return None


def sha256(content: bytes) -> str:
    """sha256 of `content` in hex."""
    return hashlib.sha256(content).hexdigest()


def _quoted(path: str) -> bytes:
    raw = path.encode("utf-8", "surrogateescape")
    if raw.startswith(b'"') or b"\n" in raw or b"\\" in raw:
        return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
    return raw
