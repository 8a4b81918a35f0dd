"""Whether an edit at an anchor fits a text, and the splices it would make.

Nothing is guessed: the anchor is found exactly as often as it should be, or the edit does not fit. The text has the
result already (`applied`) only when the result stands in its place and no other place waits for the edit.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence

from kdeploy.patching.anchors import (
    Anchor,
    Occurrence,
    ScopeError,
    State,
    indented,
    leading_space,
    line_end,
    line_of,
    line_start,
    lines_at,
    lines_back,
    newline_of,
    occurrences,
    scope_name,
    scopes,
    within,
)
from kdeploy.patching.edits import InsertAfter, InsertBefore, Replace, TextEdit
from kdeploy.patching.finding import Finding, Origin, Splice, Subject, outside


def judge(source: str, edit: TextEdit, origin: Origin = lambda line: line) -> Finding:
    """What `edit` finds in `source`; its splices make the edit when it passes."""
    subject = Subject(source, edit.where, edit.anchor.line, origin)
    try:
        return _judge(subject, edit)
    except ScopeError as fault:
        return subject.missing((f"the scope '{edit.anchor.within}' cannot be looked for: {fault}",))


def _judge(subject: Subject, edit: TextEdit) -> Finding:
    source, anchor = subject.source, edit.anchor
    everywhere = occurrences(source, anchor)
    places = within(source, everywhere, anchor.within)
    waiting, done = _replaced(subject, edit, places) if isinstance(edit, Replace) else _inserted(source, edit, places)
    if done and not waiting and len(done) == anchor.count:
        return subject.found(State.APPLIED, done[0].start)
    if done and len(waiting) < len(places):
        stands = f"its result stands at {subject.lines(done)} already"
        rest = f"; {subject.lines(waiting)} without it" if waiting else f"; wanted {anchor.count}"
        return subject.found(State.AMBIGUOUS, (waiting or done)[0].start, (stands + rest,))
    if len(places) > anchor.count:
        details = (f"found {len(places)} times, at {subject.lines(places)}; wanted {anchor.count}",)
        return subject.found(State.AMBIGUOUS, places[0].start, details)
    if len(places) < anchor.count:
        return _missing(subject, edit, everywhere, places, done)
    if any(later.start < former.end for former, later in itertools.pairwise(places)):
        return subject.found(State.AMBIGUOUS, places[0].start, (f"{subject.lines(places)}: its places overlap",))
    return subject.found(State.APPLICABLE, places[0].start, splices=_splices(source, edit, places))


def _inserted(
    source: str, edit: InsertAfter | InsertBefore, places: Sequence[Occurrence]
) -> tuple[list[Occurrence], list[Occurrence]]:
    """The places without the inserted lines beside them, and those with them; none that is inside inserted lines."""
    waiting, done = [], []
    covered = (-1, -1)
    for place in places if isinstance(edit, InsertAfter) else reversed(places):
        if covered[0] <= place.start < covered[1]:
            continue
        lines = indented(_lines(edit.text), place.indent)
        start: int | None = _end_of_lines(source, edit.anchor, place)
        if isinstance(edit, InsertBefore):
            start = lines_back(source, line_start(source, place.start), len(lines))
        end = None if start is None else lines_at(source, start, lines)
        if start is None or end is None:
            waiting.append(place)
        else:
            covered = (start, end)
            done.append(place)
    return sorted(waiting, key=_start), sorted(done, key=_start)


def _replaced(
    subject: Subject, edit: Replace, places: Sequence[Occurrence]
) -> tuple[list[Occurrence], list[Occurrence]]:
    """The places outside of every replacement, and the replacements themselves.

    A replacement without visible text would stand everywhere, so it is never seen.
    """
    source, anchor = subject.source, edit.anchor
    results: list[Occurrence] = []
    if anchor.is_block and edit.text.strip():
        results = list(occurrences(source, Anchor("\n".join(_lines(edit.text)) + "\n")))
    elif edit.text.strip():
        first = _lines(edit.text)[0]
        starts = [place.start for place in occurrences(source, Anchor(first))] if first else _line_ends(source)
        for at in starts:
            before = source[line_start(source, at) : at] + anchor.text
            text = _inline(source, edit.text, at, leading_space(before))
            if source.startswith(text, at):
                results.append(Occurrence(at, at + len(text), line_of(source, at), ""))
    results = list(within(source, results, anchor.within))
    if not places and len(results) > anchor.count == 1:  # equal text elsewhere: only a hint can tell them apart
        results = [r for r in results if anchor.line in (r.line, subject.origin(r.line))] or results
    return outside(places, results), results


def _splices(source: str, edit: TextEdit, places: Sequence[Occurrence]) -> tuple[Splice, ...]:
    if isinstance(edit, Replace):
        return tuple(_replacement(source, edit, place) for place in places)
    points: dict[int, Splice] = {}  # two anchors on one line: its insertion is made once
    for place in places:
        lines = indented(_lines(edit.text), place.indent)
        if isinstance(edit, InsertBefore):
            point = line_start(source, place.start)
        else:
            point = _end_of_lines(source, edit.anchor, place)
        newline = newline_of(source, place.end - 1)
        if point == 0 or source.endswith("\n", 0, point):
            text = "".join(line + newline for line in lines)
        else:  # the file does not end in a newline, and will not afterwards, unless an empty line needs one to be there
            text = "".join(newline + line for line in lines) + ("" if lines[-1] else newline)
        points[point] = Splice(point, point, text)
    return tuple(points.values())


def _replacement(source: str, edit: Replace, place: Occurrence) -> Splice:
    if not edit.anchor.is_block:
        return Splice(place.start, place.end, _inline(source, edit.text, place.start, place.indent))
    newline = newline_of(source, place.start)
    lines = indented(_lines(edit.text), place.indent) if edit.text else []
    text = "".join(line + newline for line in lines)
    if lines and lines[-1] and not source.endswith("\n", 0, place.end):
        text = text.removesuffix(newline)
    return Splice(place.start, place.end, text)


def _inline(source: str, text: str, position: int, indent: str) -> str:
    first, *rest = _lines(text)
    return newline_of(source, position).join([first, *indented(rest, indent)])


def _end_of_lines(source: str, anchor: Anchor, place: Occurrence) -> int:
    return place.end if anchor.is_block else line_end(source, place.start)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _line_ends(source: str) -> list[int]:
    return [match.start() for match in re.finditer(r"\r?\n", source)]


def _start(place: Occurrence) -> int:
    return place.start


def _missing(
    subject: Subject,
    edit: TextEdit,
    everywhere: Sequence[Occurrence],
    places: Sequence[Occurrence],
    results: Sequence[Occurrence],
) -> Finding:
    anchor = edit.anchor
    deletes = isinstance(edit, Replace) and not edit.text.strip()
    details = []
    if places:
        details.append(f"found {len(places)} times only, at {subject.lines(places)}; wanted {anchor.count}")
    elif everywhere:
        details.append(f"it stands at {subject.lines(everywhere)}, but not inside '{anchor.within}'")
    if results:
        details.append(f"its replacement stands at {subject.lines(results)}: whether by this edit cannot be told")
    elif deletes and not places:
        details.append("the edit deletes this text: whether it did, or upstream, cannot be told")
    if anchor.within:
        details += _about_scope(subject, anchor.within)
    if not everywhere:
        details += subject.nearest(anchor)
    return subject.missing(details, perhaps_applied=not places and (bool(results) or deletes))


def _about_scope(subject: Subject, name: str) -> list[str]:
    known = scopes(subject.source)
    ranges = known.get(scope_name(name))
    if ranges:
        spans = ", ".join(f"{subject.origin(first)}-{subject.origin(last)}" for first, last in ranges)
        return [f"'{name}' is at lines {spans}"]
    near = difflib.get_close_matches(scope_name(name), known, n=1)
    return [f"the file has no '{name}'" + (f"; the nearest is '{near[0]}'" if near else "")]
