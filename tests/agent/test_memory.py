"""GPU memory that must come back: whose it is, how much of it, and who is named when it does not."""

from __future__ import annotations

import dataclasses
import os

import pytest
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import gpus
from kdeploy_agent.ground.gpus import App, Gpu
from kdeploy_agent.keeping import memory

OURS, GONE = 4_000_001, 4_000_002  # pids beyond what the kernel gives out: nobody has them
NEIGHBOUR = os.getpid()


def gpu(index: int, used: int) -> Gpu:
    blank = {field.name: "" for field in dataclasses.fields(Gpu)}
    told = {"index": index, "uuid": f"GPU-{index}", "used_mib": used, "total_mib": 98304, "uncorrected": None}
    return Gpu(**{**blank, **told})


class Card:
    """Two GPUs, and what is on them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.used = [100, 100]
        self.apps: list[App] = []
        patch.setattr(gpus, "query", lambda: [gpu(index, used) for index, used in enumerate(self.used)])
        patch.setattr(gpus, "apps", lambda: self.apps)

    def hold(self, pid: int, index: int, mib: int) -> None:
        self.apps.append(App(pid, f"GPU-{index}", mib, "python"))
        self.used[index] += mib


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(monkeypatch)


def test_what_it_had_must_come_back(card: Card) -> None:
    base = memory.used()
    card.hold(OURS, 0, 90_000)
    expected = memory.expect(base, {}, {OURS})
    assert expected.missing() == {"GPU-0": 90_000}
    card.apps.clear()  # the process is gone, its memory is not
    assert expected.missing() == {"GPU-0": 90_000}
    card.used = [100 + memory.TOLERANCE_MIB, 100]
    assert expected.missing() == {}


def test_a_neighbour_keeps_what_it_has(card: Card) -> None:
    base = memory.used()
    card.hold(OURS, 0, 40_000)
    card.hold(NEIGHBOUR, 0, 30_000)
    card.hold(NEIGHBOUR, 1, 30_000)
    expected = memory.expect(base, {}, {OURS})
    assert expected.missing() == {"GPU-0": 40_000}
    card.apps = [app for app in card.apps if app.pid != OURS]
    card.used[0] -= 40_000
    assert expected.missing() == {}


@pytest.mark.parametrize(
    ("env", "watched"),
    [
        ({}, {"GPU-0", "GPU-1"}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"GPU-1"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0"}, {"GPU-0"}),
        ({"CUDA_VISIBLE_DEVICES": "7"}, {"GPU-0", "GPU-1"}),  # none that is here: better too many than none
    ],
)
def test_in_a_container_the_environment_says_which(card: Card, env: dict[str, str], watched: set[str]) -> None:
    assert set(memory.expect(memory.used(), env, {OURS}).base) == watched


def test_whoever_still_holds_it_is_named(card: Card) -> None:
    base = memory.used()
    card.hold(OURS, 1, 900)
    expected = memory.expect(base, {}, {OURS})
    card.apps = [App(GONE, "GPU-1", 900, "a scheduler")]
    with pytest.raises(AgentError, match=r"900 MiB of GPU-1: process 4000002 \(a scheduler, 900 MiB\)"):
        expected.wait(0)
    card.apps = []
    with pytest.raises(AgentError, match="nobody that nvidia-smi shows"):
        expected.wait(0)


def test_a_driver_that_does_not_answer_holds_nothing_up(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.hold(OURS, 0, 900)

    def silent() -> list[Gpu]:
        raise AgentError("fault", "nvidia-smi did not answer")

    monkeypatch.setattr(gpus, "query", silent)
    monkeypatch.setattr(gpus, "apps", silent)
    assert memory.used() == {}
    memory.expect({"GPU-0": 0}, {}, {OURS}).wait(0)
