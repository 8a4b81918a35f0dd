"""A change that was cut off is ended by what is left of it: a damaged order, a full disk."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from .conftest import Rig, environment

_ORDERS: dict[str, Any] = {
    "gone": None,
    "half": '{"txn": "t',
    "a list": "[]",
    "empty": "{}",
    "newer": lambda order: json.dumps({**order, "patience_s": 3}),
    "older": lambda order: json.dumps({key: order[key] for key in order if key != "soak_s"}),
}


def cut_off(rig: Rig, line: str, accept: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """A change whose runner and guardian were killed at `line`; gives what served before and the order."""
    before = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"))
    rig.launch(order, accept, KDEPLOY_CRASH_AT=line, KDEPLOY_CRASH_GUARDIAN="1")
    rig.wait_until_abandoned()
    assert rig.journal()[-1] == line
    return before, order


def damage(rig: Rig, order: dict[str, Any], how: str) -> None:
    path, text = rig.layout.transaction(order["txn"]) / "order.json", _ORDERS[how]
    if text is None:
        path.unlink()
    else:
        path.write_text(text(order) if callable(text) else text)


@pytest.mark.parametrize("how", _ORDERS)
def test_an_order_that_cannot_be_read_bars_no_way_back(rig: Rig, how: str) -> None:
    before, order = cut_off(rig, "PROBED:done")
    damage(rig, order, how)
    assert rig.agent("unlock", {"by": "t", "yes": False}).error["kind"] == "locked"  # type: ignore[index]
    assert rig.agent("unlock", {"by": "t", "yes": True}).ok["state"] == "ROLLED_BACK"
    rig.serves(before)


@pytest.mark.parametrize("verb", ["stop", "apply"])
def test_nor_any_verb(rig: Rig, verb: str) -> None:
    _, order = cut_off(rig, "OPEN:done")
    damage(rig, order, "half")
    if verb == "apply":
        rig.serves(rig.apply("three"))
    else:
        assert rig.agent("stop", {"by": "t"}).ok["stopped"]
        rig.stopped()


def test_what_was_confirmed_stays_so_without_its_order(rig: Rig) -> None:
    _, order = cut_off(rig, "CONFIRMED:intent")
    damage(rig, order, "gone")
    assert rig.agent("recover").ok["state"] == "CONFIRMED"
    rig.serves(order["release"])


@pytest.mark.parametrize("line", ["GATED:done", "OPEN:intent", "OPEN:done", "CONFIRMED:intent"])
def test_a_healer_whose_log_and_notes_cannot_be_written(rig: Rig, line: str) -> None:
    before, order = cut_off(rig, line)
    for name, target in (("runner.log", "/dev/full"), ("notes.jsonl", "nowhere/notes.jsonl")):
        path = rig.layout.transaction(order["txn"]) / name
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    state = rig.agent("recover").ok["state"]
    assert state == ("CONFIRMED" if line == "CONFIRMED:intent" else "ROLLED_BACK")
    rig.serves(before if state == "ROLLED_BACK" else order["release"])


_CONFIRM = """
import errno, sys
from pathlib import Path
from kdeploy_agent.change.transaction import Run
from kdeploy_agent.ground import files
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.order import Order
root, txn, ever = sys.argv[1:]
layout, write = Layout(Path(root), "local"), files.write
def fail(path, data):
    if path.name == "plan.json" and (ever == "True" or layout.reserve.exists()):
        raise OSError(errno.ENOSPC, "No space left on device")
    write(path, data)
files.write = fail
files.reserve(layout.reserve, 4096)
Run(layout, Order.read(layout, txn)).confirm()
"""


@pytest.mark.parametrize("ever", [False, True], ids=["until there is room", "for ever"])
def test_a_disk_that_is_full_when_a_release_is_confirmed(rig: Rig, ever: bool) -> None:
    before, order = cut_off(rig, "OPEN:done")
    argv = [rig.python, "-c", _CONFIRM, str(rig.layout.root), order["txn"], str(ever)]
    subprocess.run(argv, env=environment(), check=True, timeout=60)
    rig.serves(before if ever else order["release"])
    assert rig.journal()[-1] == ("ROLLED_BACK:done" if ever else "CONFIRMED:done")
    assert not rig.layout.reserve.exists()
