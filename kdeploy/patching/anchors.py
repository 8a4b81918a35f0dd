"""Exact text in a file: where it stands, and in which scope.

Text is a file's bytes decoded as UTF-8 with surrogateescape, newlines untouched, so that every byte survives. Lines
end at "\\n"; a "\\r" before it belongs to the line's ending, never to what an anchor is compared with.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

Range = tuple[int, int]  # first and last line, counted from 1, both inside

HEADING = re.compile(r"[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)")
"""A line that names a class or a function, as hunk headers of Python files repeat it."""


class State(StrEnum):
    """What an edit finds in the tree; only the first two let its patch through."""

    APPLICABLE = "applicable"
    """Found as often as it should be, at the hinted line when a hint is given."""
    MOVED = "moved"
    """Found as often as it should be, at another line than the hint: fine, and said."""
    APPLIED = "applied"
    """The tree already has the result of the edit."""
    UPSTREAMED = "upstreamed"
    """The patch's retire-when is true: the engine does this by itself now."""
    MISSING = "missing"
    """Not found, or not often enough."""
    AMBIGUOUS = "ambiguous"
    """Found too often, or two contents claim the same place."""
    OUTSIDE = "outside"
    """The file is not in the base, or is nothing that a patch may touch."""

    @property
    def passes(self) -> bool:
        """True when an edit in this state lets its patch through."""
        return self in (State.APPLICABLE, State.MOVED)

    @property
    def rank(self) -> int:
        """How bad the state is: the state of a patch is the worst of its edits."""
        return list(State).index(self)


@dataclass(frozen=True)
class Anchor:
    """Exact text, found exactly `count` times inside `within` (a qualified name) or the whole file.

    Text without a newline is a part of one line. Text with newlines is a run of whole lines whose non-empty lines
    may all carry one common additional indentation. `line` is where the first one was seen: a hint, not the address.
    """

    text: str
    within: str | None = None
    count: int = 1
    line: int | None = None

    @property
    def is_block(self) -> bool:
        """True when the anchor is a run of whole lines."""
        return "\n" in self.text

    @property
    def lines(self) -> tuple[str, ...]:
        """The anchor's lines without their endings."""
        return tuple(self.text.removesuffix("\n").split("\n"))


@dataclass(frozen=True)
class Occurrence:
    """One place of an anchor: `source[start:end]`, its first line, and the indentation that edits there take on.

    A block's end is after the ending of its last line; `indent` is the block's additional indentation, or the
    leading whitespace of the line that holds a one-line anchor.
    """

    start: int
    end: int
    line: int
    indent: str


class ScopeError(Exception):
    """A scope cannot be looked for: the file is not Python that parses. The message says where and why."""


def occurrences(source: str, anchor: Anchor) -> tuple[Occurrence, ...]:
    """Every place of `anchor` in `source`, in order, overlapping ones too; the scope is not looked at."""
    places = _blocks(source, anchor.lines) if anchor.is_block else _substrings(source, anchor.text)
    return tuple(places)


def within(source: str, places: Sequence[Occurrence], name: str | None) -> tuple[Occurrence, ...]:
    """Those of `places` that lie completely inside the scope `name` (all of them for None).

    Raises ScopeError when the file does not parse; parses only when there is something to ask about.
    """
    if name is None or not places:
        return tuple(places)
    ranges = scopes(source).get(scope_name(name), ())
    return tuple(
        place
        for place in places
        if any(first <= place.line and _last_line(source, place) <= last for first, last in ranges)
    )


def scope_name(name: str) -> str:
    """A scope as people write it; `outer.<locals>.inner`, as Python prints it, means `outer.inner`."""
    return name.replace(".<locals>.", ".")


