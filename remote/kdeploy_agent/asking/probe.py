"""Asks a server on this host what the operator's plan says, and writes down what came back. Judges nothing.

Deadlines are values of time.monotonic(). No request outlives its deadline or the plan's `request-s`; a hang is written
down as such. `note` is called with one line of text when there is something to tell.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Deque, Iterable, Iterator, List, Optional, Tuple

from kdeploy_agent.asking.client import Json, Reply, generate, read_answers, read_chat, request

Note = Callable[[str], None]

HEALTH_S = 6.0  # /health takes 1 s; SGLang 0.5.11 now and then leaves one unanswered for 15-20 s
FIRST_ANSWER_S = 60.0  # the first completion may compile kernels; longer than this we ask anew
PATIENCE = 2  # after so many silences in a row nothing more is asked: the rest would only take time

SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password|credentials?)$")
SECRET_IN_LOG = re.compile(r"(\b\w*(?:key|token|secret|password)\w*=)('[^']*'|\"[^\"]*\")")
MATCHES, TAIL, LINE = 50, 60, 500  # of a log: matching lines, last lines, characters a line


class NotReady(Exception):
    """The server does not answer (in time, at all, or not with what it must)."""


def wait_ready(base_url: str, alive: Callable[[], bool], deadline: float, note: Note) -> float:
    """Wait until the server answers a real completion; returns the seconds it took.

    A /health that stays unanswered decides nothing, and one that is green is not enough: both lead to the completion.
    Raises NotReady at once when `alive()` is False, and at the deadline.
    """
    began = time.monotonic()
    said = ""
    while True:
        reply = _while_alive(base_url, "/health", min(HEALTH_S, deadline - time.monotonic()), None, alive)
        refused = reply.silent and not _hung(reply)
        if not refused and reply.status != 503:  # 503: it says itself that it is starting
            question = generate([{"text": "Hello", "max_tokens": 1}])
            room = min(FIRST_ANSWER_S, deadline - time.monotonic())
            reply = _while_alive(base_url, "/generate", room, question, alive)
            if read_answers([{"text": "Hello"}], reply, 0.0)[0]["n"] >= 1:
                return time.monotonic() - began
        now = "not listening yet" if refused else reply.error or "answered without a token"
        if now != said:
            note(now)
            said = now
        if time.monotonic() + 0.5 >= deadline:
            raise NotReady("no completion within %.0f s; last: %s" % (time.monotonic() - began, said))
        _sleep(0.5 if refused else 1.0, alive)


def run(base_url: str, probes: Json, deadline: float, note: Note) -> Json:
    """Run the plan `probes`; returns the transcript's half that comes from asking (kdeploy/verdict/transcript.py)."""
    return _Session(base_url, probes, deadline, note).transcript()


def brief(base_url: str, expected: List[Json], deadline: float) -> None:
    """Ask the few prompts of the plan's `brief`, together; raises NotReady when one is not answered as it must be.

    An entry whose `answer` is null must be answered with some text.
    """
    asks = expected or [{"name": "any", "kind": "any", "text": "Hello", "max_tokens": 8, "answer": None}]
    reply = request(base_url, "/generate", deadline - time.monotonic(), generate(asks))
    for ask, answer in zip(asks, read_answers(asks, reply, 0.0)):
        if answer["error"] is not None:
            raise NotReady("%s: %s" % (ask["name"], answer["error"]))
        if not answer["text"].strip():
            raise NotReady("%s: an empty answer" % ask["name"])
        if ask.get("answer") is not None and answer["text"] != ask["answer"]:
            raise NotReady("%s: answered %r, not %r" % (ask["name"], answer["text"][:200], ask["answer"][:200]))


def mask(line: str) -> str:
    """A line of a log without values that look secret: SGLang logs all its arguments when it starts."""
    return SECRET_IN_LOG.sub(r"\1(withheld)", line)


def scan_log(log: Iterable[bytes], signatures: List[str]) -> Json:
    """Look through a server's log for `signatures` (regular expressions); returns `bytes, lines, matches, tail`.

    The first matching lines are kept, and the last lines of all; values that look secret are left out.
    """
    wanted = re.compile("|".join("(?:%s)" % one for one in signatures)) if signatures else None
    matches: List[Json] = []
    tail: Deque[str] = deque(maxlen=TAIL)
    size = number = 0
    for raw in log:
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        size, number = size + len(raw), number + 1
        text = mask(text)
        if wanted is not None and len(matches) < MATCHES and wanted.search(text):
            matches.append({"line": number, "text": text[:LINE]})
        tail.append(text[:LINE])
    return {"bytes": size, "lines": number, "matches": matches, "tail": list(tail)}


