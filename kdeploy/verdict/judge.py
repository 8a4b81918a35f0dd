"""Judging: a transcript and what was declared give a verdict. Nothing here talks to anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kdeploy.verdict import acceptance, answers, company, conduct, flow, identity, lossless, speed, transcript
from kdeploy.verdict.expectation import Check, Expectation, Outcome, Verdict, failed, passed
from kdeploy.verdict.transcript import Transcript, TranscriptError

__all__ = ["CHECKS", "Check", "Expectation", "Outcome", "Verdict", "as_found", "judge"]

CHECKS: Mapping[str, Callable[[Transcript, Expectation], Check]] = {
    "identity.version": identity.version,
    "identity.args": identity.arguments,
    "identity.model": identity.model,
    "identity.processes": identity.processes,
    "identity.port": identity.port,
    "start.first-answer": conduct.first_answer,
    "health": conduct.health,
    "answers.asked": answers.asked,
    "answers.status": answers.status,
    "answers.exact": answers.exact,
    "answers.expect": answers.expect,
    "answers.garble": answers.look,
    "answers.enough": answers.enough,
    "stream": flow.stream,
    "bounds": flow.bounds,
    "long": lossless.long,
    "reference": lossless.reference,
    "lossless": lossless.lossless,
    "concurrency": company.together,
    "abort": flow.abort,
    "after": company.after,
    "repeat": company.repeat,
    "chat": answers.chat,
    "json": answers.typed,
    "acceptance": acceptance.acceptance,
    "speed": speed.speed,
    "log": conduct.log,
    "restarts": conduct.restarts,
}
"""Every check by its name, in the order in which a verdict shows them."""


def judge(values: Mapping[str, Any], expectation: Expectation) -> Verdict:
    """Judge the transcript `values` (as the agent gave it) against what was declared.

    Every check is made, whatever the others say. A transcript that lacks something is one failed check, `transcript`,
    that names it. Raises nothing.
    """
    try:
        told = transcript.read(values, remote=expectation.remote_url is not None)
    except TranscriptError as fault:
        return Verdict((failed("transcript", str(fault)),))
    return Verdict(tuple(check(told, expectation) for check in CHECKS.values()))


def as_found(values: Mapping[str, Any]) -> Verdict:
    """The verdict on a server that was adopted: nobody declared what it is, so it must only be what it was.

    The host has asked it before it told this, and goes back by itself when an answer was another.
    """
    asked = values.get("asked")
    if values.get("adopted") is not True or not isinstance(asked, int):
        return Verdict((failed("adopted", "the host does not say whether it answers as it did"),))
    told = f"{asked} questions answered as when it was adopted" if asked else "ready as it was when it was adopted"
    return Verdict((passed("adopted", told),))
