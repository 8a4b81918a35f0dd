"""A port that wanders from one unit to another: what was the public port becomes the server's own."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import seal


def swapped(rig: Any, name: str) -> dict[str, Any]:
    """A release without a front, whose server listens where the front of all other releases does."""
    args = ["--host", "127.0.0.1", "--port", str(rig.public)]
    front = {"kind": "none", "host": "127.0.0.1", "port": rig.public, "metrics_port": None}
    return seal(rig.release(name), port=rig.public, args=args, front=front)


@pytest.mark.parametrize("accept", [True, False])
def test_the_server_takes_the_port_the_front_had(rig: Any, accept: bool) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(swapped(rig, "two"))
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    assert rig.decide(order, accept=accept).ok["state"] == ("CONFIRMED" if accept else "ROLLED_BACK")
    if not accept:
        rig.serves(before)
        return
    assert rig.answers(rig.public)["version"] == order["release"]["version"]
    assert rig.agent("stop", {"by": "tester"}).ok["stopped"]
    rig.stopped()
    back = rig.order(before, goal="rollback")
    assert rig.agent("begin", back).ok["state"] == "PROBED"
    assert rig.decide(back).ok["state"] == "CONFIRMED"
    rig.serves(before)
