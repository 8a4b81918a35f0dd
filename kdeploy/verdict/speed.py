"""Is it as fast as known-good was on the same host?"""

from __future__ import annotations

from collections.abc import Mapping

from kdeploy.verdict.expectation import Check, Expectation, not_applicable, settle
from kdeploy.verdict.figures import Pace, paces
from kdeploy.verdict.prompts import probes
from kdeploy.verdict.seen import Transcript

SLACK_S = 0.5  # to a first token: below this, what else a host does counts for more than the engine


def speed(transcript: Transcript, expectation: Expectation) -> Check:
    """Tokens a second and the time to the first one, alone and in a crowd, are not far behind known-good's.

    The best of a few rounds counts, so a moment in which the host did something else is forgiven.
    """
    name, plan = "speed", probes(expectation.prompts, expectation.bounds, "")["pace"]
    if plan is None:
        return not_applicable(name, "the plan does not measure it")
    rounds = {(one.at_once, one.round): one for one in transcript.pace}
    bad = []
    for at_once in plan["at_once"]:
        wanted = at_once * plan["ask"]["max_tokens"]
        told = [one for one in rounds.values() if one.at_once == at_once]
        if len(told) != plan["rounds"]:
            bad.append(f"{at_once} at once: measured {len(told)} times, planned {plan['rounds']}")
        bad += [f"{at_once} at once: {one.error}" for one in told if one.error is not None]
        bad += [
            f"{at_once} at once: {one.tokens} tokens came, {wanted} were asked for"
            for one in told
            if one.error is None and one.tokens != wanted
        ]
    found, known = paces(transcript), expectation.comparable(transcript)
    before = known.pace if known else {}
    for at_once, pace in found.items():
        if known and at_once in before and before[at_once].tokens == pace.tokens:
            bad += [f"{at_once} at once: {text}" for text in _slower(pace, before[at_once], expectation.speed)]
    beside = f"{known.release} gave {_shown(before)}" if known and before else "nothing to compare with"
    return settle(name, f"{_shown(found)}; {beside}", bad)


def _slower(pace: Pace, before: Pace, least: float) -> list[str]:
    bad = []
    if pace.tokens_per_s < least * before.tokens_per_s:
        share = pace.tokens_per_s / before.tokens_per_s
        bad.append(
            f"{pace.tokens_per_s:.0f} tokens/s, {share:.0%} of {before.tokens_per_s:.0f}, {least:.0%} are needed"
        )
    if least > 0 and pace.first_s > before.first_s / least + SLACK_S:
        bad.append(f"the first piece after {pace.first_s:.2f} s, known-good's came after {before.first_s:.2f} s")
    return bad


def _shown(pace: Mapping[int, Pace]) -> str:
    return ", ".join(f"{at}: {one.tokens_per_s:.0f} tokens/s" for at, one in sorted(pace.items()))
