"""What the verbs that touch no host have found, as people see it."""

from __future__ import annotations

from collections.abc import Sequence

from kdeploy import render
from kdeploy.api.stages import Verified
from kdeploy.stage.prove import Proven


def anchors(verified: Sequence[Verified]) -> list[dict[str, object]]:
    """The anchors of `verify-anchors` as JSON: states and places, without the files' bytes."""
    return [
        {"engine": one.engine, "patchsets": one.refs, "ok": one.report.ok, "anchors": one.report.anchors}
        for one in verified
    ]


def show_anchors(verified: Sequence[Verified]) -> None:
    """One line an anchor, `path:line: text` as grep -n has it, then its state and whose it is."""
    for one in verified:
        rows = []
        for anchor in one.report.anchors:
            place = f"{anchor.file}:{anchor.line}:" if anchor.line else f"{anchor.file}:"
            hinted = f" (hint {anchor.hint})" if anchor.state == "moved" else ""
            text = anchor.text.strip() or (anchor.details[0] if anchor.details else "")
            rows.append((f"{place} {text}", f"{anchor.state}{hinted}", f"{anchor.ref} {anchor.patch}"))
        render.table(rows, head=(f"{' + '.join(one.refs)} on {one.engine}", "state", "patch"))


def show_proofs(proven: Sequence[Proven]) -> None:
    """What each proof said on the pristine tree and on the patched one."""
    for one in proven:
        again = " (known from an earlier run)" if one.cached else ""
        render.lines(
            [
                f"{one.patchset} {one.proof}{again}",
                f"  pristine, must fail: {one.red.seconds:5.1f} s  {one.red.says}",
                f"  patched, must pass:  {one.green.seconds:5.1f} s  {one.green.says}",
            ]
        )
    if not proven:
        render.lines(["its patch sets have no proofs"])
