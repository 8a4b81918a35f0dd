"""Patch sets applied in order, in memory: what every anchor says, and the bytes that result."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kdeploy.anchors import State
from kdeploy.attempt import attempt
from kdeploy.edits import Edit, RenameFile
from kdeploy.errors import AnchorError, Location
from kdeploy.fit import Finding
from kdeploy.overlay import Content, Overlay, decoded
from kdeploy.patchset import Patch, PatchSet, RetireWhen
from kdeploy.trees import FolderTree, MemoryTree, Tree

__all__ = [
    "AnchorReport", "Change", "CompileError", "FolderTree", "MemoryTree", "PatchReport", "SeriesReport", "Tree",
    "check", "compile_errors",
]  # fmt: skip

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
        details += [f"also {item.state}: {item} ({item.where})" for item in others]
        raise AnchorError(message, where=first.where, hint=_WHAT_NOW[first.state], details=tuple(details))


@dataclass(frozen=True)
class CompileError:
    """A Python file that does not compile after patching; `text` is its line."""

    path: str
    line: int
    text: str
    message: str


def check(tree: Tree, sets: Sequence[PatchSet], engine_version: str) -> SeriesReport:
    """Go through all patches of `sets` in sequence on `tree`, each edit on the result of the former ones.

    Goes on after a failure, so that everything is reported at once. Writes nothing.
    """
    run = _Run(tree, engine_version)
    for one in sets:
        for patch in one.patches:
            run.patch(one.ref, patch)
    ok = all(item.state.passes for item in run.patches)
    return SeriesReport(tuple(run.anchors), tuple(run.patches), run.overlay.changed if ok else {})


def compile_errors(changes: Mapping[str, Content]) -> tuple[CompileError, ...]:
    """The Python files among `changes` (as in SeriesReport) that do not compile."""
    errors = []
    for path, (content, _) in changes.items():
        if content is None or not path.endswith(".py"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(content, path, "exec", dont_inherit=True)
        except SyntaxError as fault:
            line = fault.lineno or 1
            text = [*decoded(content).splitlines(), *[""] * line][line - 1].strip()
            errors.append(CompileError(path, line, text, fault.msg))
        except (ValueError, RecursionError, MemoryError) as fault:
            errors.append(CompileError(path, 1, "", str(fault) or type(fault).__name__))
    return tuple(errors)


@dataclass
class _Run:
    """A series on its way."""

    tree: Tree
    engine_version: str
    anchors: list[AnchorReport] = field(default_factory=list)
    patches: list[PatchReport] = field(default_factory=list)
    unfit: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.overlay = Overlay(self.tree)

    def patch(self, ref: str, patch: Patch) -> None:
        retired = patch.retire_when is not None and _retired(patch.retire_when, self.tree, self.engine_version)
        paths = {path for edit in patch.edits for path in _paths(edit)}
        before = {path: self.overlay.content(path) for path in sorted(paths)}
        reports: list[AnchorReport] = []
        for edit in patch.edits:
            by = f"{ref} {patch.name}, edit {edit.number}"
            if retired:
                found: Sequence[Finding] = (Finding(State.UPSTREAMED, edit.where),)
            else:
                found = attempt(self.overlay, edit, by)
            reports += [self._report(ref, patch, edit, finding) for finding in found]
            if not all(finding.state.passes for finding in found):
                self.unfit.setdefault(edit.file, by)
        state = max((report.state for report in reports), key=lambda state: state.rank)
        changes: list[Change] = []
        if state.passes:
            after = {path: self.overlay.content(path) for path in before}
            changes = [
                Change(path, old, after[path][0], old_mode, after[path][1])
                for path, (old, old_mode) in before.items()
                if (old, old_mode) != after[path]
            ]
        self.anchors += reports
        self.patches.append(
            PatchReport(ref, patch.name, patch.reason, patch.origin, state, _half(reports), tuple(changes))
        )

    def _report(self, ref: str, patch: Patch, edit: Edit, finding: Finding) -> AnchorReport:
        details = finding.details
        if finding.state in (State.MISSING, State.AMBIGUOUS) and edit.file in self.unfit:
            details = (f"an earlier edit of this file did not fit: {self.unfit[edit.file]}", *details)
        return AnchorReport(
            ref=ref,
            patch=patch.name,
            edit=edit.number,
            action=edit.action,
            file=edit.file,
            line=finding.line,
            text=finding.text,
            state=finding.state,
            hint=finding.hint,
            details=details,
            where=finding.where,
        )


def _half(reports: Sequence[AnchorReport]) -> tuple[str, ...]:
    """Says which edits of a patch are in the tree and which are not, when it is some of each."""
    applied = [item for item in reports if item.state is State.APPLIED]
    others = [item for item in reports if item.state is not State.APPLIED]
    if not applied or not others:
        return ()
    return (f"half applied: {_names(applied)} in the tree, {_names(others)} not",)


def _names(reports: Iterable[AnchorReport]) -> str:
    names = [f"{item.edit} ({item.file}{f':{item.line}' if item.line else ''})" for item in reports]
    return ("edit " if len(names) == 1 else "edits ") + ", ".join(names)


def _retired(when: RetireWhen, tree: Tree, engine_version: str) -> bool:
    if when.engine is not None:
        from packaging.specifiers import SpecifierSet

        if not SpecifierSet(when.engine).contains(engine_version, prereleases=True):
            return False
    if when.file is not None and when.contains is not None:
        content = tree.read(when.file)
        return content is not None and when.contains in decoded(content).replace("\r\n", "\n")
    return True


def _paths(edit: Edit) -> tuple[str, ...]:
    return (edit.file, edit.to) if isinstance(edit, RenameFile) else (edit.file,)