@lru_cache(maxsize=64)
def scopes(source: str) -> Mapping[str, list[Range]]:
    """The line ranges of every class and function by qualified name (`Backend.__init__`), decorators included.

    A name that is defined twice has two ranges. Raises ScopeError when `source` is not Python that parses.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in the engine's files is not our news
            module = ast.parse(source.encode("utf-8", "surrogateescape"))
    except SyntaxError as fault:
        raise ScopeError(f"line {fault.lineno or 1} does not parse: {fault.msg}") from fault
    except (ValueError, RecursionError, MemoryError) as fault:
        raise ScopeError(f"it does not parse: {fault or type(fault).__name__}") from fault
    ranges: dict[str, list[Range]] = {}
    _collect(module.body, "", ranges)
    if "\r" in source.replace("\r\n", ""):  # Python ends a line at a lone "\r" too, and counts differently
        _renumber(source, ranges)
    return ranges


def line_of(source: str, position: int) -> int:
    """The number of the line that holds `position`, counted from 1."""
    return source.count("\n", 0, position) + 1


def line_start(source: str, position: int) -> int:
    """Where the line that holds `position` begins."""
    return source.rfind("\n", 0, position) + 1


def line_end(source: str, position: int) -> int:
    """Where the line that holds `position` ends, its ending included."""
    return source.find("\n", position) + 1 or len(source)


def line_text(source: str, position: int) -> str:
    """The text of the line that holds `position`, without its ending."""
    return _content(source[line_start(source, position) : line_end(source, position)])


def lines_back(source: str, start: int, count: int) -> int | None:
    """Where the line begins that is `count` lines before the one that begins at `start`; None before the file."""
    for _ in range(count):
        if start == 0:
            return None
        start = line_start(source, start - 1)
    return start


def lines_at(source: str, start: int, lines: Sequence[str]) -> int | None:
    """Where the run of whole `lines` that begins at `start` ends, endings included; None when it is not there."""
    for line in lines:
        if start >= len(source):
            return None
        end = line_end(source, start)
        if _content(source[start:end]) != line:
            return None
        start = end
    return start


def newline_of(source: str, position: int) -> str:
    """The ending of the line that holds `position`; of the line before when it is the last and has none."""
    end = line_end(source, position)
    if not source.endswith("\n", 0, end):
        end = line_start(source, position)
    return "\r\n" if source.endswith("\r\n", 0, end) else "\n"


def indented(lines: Sequence[str], indent: str) -> list[str]:
    """The `lines`, each one that is not empty after `indent`."""
    return [indent + line if line else line for line in lines]


def _content(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _substrings(source: str, text: str) -> Iterator[Occurrence]:
    start, line, counted = source.find(text), 1, 0
    while start >= 0:
        line += source.count("\n", counted, start)
        counted = start
        yield Occurrence(start, start + len(text), line, leading_space(line_text(source, start)))
        start = source.find(text, start + 1)


def _blocks(source: str, lines: Sequence[str]) -> Iterator[Occurrence]:
    """Find the longest line first: that is one fast search, and its neighbours then decide."""
    pivot = max(range(len(lines)), key=lambda index: len(lines[index]))
    needle = lines[pivot]
    at = source.find(needle)
    while at >= 0:
        begin = line_start(source, at)
        indent = source[begin:at]
        if not indent.strip(" \t") and line_text(source, at) == indent + needle:
            start = lines_back(source, begin, pivot)
            end = None if start is None else lines_at(source, start, indented(lines, indent))
            if start is not None and end is not None:
                yield Occurrence(start, end, line_of(source, start), indent)
        at = source.find(needle, at + 1)


def leading_space(line: str) -> str:
    """The spaces and tabs that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t"))]


def _last_line(source: str, place: Occurrence) -> int:
    return place.line + source.count("\n", place.start, max(place.start, place.end - 1))


def _collect(body: list[ast.stmt], prefix: str, ranges: dict[str, list[Range]]) -> None:
    for statement in body:
        inner = prefix
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + statement.name
            first = min([statement.lineno, *(item.lineno for item in statement.decorator_list)])
            ranges.setdefault(name, []).append((first, statement.end_lineno or statement.lineno))
            inner = f"{name}."
        for part in ("body", "orelse", "finalbody"):
            if isinstance(below := getattr(statement, part, None), list):
                _collect(below, inner, ranges)
        for branch in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            _collect(branch.body, inner, ranges)


def _renumber(source: str, ranges: dict[str, list[Range]]) -> None:
    begins = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", source))]
    ours = [0, *(match.end() for match in re.finditer(r"\n", source))]
    for spans in ranges.values():
        spans[:] = [
            (bisect_right(ours, begins[first - 1]), bisect_right(ours, begins[last - 1])) for first, last in spans
        ]
