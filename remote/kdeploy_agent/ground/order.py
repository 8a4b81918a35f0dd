"""What an operator asked for, as the host keeps it: whoever heals a transaction goes on from this."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files
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
        """The stored order of a transaction; raises `fault` when it is not there."""
        stored = files.read_json(layout.transaction(txn) / "order.json")
        if stored is None:
            raise AgentError("fault", f"the order of transaction {txn} is gone")
        return cls(**stored)

    def write(self, layout: Layout) -> None:
        """Store the order."""
        files.write(layout.transaction(self.txn) / "order.json", files.ordered(dataclasses.asdict(self)))
