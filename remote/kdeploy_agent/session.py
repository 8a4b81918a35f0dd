"""Many requests over one connection: `session` reads them one after the other, as they come or sent ahead.

A request line names its `verb`, and in `payload` how many raw bytes follow it; a long one may come as
`{"packed": N}` and N bytes that zlib made of it. After an error nothing that was sent
ahead is done: the session answers and ends. Nothing is begun for somebody who is gone, either: while a verb works the
session says `beat`, and whoever listens answers each with an empty line.
"""

from __future__ import annotations

import os
import platform
import select
import sys
import threading
import time
import zlib
from typing import Any, Callable, Dict, Mapping

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground.protocol import PROTOCOL, Call, call_of, default_root, listening, read_request, say

Verbs = Mapping[str, Callable[[Call], Dict[str, Any]]]

BEAT_S = 5.0
"""How often a session that works says so, seconds."""
SILENCE_S = 30.0
"""How long a payload may pause, seconds: a cut connection must not hold what the next push needs."""

_LINE_LIMIT = 16 * 1024 * 1024  # bytes of a request
_AHEAD_LIMIT = 1024 * 1024  # bytes read behind a request: whoever sends more than that is there
_UNHEARD = 3  # beats in a row that nobody answered, of which the last may still be on its way


def serve(verbs: Verbs, explain: Callable[[Exception, str], Dict[str, Any]]) -> int:
    """Answer requests until there are no more, one fails or nobody listens; gives the exit status."""
    source = Source(sys.stdin.fileno())
    sys.stdout.write("\n")  # a login shell may have left a line of its own unfinished
    say({"event": "hello", "protocol": PROTOCOL, "root": default_root(), "python": platform.python_version()})
    with Beat() as beat:
        while True:
            line = source.line()
            if not line or not listening():
                return 0
            if beat.told >= _UNHEARD and beat.told - source.heard() >= _UNHEARD:
                return 1
            verb = ""
            try:
                request = read_request(line)
                if "packed" in request:
                    request = read_request(_unpack(Payload(source, int(request["packed"])).read()))
                verb = str(request.get("verb"))
                if verb not in verbs:
                    raise AgentError("usage", f"unknown verb {verb!r}", f"verbs: {', '.join(sorted(verbs))}")
                payload = Payload(source, int(request.get("payload") or 0))
                with beat.working():
                    result = verbs[verb](call_of(request, payload))
                payload.drop()
                say({"result": result})
            except BrokenPipeError:
                raise
            except Exception as fault:
                say({"error": explain(fault, verb)})
                return 1


def _unpack(data: bytes) -> bytes:
    """What zlib made small: a request repeats itself."""
    made = zlib.decompressobj()
    line = made.decompress(data, _LINE_LIMIT)
    if made.unconsumed_tail:
        raise AgentError("usage", "a request has no end")
    return line


class Source:
    """What comes in, by lines and by bytes; empty lines are answers to beats."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._held = b""
        self._heard = 0

    def line(self) -> bytes:
        """The next line that is not empty; nothing at the end."""
        while True:
            line, found, rest = self._held.partition(b"\n")
            if found:
                self._held = rest
                if line.strip():
                    return line
                self._heard += 1
            elif len(self._held) > _LINE_LIMIT:
                raise AgentError("usage", "a request has no end")
            elif not self._more(None):
                return b""

    def take(self, limit: int) -> bytes:
        """At least one and at most `limit` bytes of a payload; raises when they pause for too long, or end."""
        if not self._held and not self._more(SILENCE_S):
            raise AgentError("fault", "the connection was cut in the middle of what was sent")
        taken, self._held = self._held[:limit], self._held[limit:]
        return taken

    def heard(self) -> int:
        """How many beats were answered, as far as that has come in behind what was sent ahead."""
        while len(self._held) < _AHEAD_LIMIT and select.select([self._handle], [], [], 0)[0] and self._more(0):
            pass
        return self._heard + _empty_lines(self._held)

    def _more(self, patience_s: "float | None") -> bool:
        if patience_s and not select.select([self._handle], [], [], patience_s)[0]:
            return False
        data = os.read(self._handle, 1 << 20)
        self._held += data
        return bool(data)


def _empty_lines(data: bytes) -> int:
    return sum(1 for line in data.split(b"\n")[:-1] if not line.strip())


class Payload:
    """The raw bytes that follow a request, read like a file."""

    def __init__(self, source: Source, size: int) -> None:
        self._source = source
        self._left = size

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, all that is left by default; nothing at the end."""
        wanted = self._left if size < 0 else min(size, self._left)
        parts = []
        while wanted:
            parts.append(self._source.take(wanted))
            wanted -= len(parts[-1])
            self._left -= len(parts[-1])
        return b"".join(parts)

    def drop(self) -> None:
        """Read what a verb has left."""
        while self._left:
            self.read(1 << 20)


class Beat:
    """Says every few seconds that the session works, so that slow work is told from a dead connection."""

    def __init__(self) -> None:
        self.told = 0
        self._work = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def working(self) -> "_Working":
        """While in this context, beats are told."""
        return _Working(self._work)

    def _run(self) -> None:
        while not self._end.wait(BEAT_S):
            if self._work.is_set():
                try:
                    say({"event": "beat", "at": round(time.time(), 3)})
                except OSError:  # nobody listens: the verb finds out when it says something itself
                    return
                self.told += 1

    def __enter__(self) -> "Beat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()


class _Working:
    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def __enter__(self) -> None:
        self._event.set()

    def __exit__(self, *_: object) -> None:
        self._event.clear()
