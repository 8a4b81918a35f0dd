"""Answers in pieces, bounds, leaving in the middle, and pace: against an engine that does it well, and others."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))

from kdeploy_agent.asking import company, pace, probe, streaming

from .scripted import ANSWERS, Engine, bare, event, only, plan, quiet, sleeping, soon

ASKS = plan()["alone"]
SEA = next(ask for ask in ASKS if ask["name"] == "sea")
HELLO = {"name": "hello", "kind": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
DONE = b"data: [DONE]\n\n"


def run(server: Engine, **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = probe.run(server.url, bare(**changes), soon(20), quiet)
    return told


def streamed(server: Engine, ask: dict[str, Any] = SEA, **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = run(server, stream=[ask], **changes)["stream"][0]
    return told


def sends(*parts: bytes, status: int = 200, pause: float = 0.0) -> Any:
    """An engine's way to answer streams: these parts, then nothing."""

    def slowly() -> Iterator[bytes]:
        for part in parts:
            yield part
            time.sleep(pause)

    return lambda _, __, payload: (status, slowly()) if payload and payload.get("stream") else None


# ---- one stream


def test_the_pieces_of_a_text_are_its_answer(engine: Any) -> None:
    told = streamed(engine(pause=0.002))
    assert (told["text"], told["error"], told["done"]) == (ANSWERS[SEA["text"]], None, True)
    assert told["finish"] == "stop" and told["n"] == len(told["ids"]) == told["pieces"] + 1  # the end has no text
    assert 0 < told["first_s"] < told["seconds"] / 2


def test_the_pieces_of_a_chat_are_its_answer(engine: Any) -> None:
    server = engine()
    told = streamed(server, HELLO)
    assert (told["text"], told["error"], told["done"], told["pieces"]) == ("Hello!", None, True, 2)
    assert (told["finish"], told["n"]) == ("stop", 3)
    (payload,) = server.payloads("/v1/chat/completions")
    assert payload["stream"] is True and payload["stream_options"] == {"include_usage": True}


def piece(text: str, n: int = 1, finish: str | None = None) -> bytes:
    reason = {"type": finish} if finish else None
    return event({"text": text, "output_ids": [1] * n, "meta_info": {"finish_reason": reason, "completion_tokens": n}})


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([piece("a")], "broken: the stream ended without [DONE]"),
        ([piece("a"), DONE], "malformed"),  # it is over, and does not say why
        ([DONE], "malformed"),
        ([piece("a b"), piece("a c", 2, "stop"), DONE], "malformed: piece 2 does not go on from the one before"),
        ([piece("a b"), piece("a", 2, "stop"), DONE], "malformed: piece 2 does not go on from the one before"),
        ([b"data: {nonsense\n\n"], "malformed"),
        ([b"data: \xff\n\n"], "malformed"),
        ([b"data: 7\n\n"], "malformed"),
        ([event({"error": {"message": "no such thing"}}), DONE], "refused: {'message': 'no such thing'}"),
        ([event({"text": "a"}), DONE], "malformed"),
    ],
)
def test_what_is_wrong_with_a_stream_has_a_name(engine: Any, parts: list[bytes], said: str) -> None:
    told = streamed(engine(sends(*parts)))
    assert told["error"].startswith(said), told["error"]


def test_a_tokenizer_may_take_a_blank_back(engine: Any) -> None:
    told = streamed(engine(sends(piece("end "), piece("end.", 2, "stop"), DONE)))
    assert (told["text"], told["error"]) == ("end.", None)


def test_comments_between_events_are_passed_over(engine: Any) -> None:
    told = streamed(engine(sends(b": ping\n\n", b"event: x\n", piece("a", 1, "stop"), DONE)))
    assert (told["text"], told["error"], told["pieces"]) == ("a", None, 1)


@pytest.mark.parametrize(
    "parts",
    [
        [
            event({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}),
            DONE,
        ],  # no usage, though asked for
        [event({"choices": [{"finish_reason": "stop"}]}), DONE],
        [event({"choices": [None]}), DONE],
        [event([1]), DONE],
    ],
)
def test_a_broken_chat_stream_is_an_error(engine: Any, parts: list[bytes]) -> None:
    assert streamed(engine(sends(*parts)), HELLO)["error"].startswith("malformed")


