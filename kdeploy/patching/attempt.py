"""One edit tried on a tree with the changes so far: made when it fits, explained when it does not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from kdeploy.patching import fit, hunks
from kdeploy.patching.anchors import State, occurrences
from kdeploy.patching.edits import (
    AddFile,
    ApplyHunks,
    DeleteFile,
    Edit,
    InsertAfter,
    InsertBefore,
    RenameFile,
    Replace,
    SetExecutable,
    TextEdit,
)
from kdeploy.patching.finding import Finding, Origin, splice
from kdeploy.patching.overlay import Overlay, decoded


def attempt(overlay: Overlay, edit: Edit, by: str) -> tuple[Finding, ...]:
    """Judge `edit` on `overlay` and make it there when all its findings pass; `by` names it in later findings.

    Gives one finding, or one for each hunk of a diff.
    """
    match edit:
        case AddFile():
            return (_add(overlay, edit, by),)
        case DeleteFile():
            return (_delete(overlay, edit, by),)
        case RenameFile():
            return (_rename(overlay, edit, by),)
        case SetExecutable():
            return (_mode(overlay, edit, by),)
        case _:
            assert isinstance(edit, TextEdit | ApplyHunks)
            return _text(overlay, edit, by)


def _text(overlay: Overlay, edit: TextEdit | ApplyHunks, by: str) -> tuple[Finding, ...]:
    source = overlay.text(edit.file)
    if source is None:
        return (_outside(overlay, edit, edit.file),)
    findings = _judge(source, edit, lambda line: overlay.base_line(edit.file, line))
    if all(item.state.passes for item in findings):
        splices = [one for item in findings for one in item.splices]
        if _fits_again(splice(source, splices), edit):
            why = "its result would let it through once more: make the anchor longer, or name its scope"
            return tuple(replace(item, state=State.AMBIGUOUS, splices=(), details=(why,)) for item in findings)
        overlay.edit(edit.file, splices, by)
        return findings
    if not (culprit := _culprit(overlay, edit)):
        return findings
    return tuple(item if item.state.passes else _blame(item, culprit) for item in findings)


def _judge(source: str, edit: TextEdit | ApplyHunks, origin: Origin) -> tuple[Finding, ...]:
    if isinstance(edit, ApplyHunks):
        return hunks.judge(source, edit, origin)
    return (fit.judge(source, edit, origin),)


def _fits_again(after: str, edit: TextEdit | ApplyHunks) -> bool:
    """Whether a second application would pass, as when `x,` becomes `x` and `x,,` stood there.

    An insertion is always seen beside its anchor, so only edits that take something away are asked.
    """
    if isinstance(edit, InsertAfter | InsertBefore):
        return False
    if isinstance(edit, Replace) and not occurrences(after, edit.anchor):
        return False
    return all(item.state.passes for item in _judge(after, edit, lambda line: line))


def _culprit(overlay: Overlay, edit: TextEdit | ApplyHunks) -> str | None:
    """Who made the change after which `edit` no longer fits; None when it did not fit before either."""
    steps: Sequence[tuple[str, bytes | None]] = [(step.by, step.before) for step in overlay.steps(edit.file)]
    for by, before in reversed(steps):
        if before is not None and all(f.state.passes for f in _judge(decoded(before), edit, lambda line: line)):
            return by
    return None


def _blame(finding: Finding, culprit: str) -> Finding:
    verb = "was made already by" if finding.state is State.APPLIED else "fits before the change made by"
    return replace(finding, details=(f"it {verb} {culprit}", *finding.details))


def _add(overlay: Overlay, edit: AddFile, by: str) -> Finding:
    if (obstacle := overlay.obstacle(edit.file)) is not None:
        return Finding(State.OUTSIDE, edit.where, details=(obstacle,))
    content, executable = overlay.content(edit.file)
    if content is None:
        overlay.put(edit.file, edit.content, edit.executable, by)
        return Finding(State.APPLICABLE, edit.where, 1, _first_line(edit.content))
    earlier = [f"it was put there by {step.by}" for step in overlay.steps(edit.file)[-1:]]
    if content != edit.content:
        details = ("two contents claim this path: the file is there, and is another", *earlier)
        return Finding(State.AMBIGUOUS, edit.where, 1, _first_line(content), details=details)
    if executable != edit.executable:
        details = ("the file is there with the same content and another executable bit", *earlier)
        return Finding(State.AMBIGUOUS, edit.where, 1, _first_line(content), details=details)
    return Finding(State.APPLIED, edit.where, 1, _first_line(content), details=tuple(earlier))


def _delete(overlay: Overlay, edit: DeleteFile, by: str) -> Finding:
    if (obstacle := overlay.obstacle(edit.file)) is not None:
        return Finding(State.OUTSIDE, edit.where, details=(obstacle,))
    content, _ = overlay.content(edit.file)
    if content is None:
        return Finding(State.APPLIED, edit.where, details=("the file is gone already",))
    digest = hashlib.sha256(content).hexdigest()
    if digest != edit.sha256:
        details = (f"the file to delete has sha256 {digest}", f"the patch was made for    {edit.sha256}")
        return Finding(State.MISSING, edit.where, details=details)
    overlay.put(edit.file, None, False, by)
    return Finding(State.APPLICABLE, edit.where, 1, _first_line(content))


def _rename(overlay: Overlay, edit: RenameFile, by: str) -> Finding:
    content, executable = overlay.content(edit.file)
    there, _ = overlay.content(edit.to)
    if content is None:
        if there is not None:
            return Finding(State.APPLIED, edit.where, 1, _first_line(there))
        return _outside(overlay, edit, edit.file)
    if there is not None:
        details = (f"two contents claim a path: {edit.to} is there already",)
        return Finding(State.AMBIGUOUS, edit.where, details=details)
    if (obstacle := overlay.obstacle(edit.to)) is not None:
        return Finding(State.OUTSIDE, edit.where, details=(obstacle,))
    overlay.put(edit.file, None, False, by)
    overlay.put(edit.to, content, executable, by)
    return Finding(State.APPLICABLE, edit.where, 1, _first_line(content))


def _mode(overlay: Overlay, edit: SetExecutable, by: str) -> Finding:
    content, executable = overlay.content(edit.file)
    if content is None:
        return _outside(overlay, edit, edit.file)
    if executable == edit.executable:
        return Finding(State.APPLIED, edit.where, 1, _first_line(content))
    overlay.put(edit.file, content, edit.executable, by)
    return Finding(State.APPLICABLE, edit.where, 1, _first_line(content))


def _outside(overlay: Overlay, edit: Edit, path: str) -> Finding:
    deleted = [f"it was deleted by {step.by}" for step in overlay.steps(path)[-1:]]
    reason = overlay.obstacle(path) or f"{path} is not in the base"
    return Finding(State.OUTSIDE, edit.where, details=(reason, *deleted))


def _first_line(content: bytes) -> str:
    return decoded(content[:400].partition(b"\n")[0]).strip()
