"""How does it behave? Health after the work, what its log says, restarts, whether speculation pays."""

from __future__ import annotations

import re

from kdeploy.verdict.expectation import Check, Expectation, failed, not_applicable, passed, settle
from kdeploy.verdict.signatures import FATAL
from kdeploy.verdict.transcript import Transcript


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
    if not 0 <= seen <= most:
        return failed("restarts", f"the server was started again {seen} times, at most {most} are allowed")
    return passed("restarts", f"{seen}")


def acceptance(transcript: Transcript, expectation: Expectation) -> Check:
    """Speculation pays: tokens a step, alone and in company, at or above the floor; a missing metric fails."""
    name, floor = "acceptance", expectation.min_accept_length
    if floor is None:
        return not_applicable(name, "no floor was declared")
    company = [answer for group in transcript.together if group.how == "batch" for answer in group.answers]
    bad, seen = [], []
    for title, answers in (("alone", list(transcript.alone)), ("in company", company)):
        long = [answer for answer in answers if answer.n >= 8]
        steps = [answer.meta.get("spec_verify_ct") for answer in long]
        counted = [step for step in steps if isinstance(step, int) and step > 0]
        if not long or len(counted) < len(long):
            bad.append(f"{title}: {len(counted)} of {len(long)} answers of 8 tokens or more report spec_verify_ct")
            continue
        length = sum(answer.n for answer in long) / sum(counted)
        seen.append(f"{title} {length:.2f}")
        if length < floor:
            bad.append(f"{title}: {length:.2f} tokens a step, the floor is {floor:.2f}")
    return settle(name, f"tokens a step: {', '.join(seen)}", bad)
