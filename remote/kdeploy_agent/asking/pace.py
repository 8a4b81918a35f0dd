"""How fast a server answers, alone and in company, and whether it lets go of a request whose client has left."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, List, Optional

from kdeploy_agent.asking.client import Json
from kdeploy_agent.asking.session import Session, at_once

LEAVES_AFTER = 3  # pieces: the request is well under way, and far from its end
IDLE_WITHIN_S = 10.0
LOOK_S = 0.1


def pace(session: Session, wanted: Optional[Json]) -> List[Json]:
    """Rounds of streamed answers, `at_once` of them in flight, each to a text of its own; gives a figure a round.

    `seconds` are from the first request to the last token; `first_s` and `each_s` are one a request. The cache is
    flushed before a round, so that every one computes the same. What went wrong first is its `error`.
    """
    told: List[Json] = []
    if wanted is None:
        return told
    for number in range(1, int(wanted["rounds"]) + 1):
        for count in wanted["at_once"]:
            session.note("timing %d at once, round %d" % (count, number))
            told.append(_round(session, wanted, count, number))
    return told


def _round(session: Session, wanted: Json, count: int, number: int) -> Json:
    asks = [{**wanted["ask"], "text": text} for text in wanted["texts"][:count]]
    session.flush()
    answers = at_once([partial(session.streamed, ask) for ask in asks])
    ended = [answer["at"] + answer["seconds"] for answer in answers]
    errors = [answer["error"] for answer in answers if answer["error"] is not None]
    if len(answers) < count:
        errors.append("only %d texts for %d requests" % (len(answers), count))
    return {
        "at_once": count, "round": number, "seconds": max(ended) - min(answer["at"] for answer in answers),
        "tokens": sum(answer["n"] for answer in answers),
        "first_s": [answer["first_s"] for answer in answers if answer["first_s"] is not None],
        "each_s": [answer["seconds"] for answer in answers], "error": errors[0] if errors else None,
    }  # fmt: skip


def abort(session: Session, ask: Optional[Json], shared: bool) -> Optional[Json]:
    """Leave in the middle of an answer; gives the `pieces` that came and the seconds until the server was idle again.

    A server that is `shared` with clients need only have no more requests than before. `idle_s` is null, and `error`
    says why, when it did not come to that.
    """
    if ask is None:
        return None
    session.note("leaving in the middle of an answer")
    before = _requests(session) if shared else 0
    answer = session.streamed(ask, LEAVES_AFTER)
    told: Json = {"pieces": answer["pieces"], "idle_s": None, "error": None}
    if answer["pieces"] < LEAVES_AFTER or answer["done"]:
        return {**told, "error": answer["error"] or "the answer ended before it was left"}
    left = time.monotonic()
    end = min(left + IDLE_WITHIN_S, session.deadline)
    while True:
        load = _requests(session)
        waited = time.monotonic() - left
        if isinstance(load, int) and load <= (before if isinstance(before, int) else 0):
            return {**told, "idle_s": waited}
        if not isinstance(load, int):
            return {**told, "error": load}
        if time.monotonic() + LOOK_S >= end:
            return {**told, "error": "still %d requests after %.1f s" % (load, waited)}
        time.sleep(LOOK_S)


def _requests(session: Session) -> Any:
    """How many requests the server has, waiting ones included; a text that says why when that is not known."""
    reply = session.request("/get_load")
    if reply.error is not None:
        return "/get_load: %s" % reply.error
    try:
        if not isinstance(reply.body, list) or not reply.body:
            raise TypeError("a list of ranks was expected")
        return sum(int(rank["num_reqs"]) + int(rank["num_waiting_reqs"]) for rank in reply.body)
    except (KeyError, TypeError, ValueError) as fault:
        return "/get_load: malformed: %s: %s" % (type(fault).__name__, fault)
