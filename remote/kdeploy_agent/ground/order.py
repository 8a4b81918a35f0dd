"""What an operator asked for, as the host keeps it: whoever heals a transaction goes on from this."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Optional

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files
from kdeploy_agent.ground.journal import Transaction
from kdeploy_agent.ground.layout import Layout


@dataclass(frozen=True)
class Order:
    """What an operator asked for; stored before anything happens, so that a successor can go on from it."""

    txn: str
    by: str
    goal: str
    release: Dict[str, Any]
    probes: Dict[str, Any]
    start_s: float
    probe_s: float
    decide_s: float
    soak_s: float

    @classmethod
    def read(cls, layout: Layout, txn: str) -> "Order":
        """The stored order of a transaction; raises `fault` when it is not there, or not whole."""
        stored = _stored(layout, txn)
        missing = [field.name for field in dataclasses.fields(cls) if field.name not in stored]
        if missing:
            raise AgentError("fault", f"the order of transaction {txn} is gone or damaged: no {', '.join(missing)}")
        return cls(**stored)

    @classmethod
    def recall(cls, layout: Layout, at: Transaction, release: Optional[Dict[str, Any]]) -> "Order":
        """What is left of the order of `at`, for who ends it: going back needs no more than the journal says.

        `release` is the document that is stored here, if any. Without one in the order either, it is but an id.
        """
        stored = _stored(layout, at.txn)
        ordered = stored.pop("release", {})
        if ordered.get("id") != at.release or not isinstance(ordered.get("launch"), dict):
            ordered = {"id": at.release}
        told = {"txn": at.txn, "by": at.by, "goal": at.goal, "release": release or ordered, "probes": {}}
        times = {"start_s": 0.0, "probe_s": 0.0, "decide_s": 0.0, "soak_s": 0.0}
        return cls(**{**told, **times, **stored})

    def write(self, layout: Layout) -> None:
        """Store the order."""
        files.write(layout.transaction(self.txn) / "order.json", files.ordered(dataclasses.asdict(self)))


_TEXTS, _MAPPINGS, _TIMES = ("txn", "by", "goal"), ("release", "probes"), ("start_s", "probe_s", "decide_s", "soak_s")


def _stored(layout: Layout, txn: str) -> Dict[str, Any]:
    """The fields of a stored order that can be understood; what a newer version added is passed over."""
    try:
        stored = files.read_json(layout.transaction(txn) / "order.json")
    except OSError:
        return {}
    shapes: Dict[str, Any] = {**dict.fromkeys(_TEXTS, str), **dict.fromkeys(_MAPPINGS, dict)}
    shapes.update(dict.fromkeys(_TIMES, (int, float)))
    found = stored if isinstance(stored, dict) else {}
    return {key: found[key] for key, shape in shapes.items() if isinstance(found.get(key), shape)}
