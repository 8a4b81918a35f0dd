"""Answers that come in pieces: events `data: {...}`, then `data: [DONE]` (SGLang 0.5.11, entrypoints/http_server.py).

Nothing here raises: what went wrong is the `error` of a reply or of an answer.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any, Callable, List, Optional, Tuple

from kdeploy_agent.asking import client
from kdeploy_agent.asking.answers import malformed, read_answers, read_chat
from kdeploy_agent.asking.client import Json, Reply, exchange, read_whole
from kdeploy_agent.ground import secrets

TOTAL = 256 * 1024 * 1024  # bytes of one stream: /generate repeats the whole text so far in every event


def stream(base_url: str, path: str, timeout: float, payload: Json, take: Callable[[Any], bool]) -> Reply:
    """POST `payload` and give each event to `take`, until that says False: then the connection is cut.

    The reply's body is whether the stream was brought to its end; everything takes at most about `timeout` seconds.
    """

    def read(response: http.client.HTTPResponse) -> Tuple[bool, Optional[str]]:
        if response.status != 200:
            return False, read_whole(response)[1] or "HTTP %d for a stream" % response.status
        return _events(response, take)

    return exchange(base_url, path, timeout, {**payload, "stream": True}, read)


def _events(response: http.client.HTTPResponse, take: Callable[[Any], bool]) -> Tuple[bool, Optional[str]]:
    size = 0
    while True:
        line = response.readline(client.LIMIT + 1)
        size += len(line)
        if not line:
            return False, "broken: the stream ended without [DONE]"
        if len(line) > client.LIMIT or size > TOTAL:
            return False, "too large: more than %d bytes" % (client.LIMIT if len(line) > client.LIMIT else TOTAL)
        if not line.startswith(b"data:"):  # the empty line after each event, or a comment
            continue
        said = line[5:].strip()
        if said == b"[DONE]":
            return True, None
        try:
            event = json.loads(said.decode("utf-8"))
        except ValueError as fault:
            return False, malformed(fault)
        if isinstance(event, dict) and event.get("error"):  # the head, with its 200, was sent long before
            return False, "refused: %s" % secrets.cut(str(event["error"]), 300)
        if not take(event):
            return False, None


class Pieces:
    """Puts one streamed answer together, as a client would, and says how it came. `enough`: hang up after so many."""

    def __init__(self, ask: Json, enough: Optional[int] = None) -> None:
        self.count = 0  # of events that brought text
        self.first_s: Optional[float] = None  # from the beginning to the first of them
        self._ask = ask
        self._enough = enough
        self._began = time.monotonic()
        self._fault: Optional[str] = None
        self._text = self._reasoning = ""
        self._row: Any = None  # the last event of /generate: it has everything before in it
        self._finish: Any = None
        self._usage: Any = None

    def take(self, event: Any) -> bool:
        """Take one event; gives whether more are wanted."""
        before = len(self._text) + len(self._reasoning)
        try:
            if self._ask.get("text") is not None:
                self._take_row(event)
            else:
                self._take_delta(event)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as fault:
            self._fault = malformed(fault)
            return False
        if len(self._text) + len(self._reasoning) > before:
            self.count += 1
            if self.first_s is None:
                self.first_s = time.monotonic() - self._began
        return self._fault is None and (self._enough is None or self.count < self._enough)

    def answer(self, reply: Reply, at: float) -> Json:
        """The answer that the pieces make, with `pieces`, `first_s` (null when no text came) and `done`."""
        if self._fault is not None and reply.error is None:
            reply = reply._replace(error=self._fault)
        if self._ask.get("text") is not None:
            made = read_answers([self._ask], reply._replace(body=self._row), at)[0]
        else:
            message = {"content": self._text, "reasoning_content": self._reasoning}
            body = {"choices": [{"message": message, "finish_reason": self._finish}], "usage": self._usage}
            made = read_chat(self._ask, reply._replace(body=body), at)
        return {**made, "pieces": self.count, "first_s": self.first_s, "done": reply.body is True}

    def _take_row(self, row: Json) -> None:
        text = row["text"]
        if not _goes_on(self._text, text) and not self._ask.get("stop"):  # a stop string is cut off when it is whole
            self._fault = "malformed: piece %d does not go on from the one before" % (self.count + 1)
        self._text, self._row = text, row

    def _take_delta(self, event: Json) -> None:
        self._usage = event.get("usage") or self._usage
        choices: List[Json] = event["choices"]  # none in the event that brings the usage
        for choice in choices[:1]:
            self._text += choice["delta"].get("content") or ""
            self._reasoning += choice["delta"].get("reasoning_content") or ""
            self._finish = choice.get("finish_reason") or self._finish


def _goes_on(before: str, text: str) -> bool:
    """Whether `text` has all of `before`. Some tokenizers take a blank back when a full stop follows it."""
    return text.startswith(before) or "".join(text.split()).startswith("".join(before.split()))