def test_a_refusal_is_read_as_such(engine: Any) -> None:
    told = streamed(engine(only("/generate", lambda *_: (400, b'{"error": "no"}'))))
    assert (told["status"], told["error"], told["done"]) == (400, 'HTTP 400: {"error": "no"}', False)


def test_a_stream_that_stops_half_way_is_a_hang(engine: Any) -> None:
    began = time.monotonic()
    told = streamed(engine(sends(piece("a"), piece("a b", 2), pause=0.5)), request_s=0.7)
    assert time.monotonic() - began < 2
    assert told["error"] == "hang: no complete answer within 0.7 s"
    assert (told["pieces"], told["done"]) == (2, False)


def test_a_stream_without_end_is_given_up(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "TOTAL", 5000)
    told = streamed(engine(sends(*[piece("a" * n, n) for n in range(1, 200)])))
    assert told["error"] == "too large: more than 5000 bytes"


# ---- bounds


def test_bounds_come_from_the_answer_itself(engine: Any) -> None:
    server = engine()
    told = run(server, alone=[SEA], bounds=["sea"])
    whole, (stop, length) = told["alone"][0], told["bounds"]
    assert [one["how"] for one in told["bounds"]] == ["stop", "length"]
    (wanted,) = stop["ask"]["stop"]
    at = whole["text"].index(wanted)
    assert len(wanted) == company.STOP and whole["text"][at - 1].isspace()
    assert at >= len(whole["text"]) // 2
    assert (stop["text"], stop["finish"]) == (whole["text"][:at], "stop")
    assert length["ask"]["max_tokens"] == length["n"] == whole["n"] // 2
    assert length["finish"] == "length"
    sampled = [payload["sampling_params"] for payload in server.payloads("/generate")]
    assert [params.get("stop") for params in sampled] == [None, [wanted], None]


