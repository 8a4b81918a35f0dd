"""The judge, on a transcript that a real server gave (tests/judging.py), and on the same transcript spoilt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdeploy.errors import ProfileError
from kdeploy.verdict import shape
from kdeploy.verdict.judge import CHECKS, Outcome, judge
from kdeploy.verdict.office import entry, long_prompts
from kdeploy.verdict.prompts import Bounds, Prompt, default_prompts, load_prompts, probes, reasking, takes_schemas
from tests import test_flow, test_speculation
from tests.judging import EXPECTED, GOOD, POCKET, Change, failures, spoilt


def info(**fields: Any) -> Change:
    return lambda t: t["server_info"]["body"].update(fields)


def every(title: str, **fields: Any) -> Change:
    """Change every answer of a section, or of every group."""

    def change(transcript: dict[str, Any]) -> None:
        sections = transcript[title]
        for answer in [a for one in sections for a in one["answers"]] if title == "together" else sections:
            answer.update(fields)

    return change


def swap_rows(transcript: dict[str, Any]) -> None:
    """What a mix-up of rows looks like: in one batch two good answers stand at each other's question."""
    one, other = transcript["together"][1]["answers"][:2]
    for key in ("text", "ids", "n", "finish"):
        one[key], other[key] = other[key], one[key]


def test_the_true_transcript_is_accepted() -> None:
    verdict = judge(GOOD, EXPECTED)
    assert verdict.reasons == ()
    assert verdict.accepted
    outcomes = {check.name: check.outcome for check in verdict.checks}
    assert list(outcomes) == list(CHECKS)
    assert {name for name, outcome in outcomes.items() if outcome is Outcome.NOT_APPLICABLE} == {
        "answers.expect",
        "acceptance",
    }


