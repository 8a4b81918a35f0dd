"""Where patches find their files: a folder, or bytes in memory; nothing here writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class Tree(Protocol):
    """Files by their path from the tree's root, with forward slashes."""

    def read(self, path: str) -> bytes | None:
        """The bytes of the file at `path`; None when there is no regular file that a patch may touch."""
        ...

    def executable(self, path: str) -> bool:
        """Whether the file at `path` may be executed by its owner."""
        ...

    def obstacle(self, path: str) -> str | None:
        """Why no patch may write at `path` (a symlink on the way, a folder there); None when it may."""
        ...


@dataclass(frozen=True)
class MemoryTree:
    """A tree of bytes in memory; `executables` names the files with the executable bit."""

    files: Mapping[str, bytes]
    executables: frozenset[str] = frozenset()

    def read(self, path: str) -> bytes | None:
        """The bytes at `path`, or None."""
        return self.files.get(path)

    def executable(self, path: str) -> bool:
        """Whether `path` has the executable bit."""
        return path in self.executables

    def obstacle(self, path: str) -> str | None:
        """A folder that stands at `path`, or a file where `path` needs a folder."""
        if any(other.startswith(f"{path}/") for other in self.files):
            return f"{path} is a folder"
        return next((f"{part} is a file, not a folder" for part in _parents(path) if part in self.files), None)


@dataclass(frozen=True)
class FolderTree:
    """A folder read lazily; it never follows a symlink out of itself, nor reads through one."""

    folder: Path
    _checked: dict[Path, str | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, path: str) -> bytes | None:
        """The bytes at `path`; None when there is nothing, or nothing that a patch may touch."""
        if self.obstacle(path) is not None:
            return None
        try:
            return (self.folder / path).read_bytes()
        except FileNotFoundError:
            return None

    def executable(self, path: str) -> bool:
        """Whether the file at `path` may be executed by its owner."""
        try:
            return bool((self.folder / path).lstat().st_mode & 0o100)
        except OSError:
            return False

    def obstacle(self, path: str) -> str | None:
        """A symlink at `path` or on the way to it, a folder or a special file there, or a path out of the tree."""
        if path.startswith("/") or ".." in path.split("/"):
            return f"{path} leads out of the tree"
        for part in _parents(path):
            where = self.folder / part
            if where not in self._checked:
                self._checked[where] = _blocked_folder(where, part)
            if (reason := self._checked[where]) is not None:
                return reason
        where = self.folder / path
        if where.is_symlink():
            return f"{path} is a symlink"
        if where.is_dir():
            return f"{path} is a folder"
        if where.exists() and not where.is_file():
            return f"{path} is not a regular file"
        return None


def _blocked_folder(where: Path, part: str) -> str | None:
    if where.is_symlink():
        return f"{part} is a symlink"
    if where.exists() and not where.is_dir():
        return f"{part} is a file, not a folder"
    return None


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
