"""A tree and the changes made to it in memory, with the line numbers of the base kept for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kdeploy.patching.finding import Splice, splice
from kdeploy.patching.trees import Tree

Content = tuple[bytes | None, bool]
"""A file's bytes (None: it is not there) and whether it is executable."""


@dataclass(frozen=True)
class Step:
    """What a file was before a change, and who made the change."""

    by: str
    before: bytes | None


class Overlay:
    """`tree` with changes on top. Nothing is written: `changed` has what would be."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.changed: dict[str, Content] = {}
        self._read: dict[str, Content] = {}
        self._texts: dict[str, str] = {}
        self._lines: dict[str, list[int]] = {}  # for each line of a changed text the line of the base; 0: none
        self._steps: dict[str, list[Step]] = {}

    def content(self, path: str) -> Content:
        """The file as it is now."""
        if path in self.changed:
            return self.changed[path]
        if path not in self._read:
            content = self.tree.read(path)
            self._read[path] = (content, content is not None and self.tree.executable(path))
        return self._read[path]

    def text(self, path: str) -> str | None:
        """The file as text that keeps every byte; None when it is not there."""
        content, _ = self.content(path)
        if content is None:
            return None
        if path not in self._texts:
            self._texts[path] = decoded(content)
        return self._texts[path]

    def obstacle(self, path: str) -> str | None:
        """Why nothing may be written at `path`, with the changes so far; None when it may."""
        parts = path.split("/")
        parents = ["/".join(parts[:end]) for end in range(1, len(parts))]
        for parent in parents:
            if self.changed.get(parent, (None, False))[0] is not None:
                return f"{parent} is a file, not a folder"
        if any(other.startswith(f"{path}/") and new is not None for other, (new, _) in self.changed.items()):
            return f"{path} is a folder"
        if any(parent in self.changed for parent in parents):
            return None  # a deleted file makes room for a folder
        return self.tree.obstacle(path)

    def put(self, path: str, content: bytes | None, executable: bool, by: str) -> None:
        """Set the file's bytes (None deletes it) and mode."""
        before, _ = self.content(path)
        if content is None and self._base(path)[0] is None:
            self.changed.pop(path, None)  # added and deleted again: as if nothing had been
        else:
            self.changed[path] = (content, executable and content is not None)
        self._texts.pop(path, None)
        if content != before:
            self._lines.pop(path, None)
            self._steps.setdefault(path, []).append(Step(by, before))

    def edit(self, path: str, splices: Sequence[Splice], by: str) -> None:
        """Make `splices` in the text of a file that is there."""
        before = self.text(path)
        if before is None:
            raise ValueError(f"{path} is not there")
        lines = self._lines.get(path) or list(range(1, before.count("\n") + 2))
        for item in sorted(splices, key=lambda item: item.start, reverse=True):
            _renumber(lines, before, item)
        after = splice(before, splices)
        self.put(path, encoded(after), self.content(path)[1], by)
        self._texts[path] = after
        self._lines[path] = lines

    def base_line(self, path: str, line: int) -> int:
        """The line of the base for a line of the text as it is now; that line itself when a patch put it there."""
        lines = self._lines.get(path)
        return (lines[line - 1] if lines and line <= len(lines) else 0) or line

    def steps(self, path: str) -> Sequence[Step]:
        """The changes made to a file so far, oldest first."""
        return self._steps.get(path, ())

    def _base(self, path: str) -> Content:
        return self._read.get(path) or (self.tree.read(path), False)


def decoded(content: bytes) -> str:
    """Bytes as text in which every byte survives."""
    return content.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """The bytes of a text made by `decoded`."""
    return text.encode("utf-8", "surrogateescape")


def _renumber(lines: list[int], before: str, item: Splice) -> None:
    """Give the lines that a splice puts in no line of the base; equal lines at its ends keep theirs."""
    first = before.count("\n", 0, item.start)
    old, new = before[item.start : item.end].split("\n"), item.text.split("\n")
    head = tail = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    gone, come = len(old) - head - tail, len(new) - head - tail
    kept = lines[first + head : first + head + min(gone, come)]  # a line changed in place keeps its number
    lines[first + head : first + head + gone] = [*kept, *([0] * (come - len(kept)))]
