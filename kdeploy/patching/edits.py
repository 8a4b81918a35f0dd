"""The edits a patch is made of. What they do to a text is decided in `fit`; this is what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kdeploy.errors import Location
from kdeploy.patching.anchors import Anchor


@dataclass(frozen=True)
class Edit:
    """What all edits have: its number in the patch (from 1), its place in the patch, and the file it is about."""

    action: ClassVar[str] = ""
    number: int
    where: Location
    file: str


@dataclass(frozen=True)
class InsertAfter(Edit):
    """Put whole lines after the line (or the last line of the block) of the anchor."""

    action = "insert-after"
    anchor: Anchor
    text: str


@dataclass(frozen=True)
class InsertBefore(Edit):
    """Put whole lines before the line (or the first line of the block) of the anchor."""

    action = "insert-before"
    anchor: Anchor
    text: str


@dataclass(frozen=True)
class Replace(Edit):
    """Put `text` in the place of the anchor."""

    action = "replace"
    anchor: Anchor
    text: str


@dataclass(frozen=True)
class Hunk:
    """One hunk of a unified diff: exact text before and after, line endings included.

    `line` is where it stood (a hint), `heading` the class or function that the hunk header names, `where` the place
    of that header in the diff.
    """

    where: Location
    before: str
    after: str
    line: int
    heading: str | None = None


@dataclass(frozen=True)
class ApplyHunks(Edit):
    """Make all changes that a unified diff has for one file; every hunk is looked for in the text as it was."""

    action = "diff"
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class AddFile(Edit):
    """Add a file that is not there yet."""

    action = "add-file"
    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class DeleteFile(Edit):
    """Delete a file whose content has this sha256."""

    action = "delete-file"
    sha256: str


@dataclass(frozen=True)
class RenameFile(Edit):
    """Move a file to the path `to`, where nothing may stand yet."""

    action = "rename"
    to: str


@dataclass(frozen=True)
class SetExecutable(Edit):
    """Set or clear the executable bit of a file."""

    action = "mode"
    executable: bool


TextEdit = InsertAfter | InsertBefore | Replace
