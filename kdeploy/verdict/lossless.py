"""Is it what the model itself says? Compared with a prefill of the same text, and with what was recorded before."""

from __future__ import annotations

from itertools import pairwise

from kdeploy.verdict.company import common
from kdeploy.verdict.expectation import Check, Expectation, absent, failed, not_applicable, settle
from kdeploy.verdict.prompts import Prompt, probes
from kdeploy.verdict.quoting import parting
from kdeploy.verdict.seen import Again, Answer, Transcript


def lossless(transcript: Transcript, expectation: Expectation) -> Check:
    """What was generated, token by token, is what a prefill of the text before it says: one that drafts nothing."""
    name, told = "lossless", transcript.lossless
    plan = probes(expectation.prompts, expectation.bounds, "")["lossless"]
    if plan["how"] == "none":
        return not_applicable(name, f"not asked: {plan['why']}")
    if told.how != plan["how"]:
        return failed(name, f"asked by {told.how!r} ({told.why}), planned was {plan['how']!r}")
    answers = {answer.name: answer for answer in (*transcript.alone, *transcript.long)}
    again = {one.name: one for one in told.answers}
    bad = [] if told.flushed else ["the cache was not flushed before: what drafting left there was asked, no prefill"]
    wrong: list[str] = []
    total = 0
    for title in plan["of"]:
        one, answer = again.get(title), answers.get(title)
        if one is None or answer is None or one.error is not None or answer.error is not None:
            why = (one and one.error) or (answer and answer.error) or "there is nothing to compare"
            bad.append(f"{title}: not asked again: {why}")
            continue
        each = one.n if told.how == "logprobs" else int(plan["each"])
        bad += [f"{title}: {fault}" for fault in _not_as_planned(one, answer, each)]
        total += len(one.at)
        wrong += [f"{title}, {text}" for text in _others(one, expectation.margin)]
    share = len(wrong) / total if total else 1.0
    if share > expectation.lossless:
        most = f"; {expectation.lossless:.1%} may be" if expectation.lossless else ""
        text = f"{len(wrong)} of {total} tokens are not what a prefill of the same text says ({share:.1%}{most})"
        bad = [f"{text}: {wrong[0]}" if wrong else text, *wrong[1:], *bad]
    ties = sum(a != b for one in told.answers for a, b in zip(one.said, one.again, strict=True)) - len(wrong)
    near = f", {ties} near ties apart" if ties > 0 else ""
    excused = f", {len(wrong)} others allowed" if wrong else ""
    return settle(name, f"{total} tokens of {len(again)} answers as a prefill says, by {told.how}{near}{excused}", bad)


def _not_as_planned(one: Again, answer: Answer, each: int) -> list[str]:
    """Why an answer was not asked again as it had to be: whole, or at `each` positions from first to last."""
    if answer.ids is None or one.n != len(answer.ids) or one.n != answer.n:
        return [f"{one.n} tokens were asked again, the answer has {answer.n}"]
    prompt = answer.meta.get("prompt_tokens")
    if isinstance(prompt, int) and prompt != one.prompt:
        return [f"asked again after {one.prompt} tokens of prompt, the answer came after {prompt}"]
    wanted = min(one.n, max(1, each))
    spread = all(a < b for a, b in pairwise(one.at)) and len(one.at) == wanted
    if not spread or (wanted and one.at[0] != 0) or (wanted > 1 and one.at[-1] != one.n - 1):
        return [f"asked again at {len(one.at)} positions, not at {wanted} from the first to the last"]
    if [answer.ids[at] for at in one.at] != list(one.said):
        return ["what was asked again is not what was said"]
    return []


def _others(one: Again, margin: float) -> list[str]:
    """The positions at which a prefill says another token, but for near ties."""
    found = []
    for at, said, again, apart in zip(one.at, one.said, one.again, one.margins, strict=True):
        if said != again and (apart is None or not apart <= margin):
            nats = "" if apart is None else f", {apart:.2f} nats apart"
            found.append(f"token {at} of {one.n}: said {said}, a prefill says {again}{nats}")
    return found


def reference(transcript: Transcript, expectation: Expectation) -> Check:
    """Answers are those that the same model gave without speculation, when they were recorded."""
    prompts = {prompt.name: prompt for prompt in expectation.prompts if prompt.reference is not None}
    found = [a for a in (*transcript.alone, *transcript.chat, *transcript.long) if a.name in prompts]
    if not found:
        return not_applicable("reference", "no prompt that was asked has a recorded answer")
    bad = []
    for answer in found:
        if answer.error is not None:
            bad.append(f"{answer.name}: not answered")
        elif not refers(answer, prompts[answer.name], expectation.agreement):
            right = str(prompts[answer.name].reference)
            bad.append(f"{answer.name}: {common(answer.text, right):.0%} as recorded; {parting(answer.text, right)}")
    return settle("reference", f"{len(found)} answers as they were recorded", bad)


def refers(answer: Answer, prompt: Prompt, least: float) -> bool:
    """Whether an answer is the one recorded, up to the `least` share of it."""
    return prompt.reference is not None and common(answer.text, prompt.reference) >= least


def long(transcript: Transcript, expectation: Expectation) -> Check:
    """Long prompts are answered, and long answers are as long as they were asked to be."""
    planned = probes(expectation.prompts, expectation.bounds, "")["long"]
    if not transcript.long:
        return absent("long", bool(planned))
    bad = []
    for answer in transcript.long:
        most = answer.ask.get("max_tokens")
        if answer.error is not None:
            bad.append(f"{answer.name}: {answer.error}")
        elif not answer.n or not answer.text.strip():
            bad.append(f"{answer.name}: an empty answer")
        elif answer.ask.get("ignore_eos") and (answer.n, answer.finish) != (most, "length"):
            bad.append(f"{answer.name}: {answer.n} of {most} tokens, ended by {answer.finish!r}")
    counts = [answer.meta.get("prompt_tokens") for answer in transcript.long]
    longest = max((count for count in counts if isinstance(count, int)), default=0)
    most_said = max(answer.n for answer in transcript.long)
    good = f"{len(transcript.long)} answers, after up to {longest} tokens, of up to {most_said}"
    return settle("long", good, bad)
