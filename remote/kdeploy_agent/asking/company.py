"""Questions asked at once, and the same ones within bounds that their own answers give."""

from __future__ import annotations

from functools import partial
from typing import List, Optional

from kdeploy_agent.asking.answers import blank
from kdeploy_agent.asking.client import Json, Reply
from kdeploy_agent.asking.session import Session, at_once

STOP = 12  # characters of a stop string


def group(session: Session, asked: Json) -> Json:
    """Several questions at once. The cache goes first: company must compute what each computed alone."""
    asks = asked["asks"]
    session.note("asking %d at once: %s" % (len(asks), asked["name"]))
    flushed = session.flush()
    batch = asked["how"] == "batch"
    answers = session.batch(asks) if batch else at_once([partial(session.chat, ask) for ask in asks])
    return {"name": asked["name"], "how": asked["how"], "flushed": flushed, "answers": answers}


def bounds(session: Session, names: List[str], alone: List[Json]) -> List[Json]:
    """Each named answer of `alone` asked for twice more: up to a string in its middle, and for half of its tokens.

    Gives answers with `how`: `stop` or `length`. One that cannot be made shorter is an answer with an error.
    """
    if names:
        session.note("asking %d: bounds" % (2 * len(names)))
    known = {answer["name"]: answer for answer in alone}
    told = []
    for name in names:
        answer = known.get(name)
        ask = dict(answer["ask"]) if answer else {"name": name, "kind": "unknown", "max_tokens": 1}
        stop = stop_string(answer["text"]) if answer else None
        half = answer["n"] // 2 if answer else 0
        told.append(_bounded(session, "stop", {**ask, "stop": [stop]} if stop else ask, stop is not None))
        told.append(_bounded(session, "length", {**ask, "max_tokens": half} if half else ask, half > 0))
    return told


def _bounded(session: Session, how: str, ask: Json, possible: bool) -> Json:
    unknown = Reply(0, None, 0.0, "not asked: the answer alone is missing or too short to be bounded")
    return {**(session.either(ask) if possible else blank(ask, unknown, session.now)), "how": how}


def stop_string(text: str) -> Optional[str]:
    """STOP characters from the middle of `text`, from the start of a word where it has words; None if it is too short.

    They stand nowhere before, where that can be had: an answer that ends too early is then told from one that is right.
    """
    middle = len(text) // 2
    last = len(text) - STOP
    if middle > last or not text.strip():
        return None
    starts = [at for at in range(middle, last + 1) if text[at - 1 : at].isspace() and not text[at].isspace()]
    first = [at for at in starts if text.find(text[at : at + STOP]) == at]
    at = (first or starts or [middle])[0]
    return text[at : at + STOP]
