"""A release that is open is asked on, where its clients ask: a wrong answer or a hang sends the host back."""

from __future__ import annotations

from typing import Any

import pytest


def soaked(rig: Any, name: str, *asks: dict[str, Any], every_s: float = 0.2, **changes: Any) -> Any:
    """Begin and accept a release that is asked so while it is watched; gives what `decide` said."""
    assert rig.receive(name).ok
    order = rig.order(rig.release(name), **changes)
    order["probes"].update({"request-s": 1.0, "soak": {"asks": list(asks), "every-s": every_s}})
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    return rig.decide(order)


def ask(text: str, answer: str | None = None) -> dict[str, Any]:
    return {"name": text.partition(" ")[0], "kind": "prose", "text": text, "max_tokens": 4, "answer": answer}


def test_right_answers_confirm_it(rig: Any) -> None:
    version = rig.trees["one"].version
    right = [ask("Hello", f" Hello from {version}"), ask("Anything")]
    told = soaked(rig, "one", *right, soak_s=1.5)
    assert told.ok["state"] == "CONFIRMED"
    (note,) = (one["text"] for one in told.events if one["event"] == "note" and "while it was watched" in one["text"])
    assert 3 <= int(note.split()[1]) <= 9


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (ask("Hello", " what known-good said"), "soak: Hello, asked while it was open: answered ' Hello from "),
        (ask("wait 5"), "soak: wait, asked while it was open: hang: no complete answer within 1.0 s"),
        (ask("fail"), "while it was watched: soak: fail: HTTP 500"),
    ],
    ids=["wrong", "hang", "fails"],
)
def test_what_is_wrong_sends_it_back(rig: Any, asked: dict[str, Any], says: str) -> None:
    before = rig.apply("one")
    told = soaked(rig, "two", asked, soak_s=5)
    assert told.ok["state"] == "ROLLED_BACK"
    assert says in told.ok["reason"]
    rig.serves(before)


def test_it_is_asked_through_the_front(rig: Any) -> None:
    """What the front does to answers is what clients see; the stand-in's front passes them on."""
    told = soaked(rig, "one", ask("Hello", f" Hello from {rig.trees['one'].version}"), soak_s=0.1)
    assert told.ok["state"] == "CONFIRMED"
    assert rig.answers(rig.public) is not None
