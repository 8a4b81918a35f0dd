"""Patch sets applied in order, in memory: what every anchor says, and the bytes that result."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kdeploy.patching.anchors import State
from kdeploy.patching.attempt import attempt
from kdeploy.patching.edits import Edit, RenameFile
from kdeploy.patching.finding import Finding
from kdeploy.patching.overlay import Content, Overlay, decoded
from kdeploy.patching.patchset import Patch, PatchSet, RetireWhen
from kdeploy.patching.reports import AnchorReport, Change, PatchReport, SeriesReport, half_applied
from kdeploy.patching.trees import FolderTree, MemoryTree, Tree

__all__ = [
    "AnchorReport", "Change", "CompileError", "FolderTree", "MemoryTree", "PatchReport", "SeriesReport", "Tree",
    "check", "compile_errors",
]  # fmt: skip


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
        run.patchset(one)
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


@dataclass(frozen=True)
class _Tried:
    """What the edits of one patch found, and what they changed."""

    found: list[tuple[Edit, Finding]]
    changes: tuple[Change, ...]


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

    def patchset(self, one: PatchSet) -> None:
        tried = [self._try(one.ref, patch) for patch in one.patches]
        everything = [found for each in tried for found in each.found]
        for patch, each in zip(one.patches, tried, strict=True):
            found = _settled(each.found, everything)
            reports = [self._report(one.ref, patch, edit, finding) for edit, finding in found]
            state = max((report.state for report in reports), key=lambda state: state.rank)
            changes = each.changes if state.passes else ()
            self.anchors += reports
            self.patches.append(
                PatchReport(one.ref, patch.name, patch.reason, patch.origin, state, half_applied(reports), changes)
            )

    def _try(self, ref: str, patch: Patch) -> _Tried:
        retired = patch.retire_when is not None and _retired(patch.retire_when, self.tree, self.engine_version)
        paths = {path for edit in patch.edits for path in _paths(edit)}
        before = {path: self.overlay.content(path) for path in sorted(paths)}
        pairs: list[tuple[Edit, Finding]] = []
        for edit in patch.edits:
            by = f"{ref} {patch.name}, edit {edit.number}"
            if retired:
                found: Sequence[Finding] = (Finding(State.UPSTREAMED, edit.where),)
            else:
                found = attempt(self.overlay, edit, by)
            earlier = self.unfit.get(edit.file)
            pairs += [(edit, _after_failure(finding, earlier)) for finding in found]
            if not all(finding.state.passes for finding in found):
                self.unfit.setdefault(edit.file, by)
        after = {path: self.overlay.content(path) for path in before}
        changes = [
            Change(path, old, after[path][0], old_mode, after[path][1])
            for path, (old, old_mode) in before.items()
            if (old, old_mode) != after[path]
        ]
        return _Tried(pairs, tuple(changes))

    @staticmethod
    def _report(ref: str, patch: Patch, edit: Edit, finding: Finding) -> AnchorReport:
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
            details=finding.details,
            where=finding.where,
        )


def _after_failure(finding: Finding, earlier: str | None) -> Finding:
    if earlier is None or finding.state not in (State.MISSING, State.AMBIGUOUS):
        return finding
    return replace(finding, details=(*finding.details, f"an earlier edit of this file did not fit: {earlier}"))


def _settled(
    found: Sequence[tuple[Edit, Finding]], of_the_set: Sequence[tuple[Edit, Finding]]
) -> list[tuple[Edit, Finding]]:
    """Takes an edit that is perhaps applied as applied when all edits that can tell say so.

    Those of its own patch are asked; if none of them can tell, those of its set.
    """
    for witnesses in (found, of_the_set):
        states = {finding.state for _, finding in witnesses if not finding.perhaps_applied}
        if states:
            break
    if states != {State.APPLIED}:
        return list(found)
    why = "taken as applied, as the other edits are"
    return [
        (edit, replace(one, state=State.APPLIED, details=(why, *one.details)) if one.perhaps_applied else one)
        for edit, one in found
    ]


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
