"""What an edit finds in a text: a state, a place, the evidence, and the splices that would make the edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kdeploy.errors import Location
from kdeploy.patching.anchors import Anchor, Occurrence, State, line_of, line_text
from kdeploy.patching.nearest import nearest

Origin = Callable[[int], int]


@dataclass(frozen=True)
class Splice:
    """Put `text` in the place of `source[start:end]`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """What an edit found: its state, the line and its text, the splices (only when it passes), and the evidence.

    `perhaps_applied`: the edit's text is missing, and nothing in this file tells whether the edit made it so.
    """

    state: State
    where: Location
    line: int | None = None
    text: str = ""
    hint: int | None = None
    splices: tuple[Splice, ...] = ()
    details: tuple[str, ...] = ()
    perhaps_applied: bool = False


@dataclass(frozen=True)
class Subject:
    """A text an edit is tried on: where the edit is written, its line hint, and how lines are told to people.

    `origin` turns a line of `source` into the line people know, that of the file before anything was patched.
    """

    source: str
    where: Location
    hint: int | None
    origin: Origin

    def found(self, state: State, at: int, details: Sequence[str] = (), splices: Sequence[Splice] = ()) -> Finding:
        """A finding at the position `at`; an applicable one is `moved` when the hint says another line."""
        line = line_of(self.source, at)
        known = self.origin(line)
        if state is State.APPLICABLE and self.hint not in (None, line, known):
            state = State.MOVED
        text = line_text(self.source, at).strip()
        return Finding(state, self.where, known, text, self.hint, tuple(splices), tuple(details))

    def missing(self, details: Sequence[str], perhaps_applied: bool = False) -> Finding:
        """A finding without a place."""
        return Finding(
            State.MISSING, self.where, hint=self.hint, details=tuple(details), perhaps_applied=perhaps_applied
        )

    def lines(self, places: Iterable[Occurrence]) -> str:
        """The lines of `places`, for people."""
        numbers = [str(self.origin(place.line)) for place in places]
        return ("line " if len(numbers) == 1 else "lines ") + ", ".join(numbers)

    def nearest(self, anchor: Anchor) -> tuple[str, ...]:
        """What comes nearest to `anchor`, with a diff."""
        near = nearest(self.source, anchor)
        if near is None:
            return ("nothing in the file is like it",)
        return (f"nearest, at line {self.origin(near.line)} ({near.ratio:.0%} alike):", *near.diff)


def splice(source: str, splices: Iterable[Splice]) -> str:
    """Make all `splices`, which do not overlap, at once."""
    parts, done = [], 0
    for item in sorted(splices, key=lambda item: (item.start, item.end)):
        parts += [source[done : item.start], item.text]
        done = item.end
    return "".join([*parts, source[done:]])


def outside(places: Sequence[Occurrence], results: Sequence[Occurrence]) -> list[Occurrence]:
    """The `places` that are not inside a result: a result may well repeat the text it was made from."""
    return [p for p in places if not any(r.start <= p.start and p.end <= r.end for r in results)]
