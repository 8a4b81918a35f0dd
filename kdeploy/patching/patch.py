"""One patch: `patches/<name>.yaml` read into edits, with everything refused that can be seen without the engine."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kdeploy import document
from kdeploy.document import Document, Loc
from kdeploy.errors import Location, PatchSetError
from kdeploy.patching import diffs
from kdeploy.patching.anchors import Anchor
from kdeploy.patching.edits import AddFile, DeleteFile, Edit, InsertAfter, InsertBefore, RenameFile, Replace
from kdeploy.patching.manifest import ACTIONS, ANCHORED, EditFile, PatchFile, RetireWhenFile

MANIFEST = "manifest.sha256"
"""The file at the top of every staged tree that lists the sha256 of all others."""
MAX_NAME = 240
"""Bytes of a file's name; file systems have 255, and a file in the making has some more in its name."""
MAX_PATH = 1024
"""Bytes of a path in the tree; Linux has 4096 for the tree's folder and it together."""


@dataclass(frozen=True)
class RetireWhen:
    """When a patch has done its work: every condition given is true on the pristine base."""

    engine: str | None = None
    file: str | None = None
    contains: str | None = None


@dataclass(frozen=True)
class Patch:
    """Edits with one reason, in the order in which they are made."""

    name: str
    reason: str
    origin: str
    retire_when: RetireWhen | None
    edits: tuple[Edit, ...]
    where: Location
    uses: tuple[str, ...] = ()


def load(folder: Path, name: str) -> Patch:
    """Read the patch `name` of the set in `folder`; raises PatchSetError at the first thing that is wrong."""
    file, read = document.load(folder / "patches" / f"{name}.yaml", PatchFile, PatchSetError)
    edits: list[Edit] = []
    uses: list[str] = []
    for index, edit in enumerate(file.edits):
        reader = _EditReader(folder, read, ("edits", index), edit)
        edits += reader.edits(index + 1)
        uses += reader.uses
    retire_when = _retire_when(file.retire_when, read)
    return Patch(name, file.reason.strip(), file.origin.strip(), retire_when, tuple(edits), read.where(), tuple(uses))


