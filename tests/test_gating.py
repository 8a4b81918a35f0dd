"""What a release is asked and judged by: from its launch arguments and its gate to plan and expectation."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kdeploy import gating, profile
from kdeploy.api import hosts
from kdeploy.change import Change, Step
from kdeploy.errors import ProfileError
from kdeploy.host import Ask
from kdeploy.profile import Gate
from kdeploy.verdict.judge import judge
from kdeploy.verdict.thresholds import as_yaml, calibrate
from kdeploy.verdict.transcript import read
from tests.conftest import REPOSITORY
from tests.judging import GOOD, POCKET
from tests.test_release import make


def trial(gate: Gate | None = None, **args: Any) -> gating.Trial:
    made = make()
    more = [word for key, value in args.items() for word in (f"--{key}", str(value))]
    launch = replace(made.launch, args=(*made.launch.args, *more))
    return gating.Trial(replace(made, launch=launch), gate or Gate(), POCKET)


def test_how_a_server_is_asked_follows_from_what_it_is_launched_with() -> None:
    plain = trial().probes()
    assert plain["lossless"]["how"] == "logprobs"
    assert plain["json"]
    drafting = trial(**{"speculative-algorithm": "DDTREE"})
    assert drafting.arguments["speculative-algorithm"] == "DDTREE"
    plan = drafting.probes()
    assert plan["lossless"]["how"] == "reask"
    assert plan["lossless"]["why"] == "DDTREE refuses logprobs"
    assert not plan["json"]


def test_every_figure_of_the_gate_is_what_is_judged_by() -> None:
    figures = {
        "agreement": 0.5, "lossless": 0.01, "margin": 0.3, "min-accept-length": 2.5, "acceptance": 0.7, "speed": 0.4,
        "first-answer-s": 30,
    }  # fmt: skip
    expected = trial(Gate.model_validate(figures)).expectation()
    for key, value in figures.items():
        assert (
            getattr(expected, key.replace("-", "_")) == value != getattr(trial().expectation(), key.replace("-", "_"))
        )
    assert trial(Gate(soak_every_s=2, company=3)).probes()["soak"]["every-s"] == 2
    assert expected.launched and expected.remote_url is None
    elsewhere = trial().expectation(launched=False, remote_url="http://there:1")
    assert (elsewhere.launched, elsewhere.remote_url) == (False, "http://there:1")


def test_an_adopted_release_is_judged_as_it_was_found() -> None:
    found = replace(trial(), release=replace(make(), adopted={"by": "me"}))
    assert found.probes()["model"] == "adopted"
    assert found.judge({"adopted": True, "asked": 2}, None).accepted
    assert not found.judge(GOOD, None).accepted


def test_a_transcript_that_cannot_be_read_gives_nothing_to_compare_with() -> None:
    known = gating.known_from(GOOD, "abc")
    assert known is not None and known.release == "abc" and known.pace
    for other in (None, {}, {"adopted": True, "asked": 2}, {**GOOD, "protocol": 1}, "x"):
        assert gating.known_from(other, "abc") is None


def test_a_slower_release_is_rejected_beside_known_good() -> None:
    known = gating.known_from(GOOD, "abc")
    slow = copy.deepcopy(GOOD)
    for one in slow["pace"]:
        one["seconds"] *= 10
    told = {check.name: check for check in judge(slow, trial().expectation(known)).checks}
    assert not told["speed"].ok
    assert {check.name: check for check in judge(slow, trial().expectation()).checks}["speed"].ok


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("patchsets", "models", "locks", "kdeploy.lock"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    folder = tmp_path / "profiles"
    folder.mkdir()
    for name in ("hosts.yaml", "local.yaml"):
        (folder / name).write_text((REPOSITORY / "profiles" / name).read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def test_a_calibration_file_stands_beside_the_profile_that_names_it(project: Path) -> None:
    found = calibrate([read(GOOD), read(GOOD)], release="abc", host="here")
    (project / "mine.yaml").write_text("extends: local.yaml\ngate: {thresholds: mine.thresholds.yaml}\n")
    with pytest.raises(ProfileError, match=r"mine\.thresholds\.yaml does not exist"):
        hosts.gate_of(profile.load(project / "mine.yaml"))
    (project / "mine.thresholds.yaml").write_text(as_yaml(found), encoding="utf-8")
    settled = hosts.gate_of(profile.load(project / "mine.yaml"))
    assert settled.speed == 0.2  # the profile below says it
    (project / "mine.yaml").write_text("extends: local.yaml\ngate: {thresholds: mine.thresholds.yaml, speed: null}\n")
    assert hosts.gate_of(profile.load(project / "mine.yaml")).speed == found.speed


def test_what_was_calibrated_is_kept_for_the_way_back() -> None:
    kept = json.loads(json.dumps({"probes": trial(Gate(thresholds="x.yaml", speed=0.7)).probes()}))
    judged = gating.judged_by(kept)
    assert judged is not None
    assert (judged[0].speed, judged[0].thresholds, judged[1]) == (0.7, None, POCKET)


class Answering:
    """A host that answers each of the requests sent to it by its verb."""

    name = "here"

    def ask(self, asks: list[Ask]) -> Any:
        yield from ({"verb": ask.verb} for ask in asks)


def test_a_step_that_is_sent_ahead_gives_its_result_to_whoever_wants_it() -> None:
    told: list[dict[str, Any]] = []
    steps = [Step(None, Ask("evidence", {}), told.append), Step("here: precheck", Ask("precheck", {}))]
    with Change(Answering(), "txn", lambda text, **_: None, 10) as change:  # type: ignore[arg-type]
        assert change.begin(steps, {}) == {"verb": "begin"}
    assert told == [{"verb": "evidence"}]


@pytest.mark.parametrize(
    ("running", "company", "sizes"),
    [(None, 4, (2, 4)), (8, 4, (2, 4)), (3, 4, (2, 3)), (2, 4, (2,)), (1, 4, ()), (64, 2, (2,))],
)
def test_no_batch_is_larger_than_the_server_is_declared_to_compute(
    running: int | None, company: int, sizes: tuple[int, ...]
) -> None:
    args = {} if running is None else {"max-running-requests": running}
    made = trial(Gate(company=company), **args)
    assert made.bounds.together == sizes
    batches = [group for group in made.probes()["together"] if group["how"] == "batch"]
    assert {len(group["asks"]) for group in batches} == set(sizes)


def test_of_a_server_for_one_request_no_company_is_asked_for() -> None:
    told = copy.deepcopy(GOOD)
    told["together"] = [group for group in told["together"] if group["how"] != "batch"]
    told["server_info"]["body"]["max_running_requests"] = 1
    expected = trial(**{"max-running-requests": 1}).expectation()
    check = next(one for one in judge(told, expected).checks if one.name == "concurrency")
    assert check.outcome.value == "not applicable", check
    check = next(one for one in judge(told, trial().expectation()).checks if one.name == "concurrency")
    assert not check.ok
