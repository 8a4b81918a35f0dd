"""What is asked of an open release, and which answers count at once: against a scripted engine."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))

from kdeploy_agent.asking import soaking

from .scripted import ANSWERS, bare, only, plan, sleeping

ASKS = [{**ask, "answer": ANSWERS[ask["text"]]} for ask in plan()["alone"][:2]]
HELLO = {"name": "hello", "kind": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


def soak(url: str, *asks: dict[str, Any], every_s: float = 0.0) -> soaking.Soak:
    return soaking.Soak(url, bare(request_s=0.5, soak={"asks": list(asks), "every-s": every_s}))


def test_questions_take_turns(engine: Any) -> None:
    server = engine()
    soaked = soak(server.url, *ASKS, {**HELLO, "answer": "Hello!"})
    assert [soaked.look() for _ in range(4)] == [None] * 4
    assert soaked.asked == 4
    assert server.paths() == ["/generate", "/generate", "/v1/chat/completions", "/generate"]
    texts = [payload["text"] for payload in server.payloads("/generate")]
    assert texts == [ASKS[0]["text"], ASKS[1]["text"], ASKS[0]["text"]]


def test_nobody_is_asked_more_often_than_planned(engine: Any) -> None:
    server = engine()
    soaked = soak(server.url, *ASKS, every_s=0.2)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert soaked.look() is None
        time.sleep(0.01)
    assert 2 <= len(server.asked) <= 3


def test_without_questions_nothing_is_asked(engine: Any) -> None:
    server = engine()
    for probes in ({}, {"soak": None}, bare(soak={"asks": [], "every-s": 1.0})):
        assert soaking.Soak(server.url, probes).look() is None
    assert server.asked == []


@pytest.mark.parametrize(
    ("respond", "said"),
    [
        (sleeping(3), "hang: no complete answer within 0.5 s"),
        (lambda *_: (200, b"{}"), "malformed"),
        (lambda *_: (200, b"\xff"), "not UTF-8"),
        (lambda s, p, a: (200, json.dumps({**s.row([1], a), "text": "!!!!"}).encode()), "answered '!!!!', not"),
        (lambda s, p, a: (200, json.dumps({**s.row([1], a), "text": " "}).encode()), "an empty answer"),
    ],
)
def test_what_is_wrong_counts_at_once(engine: Any, respond: Any, said: str) -> None:
    with pytest.raises(soaking.Wrong, match=f"soak: {ASKS[0]['name']}, asked while it was open: {said}"):
        soak(engine(only("/generate", respond)).url, *ASKS).look()


def test_no_answer_is_told_and_asked_for_again(engine: Any) -> None:
    def once(server: Any, *_: Any) -> Any:
        return (503, b"busy") if len(server.asked) < 3 else None

    server = engine(only("/generate", once))
    soaked = soak(server.url, *ASKS, every_s=60.0)
    told = [soaked.look() for _ in range(4)]
    assert told == [f"soak: {ASKS[0]['name']}: HTTP 503: busy"] * 2 + [None, None]
    assert soaked.asked == 1 and len(server.asked) == 3
    assert "broken" in str(soak("http://127.0.0.1:1", *ASKS).look())


def test_any_text_will_do_where_no_answer_is_known(engine: Any) -> None:
    soaked = soak(engine().url, {**ASKS[0], "answer": None})
    assert soaked.look() is None and soaked.asked == 1
