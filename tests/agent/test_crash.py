"""Kill the agent at every line of the journal: the live release is never lost, and nothing is left half done.

KDEPLOY_CRASH_AT kills the process that writes that line right after it is on disk (kdeploy_agent/ground/journal.py).
"""

from __future__ import annotations

import pytest
from kdeploy_agent.ground.journal import STATES

from .conftest import Rig

LINES = [f"{state}:{phase}" for state in STATES for phase in ("intent", "done")]
BACK = ["ROLLING_BACK:intent", "ROLLING_BACK:done", "ROLLED_BACK:done"]

Case = tuple[str, str, bool]  # the line, who dies, whether something was live before

CASES: list[Case] = [
    (line, victims, live)
    for victims, live in (("runner", True), ("both", True), ("both", False))
    for line in [*LINES, *BACK]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{'live' if case[2] else 'first'}")
def test_killed_at(rig: Rig, case: Case) -> None:
    line, victims, live = case
    before = rig.apply("one") if live else None
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"))
    accept = line not in BACK
    if victims == "runner":  # nobody watches, nobody asks: the guardian alone heals
        rig.launch(order, accept, KDEPLOY_CRASH_AT=line)
        rig.wait_until_abandoned()
        state = rig.facts()["transaction"]["state"]
    else:
        rig.launch(order, accept, KDEPLOY_CRASH_AT=line, KDEPLOY_CRASH_GUARDIAN="1")
        rig.wait_until_abandoned()
        assert rig.journal()[-1] == line  # it did die there, and nobody has healed it yet
        state = rig.agent("recover").ok["state"]
    assert line in rig.journal()
    if line.startswith("CONFIRMED"):
        assert state == "CONFIRMED"
        rig.serves(order["release"])
    elif before is not None:
        assert state == "ROLLED_BACK"
        rig.serves(before)
    else:
        assert state == "ROLLED_BACK"
        rig.silent()
    if line == "PREPARED:done":  # nothing was stopped: the very process still serves
        assert "ROLLING_BACK:intent" not in rig.journal()