def specifiers(text: str, where: Location) -> None:
    """Raise PatchSetError unless `text` is PEP 440 specifiers."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier as fault:
        message = f"'{text}' are not version specifiers"
        raise PatchSetError(message, where=where, hint="write them as >=0.5.11,<0.5.12") from fault


def file_in_set(folder: Path, path: str, below: str, where: Location) -> Path:
    """The regular file at `path` inside the set; raises PatchSetError when it is not there, or not in `below`."""
    tree_path(path, where)
    if PurePosixPath(path).parts[0] != below or path == below:
        raise PatchSetError(f"'{path}' must be a path below {below}/", where=where)
    if "__pycache__" in PurePosixPath(path).parts:
        message = f"'{path}' is below a __pycache__, which the set's digest leaves out"
        raise PatchSetError(message, where=where, hint="keep it in another folder")
    for part in (*PurePosixPath(path).parents, PurePosixPath(path)):
        if (folder / part).is_symlink():
            raise PatchSetError(f"'{part}' is a symlink; a patch set holds files only", where=where)
    found = folder / path
    if not found.is_file():
        names = [item.relative_to(folder).as_posix() for item in (folder / below).rglob("*") if item.is_file()]
        near = difflib.get_close_matches(path, names, n=1)
        problem = "is a folder" if found.is_dir() else "does not exist"
        raise PatchSetError(f"'{path}' {problem}", where=where, hint=f"did you mean '{near[0]}'?" if near else None)
    return found


def tree_path(path: str, where: Location) -> str:
    """`path`, when it is a plain relative path that stays in its tree; raises PatchSetError when it is not."""
    parts = path.split("/")
    problem = None
    if path.startswith("/") or (len(path) > 1 and path[1] == ":"):
        problem = "is absolute"
    elif ".." in parts:
        problem = "leads out of the tree"
    elif "" in parts or "." in parts:
        problem = "is not written plainly (empty parts, or '.')"
    elif ".git" in (part.lower() for part in parts):
        problem = "is inside git's own folder"
    elif "\\" in path or not path.isprintable():
        problem = "has a backslash, or a character that cannot be shown or is not UTF-8"
    elif parts[0] == MANIFEST:
        problem = "is kdeploy's own: the list of every file's sha256"
    elif any(len(part.encode()) > MAX_NAME for part in parts) or len(path.encode()) > MAX_PATH:
        problem = f"is too long: a name has up to {MAX_NAME} bytes, a path up to {MAX_PATH}"
    if problem:
        shown = ascii(path) if not path.isprintable() else f"'{path}'"
        raise PatchSetError(f"the path {shown} {problem}", where=where, hint="write it as in the wheel: sglang/x.py")
    return path


class _EditReader:
    """Turns one edit of the YAML into edits; `uses` are the files of the set that it needs."""

    def __init__(self, folder: Path, read: Document, loc: Loc, edit: EditFile) -> None:
        self.folder = folder
        self.read = read
        self.loc = loc
        self.edit = edit
        self.uses: list[str] = []

    def edits(self, number: int) -> Sequence[Edit]:
        action = self._action()
        if action == "diff":
            return self._diff(number)
        if self.edit.file is None:
            raise PatchSetError(f"'{action}' needs a 'file'", where=self._at())
        file = tree_path(self.edit.file, self._at("file"))
        if action in ANCHORED:
            return [self._anchored(number, file, action)]
        self._refuse(("anchor", "within", "line"), action)
        if action == "delete-file":
            return [DeleteFile(number, self._at(), file, str(self.edit.delete_file))]
        source = file_in_set(self.folder, str(self.edit.add_file), "files", self._at(action))
        self.uses.append(str(self.edit.add_file))
        return [AddFile(number, self._at(), file, source.read_bytes(), bool(source.stat().st_mode & 0o100))]

    def _action(self) -> str:
        actions = [action for action in ACTIONS if self.edit.given(action) is not None]
        if not actions:
            raise PatchSetError("this edit has no action", where=self._at(), hint=f"one of {', '.join(ACTIONS)}")
        if len(actions) > 1:
            later = max((self._at(action) for action in actions), key=lambda where: (where.line, where.column))
            raise PatchSetError(f"this edit has several actions: {', '.join(actions)}", where=later, hint="give one")
        return actions[0]

    def _anchored(self, number: int, file: str, action: str) -> Edit:
        text = self.edit.anchor
        if text is None:
            raise PatchSetError(f"'{action}' needs an 'anchor'", where=self._at(action))
        if not text.strip():
            raise PatchSetError("the anchor has no visible text", where=self._at("anchor"))
        new = self.edit.given(action)
        for key, value in (("anchor", text), (action, new)):
            if "\r" in value:
                hint = "the newlines of the file are kept as they are: write \\n only"
                raise PatchSetError(f"'{key}' holds a carriage return", where=self._at(key), hint=hint)
        if action == "replace" and new.removesuffix("\n") == text.removesuffix("\n"):
            raise PatchSetError("this edit changes nothing: 'replace' equals 'anchor'", where=self._at(action))
        anchor = Anchor(text, self.edit.within, self.edit.count, self.edit.line)
        kind = {"insert-after": InsertAfter, "insert-before": InsertBefore, "replace": Replace}[action]
        return kind(number, self._at(), file, anchor, new)

    def _diff(self, number: int) -> Sequence[Edit]:
        self._refuse(("file", "anchor", "within", "line"), "diff")
        path = str(self.edit.diff)
        source = file_in_set(self.folder, path, "files", self._at("diff"))
        self.uses.append(path)
        edits = diffs.parse(source.read_bytes().decode("utf-8", "surrogateescape"), str(source), number)
        for edit in edits:
            tree_path(edit.file, edit.where)
            if isinstance(edit, RenameFile):
                tree_path(edit.to, edit.where)
        return edits

    def _refuse(self, keys: Sequence[str], action: str) -> None:
        for key in keys:
            if self.edit.given(key) is not None:
                raise PatchSetError(f"'{key}' has no meaning for '{action}'", where=self._at(key))

    def _at(self, *keys: str) -> Location:
        return self.read.where((*self.loc, *keys))


def _retire_when(file: RetireWhenFile | None, read: Document) -> RetireWhen | None:
    if file is None:
        return None
    where = read.where(("retire-when",))
    if (file.file is None) != (file.contains is None):
        raise PatchSetError("'file' and 'contains' go together", where=where)
    if file.engine is None and file.file is None:
        raise PatchSetError("'retire-when' says nothing", where=where, hint="give 'engine', or 'file' and 'contains'")
    if file.engine is not None:
        specifiers(file.engine, read.where(("retire-when", "engine")))
    if file.file is not None:
        tree_path(file.file, read.where(("retire-when", "file")))
    return RetireWhen(file.engine, file.file, file.contains)
