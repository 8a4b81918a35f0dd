"""Whether a server answers: waited for at its start, and asked briefly of one that was proven before.

Deadlines are values of time.monotonic(). `note` is called with one line of text when there is something to tell.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from kdeploy_agent.asking.answers import GENERATE, generate, read_answers
from kdeploy_agent.asking.client import Json, Reply, request
from kdeploy_agent.ground import secrets

Note = Callable[[str], None]

HEALTH_S = 6.0  # /health takes 1 s; SGLang 0.5.11 now and then leaves one unanswered for 15-20 s
FIRST_ANSWER_S = 60.0  # the first completion may compile kernels; longer than this we ask anew


class NotReady(Exception):
    """The server does not answer (in time, at all, or not with what it must)."""


class First(NamedTuple):
    """When a server was first heard, in seconds after it began to be waited for.

    `healthy_s` is None when no /health was green before the first answer came.
    """

    healthy_s: Optional[float]
    answered_s: float

    def told(self) -> Dict[str, Any]:
        """As it stands in a transcript."""
        return dict(self._asdict())


def wait_ready(base_url: str, alive: Callable[[], bool], deadline: float, note: Note) -> First:
    """Wait until the server answers a real completion; gives when it was green and when it answered.

    A /health that stays unanswered decides nothing, and one that is green is not enough: both lead to the completion.
    Raises NotReady at once when `alive()` is False, and at the deadline.
    """
    began = time.monotonic()
    healthy: Optional[float] = None
    said = ""
    while True:
        reply = _while_alive(base_url, "/health", min(HEALTH_S, deadline - time.monotonic()), None, alive)
        refused = reply.silent and not reply.hung
        if healthy is None and reply.error is None:
            healthy = time.monotonic() - began
        if not refused and reply.status != 503:  # 503: it says itself that it is starting
            question = generate([{"text": "Hello", "max_tokens": 1}])
            room = min(FIRST_ANSWER_S, deadline - time.monotonic())
            reply = _while_alive(base_url, GENERATE, room, question, alive)
            if read_answers([{"text": "Hello"}], reply, 0.0)[0]["n"] >= 1:
                return First(healthy, time.monotonic() - began)
        now = "not listening yet" if refused else reply.error or "answered without a token"
        if now != said:
            note(now)
            said = now
        if time.monotonic() + 0.5 >= deadline:
            raise NotReady("no completion within %.0f s; last: %s" % (time.monotonic() - began, said))
        _sleep(0.5 if refused else 1.0, alive)


def brief(base_url: str, expected: List[Json], deadline: float) -> None:
    """Ask the few prompts of the plan's `brief`, together; raises NotReady when one is not answered as it must be.

    An entry whose `answer` is null must be answered with some text.
    """
    asks = expected or [{"name": "any", "kind": "any", "text": "Hello", "max_tokens": 8, "answer": None}]
    reply = request(base_url, GENERATE, deadline - time.monotonic(), generate(asks))
    for ask, answer in zip(asks, read_answers(asks, reply, 0.0)):
        wrong = answer["error"] or differs(ask, answer)
        if wrong:
            raise NotReady("%s: %s" % (ask["name"], wrong))


def differs(ask: Json, answer: Json) -> Optional[str]:
    """How an answer that came is not the `answer` its question knows, in words; any text will do where that is null.

    At least the share `least` of it must be the same from its beginning on: all of it where the plan does not say.
    """
    said, known = answer["text"], ask.get("answer")
    if not said.strip():
        return "an empty answer"
    if known is not None and _alike(said, known) < float(ask.get("least", 1.0)):
        return "answered %r, not %r" % (secrets.cut(said, 200), known[:200])
    return None


def _alike(one: str, other: str) -> float:
    """The share of the longer text up to which both are the same."""
    longest = max(len(one), len(other))
    same = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return same / longest if longest else 1.0


def _while_alive(base_url: str, path: str, timeout: float, payload: Any, alive: Callable[[], bool]) -> Reply:
    """One request that is given up as soon as the server's process is gone."""
    answers: List[Optional[Reply]] = [None]

    def ask() -> None:
        answers[0] = request(base_url, path, timeout, payload)

    worker = threading.Thread(target=ask, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(0.2)
        _must_live(alive)
    return answers[0] or Reply(0, None, 0.0, "broken: the request could not be made")


def _sleep(seconds: float, alive: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(0.1, seconds))
        _must_live(alive)


def _must_live(alive: Callable[[], bool]) -> None:
    if not alive():
        raise NotReady("the server's process ended")
