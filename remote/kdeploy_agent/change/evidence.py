"""What stays with a release of how it was judged: the transcript, the verdict, the plan, and why it was rejected."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List

from kdeploy_agent.ground import files, secrets
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.order import Order


def seen(layout: Layout, release: str, transcript: Dict[str, Any]) -> None:
    """Keep what a release was seen to do just now; nothing secret stays in it."""
    files.write(layout.evidence(release) / "transcript.json", files.canonical(secrets.mask_all(layout, transcript)))


def judged(layout: Layout, release: str, verdict: Dict[str, Any]) -> None:
    """Keep what was said about it."""
    files.write(layout.evidence(release) / "verdict.json", files.canonical(secrets.mask_all(layout, verdict)))


def confirmed(layout: Layout, order: Order) -> None:
    """Keep the plan that a release was confirmed with, and what it showed then.

    Later ones are compared with that, and not with what it was seen to do on a day on which it was rejected.
    """
    folder = layout.evidence(order.release["id"])
    files.write(folder / "plan.json", files.ordered({"probes": order.probes, "start_s": order.start_s}))
    transcript = files.read_json(folder / "transcript.json")
    if transcript is not None:
        files.write(folder / "confirmed.json", files.canonical(transcript))


def rejected(layout: Layout, order: Order, reason: str, log: List[str]) -> None:
    """Keep why it was rejected and the last words of its server: the log goes on with the next release's words.

    A full disk must not keep anybody from going back.
    """
    with contextlib.suppress(OSError):
        kept = secrets.mask_all(layout, {"txn": order.txn, "reason": reason, "log": log})
        files.write(layout.evidence(order.release["id"]) / "rejected.json", files.ordered(kept))
