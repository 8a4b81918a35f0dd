"""What a candidate showed of itself: the types a transcript is read into (transcript.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
class Streamed:
    """An answer that came in pieces."""

    answer: Answer
    pieces: int
    first_s: float | None  # to the first piece with text, seconds
    done: bool  # whether the stream said that it was over


@dataclass(frozen=True)
class Bounded:
    """An answer that was to end early: at a stop string (`how` is "stop") or at fewer tokens ("length")."""

    how: str
    answer: Answer


@dataclass(frozen=True)
class Group:
    """Answers to different questions that were asked at once."""

    name: str
    how: str
    flushed: bool
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Again:
    """One answer, and what a prefill of its own prefixes says in its place.

    `again[k]` stands against `said[k]`, the token `at[k]` of the answer. A margin is the logprob of the prefill's first
    choice minus that of what was said, in nats; None where logprobs are refused.
    """

    name: str
    prompt: int  # ids of the prompt
    n: int  # ids of the answer
    at: tuple[int, ...]
    said: tuple[int, ...]
    again: tuple[int, ...]
    margins: tuple[float | None, ...]
    error: str | None


@dataclass(frozen=True)
class Reasked:
    """The answers that were asked again, by logprobs or for one token a position."""

    how: str
    why: str
    flushed: bool
    answers: tuple[Again, ...]


@dataclass(frozen=True)
class Aborted:
    """A stream that was hung up on, and how long the server had work after that; None: for longer than was waited."""

    pieces: int
    idle_s: float | None
    error: str | None


@dataclass(frozen=True)
class Round:
    """Requests at once and how fast they were answered."""

    at_once: int
    round: int
    seconds: float
    tokens: int
    first_s: tuple[float, ...]
    each_s: tuple[float, ...]
    error: str | None


@dataclass(frozen=True)
class First:
    """Seconds from the launch on until /health was green (None: it never was by then), and until it answered."""

    healthy_s: float | None
    answered_s: float


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
    """Everything a candidate showed of itself. What only its host can see is None when it was asked from elsewhere."""

    started: float
    seconds: float
    first: First | None  # None: it was up already
    server_info: Reply
    models: Reply
    health: tuple[Reply, ...]
    alone: tuple[Answer, ...]
    chat: tuple[Answer, ...]
    stream: tuple[Streamed, ...]
    bounds: tuple[Bounded, ...]
    long: tuple[Answer, ...]
    lossless: Reasked
    together: tuple[Group, ...]
    json: tuple[Answer, ...]
    abort: Aborted | None
    pace: tuple[Round, ...]
    after: tuple[Answer, ...]
    repeat: tuple[Answer, ...]
    processes: tuple[Process, ...] | None
    port: Port | None
    log: Log | None
    restarts: int | None

    @property
    def sections(self) -> Mapping[str, tuple[Answer, ...]]:
        """The answers by the part of the transcript they stand in, in the order in which they were asked."""
        return {
            "alone": self.alone,
            "chat": self.chat,
            "stream": tuple(one.answer for one in self.stream),
            "bounds": tuple(one.answer for one in self.bounds),
            "long": self.long,
            **{group.name: group.answers for group in self.together},
            "json": self.json,
            "after": self.after,
            "repeat": self.repeat,
        }

    @property
    def answers(self) -> tuple[tuple[str, Answer], ...]:
        """Every answer with the part of the transcript it stands in."""
        return tuple((title, answer) for title, answers in self.sections.items() for answer in answers)
