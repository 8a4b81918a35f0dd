"""What a page shows of a transcript, read with mercy: the page of a broken transcript is the one that is needed most.

What is missing or of another type is left out here; that it is, the verdict says (kdeploy/verdict/transcript.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SECTIONS = ("alone", "chat", "stream", "bounds", "long", "json", "repeat", "after")
_SHOWN = 20_000
"""Characters of one text on a page."""


@dataclass(frozen=True)
class Said:
    """One question and its answer, in a section of the transcript."""

    section: str
    name: str
    kind: str
    question: str
    text: str
    error: str | None
    finish: str
    n: int
    seconds: float
    first_s: float | None
    """To the first piece, of a streamed one."""
    steps: int | None
    """Verify steps of speculative decoding."""
    company: int
    """How many were asked at once, this one among them."""

    @property
    def accept_length(self) -> float | None:
        """Tokens a step of speculative decoding, where the engine tells."""
        return self.n / self.steps if self.steps and self.n else None


@dataclass(frozen=True)
class Round:
    """One round of the pace: how fast, and to the first token."""

    at_once: int
    seconds: float
    tokens: int
    first_s: tuple[float, ...]

    @property
    def speed(self) -> float:
        """Tokens a second of all together."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Asked:
    """An answer of which some positions were asked anew."""

    name: str
    n: int
    at: tuple[int, ...]
    wrong: tuple[int, ...]
    """Positions at which a prefill says another token."""
    margin: float | None
    """The largest at one of these, nats: how sure the prefill is of its own token; None where nobody can tell."""
    error: str | None


@dataclass(frozen=True)
class Glance:
    """A transcript as a page shows it."""

    answers: tuple[Said, ...]
    pace: tuple[Round, ...]
    lossless: tuple[Asked, ...]
    lossless_how: str
    first: Mapping[str, float]
    matches: tuple[tuple[int, str], ...]
    tail: tuple[str, ...]
    log_lines: int
    processes: tuple[tuple[str, ...], ...]
    facts: tuple[tuple[str, str], ...]
    started: float | None
    seconds: float

    def named(self, said: Said) -> Said | None:
        """The answer to the same question in the same section and company."""
        same = (one for one in self.answers if one.section == said.section and one.question == said.question)
        return next(same, None)

    def alone(self, said: Said) -> Said | None:
        """The answer to the same question asked alone."""
        sections = ("alone", "chat", "long")
        return next((one for one in self.answers if one.section in sections and one.question == said.question), None)

    @property
    def tokens(self) -> int:
        """Tokens of all answers, those of the pace among them."""
        return sum(one.n for one in self.answers) + sum(one.tokens for one in self.pace)


def glance(values: Any) -> Glance:
    """What can be shown of the transcript `values`, whatever they are. Raises nothing."""
    top = _map(values)
    log, lossless = _map(top.get("log")), _map(top.get("lossless"))
    answers = [said for section in _SECTIONS for said in _answers(section, top.get(section))]
    for group in map(_map, _list(top.get("together"))):
        answers += _answers(_text(group.get("name")) or "together", group.get("answers"), together=True)
    return Glance(
        answers=tuple(answers),
        pace=tuple(map(_round, map(_map, _list(top.get("pace"))))),
        lossless=tuple(map(_asked, map(_map, _list(lossless.get("answers"))))),
        lossless_how=_text(lossless.get("how")) + (f": {why}" if (why := _text(lossless.get("why"))) else ""),
        first={key: number for key, value in _map(top.get("first")).items() if (number := _number(value)) is not None},
        matches=tuple((_int(one.get("line")), _text(one.get("text"))) for one in map(_map, _list(log.get("matches")))),
        tail=tuple(map(_text, _list(log.get("tail")))),
        log_lines=_int(log.get("lines")),
        processes=tuple(
            (str(_int(one.get("pid"))), _text(one.get("name")), _text(one.get("tree")) or "unknown")
            for one in map(_map, _list(top.get("processes")))
        ),
        facts=tuple(_facts(top)),
        started=_number(top.get("started")),
        seconds=_number(top.get("seconds")) or 0.0,
    )


