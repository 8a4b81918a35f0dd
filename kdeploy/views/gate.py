"""What the gate says of what serves, as people see it and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from kdeploy import render
from kdeploy.api.calibration import Calibrated
from kdeploy.api.gate import Gated
from kdeploy.api.recording import Recorded
from kdeploy.verdict.judge import Outcome

_OUTCOMES = {Outcome.PASSED: "passed", Outcome.FAILED: "FAILED", Outcome.NOT_APPLICABLE: "-"}


def gated(found: Sequence[Gated]) -> list[dict[str, object]]:
    """What `gate` has found as JSON: the verdicts with their evidence; the transcripts are long, and on the pages."""
    return [
        {
            "host": one.host,
            "service": one.service,
            "url": one.url,
            "live": one.live,
            "verdict": one.verdict.as_json(),
            "seconds": one.seconds,
            "page": one.page,
        }
        for one in found
    ]


def show_gated(found: Sequence[Gated]) -> None:
    """Every check of every server, the evidence of those that say no, and what that means."""
    for one in found:
        checks = one.verdict.checks
        rows = [(check.name, _OUTCOMES[check.outcome], check.detail) for check in checks]
        render.table(rows, head=(one.host, "", ""))
        evidence = [f"  {check.name}: {line}" for check in one.verdict.failed for line in check.evidence]
        render.lines(["", *evidence] if evidence else [])
        said = f"{one.host}: {one.live or one.url}"
        if one.verdict.accepted:
            render.lines([f"{said}: {len(checks)} checks passed in {one.seconds:.1f} s"])
        else:
            names = ", ".join(check.name for check in one.verdict.failed)
            render.lines([f"{said}: the gate says no ({names}); nothing was changed"])
        render.lines([f"  page      {one.page}"] if one.page else [])


def show_recorded(recorded: Recorded) -> None:
    """What was recorded, and what to do with it."""
    render.lines(
        [
            f"{recorded.file}: {recorded.references} of {recorded.prompts} prompts with what {recorded.host} answers",
            "  to judge by it, say so in a profile of the same model:  gate: {prompts: PATH}",
        ]
    )


def show_calibrated(calibrated: Calibrated) -> None:
    """What was measured, where it is kept, and the line that the profile needs, if it lacks it."""
    render.table(calibrated.figures, head=("threshold", "value", "seen"))
    render.lines([f"{calibrated.file}: {calibrated.runs} runs on {calibrated.host}"])
    if calibrated.line:
        render.lines([f"  the profile does not name it yet:  {calibrated.line}"])
