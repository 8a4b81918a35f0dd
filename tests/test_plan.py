"""Facts and a release give steps: cases as data."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from kdeploy import plan
from kdeploy.errors import RemoteError
from kdeploy.plan import Facts
from tests.test_release import LAUNCH, make

RELEASE = make()
OTHER = "0123456789ab"
UNIT = {"alive": True, "pid": 7, "since": 1.0, "release": RELEASE.id}

RIGHT: dict[str, Any] = {
    "hostname": "h", "python": "3.11.7", "root": "/r", "git": "2.39.5",
    "disk": {"bytes": 1, "inodes": 1}, "runtimes": ["abc"],
    "service": {
        "current": RELEASE.id, "known_good": RELEASE.id, "known_goods": [RELEASE.id], "left": [],
        "releases": [RELEASE.id], "trees": [RELEASE.tree], "commits": [RELEASE.commit], "lock": None,
        "transaction": {"txn": "t", "state": "CONFIRMED", "goal": "apply", "release": RELEASE.id, "previous": None,
                        "reason": "", "running": False},
        "units": {"server": UNIT, "front": UNIT},
        "rehash": {"ok": True, "detail": ""},
        "secrets": {"salt": "", "values": {}},
    },
}  # fmt: skip

DEAD = {"alive": False, "pid": None, "since": None, "release": None}
ALL = ("push", "runtime", "precheck", "switch", "gate", "open", "confirm")
RESTART = ("precheck", "switch", "gate", "open", "confirm")

# (what is different from a host where all is right, the steps, part of the reason)
CASES = [
    ({}, (), "is live, known-good"),
    ({"current": None, "trees": [], "transaction": None, "rehash": None}, ("push", *RESTART), "nothing"),
    ({"current": OTHER, "known_good": OTHER}, RESTART, f"{OTHER} is live"),
    ({"current": OTHER, "trees": []}, ("push", *RESTART), f"{OTHER} is live"),
    ({"known_good": OTHER}, RESTART, "never confirmed"),
    ({"units": {"server": DEAD, "front": UNIT}}, RESTART, "server"),
    ({"units": {"server": UNIT, "front": DEAD}}, RESTART, "front"),
    ({"units": {"server": {**UNIT, "release": OTHER}, "front": UNIT}}, RESTART, f"server that runs is of {OTHER}"),
    ({"units": {"server": UNIT, "front": {**UNIT, "release": OTHER}}}, RESTART, f"front that runs is of {OTHER}"),
    ({"answers": {"server": {"ok": False, "detail": "hang"}, "front": None}}, RESTART, "does not answer: server: hang"),
    ({"answers": {"server": {"ok": True, "detail": ""}, "front": {"ok": True, "detail": ""}}}, (), "is live"),
    ({"rehash": {"ok": False, "detail": "a.py: differs"}}, ("push", *RESTART), "a.py: differs"),
    ({"rehash": None}, RESTART, "it is gone"),
    ({"stopped": {"by": "carl", "at": 1.0}}, RESTART, "serves, though carl stopped it"),
    ({"lost": "kdeploy-local.service is not enabled"}, ("survive",), "gone after a reboot: kdeploy-local.service is"),
    ({"lost": "not enabled", "units": {"server": DEAD, "front": UNIT}}, RESTART, "server"),
]  # fmt: skip


def facts(**changes: Any) -> Facts:
    values = copy.deepcopy(RIGHT)
    values["service"].update(changes)
    return Facts.read(values)


@pytest.mark.parametrize(("changes", "kinds", "reason"), CASES)
def test_steps(changes: dict[str, Any], kinds: tuple[str, ...], reason: str) -> None:
    made = plan.make(facts(**changes), RELEASE)
    assert made.kinds == kinds
    assert reason in made.reason


def test_a_missing_runtime_is_made() -> None:
    values = copy.deepcopy(RIGHT)
    values["runtimes"] = []
    values["service"].update({"current": None, "trees": []})
    assert plan.make(Facts.read(values), RELEASE).kinds == ALL


@pytest.mark.parametrize("state", ["PREPARED", "DRAINED", "CANDIDATE", "PROBED", "GATED", "OPEN", "ROLLING_BACK"])
def test_an_unfinished_change_is_never_nothing_to_do(state: str) -> None:
    last = {**RIGHT["service"]["transaction"], "state": state}
    made = plan.make(facts(transaction=last), RELEASE)
    assert made.steps
    assert state in made.reason


@pytest.mark.parametrize("missing", ["hostname", "disk", "runtimes", "service"])
def test_facts_that_lack_something(missing: str) -> None:
    values = {key: value for key, value in RIGHT.items() if key != missing}
    with pytest.raises(RemoteError, match=missing):
        Facts.read(values)


def test_what_differs_from_the_live_release() -> None:
    args = ("--model-path", "/m", "--tp-size", "8", "--port", "1")
    launch = dataclasses.replace(LAUNCH, args=args, env={"A": "1", "TOKEN": "secret"})
    other = dataclasses.replace(
        make(launch=launch), patchsets=({"ref": "x/1", "digest": "e"}, {"ref": "y/2", "digest": "d"})
    )
    assert plan.changes(RELEASE, RELEASE) == ()
    assert plan.changes(RELEASE, other) == (
        "patch set y/2 comes", "patch set x/1 has changed", "--tp-size: not given -> 8", "environment TOKEN changes",
    )  # fmt: skip
    assert plan.changes(other, RELEASE)[0] == "patch set y/2 goes"
