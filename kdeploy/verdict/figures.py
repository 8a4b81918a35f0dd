"""Figures of a transcript that one release is compared with another by: speed and accept length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from kdeploy.verdict.questions import LONG
from kdeploy.verdict.seen import Answer, Transcript

EVERYTHING, COMPANY = "all", "in company"
"""Names of two accept lengths that are no kind of prompt: of all that was asked alone, and of all batches."""

LONG_ENOUGH = 8  # tokens: the steps of a shorter answer say little
ENOUGH = 32  # tokens together: of less no mean is made


@dataclass(frozen=True)
class Pace:
    """How fast so many requests at once were answered, in the best of a few rounds."""

    tokens: int  # of the round: figures of other amounts are not comparable
    tokens_per_s: float
    first_s: float  # median over the requests, to the first piece with text


@dataclass(frozen=True)
class Known:
    """What a release showed when it was confirmed, on the same host: what the next one is compared with."""

    release: str
    model: str  # model_path of /server_info: figures of another model say nothing
    pace: Mapping[int, Pace]  # by requests at once
    accept: Mapping[str, float]  # tokens a step by kind of prompt, EVERYTHING and COMPANY
    asked: frozenset[str]  # names of what was asked alone: accept lengths of other prompts are not comparable


def figures(transcript: Transcript, release: str = "") -> Known:
    """The figures of a transcript, of the release named; what it does not show is not among them."""
    info = transcript.server_info.body
    model = info.get("model_path") if isinstance(info, Mapping) else None
    return Known(release, str(model or ""), paces(transcript), accept_lengths(transcript), asked_alone(transcript))


def asked_alone(transcript: Transcript) -> frozenset[str]:
    """The names of all that was asked alone, one after the other."""
    return frozenset(answer.name for answer in (*transcript.alone, *transcript.long))


def paces(transcript: Transcript) -> dict[int, Pace]:
    """The best of each figure over the rounds without an error, by requests at once: one moment may spoil one."""
    best: dict[int, Pace] = {}
    for one in transcript.pace:
        if one.error is not None or not (one.seconds > 0 and one.tokens > 0 and one.first_s):
            continue
        pace = Pace(one.tokens, one.tokens / one.seconds, median(one.first_s))
        before = best.get(one.at_once, pace)
        fastest = max(pace, before, key=lambda known: known.tokens_per_s)
        best[one.at_once] = replace(fastest, first_s=min(pace.first_s, before.first_s))
    return best


def accept_lengths(transcript: Transcript) -> dict[str, float]:
    """Mean tokens a step of speculative decoding by kind of prompt, of all prompts alone, and of those in company."""
    found = {name: accept_length(answers) for name, answers in accept_groups(transcript).items()}
    return {name: length for name, length in found.items() if length is not None}


def accept_groups(transcript: Transcript) -> dict[str, list[Answer]]:
    """The answers whose steps are looked at, by what they have in common; groups of too few tokens are left out.

    Long ones are a kind of their own and not among all: made to go on past its end a model says what no draft foresees.
    """
    alone, long = _telling(transcript.alone), _telling(transcript.long)
    batches = [group for group in transcript.together if group.how == "batch"]
    company = _telling(answer for group in batches for answer in group.answers if answer.kind != LONG)
    kinds = sorted({answer.kind for answer in alone})
    groups = {**{kind: [answer for answer in alone if answer.kind == kind] for kind in kinds}, LONG: long}
    groups = {kind: answers for kind, answers in groups.items() if sum(a.n for a in answers) >= ENOUGH}
    return {**groups, EVERYTHING: alone, COMPANY: company}


def accept_length(answers: Iterable[Answer]) -> float | None:
    """Tokens a step over all `answers` together; None when one of them does not count its steps, or there is none."""
    tokens = count = 0
    for answer in answers:
        taken = steps(answer.meta)
        if taken is None:
            return None
        tokens, count = tokens + answer.n, count + taken
    return tokens / count if count else None


def steps(meta: Mapping[str, Any]) -> int | None:
    """The steps that an answer took, as the server counts them."""
    count = meta.get("spec_verify_ct")
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else None


def _telling(answers: Iterable[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.error is None and answer.n >= LONG_ENOUGH]
