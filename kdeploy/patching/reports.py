"""What the check of a series says: of every edit, of every patch, and of the whole."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kdeploy.errors import AnchorError, Location
from kdeploy.patching.anchors import State
from kdeploy.patching.overlay import Content

_WHAT_NOW = {
    State.APPLIED: "start from the pristine engine; if it does this by itself now, drop the patch",
    State.UPSTREAMED: "the engine does this by itself now: drop the patch from the series",
    State.MISSING: "compare with the nearest text, look at what upstream changed there, and mend the anchor",
    State.AMBIGUOUS: "make one place the only one: a longer anchor, `within:`, or the right `count:`",
    State.OUTSIDE: "give the path as it is in the wheel, or drop the edit if the engine no longer has the file",
}


@dataclass(frozen=True)
class AnchorReport:
    """What one edit (or one hunk of a diff) found: its state, and the line and text of the place.

    Lines are those of the base, as `grep -n` shows them, unless a patch put the place there. `where` is the edit in
    the patch's file, or the hunk in the diff's.
    """

    ref: str
    patch: str
    edit: int
    action: str
    file: str
    line: int | None
    text: str
    state: State
    hint: int | None
    details: tuple[str, ...]
    where: Location

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{self.ref} {self.patch}, edit {self.edit} ({self.action}) of {place}"


@dataclass(frozen=True)
class Change:
    """One file before and after a patch; None where the file is not there."""

    path: str
    before: bytes | None
    after: bytes | None
    executable_before: bool = False
    executable_after: bool = False

    @property
    def added(self) -> int:
        """Lines that the patch adds."""
        return self._counts[0]

    @property
    def removed(self) -> int:
        """Lines that the patch removes."""
        return self._counts[1]

    @cached_property
    def _counts(self) -> tuple[int, int]:
        old, new = (side.splitlines(keepends=True) if side else [] for side in (self.before, self.after))
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        steps = [step for step in matcher.get_opcodes() if step[0] != "equal"]
        return sum(step[4] - step[3] for step in steps), sum(step[2] - step[1] for step in steps)


@dataclass(frozen=True)
class PatchReport:
    """One patch: the worst state of its edits, and its changes when all of them let it through."""

    ref: str
    name: str
    reason: str
    origin: str
    state: State
    details: tuple[str, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class SeriesReport:
    """All patches of all sets in sequence; `changes` (path to bytes or None, and executable) is empty unless `ok`."""

    anchors: tuple[AnchorReport, ...]
    patches: tuple[PatchReport, ...]
    changes: Mapping[str, Content]

    @property
    def ok(self) -> bool:
        """True when every patch is applicable or moved."""
        return all(patch.state.passes for patch in self.patches)

    def require(self) -> None:
        """Raise AnchorError with set, patch, file, line, evidence and what to do, unless `ok`."""
        bad = [item for item in self.anchors if not item.state.passes]
        if not bad:
            return
        first, others = bad[0], bad[1:]
        patch = next(item for item in self.patches if (item.ref, item.name) == (first.ref, first.patch))
        message = {
            State.APPLIED: f"already applied: {first}",
            State.UPSTREAMED: f"upstreamed: {first.ref} {first.patch}: its retire-when is true",
        }.get(first.state, f"{first.state}: {first}")
        details = [*patch.details, *first.details]
        details += [": ".join((f"also {item.state}: {item} ({item.where})", *item.details[:1])) for item in others]
        raise AnchorError(message, where=first.where, hint=_WHAT_NOW[first.state], details=tuple(details))


def half_applied(reports: Sequence[AnchorReport]) -> tuple[str, ...]:
    """Says which edits of a patch are in the tree and which are not, when it is some of each."""
    applied = [item for item in reports if item.state is State.APPLIED]
    others = [item for item in reports if item.state is not State.APPLIED]
    if not applied or not others:
        return ()
    return (f"half applied: {_names(applied)} in the tree, {_names(others)} not",)


def _names(reports: Iterable[AnchorReport]) -> str:
    names = [f"{item.edit} ({item.file}{f':{item.line}' if item.line else ''})" for item in reports]
    return ("edit " if len(names) == 1 else "edits ") + ", ".join(names)