@pytest.mark.parametrize("names", [["nobody"], ["sea"]])
def test_what_cannot_be_bounded_is_told(engine: Any, names: list[str]) -> None:
    told = run(engine(only("/generate", lambda *_: (500, b""))), alone=[SEA], bounds=names)
    assert [one["error"][:9] for one in told["bounds"]] == ["not asked"] * 2
    assert [(one["how"], one["name"]) for one in told["bounds"]] == [("stop", names[0]), ("length", names[0])]


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("one two three four five six seven", "five six sev"),
        ("aaaa bbbb cccc aaaa bbbb cccc dddd eeee", "bbbb cccc dd"),  # not what was said before
        ("那一年的冬天特别冷湖面上结了厚厚的冰孩子们在上面滑冰", "冰孩子们在上面滑"[:0] or None),
        ("short", None),
        ("", None),
        (" " * 60, None),
    ],
)
def test_a_stop_string_is_words_that_were_not_said_before(text: str, stop: str | None) -> None:
    found = company.stop_string(text)
    if stop is not None:
        assert found == stop
    elif found is not None:  # a language without blanks: whatever stands in the middle
        assert found == text[len(text) // 2 :][: company.STOP]
    else:
        assert len(text) < 2 * company.STOP or not text.strip()


# ---- leaving


def on_and_on(n: int = 400) -> dict[str, Any]:
    return {"name": "abort", "kind": "abort", "text": SEA["text"], "max_tokens": n, "ignore_eos": True}


def test_a_request_whose_client_left_is_let_go(engine: Any) -> None:
    server = engine(pause=0.02)
    told = run(server, abort=on_and_on())["abort"]
    assert told["pieces"] == pace.LEAVES_AFTER and told["error"] is None
    assert told["idle_s"] < 2
    (payload,) = server.payloads("/generate")
    assert payload["sampling_params"]["ignore_eos"] is True


def test_one_that_goes_on_is_told(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "IDLE_WITHIN_S", 0.5)
    busy = json.dumps([{"num_reqs": 0, "num_waiting_reqs": 0}, {"num_reqs": 1, "num_waiting_reqs": 2}]).encode()
    server = engine(only("/get_load", lambda *_: (200, busy)), pause=0.01)
    told = run(server, abort=on_and_on())["abort"]
    assert told["idle_s"] is None and told["error"].startswith("still 3 requests after 0.")
    assert 3 <= server.paths().count("/get_load") <= 7  # looked at now and then, not all the time
    shared = probe.run(server.url, bare(abort=on_and_on()), soon(20), quiet, shared=True)["abort"]
    assert shared["error"] is None and shared["idle_s"] is not None  # no more than before: those are others'


@pytest.mark.parametrize(
    ("body", "said"),
    [((404, b"none"), "/get_load: HTTP 404: none"), ((200, b"{}"), "/get_load: malformed"), ((200, b"[{}]"), "/get_")],
)
def test_a_load_that_is_not_told_is_an_error(engine: Any, body: tuple[int, bytes], said: str) -> None:
    told = run(engine(only("/get_load", lambda *_: body), pause=0.01), abort=on_and_on())["abort"]
    assert told["idle_s"] is None and told["error"].startswith(said)


def test_nothing_to_leave_is_an_error(engine: Any) -> None:
    told = run(engine(sends(piece("a", 1, "stop"), DONE)), abort=on_and_on())["abort"]
    assert told == {"pieces": 1, "idle_s": None, "error": "the answer ended before it was left"}
    told = run(engine(only("/generate", lambda *_: (500, b"boom"))), abort=on_and_on())["abort"]
    assert told == {"pieces": 0, "idle_s": None, "error": "HTTP 500: boom"}


# ---- pace


def paced(**changes: Any) -> dict[str, Any]:
    ask = {"name": "pace", "kind": "pace", "max_tokens": 20, "ignore_eos": True}
    return {"ask": ask, "at_once": [1, 4], "rounds": 2, "texts": [ask["text"] for ask in ASKS[:4]], **changes}


def test_rounds_are_timed_with_different_texts_in_flight_at_once(engine: Any) -> None:
    server = engine(pause=0.005)
    told = run(server, pace=paced())["pace"]
    assert [(one["at_once"], one["round"]) for one in told] == [(1, 1), (4, 1), (1, 2), (4, 2)]
    assert [one["tokens"] for one in told] == [20, 80, 20, 80]
    assert all(one["error"] is None and len(one["first_s"]) == len(one["each_s"]) == one["at_once"] for one in told)
    assert all(0.1 <= max(one["each_s"]) <= one["seconds"] < 1 for one in told)
    assert all(first < each for one in told for first, each in zip(one["first_s"], one["each_s"], strict=True))
    assert server.most == 4 and server.paths().count("/flush_cache?timeout=5") == 4
    texts = [payload["text"] for payload in server.payloads("/generate")]
    assert len(set(texts[1:5])) == 4 and texts[0] == texts[5]


def test_an_engine_that_takes_one_at_a_time_is_slower_at_once(engine: Any) -> None:
    lock_step: list[float] = []

    def one_by_one(server: Engine, _: str, payload: Any) -> Any:
        with server.lock:
            lock_step.append(time.monotonic())
            time.sleep(0.1)
        return None

    alone, crowd = run(engine(only("/generate", one_by_one)), pace=paced(rounds=1))["pace"]
    assert len(lock_step) == 5
    assert crowd["seconds"] > 3 * alone["seconds"]


def test_what_went_wrong_in_a_round_is_told(engine: Any) -> None:
    few = run(engine(), pace=paced(texts=[SEA["text"]]))["pace"]
    assert [one["error"] for one in few] == [None, "only 1 texts for 4 requests"] * 2
    began = time.monotonic()
    server = engine(only("/generate", sleeping(20)))
    hung = run(server, request_s=0.3, pace=paced())["pace"]
    assert time.monotonic() - began < 2
    assert hung[0]["error"] == "hang: no complete answer within 0.3 s" and hung[0]["first_s"] == []
    assert hung[3]["error"] == "not asked: the server had stopped answering"
    assert server.paths().count("/generate") == 5  # nothing piles up


# ---- order


def test_the_order_lets_later_parts_see_what_earlier_ones_left(engine: Any) -> None:
    server = engine()
    told = probe.run(server.url, plan(), soon(20), quiet)
    at = [told[part][0]["at"] for part in ("alone", "chat", "stream", "bounds", "long") if told[part]]
    at += [told["together"][0]["answers"][0]["at"], told["json"][0]["at"], told["after"][0]["at"]]
    assert at == sorted(at)
    assert told["repeat"][0]["at"] > told["after"][-1]["at"]
    assert [answer["ask"] for answer in told["after"]] == plan()["brief"]
    paths = [path.partition("?")[0] for path in server.paths()]
    assert paths.index("/tokenize") < paths.index("/get_load") < len(paths) - 1 == paths.index("/health")
