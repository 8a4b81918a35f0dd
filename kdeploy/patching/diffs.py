"""Unified diffs read exactly: from text to edits, or a refusal with the line and the reason.

Read: git's form and plain `diff -u`, prefixes a/ and b/, python/sglang/ and sglang/, new, deleted and renamed files,
mode changes, missing newlines at the end, CRLF content, diffs that were converted to CRLF as a whole, and prose
before, between and after (mail headers, signatures). Refused: what would need a guess.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kdeploy.errors import Location, PatchSetError
from kdeploy.patching.anchors import HEADING
from kdeploy.patching.edits import AddFile, ApplyHunks, DeleteFile, Edit, Hunk, RenameFile, SetExecutable

_RANGES = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
_NO_NEWLINE = "\\"
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


@dataclass
class _Section:
    """What a diff says about one file, as it is read."""

    line: int
    old: str | None = None
    new: str | None = None
    named: tuple[str, str] | None = None
    rename: list[str] = field(default_factory=list)
    old_mode: str | None = None
    new_mode: str | None = None
    added: bool = False
    deleted: bool = False
    hunks: list[Hunk] = field(default_factory=list)


def parse(text: str, path: str, number: int) -> tuple[Edit, ...]:
    """Turn the unified diff `text` into edits that all carry `number`.

    `path` names the diff in places and errors. Raises PatchSetError for everything that is not an exact change.
    """
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if lines and all(line.endswith("\r") for line in lines):
        lines = [line[:-1] for line in lines]
    sections = _Reader(lines, path).sections()
    if not sections:
        raise PatchSetError("no change was found in this diff", where=Location(path, 1))
    return tuple(edit for section in sections for edit in _edits(section, path, number))


def tree_path(path: str) -> str:
    """The path in the wheel of a path in a diff: the repository keeps the package below `python/`."""
    if path.startswith("python/sglang/"):
        return path.removeprefix("python/")
    return path


class _Reader:
    """Reads lines one after the other; `at` is the index of the next one."""

    def __init__(self, lines: list[str], path: str) -> None:
        self.lines = lines
        self.path = path
        self.at = 0
        self.after_hunk = -1
        self.found: list[_Section] = []

    def sections(self) -> list[_Section]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            following = self.lines[self.at + 1] if self.at + 1 < len(self.lines) else ""
            if line.startswith("diff --git "):
                self.found.append(_Section(self.at + 1, named=_git_names(line.removeprefix("diff --git "))))
            elif line.startswith("--- ") and following.startswith("+++ "):
                self._names(line, following)
                continue
            elif line.startswith("@@ "):
                self._hunk()
                continue
            elif line.startswith("@@@"):
                raise self._refused("a combined diff (of a merge) has no single state before")
            elif line.startswith(("GIT binary patch", "Binary files ")):
                raise self._refused("a binary patch cannot be compared with the file", "use add-file")
            elif self.found and not self.found[-1].hunks:
                self._extended(line)
            elif self.at == self.after_hunk and _continues(line):
                raise self._refused("the hunk has more lines than its header says")
            self.at += 1
        return self.found

    def _extended(self, line: str) -> None:
        section = self.found[-1]
        for start, slot in (("old mode ", "old_mode"), ("new mode ", "new_mode")):
            if line.startswith(start):
                setattr(section, slot, line.removeprefix(start).strip())
        if line.startswith("new file mode "):
            section.added, section.new_mode = True, line.removeprefix("new file mode ").strip()
        elif line.startswith("deleted file mode "):
            section.deleted = True
        elif line.startswith(("rename from ", "rename to ")):
            section.rename.append(_unquoted(line.split(" ", 2)[2]))
        elif line.startswith("copy from "):
            raise self._refused("a copied file is not supported", "use add-file")
        if section.new_mode in ("120000", "160000"):
            raise self._refused("symlinks and submodules are never written")

    def _names(self, old: str, new: str) -> None:
        if not self.found or self.found[-1].named is None or self.found[-1].old is not None:
            self.found.append(_Section(self.at + 1))
        section = self.found[-1]
        section.old, section.new = _name(old), _name(new)
        section.added = section.added or section.old is None
        section.deleted = section.deleted or section.new is None
        self.at += 2
        if self.at == len(self.lines) or not self.lines[self.at].startswith("@@"):
            raise self._refused("a hunk (@@ ...) was expected here")

    def _hunk(self) -> None:
        start = self.at
        header = _RANGES.fullmatch(self.lines[start].rstrip("\r"))
        if header is None:
            raise self._refused("not a hunk header: '@@ -line,count +line,count @@' was expected")
        if not self.found or self.found[-1].old is self.found[-1].new is None:
            raise self._refused("a hunk without the names of its file (--- and +++) above")
        section = self.found[-1]
        old, new = int(header[2] or 1), int(header[4] or 1)
        before: list[str] = []
        after: list[str] = []
        changed = context = False
        self.at += 1
        while len(before) < old or len(after) < new:
            if self.at == len(self.lines):
                raise self._refused("the diff ends inside a hunk", at=start)
            line = self.lines[self.at]
            kind, content = line[:1] or " ", line[1:]  # an editor may have cut a lone blank
            if kind not in " +-" or (kind == " " and (len(before) == old or len(after) == new)):
                raise self._refused(f"the hunk has fewer lines than its header in line {start + 1} says")
            if (kind == "-" and len(before) == old) or (kind == "+" and len(after) == new):
                raise self._refused(f"the hunk does not have the lines that its header in line {start + 1} says")
            self.at += 1
            ending = "\n"
            if self.at < len(self.lines) and self.lines[self.at].startswith(_NO_NEWLINE):
                ending = ""
                self.at += 1
            if kind != "+":
                before.append(content + ending)
            if kind != "-":
                after.append(content + ending)
            changed = changed or kind != " "
            context = context or kind == " "
        self._must_be_exact(section, start, before, after, changed)
        heading = HEADING.match(header[5].strip())
        name = heading[1] if heading and (section.new or section.old or "").endswith(".py") else None
        where = Location(self.path, start + 1)
        self.after_hunk = self.at
        section.hunks.append(Hunk(where, "".join(before), "".join(after), int(header[1]), name))

    def _must_be_exact(
        self, section: _Section, start: int, before: Sequence[str], after: Sequence[str], changed: bool
    ) -> None:
        for side in (before, after):
            if any(not line.endswith("\n") for line in side[:-1]):
                raise self._refused("a line without a newline is not the last one of its file", at=start)
        if not changed:
            raise self._refused("the hunk changes nothing", at=start)
        if section.added:
            if before or section.hunks:
                raise self._refused("a new file has one hunk, with added lines only", at=start)
        elif not before:
            raise self._refused(
                "an insertion without context could go anywhere", "make the diff with three lines of context", start
            )
        elif not "".join(before).strip():
            raise self._refused("the lines before have no visible text: their place cannot be known", at=start)
        if section.deleted and (after or section.hunks):
            raise self._refused("a deleted file has one hunk, with removed lines only", at=start)

    def _refused(self, reason: str, hint: str | None = None, at: int | None = None) -> PatchSetError:
        line = min(self.at if at is None else at, max(len(self.lines) - 1, 0)) + 1
        return PatchSetError(reason, where=Location(self.path, line), hint=hint)


def _continues(line: str) -> bool:
    """Whether a line after a complete hunk looks like one of its lines; "-- " begins a mail's signature."""
    return line.startswith(("+", " ", "\\")) or (line.startswith("-") and line.rstrip() not in ("--", "---"))


