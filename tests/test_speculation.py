"""Losslessness, accept length, speed, and the thresholds that A/A runs give: on a true transcript that is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdeploy import document
from kdeploy.errors import ProfileError, UsageError
from kdeploy.profile import Gate
from kdeploy.verdict import transcript
from kdeploy.verdict.acceptance import longest_step
from kdeploy.verdict.figures import COMPANY, EVERYTHING, figures
from kdeploy.verdict.judge import Expectation
from kdeploy.verdict.thresholds import Thresholds, as_yaml, calibrate, load_thresholds, settle_gate
from tests.judging import EXPECTED, GOOD, Change, failures, spoilt

FAILS = {"lossless", "acceptance", "speed"}
"""The checks that are seen failing here."""

PROSE = next(number for number, one in enumerate(GOOD["lossless"]["answers"]) if one["name"] == "sea")


# ---- losslessness


def again(**fields: Any) -> Change:
    return lambda t: t["lossless"]["answers"][PROSE].update(fields)


def differs(at: int, margin: float | None) -> Change:
    """A prefill says another token at one position, so far apart."""

    def change(transcript: dict[str, Any]) -> None:
        one = transcript["lossless"]["answers"][PROSE]
        one["again"][at] += 1
        one["margins"][at] = margin

    return change


def shorter(transcript: dict[str, Any]) -> None:
    one = transcript["lossless"]["answers"][PROSE]
    for key in ("at", "said", "again", "margins"):
        one[key].pop()


LOSSY: list[tuple[str, Change, str]] = [
    ("one lossy token", differs(17, 2.5), "1 of 1199 tokens are not what a prefill"),
    ("its place is told", differs(17, 2.5), "sea, token 17 of "),
    ("no margin known", differs(17, None), "1 of 1199 tokens"),
    ("a margin that is no number", differs(17, float("nan")), "1 of 1199 tokens"),
    ("another answer than was given", again(said=[1] * len(GOOD["lossless"]["answers"][PROSE]["said"])), "was said"),
    ("another prompt", again(prompt=3), "after 3 tokens of prompt"),
    ("a part only", shorter, "positions, not at"),
    ("fewer tokens than there are", again(n=7), "7 tokens were asked again"),
    ("refused", again(error="HTTP 400: no"), "sea: not asked again: HTTP 400"),
    ("one left out", lambda t: t["lossless"]["answers"].pop(PROSE), "sea: not asked again"),
    ("from the cache", lambda t: t["lossless"].update(flushed=False), "was not flushed"),
    ("in another way", lambda t: t["lossless"].update(how="none", why="could not"), "planned was 'logprobs'"),
]


@pytest.mark.parametrize(("change", "said"), [case[1:] for case in LOSSY], ids=[case[0] for case in LOSSY])
def test_what_is_lossy_is_rejected(change: Change, said: str) -> None:
    found = failures(spoilt(change))
    assert set(found) == {"lossless"}
    assert said in found["lossless"]


def test_near_ties_and_an_allowed_share_pass() -> None:
    assert not failures(spoilt(differs(17, 0.05)))
    assert failures(spoilt(differs(17, 0.05)), replace(EXPECTED, margin=0.01))
    assert not failures(spoilt(differs(17, 2.5)), replace(EXPECTED, lossless=0.001))
    assert failures(spoilt(differs(17, 2.5)), replace(EXPECTED, lossless=0.0008))


def reasked(each: int) -> tuple[dict[str, Any], Expectation]:
    """The same, as where logprobs are refused: at some positions, without margins."""

    def change(transcript: dict[str, Any]) -> None:
        transcript["lossless"]["how"] = "reask"
        for one in transcript["lossless"]["answers"]:
            n, most = one["n"], min(one["n"], each)
            at = [round(k * (n - 1) / max(1, most - 1)) for k in range(most)]
            one.update(at=at, said=[one["said"][k] for k in at], again=[one["again"][k] for k in at])
            one["margins"] = [None] * most

    return spoilt(change), replace(EXPECTED, bounds=replace(EXPECTED.bounds, lossless="reask"))


def test_some_positions_of_every_answer_are_enough_where_logprobs_are_refused() -> None:
    good, expected = reasked(48)
    assert not failures(good, expected)
    few, _ = reasked(20)
    assert "positions, not at 48" in failures(few, expected)["lossless"]


# ---- accept length


def speculative(steps: Callable[[dict[str, Any]], int | None]) -> dict[str, Any]:
    """Every completion counts its steps, truthfully or as `steps` has it; with the algorithm among the arguments."""

    def change(transcript: dict[str, Any]) -> None:
        body = transcript["server_info"]["body"]
        for one in (body, *body["internal_states"]):
            one.update(speculative_algorithm="DFLASH", speculative_num_draft_tokens=8, speculative_dflash_block_size=8)
        transcript["lossless"]["how"] = "reask"
        for title in ("alone", "long", "repeat", "after", "stream"):
            for answer in transcript[title]:
                count(answer, steps(answer))
        for group in transcript["together"]:
            for answer in group["answers"]:
                count(answer, steps(answer))

    def count(answer: dict[str, Any], taken: int | None) -> None:
        if taken is not None and answer["n"] > 1 and answer["ids"] is not None:
            figures = {"spec_verify_ct": taken, "spec_accept_length": answer["n"] / taken}
            answer["meta"].update(figures, spec_accepted_drafts=answer["n"] - taken)

    return spoilt(change)


FAST = replace(EXPECTED, args={**EXPECTED.args, "speculative-algorithm": "DFLASH"}, min_accept_length=2.0)


def third(answer: dict[str, Any]) -> int:
    return max(1, answer["n"] // 3)


def acceptance(values: dict[str, Any], expected: Expectation = FAST) -> str:
    found = failures(values, expected)
    found.pop("json", None)  # the plan of a DFLASH server has none, this transcript has one
    found.pop("answers.asked", None)
    found.pop("lossless", None)  # asked by logprobs
    return found.pop("acceptance", "") if not set(found) - {"acceptance"} else str(found)


def test_accept_length_has_a_floor_alone_and_in_company() -> None:
    assert acceptance(speculative(third)) == ""
    assert "all: 1.00 tokens a step, the floor is 2.00" in acceptance(speculative(lambda a: a["n"]))
    collapsed = speculative(third)
    for group in collapsed["together"]:
        for answer in group["answers"]:
            answer["meta"].update(spec_verify_ct=max(1, answer["n"]), spec_accept_length=1.0)
    assert "in company: 1.00" in acceptance(collapsed)


def test_a_kind_of_prompt_that_falls_towards_one_is_noticed() -> None:
    values = speculative(lambda a: a["n"] if a["kind"] == "code" else max(1, a["n"] // 6))
    assert acceptance(values).startswith("code: 1.00 tokens a step, half-way from 1 to the floor is 1.50")


def test_a_declared_algorithm_without_figures_is_a_failure_also_without_a_floor() -> None:
    without = replace(FAST, min_accept_length=None)
    assert "do not report spec_verify_ct" in acceptance(speculative(lambda a: None), without)
    assert acceptance(speculative(third), without) == ""
    half = speculative(lambda a: None if a["name"] == "sea" else third(a))
    assert "prose: 1 of 3" in acceptance(half, without)


def test_speculation_that_nobody_declared_is_a_failure() -> None:
    assert "no speculation was declared" in failures(speculative(third))["acceptance"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"spec_verify_ct": 5, "spec_accept_length": 21.6}, "the budget allows 8 a step"),
        ({"spec_accept_length": 5.0}, "it says 5.00 tokens a step"),
        ({"spec_accept_length": float("nan")}, "it says nan tokens a step"),
        ({"spec_accept_length": "3"}, "spec_accept_length is missing"),
        ({"spec_accepted_drafts": 3}, "only 3 drafts were accepted"),
    ],
)
def test_figures_that_lie_are_noticed(fields: dict[str, Any], said: str) -> None:
    values = speculative(third)
    answer = next(one for one in values["alone"] if one["name"] == "sea")
    answer["meta"].update(fields)
    assert said in acceptance(values)


@pytest.mark.parametrize(
    ("info", "algorithm", "most"),
    [
        ({"speculative_num_draft_tokens": 16, "speculative_dflash_block_size": 8}, "DDTREE", 8),
        ({"speculative_num_draft_tokens": 8, "speculative_num_steps": 1}, "DFLASH", 8),
        ({"speculative_num_draft_tokens": 16, "speculative_num_steps": 5}, "EAGLE", 6),
        ({"speculative_num_draft_tokens": True}, "EAGLE", None),
        ({}, "EAGLE", None),
        (None, None, None),
    ],
)
def test_what_one_step_can_give(info: Any, algorithm: str | None, most: int | None) -> None:
    assert longest_step(info, algorithm) == most


# ---- beside known-good


def read(values: dict[str, Any]) -> transcript.Transcript:
    return transcript.read(values)


def test_the_figures_of_a_transcript() -> None:
    known = figures(read(speculative(third)), "abc")
    assert known.release == "abc"
    assert known.model == GOOD["server_info"]["body"]["model_path"]
    assert set(known.pace) == {1, 8}
    assert known.pace[1].tokens == 96
    assert 100 < known.pace[1].tokens_per_s < known.pace[8].tokens_per_s < 100_000
    assert {"prose", "code", "long", EVERYTHING, COMPANY} <= set(known.accept)
    assert all(2.9 < length < 3.6 for length in known.accept.values())
    assert figures(read(GOOD)).accept == {}


def paced(factor: float) -> Change:
    def change(transcript: dict[str, Any]) -> None:
        for one in transcript["pace"]:
            one.update(seconds=one["seconds"] * factor)

    return change


def test_speed_is_compared_with_known_good() -> None:
    known = figures(read(GOOD), "abc")
    expected = replace(EXPECTED, known=known)
    assert not failures(GOOD, expected)
    assert not failures(spoilt(paced(1.8)), expected)
    slow = failures(spoilt(paced(10)), expected)
    assert set(slow) == {"speed"}
    assert "10% of " in slow["speed"]
    assert not failures(spoilt(paced(10)))  # there is nothing to compare with
    assert not failures(spoilt(paced(10)), replace(EXPECTED, known=replace(known, model="another")))
    assert failures(spoilt(paced(1.8)), replace(expected, speed=0.9))


def test_one_bad_round_is_forgiven() -> None:
    expected = replace(EXPECTED, known=figures(read(GOOD)))
    assert not failures(spoilt(lambda t: t["pace"][0].update(seconds=60.0)), expected)


def test_a_first_token_that_comes_late_is_noticed() -> None:
    def late(transcript: dict[str, Any]) -> None:
        for one in transcript["pace"]:
            one["first_s"] = [3.0] * len(one["first_s"])

    found = failures(spoilt(late), replace(EXPECTED, known=figures(read(GOOD))))
    assert "the first piece after 3.00 s" in found["speed"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(pace=[]), "measured 0 times, planned 3"),
        (lambda t: t["pace"].pop(), "8 at once: measured 2 times"),
        (lambda t: t["pace"][1].update(error="hang"), "8 at once: hang"),
        (lambda t: t["pace"][0].update(tokens=40), "40 tokens came, 96 were asked for"),
    ],
)
def test_speed_that_was_not_measured_as_planned(change: Change, said: str) -> None:
    found = failures(spoilt(change))
    assert set(found) == {"speed"}
    assert said in found["speed"]


def test_accept_length_is_compared_with_known_good() -> None:
    known = figures(read(speculative(third)))
    expected = replace(FAST, min_accept_length=None, known=known)
    assert acceptance(speculative(third), expected) == ""
    told = acceptance(speculative(lambda a: max(1, a["n"] // 2)), expected)
    assert "80% of 3" in told
    assert acceptance(speculative(lambda a: max(1, a["n"] // 2)), replace(expected, acceptance=0.5)) == ""
    others = replace(known, asked=frozenset({"other"}))  # accept lengths of other prompts say nothing about these
    assert acceptance(speculative(lambda a: max(1, a["n"] // 2)), replace(expected, known=others)) == ""


# ---- thresholds


def runs() -> list[transcript.Transcript]:
    """Three A/A runs, two of them with some noise."""
    second, third = copy.deepcopy(GOOD), copy.deepcopy(GOOD)
    paced(1.25)(second)
    differs(17, 0.03)(third)
    third["repeat"][0]["text"] = third["repeat"][0]["text"][:200] + "!"
    return [read(GOOD), read(second), read(third)]


def test_thresholds_leave_room_for_the_noise_that_was_seen_and_no_more() -> None:
    quiet = calibrate([read(GOOD), read(GOOD)], release="abc", host="gpu7")
    assert (quiet.agreement, quiet.lossless, quiet.margin, quiet.speed) == (
        1.0,
        0.0,
        None,
        pytest.approx(0.8, abs=0.01),
    )
    assert (quiet.min_accept_length, quiet.acceptance) == (None, None)
    found = calibrate(runs(), release="abc", host="gpu7")
    assert found.made.engine == "0.5.11+kd.0123456789ab"
    assert (found.made.runs, found.made.release, found.made.host) == (3, "abc", "gpu7")
    assert found.margin == pytest.approx(0.06, abs=0.001)
    assert found.lossless == 0.0  # with logprobs near ties are told by their margin
    assert found.agreement is not None and 0.2 < found.agreement < 0.5
    assert found.speed == pytest.approx(0.64, abs=0.01)
    assert found.noise.lossless > 0


def test_thresholds_of_a_speculating_server() -> None:
    told = [read(speculative(third)), read(speculative(third))]
    found = calibrate(told, release="abc", host="gpu7")
    assert found.acceptance == pytest.approx(0.95, abs=0.01)
    assert found.min_accept_length is not None and 2.4 < found.min_accept_length < 3
    assert found.lossless == 0.0
    lossy = speculative(third)
    differs(17, None)(lossy)
    assert calibrate([told[0], read(lossy)], release="a", host="b").lossless == pytest.approx(2 / 1199, abs=0.002)


def test_one_run_shows_no_noise() -> None:
    with pytest.raises(UsageError, match="1 run shows no noise"):
        calibrate([read(GOOD)], release="abc", host="gpu7")


def test_a_calibration_file_says_what_was_found(tmp_path: Path) -> None:
    found = calibrate(runs(), release="12e4567", host='gpu7: the "quick" one')
    path = tmp_path / "thresholds.yaml"
    path.write_text(as_yaml(found), encoding="utf-8")
    assert load_thresholds(path) == found


@given(st.text(max_size=20), st.text(max_size=20))
def test_whatever_a_host_is_called_is_read_back(release: str, host: str) -> None:
    found = calibrate([read(GOOD), read(GOOD)], release="abc", host="x")
    made = found.model_copy(update={"made": found.made.model_copy(update={"release": release, "host": host})})
    document_read = document.parse(as_yaml(made), "thresholds.yaml", ProfileError)
    assert document.check(document_read, Thresholds, ProfileError) == made


def test_a_calibration_file_with_an_unknown_figure_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(as_yaml(calibrate(runs(), release="a", host="b")) + "sped: 0.5\n", encoding="utf-8")
    with pytest.raises(ProfileError, match="sped"):
        load_thresholds(path)


def test_what_the_profile_says_goes_before_what_was_calibrated() -> None:
    found = calibrate(runs(), release="a", host="b")
    assert settle_gate(Gate(), None) == Gate()
    settled = settle_gate(Gate(speed=0.5, agreement=1.0), found)
    assert (settled.speed, settled.agreement) == (0.5, 1.0)
    assert settled.margin == found.margin
    assert settled.min_accept_length is None  # nothing was found about it
    assert settle_gate(Gate(), found).speed == found.speed
