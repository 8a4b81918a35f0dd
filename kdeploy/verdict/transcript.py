"""The transcript as the agent gives it, read strictly: what is missing or of another type is an error with its name.

    protocol      1
    started       seconds since the epoch;  seconds: how long the probes took
    server_info, models, health (a list)    replies: status, seconds, body, error
    alone, chat, json, repeat               answers
    together      groups: name, how (batch: one POST; threads: requests in flight at once), flushed, answers
    processes     one a process of the server: pid, name, tree (first folder of its PYTHONPATH, links resolved; or null)
    port          number, owner (pid or null), ours (the owner is one of our processes)
    log           bytes, lines, matches (line, text) of the plan's signatures, tail (the last lines)
    restarts      how often the supervisor had to start the server again

The first half is made by the agent's `probe.run`, `log` by `probe.scan_log`; the agent adds the rest.
SGLang names its processes with setproctitle, which overwrites /proc/PID/environ of all but the first: a server whose
PYTHONPATH is to be read there must be started with SPT_NOENV=1 in its environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kdeploy.errors import RemoteError

T = TypeVar("T")


class TranscriptError(RemoteError):
    """A transcript lacks something, or has it in another form."""


@dataclass(frozen=True)
class Reply:
    """What came back for one request; `error` is None only for a good one."""

    status: int
    seconds: float
    body: Any
    error: str | None


@dataclass(frozen=True)
class Answer:
    """One answer of the model, or why there is none."""

    name: str
    kind: str
    ask: Mapping[str, Any]
    at: float  # seconds after the first probe
    seconds: float
    status: int
    error: str | None
    text: str
    reasoning: str
    ids: tuple[int, ...] | None  # chat answers have none
    finish: str | None
    n: int
    meta: Mapping[str, Any]

    @property
    def whole(self) -> str:
        """All text the model wrote, what it thought included."""
        return f"{self.reasoning}\n{self.text}" if self.reasoning else self.text


@dataclass(frozen=True)
class Group:
    """Answers to different questions that were asked at once."""

    name: str
    how: str
    flushed: bool
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Process:
    """One process of the server."""

    pid: int
    name: str
    tree: str | None


@dataclass(frozen=True)
class Port:
    """Who listens where the probes were sent."""

    number: int
    owner: int | None
    ours: bool


@dataclass(frozen=True)
class Log:
    """What the server's log says."""

    bytes: int
    lines: int
    matches: tuple[tuple[int, str], ...]  # line number, text
    tail: tuple[str, ...]


@dataclass(frozen=True)
class Transcript:
    """Everything a candidate showed of itself."""

    started: float
    seconds: float
    server_info: Reply
    models: Reply
    health: tuple[Reply, ...]
    alone: tuple[Answer, ...]
    chat: tuple[Answer, ...]
    together: tuple[Group, ...]
    json: tuple[Answer, ...]
    repeat: tuple[Answer, ...]
    processes: tuple[Process, ...]
    port: Port
    log: Log
    restarts: int

    @property
    def answers(self) -> tuple[tuple[str, Answer], ...]:
        """Every answer with the part of the transcript it stands in."""
        sections = {"alone": self.alone, "chat": self.chat, "json": self.json, "repeat": self.repeat}
        sections |= {group.name: group.answers for group in self.together}
        return tuple((title, answer) for title, answers in sections.items() for answer in answers)


def read(values: object) -> Transcript:
    """Read a transcript; raises TranscriptError naming the first value that is missing or wrong."""
    top = _Part(values, "transcript")
    if top.integer("protocol") != 1:
        raise TranscriptError(f"transcript.protocol is {top.values['protocol']}, this kdeploy reads 1")
    return Transcript(
        started=top.number("started"),
        seconds=top.number("seconds"),
        server_info=_reply(top.part("server_info")),
        models=_reply(top.part("models")),
        health=top.each("health", _reply),
        alone=top.each("alone", _answer),
        chat=top.each("chat", _answer),
        together=top.each("together", _group),
        json=top.each("json", _answer),
        repeat=top.each("repeat", _answer),
        processes=top.each("processes", lambda p: Process(p.integer("pid"), p.text("name"), p.optional("tree", str))),
        port=_port(top.part("port")),
        log=_log(top.part("log")),
        restarts=top.integer("restarts"),
    )


class _Part:
    """A mapping inside the transcript that knows where it stands."""

    def __init__(self, values: object, path: str) -> None:
        if not isinstance(values, Mapping):
            raise TranscriptError(f"{path} is {type(values).__name__}, not a mapping")
        self.values, self.path = values, path

    def get(self, key: str, *kinds: type) -> Any:
        if key not in self.values:
            raise TranscriptError(f"{self.path}.{key} is missing")
        value = self.values[key]
        # In Python True is an int, in a transcript it is not.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise TranscriptError(f"{self.path}.{key} is {type(value).__name__}, not {wanted}")
        return value

    def text(self, key: str) -> str:
        return str(self.get(key, str))

    def integer(self, key: str) -> int:
        return int(self.get(key, int))

    def number(self, key: str) -> float:
        return float(self.get(key, int, float))

    def flag(self, key: str) -> bool:
        return bool(self.get(key, bool))

    def optional(self, key: str, kind: type[T]) -> T | None:
        value: T | None = self.get(key, kind, type(None))
        return value

    def part(self, key: str) -> _Part:
        return _Part(self.get(key, Mapping), f"{self.path}.{key}")

    def each(self, key: str, build: Callable[[_Part], T]) -> tuple[T, ...]:
        values = self.get(key, list)
        return tuple(build(_Part(value, f"{self.path}.{key}[{index}]")) for index, value in enumerate(values))

    def items(self, key: str, kind: type[T]) -> tuple[T, ...]:
        values = self.get(key, list)
        for index, value in enumerate(values):
            if not isinstance(value, kind):
                raise TranscriptError(f"{self.path}.{key}[{index}] is {type(value).__name__}, not {kind.__name__}")
        return tuple(values)


def _reply(part: _Part) -> Reply:
    if "body" not in part.values:
        raise TranscriptError(f"{part.path}.body is missing")
    error = part.optional("error", str)
    return Reply(part.integer("status"), part.number("seconds"), part.values["body"], error)


def _answer(part: _Part) -> Answer:
    ids = None if part.optional("ids", list) is None else part.items("ids", int)
    return Answer(
        name=part.text("name"),
        kind=part.text("kind"),
        ask=part.part("ask").values,
        at=part.number("at"),
        seconds=part.number("seconds"),
        status=part.integer("status"),
        error=part.optional("error", str),
        text=part.text("text"),
        reasoning=part.text("reasoning"),
        ids=ids,
        finish=part.optional("finish", str),
        n=part.integer("n"),
        meta=part.part("meta").values,
    )


def _group(part: _Part) -> Group:
    return Group(part.text("name"), part.text("how"), part.flag("flushed"), part.each("answers", _answer))


def _port(part: _Part) -> Port:
    return Port(part.integer("number"), part.optional("owner", int), part.flag("ours"))


def _log(part: _Part) -> Log:
    matches = part.each("matches", lambda match: (match.integer("line"), match.text("text")))
    return Log(part.integer("bytes"), part.integer("lines"), matches, part.items("tail", str))
