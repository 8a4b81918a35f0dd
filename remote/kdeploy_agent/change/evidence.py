"""What stays with a release of how it was judged: the transcript, the verdict, the plan, and why it was rejected."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from kdeploy_agent.ground import files, secrets
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.order import Order


@dataclass(frozen=True)
class Plan:
    """How a release is proven again: how long its start may take, seconds, and what it is asked then."""

    start_s: float = 900.0  # what a profile gives that says nothing
    brief: Tuple[Dict[str, Any], ...] = ()
    whole: bool = False


def plan(layout: Layout, release: str) -> Plan:
    """The plan that a release was confirmed with; one that takes any answer where that is gone or damaged."""
    try:
        stored = files.read_json(layout.evidence(release) / "plan.json")
        brief = tuple(stored["probes"].get("brief", []))
        if all(isinstance(ask["name"], str) and ask.keys() >= {"kind", "max_tokens", "answer"} for ask in brief):
            return Plan(float(stored["start_s"]), brief, True)
    except (OSError, KeyError, TypeError, AttributeError, ValueError):
        pass
    return Plan()


def seen(layout: Layout, release: str, transcript: Dict[str, Any]) -> None:
    """Keep what a release was seen to do just now; nothing secret stays in it."""
    files.write(layout.evidence(release) / "transcript.json", files.canonical(secrets.mask_all(layout, transcript)))


def judged(layout: Layout, release: str, verdict: Dict[str, Any]) -> None:
    """Keep what was said about it."""
    files.write(layout.evidence(release) / "verdict.json", files.canonical(secrets.mask_all(layout, verdict)))


def confirmed(layout: Layout, order: Order) -> None:
    """Keep the plan that a release was confirmed with, and what it showed then.

    Later ones are compared with that, and not with what it was seen to do on a day on which it was rejected. So is the
    release itself when it is started again: what it said then to the brief questions is what it is to say.
    """
    folder = layout.evidence(order.release["id"])
    transcript = files.read_json(folder / "transcript.json")
    probes = {**order.probes, "brief": _known(order.probes.get("brief", []), transcript)}
    files.write(folder / "plan.json", files.ordered({"probes": probes, "start_s": order.start_s}))
    if transcript is not None:
        files.write(folder / "confirmed.json", files.canonical(transcript))


def _known(brief: List[Dict[str, Any]], transcript: Any) -> List[Dict[str, Any]]:
    """The brief questions with the answers that came, where none was known before."""
    told = transcript.get("after", []) if isinstance(transcript, dict) else []
    came = {one["name"]: one["text"] for one in told if one.get("error") is None and one.get("text")}
    return [
        {**ask, "answer": came[ask["name"]]} if ask.get("answer") is None and ask.get("name") in came else ask
        for ask in brief
    ]


def rejected(layout: Layout, order: Order, reason: str, log: List[str]) -> None:
    """Keep why it was rejected and the last words of its server: the log goes on with the next release's words.

    A full disk must not keep anybody from going back.
    """
    with contextlib.suppress(OSError):
        kept = secrets.mask_all(layout, {"txn": order.txn, "reason": reason, "log": log})
        files.write(layout.evidence(order.release["id"]) / "rejected.json", files.ordered(kept))