def _answers(section: str, values: Any, *, together: bool = False) -> list[Said]:
    rows = list(map(_map, _list(values)))
    return [_said(section, row, len(rows) if together else 1) for row in rows]


def _said(section: str, row: Mapping[str, Any], company: int) -> Said:
    ask, meta = _map(row.get("ask")), _map(row.get("meta"))
    steps, reasoning = meta.get("spec_verify_ct"), _text(row.get("reasoning"))
    how = _text(row.get("how"))
    text = _text(row.get("text"))
    return Said(
        section=section,
        name=_text(row.get("name")) + (f" ({how})" if how else ""),
        kind=_text(row.get("kind")),
        question=_cut(_question(ask)),
        text=_cut(f"{reasoning}\n{text}" if reasoning else text),
        error=None if row.get("error") is None else _text(row.get("error")),
        finish=_text(row.get("finish")),
        n=_int(row.get("n")),
        seconds=_number(row.get("seconds")) or 0.0,
        first_s=_number(row.get("first_s")),
        steps=steps if isinstance(steps, int) and steps > 0 else None,
        company=company,
    )


def _question(ask: Mapping[str, Any]) -> str:
    if isinstance(text := ask.get("text"), str):
        return text
    turns = map(_map, _list(ask.get("messages")))
    return "\n".join(f"{_text(turn.get('role'))}: {_text(turn.get('content'))}" for turn in turns)


def _round(row: Mapping[str, Any]) -> Round:
    first = tuple(number for one in _list(row.get("first_s")) if (number := _number(one)) is not None)
    return Round(_int(row.get("at_once")), _number(row.get("seconds")) or 0.0, _int(row.get("tokens")), first)


def _asked(row: Mapping[str, Any]) -> Asked:
    at, said, again, margins = (_list(row.get(key)) for key in ("at", "said", "again", "margins"))
    differing = [place for place, (one, other) in enumerate(zip(said, again, strict=False)) if one != other]
    wrong = tuple(_int(at[place]) for place in differing if place < len(at))
    sure = [number for place in differing if (number := _number(_nth(margins, place))) is not None]
    error = None if row.get("error") is None else _text(row.get("error"))
    return Asked(
        _text(row.get("name")), _int(row.get("n")), tuple(map(_int, at)), wrong, max(sure, default=None), error
    )


def _facts(top: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the server and its host said of themselves, of what explains a verdict."""
    info, port = _map(_map(top.get("server_info")).get("body")), _map(top.get("port"))
    wanted = (
        "version", "model_path", "revision", "attention_backend", "speculative_algorithm", "speculative_num_steps",
        "speculative_num_draft_tokens", "speculative_draft_model_path", "dtype", "tp_size", "dp_size",
        "max_running_requests", "max_total_num_tokens",
    )  # fmt: skip
    told = [(key, json.dumps(info[key], ensure_ascii=False, default=str)) for key in wanted if key in info]
    if port:
        owned = "ours" if port.get("ours") is True else "NOT ours"
        told.append(("port", f"{_int(port.get('number'))}, owned by process {_int(port.get('owner'))}, {owned}"))
    if isinstance(top.get("restarts"), int):
        told.append(("restarts", str(top["restarts"])))
    abort = _map(top.get("abort"))
    if abort:
        idle = _number(abort.get("idle_s"))
        shown = "never" if idle is None else f"{idle:.2f} s"
        told.append(("abort", f"hung up after {_int(abort.get('pieces'))} pieces, idle after {shown}"))
    return [(key, _cut(value, 300)) for key, value in told]


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _nth(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else _cut(str(value), 300)


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53 else 0


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 and math.isfinite(value) else None


def _cut(text: str, most: int = _SHOWN) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} characters more)"
