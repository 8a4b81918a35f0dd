"""Streams, bounds, hanging up, long ones, references, the first answer: on a true transcript that is spoilt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kdeploy.verdict.judge import Outcome, judge
from tests.judging import EXPECTED, GOOD, POCKET, Change, failures, spoilt

FAILS = {"stream", "bounds", "abort", "long", "reference", "after", "start.first-answer"}
"""The checks that are seen failing here."""


def streamed(**fields: Any) -> Change:
    return lambda t: t["stream"][0].update(fields)


def bounded(how: str, **fields: Any) -> Change:
    return lambda t: next(one for one in t["bounds"] if one["how"] == how).update(fields)


def long(**fields: Any) -> Change:
    return lambda t: t["long"][1].update(fields)


def start(**fields: Any) -> Change:
    return lambda t: t["first"].update(fields)


def alone(transcript: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in transcript["alone"] if one["name"] == name)
    return found


def ignores_its_stop_string(transcript: dict[str, Any]) -> None:
    one = next(one for one in transcript["bounds"] if one["how"] == "stop")
    whole = alone(transcript, one["name"])
    one.update({key: whole[key] for key in ("text", "ids", "n", "finish")})


def stops_a_word_early(transcript: dict[str, Any]) -> None:
    one = next(one for one in transcript["bounds"] if one["how"] == "stop")
    one["text"] = one["text"].rpartition(" ")[0]


def asked_to_stop_at_nothing(transcript: dict[str, Any]) -> None:
    next(one for one in transcript["bounds"] if one["how"] == "stop")["ask"]["stop"] = ["nowhere in it"]


def one_token_more(transcript: dict[str, Any]) -> None:
    one = next(one for one in transcript["bounds"] if one["how"] == "length")
    one["n"] += 1


def other_tokens_when_fewer(transcript: dict[str, Any]) -> None:
    next(one for one in transcript["bounds"] if one["how"] == "length")["ids"][3] += 1


# name of the case, what is spoilt, the checks that must say no, and a part of what they say
CASES: list[tuple[str, Change, set[str], str]] = [
    ("a piece lost", streamed(text=GOOD["stream"][0]["text"].replace(" ", "", 1)), {"stream"}, "as alone"),
    ("no end of the stream", streamed(done=False), {"stream"}, "did not say that it was over"),
    ("all in one piece", streamed(pieces=1), {"stream"}, "tokens in 1 piece"),
    ("no piece with text", streamed(first_s=None), {"stream"}, "no piece had any text"),
    ("a stream that broke", streamed(error="broken: gone", status=0), {"answers.status", "stream"}, "broken: gone"),
    ("not streamed", lambda t: t.update(stream=[]), {"answers.asked", "stream"}, "planned, and not answered"),
    ("the stop string ignored", ignores_its_stop_string, {"bounds"}, "went on past"),
    ("stopped too early", stops_a_word_early, {"bounds"}, "as alone"),
    ("stopped, and says otherwise", bounded("stop", finish="length"), {"bounds"}, "ended by 'length'"),
    ("asked to stop at nothing", asked_to_stop_at_nothing, {"bounds"}, "which the answer alone does not have"),
    ("a token too many", one_token_more, {"bounds"}, "were asked for"),
    ("cut, and says otherwise", bounded("length", finish="stop"), {"bounds"}, "says that it ended by 'stop'"),
    ("other tokens when fewer are asked for", other_tokens_when_fewer, {"bounds"}, "as alone"),
    ("one bound not asked", lambda t: t["bounds"].pop(0), {"answers.asked", "bounds"}, "not asked by 'stop'"),
    ("no bounds", lambda t: t.update(bounds=[]), {"answers.asked", "bounds"}, "planned, and not answered"),
    ("nobody hung up", lambda t: t.update(abort=None), {"abort"}, "planned, and not answered"),
    ("the request is never freed", lambda t: t["abort"].update(idle_s=None), {"abort"}, "still at work"),
    ("the request runs to its end", lambda t: t["abort"].update(idle_s=9.0), {"abort"}, "as long as the whole answer"),
    ("nothing to hang up on", lambda t: t["abort"].update(pieces=0), {"abort"}, "nothing to hang up on"),
    ("the load is not told", lambda t: t["abort"].update(error="HTTP 404"), {"abort"}, "HTTP 404"),
    ("not asked after that", lambda t: t.update(after=[]), {"answers.asked", "after"}, "planned, and not answered"),
    (
        "wrong after the abort",
        lambda t: t["after"][0].update(text="I am a rocket model."),
        {"after"},
        "after/who: ",
    ),
    (
        "wrong past a prefix",
        long(text=GOOD["long"][1]["text"].replace("kinake", "cake")),
        {"reference"},
        "long_1100: ",
    ),
    ("a long answer ends early", long(n=40, finish="stop"), {"long", "lossless"}, "40 of 64 tokens, ended by 'stop'"),
    ("an empty long answer", long(text="", n=64), {"long", "reference", "answers.garble"}, "an empty answer"),
    (
        "a long one hangs",
        long(error="hang: no complete answer", status=0),
        {"answers.status", "long", "reference", "lossless"},
        "hang",
    ),
    (
        "no long ones",
        lambda t: t.update(long=[]),
        {"answers.asked", "long", "lossless", "concurrency"},
        "planned, and not answered",
    ),
    ("blocked after green health", start(healthy_s=1.0, answered_s=21.0), {"start.first-answer"}, "20.0 s later"),
    ("nobody waited", lambda t: t.update(first=None), {"start.first-answer"}, "nobody waited"),
]


@pytest.mark.parametrize(("change", "checks", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_spoilt_is_rejected_by_name(change: Change, checks: set[str], said: str) -> None:
    found = failures(spoilt(change))
    assert set(found) == checks, found
    assert any(said in text for text in found.values()), found
    assert checks & FAILS


def test_every_check_of_this_page_is_seen_failing() -> None:
    assert {name for case in CASES for name in case[2]} >= FAILS


def test_near_ties_are_excused_as_everywhere() -> None:
    """A stop string may never come, and fewer tokens may be others, when the answer took another way before."""

    def another_way(transcript: dict[str, Any]) -> None:
        one = next(one for one in transcript["bounds"] if one["how"] == "stop")
        one.update(text=one["text"][: len(one["text"]) * 3 // 4] + " and on it went", finish="length")
        one["n"] += 3
        cut = next(one for one in transcript["bounds"] if one["how"] == "length")
        cut["ids"][-5:] = [7] * 5
        cut["text"] = cut["text"][:-20] + "x" * 15

    assert set(failures(spoilt(another_way))) == {"bounds"}
    assert not failures(spoilt(another_way), replace(EXPECTED, agreement=0.5))


def test_a_green_health_that_never_came_is_no_wait() -> None:
    assert not failures(spoilt(start(healthy_s=None)))


def test_a_reference_is_judged_as_far_as_near_ties_go() -> None:
    def late(transcript: dict[str, Any]) -> None:
        text = transcript["long"][1]["text"]
        transcript["long"][1]["text"] = text[: len(text) * 3 // 4] + " another way"

    assert set(failures(spoilt(late))) == {"reference"}
    assert not failures(spoilt(late), replace(EXPECTED, agreement=0.5))


def test_a_reference_counts_as_an_answer_that_was_right() -> None:
    some = tuple(
        prompt.model_copy(update={"answer": None, "reference": prompt.answer}) if prompt.text else prompt
        for prompt in POCKET
        if not prompt.long
    )
    expected = replace(EXPECTED, prompts=some, min_answers=13)
    checks = {check.name: check for check in judge(GOOD, expected).checks}
    assert checks["answers.enough"].outcome is Outcome.PASSED
    assert checks["reference"].detail.startswith("16 answers")


def unseen(transcript: dict[str, Any]) -> None:
    transcript.update(processes=None, port=None, log=None, restarts=None, first=None)


def test_from_elsewhere_the_host_is_not_seen_and_that_is_said() -> None:
    remote = replace(EXPECTED, remote_url="http://gpu7:30000", launched=False)
    verdict = judge(spoilt(unseen), remote)
    assert verdict.accepted, verdict.reasons
    apart = {check.name: check.detail for check in verdict.checks if check.outcome is Outcome.NOT_APPLICABLE}
    names = {"identity.processes", "identity.port", "log", "restarts"}
    assert all("http://gpu7:30000" in apart[name] for name in names)
    assert apart["start.first-answer"] == "it was up already"
    assert list(failures(spoilt(unseen))) == ["transcript"]
    assert not failures(GOOD, remote)  # what was seen all the same is judged
    assert set(failures(spoilt(lambda t: t.update(restarts=1)), remote)) == {"restarts"}