# name of the case, what is spoilt, the checks that must say no, and a part of what they say
CASES: list[tuple[str, Change, set[str], str]] = [
    ("another version", info(version="0.5.11"), {"identity.version"}, "declared is '0.5.11+kd"),
    ("no version", lambda t: t["server_info"]["body"].pop("version"), {"identity.version"}, "no field 'version'"),
    (
        "no server_info",
        lambda t: t["server_info"].update(status=404, body=None, error="HTTP 404: no body"),
        {"identity.version", "identity.args", "concurrency"},
        "HTTP 404",
    ),
    ("another backend", info(attention_backend="triton"), {"identity.args"}, 'in effect is "triton"'),
    ("fewer tokens", info(max_total_tokens=4000), {"identity.args"}, "declared 4096, in effect is 4000"),
    ("a flag not set", info(sleep_on_idle=False), {"identity.args"}, "declared true, in effect is false"),
    ("a field is gone", lambda t: t["server_info"]["body"].pop("dtype"), {"identity.args"}, "does not have it"),
    ("the server chose nothing", info(load_format=None), {"identity.args"}, "in effect is null"),
    (
        "the scheduler has another backend",
        lambda t: t["server_info"]["body"]["internal_states"][0].update(attention_backend="triton"),
        {"identity.args"},
        'scheduler 0 has "triton"',
    ),
    (
        "another model",
        lambda t: t["models"]["body"]["data"][0].update(id="rocket"),
        {"identity.model"},
        'clients find "rocket", declared is "pocket"',
    ),
    ("no model", lambda t: t["models"].update(body=None, error="HTTP 404: no body"), {"identity.model"}, "HTTP 404"),
    ("no process", lambda t: t.update(processes=[]), {"identity.processes", "identity.port"}, "no process"),
    (
        "one process on another tree",
        lambda t: t["processes"][2].update(tree="/opt/kdeploy/pocket/trees/" + "f" * 40),
        {"identity.processes"},
        "ffff first on its path",
    ),
    ("a path unknown", lambda t: t["processes"][3].update(tree=None), {"identity.processes"}, "an unknown folder"),
    ("a strange port owner", lambda t: t["port"].update(owner=1, ours=False), {"identity.port"}, "process 1,"),
    ("an owner that only says so", lambda t: t["port"].update(owner=1), {"identity.port"}, "not one of the cand"),
    ("no port owner", lambda t: t["port"].update(owner=None, ours=False), {"identity.port"}, "nobody"),
    (
        "health never answers",
        lambda t: t.update(health=[{"status": 0, "seconds": 30.0, "body": None, "error": "hang: none"}] * 3),
        {"health"},
        "no good reply of 3: hang",
    ),
    ("health not asked", lambda t: t.update(health=[]), {"health"}, "not asked"),
    ("a probe left out", lambda t: t["alone"].pop(1), {
        "answers.asked", "lossless", "concurrency",
    }, "alone: 11 answers"),
    ("a group left out", lambda t: t["together"].pop(0), {"answers.asked"}, "batch-2-1: 0 answers"),
    (
        "another question than planned",
        lambda t: t["alone"][1]["ask"].update(max_tokens=1),
        {"answers.asked"},
        "not those to the 12 planned",
    ),
    (
        "a hang",
        lambda t: t["repeat"][0].update(status=0, error="hang: no complete answer within 30.0 s", text="", ids=None),
        {"answers.status", "repeat"},
        "hang: no complete answer",
    ),
    (
        "an error",
        lambda t: t["json"][0].update(status=500, error="HTTP 500: no", text=""),
        {"answers.status", "json"},
        "HTTP 500",
    ),
    ("constant token", every("alone", text="!" * 60, ids=[0] * 60), {
        "answers.exact", "answers.garble", "answers.enough", "stream", "bounds", "lossless", "concurrency", "after",
        "repeat",
    }, "character run ('!' 60 times)"),
    (
        "a word wrong in one answer",
        lambda t: t["alone"][0].update(text=t["alone"][0]["text"].replace("grey", "green")),
        {"answers.exact", "stream", "bounds", "concurrency", "repeat"},
        "1 of 12 wrong: sea: parts at character 65",
    ),
    (
        "right, but it never stops by itself",
        lambda t: [a.update(finish="length") for a in t["alone"]],
        {"answers.exact", "answers.enough", "stream", "concurrency", "after", "repeat"},
        "ended by 'length', not by itself",
    ),
    ("rows mixed up in company", swap_rows, {"concurrency"}, "0% as alone"),
    (
        "company from the cache",
        lambda t: t["together"][2].update(flushed=False),
        {"concurrency"},
        "batch-4-3: the cache was not flushed",
    ),
    (
        "a scheduler that runs one at a time",
        lambda t: t["server_info"]["body"]["internal_states"][0].update(effective_max_running_requests_per_dp=1),
        {"concurrency"},
        "runs 1 requests at once",
    ),
    ("as many replicas as prompts", info(dp_size=4), {"identity.args", "concurrency"}, "over 4 replicas"),
    (
        "replicas unknown",
        lambda t: t["server_info"]["body"].pop("dp_size"),
        {"identity.args", "concurrency"},
        "(dp_size)",
    ),
    (
        "room unknown",
        lambda t: (info(max_running_requests=None, internal_states=[])(t)),
        {"concurrency"},
        "(max_running_requests)",
    ),
    (
        "equal prompts in the batch",
        lambda t: [g.update(answers=g["answers"][:1] * len(g["answers"])) for g in t["together"]],
        {"answers.asked", "concurrency"},
        "had 1 different prompts, 4 are needed",
    ),
    (
        "text right, ids wrong",
        lambda t: t["together"][1]["answers"][0]["ids"].__setitem__(3, 1),
        {"concurrency"},
        "as alone",
    ),
    (
        "ids right, text wrong in the repetition",
        lambda t: t["repeat"][0].update(text=t["repeat"][0]["text"].upper()),
        {"repeat"},
        "as alone",
    ),
    ("not repeated", lambda t: t.update(repeat=[]), {"answers.asked", "repeat"}, "planned, and not answered"),
    (
        "the chat template is broken",
        lambda t: t["chat"][0].update(text="user\nWho are you?"),
        {"chat", "stream", "concurrency", "repeat"},
        "1 of 4 wrong: who",
    ),
    ("an empty chat answer", every("chat", text="", n=0), {
        "answers.garble", "chat", "stream", "concurrency", "repeat",
    }, "an empty answer"),
    ("no chat", lambda t: t.update(chat=[]), {
        "answers.asked", "chat", "stream", "concurrency", "repeat",
    }, "not answered"),
    ("not JSON", lambda t: t["json"][0].update(text='{"type": "cat"'), {"json"}, "not JSON"),
    ("JSON of another shape", lambda t: t["json"][0].update(text='{"type": "cat"}'), {"json"}, "answer.name: missing"),
    ("no JSON answer", lambda t: t.update(json=[]), {"answers.asked", "json"}, "not answered"),
    (
        "a traceback in the log",
        lambda t: t["log"]["matches"].append({"line": 7, "text": "Traceback (most recent call last):"}),
        {"log"},
        "line 7: Traceback",
    ),
    (
        "a fatal line that the agent did not report",
        lambda t: t["log"]["tail"].append("[...] Received sigquit from a child process."),
        {"log"},
        "near the end: [...] Received sigquit",
    ),
    ("an empty log", lambda t: t["log"].update(bytes=0, lines=0, tail=[]), {"log"}, "is empty"),
    ("a restart", lambda t: t.update(restarts=1), {"restarts"}, "started again 1 times"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "checks", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_spoilt_is_rejected_by_name(change: Change, checks: set[str], said: str) -> None:
    found = failures(spoilt(change))
    assert set(found) == checks, found
    assert any(said in text for text in found.values()), found


def test_every_check_is_seen_failing() -> None:
    seen = {name for case in CASES for name in case[2]}
    here = {"answers.expect"}  # below: the pocket model gives it nothing to look at
    assert seen | here | test_flow.FAILS | test_speculation.FAILS == set(CHECKS)


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key that the judge reads: not inside what the server or the plan put in as it pleases."""
    if isinstance(value, dict) and here[-1:] not in (("body",), ("ask",), ("meta",)):
        for key in value:
            yield (*here, key)
            yield from paths(value[key], (*here, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*here, index))


def at(transcript: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        transcript = transcript[part]
    return transcript


NULLABLE = (
    "tree", "ids", "error", "finish", "owner", "body", "first", "healthy_s", "abort", "idle_s",
)  # fmt: skip
KEYS = sorted({path for path in paths(GOOD) if path[0] != "base_url"}, key=str)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KEYS))
def test_a_missing_key_is_a_failure_with_its_name(path: tuple[Any, ...]) -> None:
    found = failures(spoilt(lambda t: at(t, path[:-1]).pop(path[-1])))
    assert list(found) == ["transcript"]
    assert f".{path[-1]} is missing" in found["transcript"]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KEYS), st.sampled_from([None, True, 3, "x", [3], {"x": 3}]))
def test_a_key_of_another_type_never_raises_and_never_helps(path: tuple[Any, ...], value: Any) -> None:
    before = at(GOOD, path)
    transcript = spoilt(lambda t: at(t, path[:-1]).__setitem__(path[-1], value))
    if type(before) is not type(value) and not (isinstance(before, float) and value == 3):
        nullable = path[-1] in NULLABLE
        assert nullable or list(failures(transcript)) == ["transcript"]
    judge(transcript, EXPECTED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
READ = st.sampled_from(["version", "attention_backend", "max_total_tokens", "internal_states", "dp_size", "tp_size"])


@settings(max_examples=150, deadline=None)
@given(READ, JSON)
def test_whatever_server_info_says_the_judge_answers(field: str, value: Any) -> None:
    before = GOOD["server_info"]["body"][field]
    found = failures(spoilt(info(**{field: value})))
    assert field == "internal_states" or found or value == before or str(value) == str(before)
    failures(spoilt(lambda t: t["server_info"].update(body=value)))
    failures(spoilt(lambda t: t["json"][0].update(text=json.dumps(value))))


@pytest.mark.parametrize("nothing", [{}, {"protocol": 1}, None, [], "x", {"protocol": 2}])
def test_nothing_is_not_accepted(nothing: Any) -> None:
    assert list(failures(nothing)) == ["transcript"]


def test_a_later_protocol_is_named() -> None:
    assert "is 3, this kdeploy reads 2" in failures(spoilt(lambda t: t.update(protocol=3)))["transcript"]


def test_without_enough_real_answers_nothing_was_shown() -> None:
    assert "13 prompts answered right" in failures(GOOD, replace(EXPECTED, min_answers=14))["answers.enough"]
    assert "answers.enough" in failures(spoilt(every("alone", error="HTTP 500: no", status=500)))
    # a floor of zero is still one
    none = spoilt(lambda t: (every("alone", text="x")(t), every("chat", text="x")(t)))
    assert "at least 1" in failures(none, replace(EXPECTED, min_answers=0))["answers.enough"]


def test_no_declared_argument_is_a_failure() -> None:
    assert "no argument was declared" in failures(GOOD, replace(EXPECTED, args={}))["identity.args"]


@pytest.mark.parametrize(
    ("declared", "effective", "same"),
    [
        (7, "7", True), ("7", 7, True), (0.5, 0.5, True), ([1, 2], [1, 2], True), ([1, 2], [1, 3], False),
        ("x", ["x"], True), (True, 1, False), ('{"a": 1}', {"a": 1}, True), ('{"a": 1}', '{"a":1}', True),
        ("auto", "flashinfer", True), ("auto", None, False), ("bfloat16", "float32", False), (1, None, False),
        ("hidden", "(withheld)", True),
    ],
)  # fmt: skip
def test_how_arguments_are_compared(declared: Any, effective: Any, same: bool) -> None:
    expected = replace(EXPECTED, args={"some-flag": declared})
    assert ("identity.args" not in failures(spoilt(info(some_flag=effective)), expected)) == same


def test_an_excused_log_line_passes() -> None:
    line = "Traceback (most recent call last): of a plugin we know"
    transcript = spoilt(lambda t: t["log"]["matches"].append({"line": 7, "text": line}))
    assert set(failures(transcript)) == {"log"}
    assert not failures(transcript, replace(EXPECTED, allowed_log=("of a plugin we know",)))


def test_patterns_judge_answers_known_only_in_part() -> None:
    some = tuple(
        prompt.model_copy(update={"answer": None, "expect": r"\b19\b"}) if prompt.name == "sum_12_7" else prompt
        for prompt in POCKET
    )
    expected = replace(EXPECTED, prompts=some)
    assert not failures(GOOD, expected)
    wrong = spoilt(lambda t: next(a for a in t["alone"] if a["name"] == "sum_12_7").update(text=" 18"))
    assert "nothing like" in failures(wrong, expected)["answers.expect"]


def test_agreement_allows_near_ties_late_in_an_answer() -> None:
    def late(transcript: dict[str, Any]) -> None:
        for answer in transcript["repeat"][:1]:
            answer["ids"][100:] = list(range(7, 7 + len(answer["ids"]) - 100))
            answer["text"] = answer["text"][:250] + " and so on"

    assert set(failures(spoilt(late))) == {"repeat"}
    assert not failures(spoilt(late), replace(EXPECTED, agreement=0.5))
    assert set(failures(spoilt(swap_rows), replace(EXPECTED, agreement=0.05))) == {"concurrency"}


def test_the_verdict_as_json() -> None:
    values = judge(spoilt(swap_rows), EXPECTED).as_json()
    assert json.loads(json.dumps(values)) == values
    assert values["accepted"] is False
    assert {"name", "outcome", "detail", "evidence"} == set(values["checks"][0])


# ---- the plan


def names(asks: list[dict[str, Any]]) -> list[str]:
    return [ask["name"] for ask in asks]


def test_the_plan_is_json_bounded_and_repeatable() -> None:
    plan = probes(POCKET, Bounds(), "pocket")
    assert plan == json.loads(json.dumps(plan)) == probes(POCKET, Bounds(), "pocket")
    assert len(plan["alone"]) == 12
    assert len(plan["chat"]) == 4  # three are marked quick; one more, for four at once
    assert names(plan["json"]) == ["json_q"]
    assert len(plan["repeat"]) == 4
    assert len(plan["brief"]) == 2
    assert all(ask["answer"] for ask in plan["brief"])
    assert names(plan["long"]) == ["long_500", "long_1100", "on_and_on"]
    assert all(ask["ignore_eos"] for ask in plan["long"])
    assert plan["lossless"]["of"] == names(plan["alone"]) + names(plan["long"])
    (mixed,) = (group for group in plan["together"] if group["name"] == "mixed-4")
    assert names(mixed["asks"])[0] == "long_500"
    assert all(ask in plan["alone"] for ask in mixed["asks"][1:])
    assert plan["bounds"] == ["cafe", "sea"] == names(plan["stream"])[:2]
    assert all(ask in plan["alone"] + plan["chat"] for ask in plan["stream"])
    assert len(probes(POCKET, Bounds(quick=False), "pocket")["alone"]) == 70


def test_speed_is_measured_with_texts_that_all_differ() -> None:
    for count in (1, 3, 8, 70):
        pace = probes(POCKET[:count], Bounds(quick=False), "pocket")["pace"]
        assert len(set(pace["texts"])) == len(pace["texts"]) == max(pace["at_once"]) == 8
        assert pace["ask"]["ignore_eos"]
    assert probes(POCKET, Bounds(pace=False), "pocket")["pace"] is None


def test_chats_alone_are_asked_what_needs_no_text() -> None:
    chats = [prompt.model_copy(update={"text": None}) for prompt in POCKET if prompt.messages]
    plan = probes(chats, Bounds(), "pocket")
    assert plan["abort"] is plan["pace"] is None
    assert plan["lossless"] == {**plan["lossless"], "how": "none", "why": "nothing is asked by its text", "of": []}


@pytest.mark.parametrize(
    ("args", "how"),
    [({}, "logprobs"), ({"speculative-algorithm": "EAGLE"}, "logprobs"), ({"speculative_algorithm": "dflash"}, "reask"),
     ({"speculative-algorithm": "DDTREE"}, "reask")],
)  # fmt: skip
def test_who_gives_logprobs(args: dict[str, Any], how: str) -> None:
    """SGLang 0.5.11 drains for ever at its end after it has refused something: it must not be tried."""
    assert reasking(args)[0] == how


@settings(deadline=None)
@given(st.integers(1, 70), st.lists(st.integers(2, 9), min_size=1, max_size=3, unique=True), st.integers(0, 6))
def test_batches_have_different_prompts_and_every_prompt_gets_company(count: int, sizes: list[int], chats: int) -> None:
    bounds = Bounds(quick=False, together=tuple(sizes), chats=chats)
    plan = probes(POCKET[:count], bounds, "pocket")
    batches = [group for group in plan["together"] if group["how"] == "batch"]
    for group in batches:
        texts = [ask["text"] for ask in group["asks"]]
        assert len(set(texts)) == len(texts) <= max(sizes)
    if count >= max(sizes):
        assert {len(group["asks"]) for group in batches} == set(sizes)
        assert {ask["name"] for group in batches for ask in group["asks"]} == set(names(plan["alone"]))
    titles = [group["name"] for group in plan["together"]]
    assert len(set(titles)) == len(titles)
    asked = {json.dumps(ask) for ask in (*plan["alone"], *plan["chat"])}
    assert all(json.dumps(ask) in asked for group in plan["together"] for ask in group["asks"])
    assert all(json.dumps(ask) in asked for ask in plan["repeat"])


def test_what_the_lost_property_office_is_asked_stands_far_above_and_once() -> None:
    assert len({entry(number)[0] for number in range(400)}) == len({entry(number)[1] for number in range(400)}) == 400
    for prompt in long_prompts():
        if prompt.expect is None:
            continue
        *lines, last = str(prompt.text).splitlines()
        (line,) = (line for line in lines if line.startswith(last))
        assert lines.index(line) < len(lines) / 2
        assert re.search(prompt.expect, line.removeprefix(last))
        assert sum(re.search(prompt.expect, one.partition(":")[2]) is not None for one in lines) == 1


def test_the_default_prompts_cover_the_kinds() -> None:
    prompts = default_prompts()
    assert 12 <= len(prompts) <= 20
    assert prompts[0].kind == "prose"
    assert {"prose", "code", "arithmetic", "json"} <= {prompt.kind for prompt in prompts}
    plan = probes(prompts, Bounds(), "any")
    assert {len(group["asks"]) for group in plan["together"] if group["how"] == "batch"} == {2, 4}
    assert len(plan["json"]) >= 1
    assert sum(prompt.expect is not None for prompt in prompts) >= 4


@pytest.mark.parametrize(
    ("args", "takes"),
    [({}, True), ({"speculative-algorithm": "DFLASH"}, False), ({"speculative_algorithm": "ddtree"}, False),
     ({"speculative-algorithm": "EAGLE"}, True)],
)  # fmt: skip
def test_who_takes_schemas(args: dict[str, Any], takes: bool) -> None:
    assert takes_schemas(args) is takes


CHAT = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ([{"name": "a", "kind": "x", "max-tokens": 5}], "needs 'text' or 'messages'"),
        ([{"name": "a", "kind": "x", "max-tokens": 0, "text": "t"}], "max-tokens"),
        ([{"name": "a", "kind": "x", "max-tokens": 5, "text": "t", "expect": "("}], "not a regular expression"),
        ([{"name": "a", "kind": "x", "max-tokens": 5, "text": "t", "expect": "a", "answer": "a"}], "not both"),
        ([{"name": "a", "kind": "x", "max-tokens": 5, "text": "t", "reference": "a", "answer": "a"}], "not both"),
        ([{"name": "a", "kind": "x", "max-tokens": 5, "text": "t", "ignore-eos": True}], "is for kind 'long'"),
        ([{"name": "a", "kind": "long", "max-tokens": 5, "messages": CHAT}], "kind 'long' needs 'text'"),
        ([{"name": n, "kind": "x", "max-tokens": 5, "text": "t"} for n in "ab"], "two prompts have the text"),
        ([{"name": "a", "kind": "x", "max-tokens": 5, "text": t} for t in "tu"], "two prompts have the name"),
        ([{"name": "a", "kind": "x", "max-tokens": 5, "text": "t", "json-schema": {}}], "needs 'messages'"),
        ([], "prompts"),
    ],
)
def test_a_prompts_file_that_cannot_work_is_refused(tmp_path: Path, prompts: list[Any], said: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"prompts": prompts}), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        load_prompts(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "schema", "count"),
    [
        ({"a": 1}, {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}, 0),
        ({"a": True}, {"properties": {"a": {"type": "integer"}}}, 1),
        ({"a": 1, "b": 2}, {"properties": {"a": {}}, "additionalProperties": False}, 1),
        ([1, "x", None], {"type": "array", "items": {"type": "integer"}}, 2),
        ("red", {"enum": ["red"]}, 0),
        ("blue", {"enum": ["red"]}, 1),
        (1.5, {"type": "number"}, 0),
        (1, {"type": "nonsense"}, 1),
        (1, None, 1),
    ],
)
def test_shapes(value: Any, schema: Any, count: int) -> None:
    assert len(shape.faults(value, schema)) == count


def test_prompts_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        Prompt(name="a", kind="x", text="t", max_tokens=1).name = "b"  # type: ignore[misc]
