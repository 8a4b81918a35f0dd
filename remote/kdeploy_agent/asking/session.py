"""Asks one server, bounded: each request in time, all of them together, and what is sent to one that is silent."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Optional, TypeVar

from kdeploy_agent.asking.answers import CHAT, GENERATE, chat, generate, read_answers, read_chat
from kdeploy_agent.asking.client import Json, Reply, request
from kdeploy_agent.asking.ready import Note
from kdeploy_agent.asking.streaming import Pieces, stream

T = TypeVar("T")

PATIENCE = 2  # after so many silences in a row nothing more is asked: the rest would only take time
MEET_S = 30.0  # threads that are to ask at once wait for each other at most so long


class Session:
    """One run of a plan against one server. `deadline` is a value of time.monotonic()."""

    def __init__(self, base_url: str, probes: Json, deadline: float, note: Note) -> None:
        self.base_url, self.probes, self.deadline, self.note = base_url, probes, deadline, note
        self._began = time.monotonic()
        self._silences = 0

    @property
    def now(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self._began

    def request(self, path: str, payload: Any = None) -> Reply:
        """One request: GET, or POST of `payload`."""
        return self._send(path, lambda room: request(self.base_url, path, room, payload))

    def get(self, path: str) -> Json:
        """The reply to a GET, as it stands in a transcript."""
        return dict(self.request(path)._asdict())

    def flush(self) -> bool:
        """Have the server forget its cache; whether it did. It refuses while it has requests."""
        return self.request("/flush_cache?timeout=5", {}).status == 200

    def complete(self, ask: Json) -> Json:
        """The answer to one text."""
        return self.batch([ask])[0]

    def batch(self, asks: List[Json]) -> List[Json]:
        """The answers to texts that are sent as one request."""
        at = self.now
        return read_answers(asks, self.request(GENERATE, generate(asks)), at)

    def chat(self, ask: Json) -> Json:
        """The answer to one chat."""
        at = self.now
        return read_chat(ask, self.request(CHAT, self._chat(ask)), at)

    def either(self, ask: Json) -> Json:
        """The answer to a text or a chat."""
        return self.complete(ask) if ask.get("text") is not None else self.chat(ask)

    def streamed(self, ask: Json, enough: Optional[int] = None) -> Json:
        """The answer to a text or a chat, streamed (`pieces`, `first_s`, `done`); hangs up after `enough` pieces."""
        path, payload = (GENERATE, generate([ask])) if ask.get("text") is not None else (CHAT, self._chat(ask))
        if path == CHAT:
            payload["stream_options"] = {"include_usage": True}
        at, pieces = self.now, Pieces(ask, enough)
        reply = self._send(path, lambda room: stream(self.base_url, path, room, payload, pieces.take))
        return pieces.answer(reply, at)

    def each(self, title: str, asks: List[Json], one: Callable[[Json], Json]) -> List[Json]:
        """One answer an ask, one after the other."""
        if asks:
            self.note("asking %d: %s" % (len(asks), title))
        return [one(ask) for ask in asks]

    def _chat(self, ask: Json) -> Json:
        return chat(ask, self.probes["model"], self.probes.get("chat-options", {}))

    def _send(self, path: str, send: Callable[[float], Reply]) -> Reply:
        """Send within the time that is left; after PATIENCE silences in a row nothing is sent any more.

        Only the model ends a silence: an HTTP server answers much by itself while nobody behind it does.
        """
        if self._silences >= PATIENCE:
            return Reply(0, None, 0.0, "not asked: the server had stopped answering")
        reply = send(min(float(self.probes["request-s"]), self.deadline - time.monotonic()))
        if reply.silent:
            self._silences += 1
        elif path in (GENERATE, CHAT):
            self._silences = 0
        return reply


def at_once(jobs: List[Callable[[], T]]) -> List[T]:
    """What the jobs give, each in a thread of its own, begun together."""
    start = threading.Barrier(len(jobs))

    def one(job: Callable[[], T]) -> T:
        start.wait(MEET_S)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, jobs))
