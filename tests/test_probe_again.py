"""Losslessness, the agent's half: each token asked again from a prefill, by logprobs or prefix by prefix."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))

from kdeploy_agent.asking import probe, reasking

from .scripted import Engine, bare, only, plan, quiet, sleeping, soon

ASKS = plan()["alone"][:3]
NAMES = [ask["name"] for ask in ASKS]


def asked(server: Engine, how: str, each: int = 8, batch: int = 4, of: list[str] | None = None, **changes: Any) -> Any:
    wanted = {"how": how, "why": "a test", "of": NAMES if of is None else of, "each": each, "batch": batch}
    return probe.run(server.url, bare(alone=ASKS, lossless=wanted, **changes), soon(20), quiet)


def test_by_logprobs_every_position_is_asked_in_one_prefill(engine: Any) -> None:
    server = engine()
    told = asked(server, "logprobs")
    lossless = told["lossless"]
    assert (lossless["how"], lossless["why"], lossless["flushed"]) == ("logprobs", "a test", True)
    assert [one["name"] for one in lossless["answers"]] == NAMES
    for answer, again in zip(told["alone"], lossless["answers"], strict=True):
        assert again["error"] is None
        assert (again["prompt"], again["n"]) == (answer["meta"]["prompt_tokens"], len(answer["ids"]))
        assert again["at"] == list(range(again["n"]))
        assert again["said"] == again["again"] == answer["ids"]
        assert set(again["margins"]) == {0.0}
    prefills = [payload for payload in server.payloads("/generate") if "input_ids" in payload]
    assert len(prefills) == len(NAMES)
    assert all(one["return_logprob"] and one["sampling_params"]["max_new_tokens"] == 1 for one in prefills)
    paths = server.paths()
    assert paths.index("/flush_cache?timeout=5") < paths.index("/tokenize")


def test_by_prefixes_some_positions_are_asked_in_batches(engine: Any) -> None:
    server = engine()
    told = asked(server, "reask", each=10, batch=4)
    for answer, again in zip(told["alone"], told["lossless"]["answers"], strict=True):
        assert len(again["at"]) == 10 and (again["at"][0], again["at"][-1]) == (0, again["n"] - 1)
        assert again["again"] == again["said"] == [answer["ids"][at] for at in again["at"]]
        assert again["margins"] == [None] * 10
    batches = [payload["input_ids"] for payload in server.payloads("/generate") if "input_ids" in payload]
    assert [len(batch) for batch in batches] == [4, 4, 2] * 3
    assert not any("return_logprob" in payload for payload in server.payloads("/generate"))


def lossy(at: int, ids: dict[int, int]) -> Any:
    """An engine whose answers alone have another token at one place than its prefill would give."""

    def respond(server: Engine, _: str, payload: Any) -> Any:
        if "text" not in payload:
            return None
        row = json.loads(server.answer("/generate", payload)[1])  # type: ignore[arg-type]
        ids[id(server)] = row["output_ids"][at]
        row["output_ids"][at] = 1
        return 200, json.dumps(row).encode()

    return only("/generate", respond)


@pytest.mark.parametrize("how", ["logprobs", "reask"])
def test_a_token_that_a_prefill_would_not_say_is_seen_with_its_margin(engine: Any, how: str) -> None:
    told = asked(engine(lossy(3, {})), how, each=1000)["lossless"]["answers"][0]
    apart = [at for at, said, again in zip(told["at"], told["said"], told["again"], strict=True) if said != again]
    assert told["error"] is None and apart == [3]
    assert told["margins"][3] == (2.0 if how == "logprobs" else None)


@pytest.mark.parametrize("how", ["logprobs", "reask"])
def test_one_token_alone_can_be_asked_again(engine: Any, how: str) -> None:
    server = engine()
    wanted = {"how": how, "why": "", "of": [NAMES[0]], "each": 8, "batch": 4}
    one = {**ASKS[0], "max_tokens": 1}
    (told,) = probe.run(server.url, bare(alone=[one], lossless=wanted), soon(20), quiet)["lossless"]["answers"]
    assert (told["at"], told["n"], told["said"] == told["again"]) == ([0], 1, True)


def test_long_answers_past_their_end_are_asked_again_too(engine: Any) -> None:
    long = {"name": "long", "kind": "long", "text": ASKS[0]["text"], "max_tokens": 300, "ignore_eos": True}
    told = asked(engine(), "logprobs", of=["long"], long=[long])
    (again,) = told["lossless"]["answers"]
    assert again["error"] is None and again["n"] == 300 == told["long"][0]["n"]
    assert again["said"] == again["again"]


def test_what_is_not_asked_again_says_why(engine: Any) -> None:
    server = engine()
    told = asked(server, "none")["lossless"]
    assert told == {"how": "none", "why": "a test", "flushed": False, "answers": []}
    assert "/tokenize" not in server.paths()


@pytest.mark.parametrize("how", ["logprobs", "reask"])
@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/tokenize", (404, b"none"), "/tokenize: HTTP 404: none"),
        ("/tokenize", (200, b"[]"), "/tokenize: malformed"),
        ("/tokenize", (200, b'{"tokens": [1, 2]}'), "/tokenize gives 2 tokens for a prompt of"),
        ("/tokenize", (200, b'{"tokens": []}'), "/tokenize gives 0 tokens"),
        ("again", (400, b"logprobs are refused"), "/generate: HTTP 400: logprobs are refused"),
        ("again", (200, b"{}"), "malformed"),
        ("again", (200, b"[]"), "malformed"),
        ("again", (200, b"null"), "malformed"),
        ("again", (200, b'{"meta_info": {"input_token_logprobs": [], "input_top_logprobs": []}}'), "malformed"),
    ],
)
def test_why_an_answer_could_not_be_asked_again(engine: Any, how: str, path: str, body: Any, said: str) -> None:
    def respond(_: Engine, asked: str, payload: Any) -> Any:
        return body if asked == path or (path == "again" and asked == "/generate" and "input_ids" in payload) else None

    told = asked(engine(respond), how)["lossless"]["answers"]
    assert [one["error"][: len(said)] for one in told] == [said] * 3
    assert all(one["at"] == one["said"] == one["again"] == one["margins"] == [] for one in told)


@pytest.mark.parametrize("wrong", ["ids", "null", "nan"])
def test_logprobs_that_prove_nothing_are_malformed(engine: Any, wrong: str) -> None:
    def respond(server: Engine, _: str, payload: Any) -> Any:
        if "input_ids" not in payload:
            return None
        row = json.loads(server.answer("/generate", payload)[1])  # type: ignore[arg-type]
        entry, best = row["meta_info"]["input_token_logprobs"][2], row["meta_info"]["input_top_logprobs"][2]
        best[0][1] = 2  # another token comes first, so that the margin counts
        if wrong == "ids":
            entry[1] = 7777
        else:
            entry[0] = None if wrong == "null" else float("nan")
        return 200, json.dumps(row).encode()

    told = asked(engine(only("/generate", respond)), "logprobs")["lossless"]["answers"]
    assert all(one["error"].startswith("malformed") for one in told), told


def test_an_answer_that_never_came_is_not_asked_again(engine: Any) -> None:
    told = asked(engine(only("/generate", lambda *_: (500, b"boom"))), "logprobs", of=[NAMES[0], "nobody"])
    assert [one["error"] for one in told["lossless"]["answers"]] == [
        "there is no answer to ask about: HTTP 500: boom", "there is no answer to ask about",
    ]  # fmt: skip


def test_a_server_that_falls_silent_is_not_asked_on(engine: Any) -> None:
    def hang(_: Engine, __: str, payload: Any) -> Any:
        return sleeping(20)() if "input_ids" in payload else None

    server = engine(only("/generate", hang))
    told = asked(server, "reask", request_s=0.3)["lossless"]["answers"]
    assert [one["error"] for one in told] == [
        "/generate: hang: no complete answer within 0.3 s", "/generate: hang: no complete answer within 0.3 s",
        "/tokenize: not asked: the server had stopped answering",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("n", "at_most", "at"),
    [(0, 4, []), (1, 4, [0]), (4, 4, [0, 1, 2, 3]), (100, 3, [0, 50, 99]), (9, 5, [0, 2, 4, 6, 8]), (9, 1, [8])],
)
def test_positions_are_spread_from_the_first_to_the_last(n: int, at_most: int, at: list[int]) -> None:
    assert reasking.positions(n, at_most) == at


def test_positions_are_never_asked_twice() -> None:
    for n in range(1, 200):
        for at_most in range(2, 40):
            found = reasking.positions(n, at_most)
            assert found == sorted(set(found)) and len(found) == min(n, at_most)
            assert (found[0], found[-1]) == (0, n - 1)