def lines(parts: List[Tuple[str, int]]) -> Iterator[bytes]:
    """The lines of files one after the other, each from a byte on; no file has no lines, an endless line is cut.

    A log goes on from one release to the next, and its older part may have been moved away meanwhile.
    """
    for path, start in parts:
        if Path(path).exists():
            with Path(path).open("rb") as stream:
                stream.seek(start)
                yield from iter(lambda: stream.readline(1 << 20), b"")


class _Session:
    """One run of a plan against one server."""

    def __init__(self, base_url: str, probes: Json, deadline: float, note: Note) -> None:
        self.base_url, self.probes, self.deadline, self.note = base_url, probes, deadline, note
        self.began = time.monotonic()
        self.silences = 0

    def transcript(self) -> Json:
        """Ask everything, in an order in which a later part sees what an earlier one left behind."""
        plan, started = self.probes, time.time()
        told: Json = {"protocol": 1, "started": started, "base_url": self.base_url}
        told["server_info"] = _withhold(self.get("/server_info"))
        told["models"] = self.get("/v1/models")
        told["alone"] = self.each("alone", plan["alone"], self.complete)
        told["chat"] = self.each("chat", plan["chat"], self.chat)
        told["together"] = [self.group(group) for group in plan["together"]]
        told["json"] = self.each("json", plan["json"], self.chat)
        told["repeat"] = self.each("repeat", plan["repeat"], self.either)
        told["health"] = self.health()
        told["seconds"] = time.monotonic() - self.began
        return told

    def request(self, path: str, payload: Any = None) -> Reply:
        """One request within the time that is left; after PATIENCE silences in a row nothing is sent any more."""
        if self.silences >= PATIENCE:
            return Reply(0, None, 0.0, "not asked: the server had stopped answering")
        room = min(float(self.probes["request-s"]), self.deadline - time.monotonic())
        reply = request(self.base_url, path, room, payload)
        self.silences = self.silences + 1 if reply.silent else 0
        return reply

    def get(self, path: str) -> Json:
        return dict(self.request(path)._asdict())

    def each(self, title: str, asks: List[Json], one: Callable[[Json], Json]) -> List[Json]:
        if asks:
            self.note("asking %d: %s" % (len(asks), title))
        return [one(ask) for ask in asks]

    def either(self, ask: Json) -> Json:
        return self.complete(ask) if ask.get("text") is not None else self.chat(ask)

    def complete(self, ask: Json) -> Json:
        return self.batch([ask])[0]

    def batch(self, asks: List[Json]) -> List[Json]:
        at = time.monotonic() - self.began
        return read_answers(asks, self.request("/generate", generate(asks)), at)

    def chat(self, ask: Json) -> Json:
        payload = {
            "model": self.probes["model"], "messages": ask["messages"], "temperature": 0,
            "max_tokens": ask["max_tokens"], **self.probes.get("chat-options", {}),
        }  # fmt: skip
        if ask.get("schema") is not None:
            named = {"name": "answer", "schema": ask["schema"]}
            payload["response_format"] = {"type": "json_schema", "json_schema": named}
        at = time.monotonic() - self.began
        return read_chat(ask, self.request("/v1/chat/completions", payload), at)

    def group(self, group: Json) -> Json:
        """Several questions at once. The cache goes first: company must compute what each computed alone."""
        self.note("asking %d at once: %s" % (len(group["asks"]), group["name"]))
        flushed = self.request("/flush_cache?timeout=5", {}).status == 200
        if group["how"] == "batch":
            answers = self.batch(group["asks"])
        else:
            start = threading.Barrier(len(group["asks"]))

            def one(ask: Json) -> Json:
                start.wait(30)
                return self.chat(ask)

            with ThreadPoolExecutor(len(group["asks"])) as pool:
                answers = list(pool.map(one, group["asks"]))
        return {"name": group["name"], "how": group["how"], "flushed": flushed, "answers": answers}

    def health(self) -> List[Json]:
        """Up to three replies of /health, until one is good: one alone is no reason to reject."""
        replies: List[Json] = []
        while len(replies) < 3 and not (replies and replies[-1]["error"] is None):
            replies.append(self.get("/health"))
        return replies


def _withhold(value: Any, name: str = "") -> Any:
    """The same without the values of fields that look like secrets: a transcript is kept and shown."""
    if isinstance(value, dict):
        return {key: _withhold(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_withhold(item, name) for item in value]
    return "(withheld)" if isinstance(value, str) and value and SECRET.search(name.lower()) else value


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


def _hung(reply: Reply) -> bool:
    return (reply.error or "").startswith("hang")
