"""How does it behave? Its first answer, health after the work, what its log says, restarts."""

from __future__ import annotations

import re

from kdeploy.verdict.expectation import Check, Expectation, failed, not_applicable, passed, settle, unseen
from kdeploy.verdict.seen import Transcript
from kdeploy.verdict.signatures import FATAL


def first_answer(transcript: Transcript, expectation: Expectation) -> Check:
    """Once /health was green it answered soon: clients are sent there from then on."""
    name, first = "start.first-answer", transcript.first
    if first is None:
        if expectation.launched:
            return failed(name, "nobody waited for its first answer")
        return not_applicable(name, "it was up already")
    if first.healthy_s is None:
        return passed(name, f"it answered after {first.answered_s:.1f} s, before /health was green")
    waited = first.answered_s - first.healthy_s
    told = f"green after {first.healthy_s:.1f} s, its first answer {waited:.1f} s later"
    if waited > expectation.first_answer_s:
        return failed(name, f"{told}; at most {expectation.first_answer_s:.0f} s are allowed")
    return passed(name, told)


def health(transcript: Transcript, expectation: Expectation) -> Check:
    """/health after all the work: one good reply of up to three is enough, and proves little."""
    name, replies = "health", transcript.health
    if any(reply.error is None and reply.status == 200 for reply in replies):
        return passed(name, f"200 in {replies[-1].seconds:.1f} s, try {len(replies)}")
    why = replies[-1].error or f"status {replies[-1].status}" if replies else "it was not asked"
    return failed(name, f"no good reply of {len(replies)}: {why}")


def log(transcript: Transcript, expectation: Expectation) -> Check:
    """The server's log has none of the known signatures of a broken engine, except where excused."""
    name, seen = "log", transcript.log
    if seen is None:
        return unseen(name, expectation)
    if not seen.bytes:
        return failed(name, "the server's log is empty")
    # The agent looked through the whole log with the plan's list; the tail is looked at again here, with ours.
    found = {text: f"line {number}: {text}" for number, text in seen.matches}
    found |= {text: f"near the end: {text}" for text in seen.tail if text not in found}
    excused = [re.compile(pattern) for pattern in expectation.allowed_log]
    fatal = re.compile("|".join(f"(?:{pattern})" for pattern in FATAL))
    bad = [
        shown
        for text, shown in found.items()
        if fatal.search(text) and not any(pattern.search(text) for pattern in excused)
    ]
    return settle(name, f"{seen.lines} lines, none of {len(FATAL)} signatures", bad)


def restarts(transcript: Transcript, expectation: Expectation) -> Check:
    """The server did not have to be started again."""
    seen, most = transcript.restarts, expectation.max_restarts
    if seen is None:
        return unseen("restarts", expectation)
    if not 0 <= seen <= most:
        return failed("restarts", f"the server was started again {seen} times, at most {most} are allowed")
    return passed("restarts", f"{seen}")
