"""Does speculation pay, and is what is said of it true?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdeploy.verdict.expectation import Check, Expectation, not_applicable, settle
from kdeploy.verdict.figures import COMPANY, EVERYTHING, LONG_ENOUGH, accept_groups, accept_length, asked_alone, steps
from kdeploy.verdict.questions import LONG
from kdeploy.verdict.seen import Answer, Transcript

_BLOCKWISE = ("DFLASH", "DDTREE")  # a step gives at most a block, whatever the budget of nodes (num_draft_tokens) is
_ROUNDING = 0.01


def acceptance(transcript: Transcript, expectation: Expectation) -> Check:
    """Speculation pays by kind of prompt and in company, measured by the floor and by known-good; figures are there
    and agree with each other."""
    name = "acceptance"
    algorithm, floor = expectation.algorithm, expectation.min_accept_length
    answers = [(title, answer) for title, answer in transcript.answers if answer.n >= LONG_ENOUGH]
    if algorithm is None and floor is None:
        telling = [f"{title}/{answer.name}" for title, answer in answers if steps(answer.meta) is not None]
        if not telling:
            return not_applicable(name, "no speculation was declared")
        return settle(name, "", [f"no speculation was declared, and {telling[0]} reports its steps"])
    most = longest_step(transcript.server_info.body, algorithm)
    bad, seen = [], []
    for title, answers_of in accept_groups(transcript).items():
        length = accept_length(answers_of)
        if length is None:
            without = sum(steps(answer.meta) is None for answer in answers_of)
            if without or title in (EVERYTHING, COMPANY):
                bad.append(
                    f"{title}: {without} of {len(answers_of)} answers of {LONG_ENOUGH} tokens or more do not report"
                    " spec_verify_ct"
                )
            continue
        seen.append(f"{title} {length:.2f}")
        bad += _too_short(title, length, expectation, transcript)
    for title, answer in answers:
        bad += [f"{title}/{answer.name}: {fault}" for fault in _lies(answer, most)]
    return settle(name, f"tokens a step: {', '.join(seen)}", bad)


def _too_short(title: str, length: float, expectation: Expectation, transcript: Transcript) -> list[str]:
    """What an accept length is too short for."""
    bad, floor, known = [], expectation.min_accept_length, expectation.comparable(transcript)
    if floor is not None and title in (EVERYTHING, COMPANY) and length < floor:
        bad.append(f"{title}: {length:.2f} tokens a step, the floor is {floor:.2f}")
    elif (
        floor is not None and title != LONG and length < (1 + floor) / 2
    ):  # kinds differ by nature, but none is to fall towards 1
        bad.append(f"{title}: {length:.2f} tokens a step, half-way from 1 to the floor is {(1 + floor) / 2:.2f}")
    before = known.accept.get(title) if known and known.asked == asked_alone(transcript) else None
    if known and before is not None and length < expectation.acceptance * before:
        least = f"{expectation.acceptance:.0%} of {before:.2f}, which {known.release} gave, are needed"
        bad.append(f"{title}: {length:.2f} tokens a step, {least}")
    return bad


def longest_step(info: Any, algorithm: str | None) -> int | None:
    """The most tokens that one step can give, by the budget in /server_info; None when it does not say."""
    if not isinstance(info, Mapping):
        return None
    budget = _count(info.get("speculative_num_draft_tokens"))
    if str(algorithm).upper() in _BLOCKWISE:  # SGLang 0.5.11, server_args.py, sets their num_steps to 1 for nothing
        depth = _count(info.get("speculative_dflash_block_size"))
    else:
        chain = _count(info.get("speculative_num_steps"))
        depth = chain + 1 if chain else None
    limits = [one for one in (budget, depth) if one]
    return min(limits, default=None)


def _lies(answer: Answer, most: int | None) -> list[str]:
    """What the figures of an answer have against each other (SGLang 0.5.11, srt/managers/tokenizer_manager.py).

    The first token comes from the prefill and takes no step.
    """
    count = steps(answer.meta)
    if count is None:
        return []
    bad = []
    if most is not None and answer.n > 1 + count * most:
        bad.append(f"{answer.n} tokens in {count} steps, and the budget allows {most} a step")
    said = answer.meta.get("spec_accept_length")
    if not isinstance(said, int | float):
        bad.append("spec_accept_length is missing")
    elif not abs(said - answer.n / count) <= _ROUNDING * answer.n / count:
        bad.append(f"it says {said:.2f} tokens a step, {answer.n} tokens in {count} steps are {answer.n / count:.2f}")
    drafts = answer.meta.get("spec_accepted_drafts")
    if isinstance(drafts, int) and answer.n > 1 + count + drafts:
        bad.append(f"{answer.n} tokens in {count} steps, and only {drafts} drafts were accepted")
    return bad


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