def _edits(section: _Section, path: str, number: int) -> list[Edit]:
    where = Location(path, section.line)
    names = section.named or ("", "")
    old = tree_path(section.rename[0] if section.rename else section.old or names[0])
    new = tree_path(section.rename[-1] if section.rename else section.new or names[1])
    runs = section.new_mode == "100755"
    if section.added:
        content = "".join(hunk.after for hunk in section.hunks)
        return [AddFile(number, where, new, content.encode("utf-8", "surrogateescape"), runs)]
    if section.deleted:
        content = "".join(hunk.before for hunk in section.hunks)
        digest = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()
        return [DeleteFile(number, where, old, digest)]
    edits: list[Edit] = []
    if section.rename and old != new:
        edits.append(RenameFile(number, where, old, new))
    if section.new_mode is not None and section.old_mode != section.new_mode:
        edits.append(SetExecutable(number, where, new, runs))
    if section.hunks:
        edits.append(ApplyHunks(number, where, new, tuple(section.hunks)))
    if not edits:
        raise PatchSetError("the diff names a file and changes nothing in it", where=where)
    return edits


def _name(line: str) -> str | None:
    """The path in a `---` or `+++` line; None when the file is not there on this side.

    A tab begins the timestamp; `diff -N` gives a missing file its name and the first second of 1970.
    """
    name, _, stamp = line[4:].rstrip("\r").partition("\t")
    if name == "/dev/null" or stamp.startswith(("1970-01-01 00:00:00", "1969-12-31")):
        return None
    return _bare(_unquoted(name.rstrip(" ")))


def _git_names(names: str) -> tuple[str, str]:
    """Both paths of a `diff --git` line; needed only when no `---` line follows, and then they are equal."""
    names = names.rstrip("\r")
    if names.startswith('"'):
        both = re.findall(r'"((?:[^"\\]|\\.)*)"', names)
        return _bare(_unquoted(f'"{both[0]}"')), _bare(_unquoted(f'"{both[-1]}"'))
    half = (len(names) - 1) // 2  # a/X b/X, where X may hold blanks
    if _bare(names[:half]) == _bare(names[half + 1 :]):
        return _bare(names[:half]), _bare(names[half + 1 :])
    first, _, second = names.partition(" ")
    return _bare(first), _bare(second)


def _bare(name: str) -> str:
    return name[2:] if name.startswith(("a/", "b/")) else name


def _unquoted(name: str) -> str:
    """A path as git quotes it: C escapes for everything unusual, bytes in octal."""
    if not name.startswith('"'):
        return name
    raw = bytearray()
    for match in re.finditer(r"\\([0-7]{3})|\\(.)|([^\\]+)", name.strip()[1:-1]):
        if match[1]:
            raw.append(int(match[1], 8) & 255)
        elif match[2]:
            raw.append(_ESCAPES.get(match[2], ord(match[2]) & 255))
        else:
            raw += match[3].encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "surrogateescape")
