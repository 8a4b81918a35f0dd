"""Whether the hunks of a unified diff fit a text: exact lines, exactly once, no fuzz, line numbers as hints only."""

from __future__ import annotations

import re

from kdeploy.patching.anchors import HEADING, Anchor, Occurrence, State, line_of, line_start
from kdeploy.patching.edits import ApplyHunks, Hunk
from kdeploy.patching.finding import Finding, Origin, Splice, Subject, outside


def judge(source: str, edit: ApplyHunks, origin: Origin = lambda line: line) -> tuple[Finding, ...]:
    """What each hunk of `edit` finds in `source`: all are looked for in the text as it is before the diff.

    A hunk fits when its lines before stand exactly once, under the heading that its header names, if it names one.
    """
    findings: list[Finding] = []
    for hunk in edit.hunks:
        subject = Subject(source, hunk.where, hunk.line, origin)
        found = _judge(subject, hunk)
        if any(_clash(mine, other) for mine in found.splices for item in findings for other in item.splices):
            problem = "its lines overlap those of another hunk of its diff"
            found = Finding(State.AMBIGUOUS, hunk.where, found.line, found.text, hunk.line, details=(problem,))
        findings.append(found)
    return tuple(findings)


def _judge(subject: Subject, hunk: Hunk) -> Finding:
    everywhere = _whole_lines(subject.source, hunk.before)
    places = [place for place in everywhere if _under_heading(subject.source, place, hunk)]
    results = [
        place for place in _whole_lines(subject.source, hunk.after) if _under_heading(subject.source, place, hunk)
    ]
    waiting = outside(places, results)
    if len(results) == 1 and not waiting:
        return subject.found(State.APPLIED, results[0].start)
    if len(places) > 1:
        details: tuple[str, ...] = (f"its lines stand {len(places)} times, at {subject.lines(places)}",)
        return subject.found(State.AMBIGUOUS, places[0].start, details)
    if places:
        return subject.found(
            State.APPLICABLE, places[0].start, splices=[Splice(places[0].start, places[0].end, hunk.after)]
        )
    if everywhere:
        details = (
            f"its lines stand at {subject.lines(everywhere)}, but not under '{hunk.heading}' as its header says",
        )
        return subject.missing(details)
    details = subject.nearest(Anchor(hunk.before.replace("\r\n", "\n")))
    if results:
        stands = f"its result stands at {subject.lines(results)}: whether by this diff cannot be told"
        details = (stands, *details)
    return subject.missing(details, perhaps_applied=bool(results) or not hunk.after.strip())


def _whole_lines(source: str, text: str) -> list[Occurrence]:
    """Where `text` stands as whole lines, endings included; text without a final newline must end the file."""
    found: list[Occurrence] = []
    at = source.find(text) if text.strip() else -1
    while at >= 0:
        end = at + len(text)
        if line_start(source, at) == at and (text.endswith("\n") or end == len(source)):
            found.append(Occurrence(at, end, line_of(source, at), ""))
        at = source.find(text, at + 1)
    return found


def _under_heading(source: str, place: Occurrence, hunk: Hunk) -> bool:
    """Whether the class or function before `place` is the one that the hunk header names.

    A twin of the lines in another function is what git apply and patch edit when the place that was meant is gone.
    Git names the last line before the hunk that begins in column one, or with its Python driver the last `def` or
    `class`: either may be what the header has. A hunk that shows a `def` before its first change needs no header.
    """
    if hunk.heading is None or _names_its_place(hunk):
        return True
    above = source[: place.start].split("\n")
    last = next((match[1] for line in reversed(above) if (match := HEADING.match(line))), None)
    top = HEADING.match(next((line for line in reversed(above) if re.match(r"[A-Za-z_$]", line)), ""))
    return hunk.heading in (last, top[1] if top else None)


def _names_its_place(hunk: Hunk) -> bool:
    for before, after in zip(hunk.before.split("\n"), hunk.after.split("\n"), strict=False):
        if HEADING.match(before):
            return True
        if before != after:
            return False
    return False


def _clash(first: Splice, second: Splice) -> bool:
    return first.start < second.end and second.start < first.end
