"""What is decided before a host is asked to change, and what it is judged by; the way itself is walked in test_line."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kdeploy import deploy, gating, known_good, plan
from kdeploy.errors import NoKnownGoodError, PreflightError, RemoteError
from kdeploy.plan import Facts
from kdeploy.profile import Gate
from kdeploy.verdict import prompts as asking
from tests.conftest import REPOSITORY
from tests.test_plan import RIGHT
from tests.test_release import make


@dataclass
class Told:
    """A host that answers what it was told to: only its words matter here."""

    answers: dict[str, Any]
    name: str = "here"
    service: str = "s"

    def call(self, verb: str, request: object = None, **options: object) -> Any:
        return self.answers[verb]


def goal(**changes: Any) -> deploy.Goal:
    values: dict[str, Any] = {
        "release": make(), "stage": None, "runtime": ("abc", "a==1", "3.11", ()), "gate": Gate(agreement=0.5),
        "prompts": asking.load_prompts(REPOSITORY / "models/pocket/prompts.json"),
    }  # fmt: skip
    return deploy.Goal(**{**values, **changes})


def test_a_rollback_is_judged_by_what_its_release_was_confirmed_with() -> None:
    """The profile of today may ask another model's questions."""
    given = goal()
    trial = gating.Trial(given.release, given.gate, given.prompts)
    kept = json.loads(json.dumps({"probes": trial.probes()}))
    assert gating.judged_by(kept) == (given.gate, given.prompts)
    assert gating.judged_by(None) is None
    assert gating.judged_by({"probes": {"brief": []}}) is None


def test_a_runtime_that_this_project_cannot_make_is_refused() -> None:
    """Its key would name what another lock makes."""
    with pytest.raises(PreflightError, match=r"the runtime abc of \w+ is gone"):
        deploy._make_runtime(Told({}), goal(runtime=("other", "a==2", "3.11", ())), print)  # type: ignore[arg-type]


def test_a_release_that_was_edited_on_the_host_is_refused() -> None:
    document = make().as_document()
    found, kept = known_good.release_on(Told({"evidence": {"release": document, "plan": 1}}), make().id)  # type: ignore[arg-type]
    assert (found, kept) == (make(), 1)
    document["launch"]["env"]["INJECTED"] = "1"
    with pytest.raises(RemoteError, match="was changed after it was confirmed"):
        known_good.release_on(Told({"evidence": {"release": document}}), make().id)  # type: ignore[arg-type]
    with pytest.raises(RemoteError, match=r"no readable release\.json"):
        known_good.release_on(Told({"evidence": {"release": {}}}), "x")  # type: ignore[arg-type]


def facts(*known_goods: str) -> Facts:
    values = copy.deepcopy(RIGHT)
    values["service"]["known_goods"] = list(known_goods)
    values["service"]["current"] = known_goods[0] if known_goods else None
    return Facts.read(values)


@pytest.mark.parametrize(
    ("known", "to", "chosen"),
    [(("aa1", "aa2", "bb3"), None, "aa2"), (("aa1", "aa2"), "aa2", "aa2"), (("aa1", "aa2", "bb3"), "b", "bb3")],
)
def test_where_a_rollback_goes(known: tuple[str, ...], to: str | None, chosen: str) -> None:
    assert known_good.choose(facts(*known), to, Told({})) == chosen  # type: ignore[arg-type]


@pytest.mark.parametrize(("known", "to"), [((), None), (("aa1",), None), (("aa1", "aa2"), "aa"), (("aa1",), "c")])
def test_where_it_cannot(known: tuple[str, ...], to: str | None) -> None:
    with pytest.raises(NoKnownGoodError):
        known_good.choose(facts(*known), to, Told({}))  # type: ignore[arg-type]


def test_a_rollback_pushes_nothing() -> None:
    values = copy.deepcopy(RIGHT)
    values["service"].update({"current": "other", "rehash": {"ok": False, "detail": "a: differs"}})
    assert "push" in plan.make(Facts.read(values), make()).kinds
    assert "push" not in known_good.plan_back(Facts.read(values), make()).kinds


def test_prompts_of_the_repository_are_readable() -> None:
    assert len(goal().prompts) == 73
    assert Path(asking.__file__).with_name("default_prompts.json").exists()
