"""Is what it says right? Exact answers, patterns, look, company, repetition, chat, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kdeploy.verdict import garble, shape
from kdeploy.verdict.expectation import Check, Expectation, failed, not_applicable, passed, settle
from kdeploy.verdict.prompts import Prompt, probes
from kdeploy.verdict.transcript import Answer, Group, Transcript


def asked(transcript: Transcript, expectation: Expectation) -> Check:
    """Every probe of the plan was asked as planned: a probe that was left out cannot fail."""
    plan = probes(expectation.prompts, expectation.bounds, "")
    sections: dict[str, tuple[Answer, ...]] = {
        "alone": transcript.alone, "chat": transcript.chat, "json": transcript.json, "repeat": transcript.repeat,
        **{group.name: group.answers for group in transcript.together},
    }  # fmt: skip
    planned = {title: plan[title] for title in ("alone", "chat", "json", "repeat")}
    planned |= {group["name"]: group["asks"] for group in plan["together"]}
    bad = [f"{title}: this group of answers was not planned" for title in sections if title not in planned]
    for title, asks in planned.items():
        answers = sections.get(title, ())
        if [dict(answer.ask) for answer in answers] != asks:
            bad.append(f"{title}: {len(answers)} answers, not those to the {len(asks)} planned probes")
    return settle("answers.asked", f"{sum(map(len, planned.values()))} probes as planned", bad)


def status(transcript: Transcript, expectation: Expectation) -> Check:
    """Every probe got a whole answer in time."""
    answers = transcript.answers
    if not answers:
        return failed("answers.status", "nothing was answered")
    bad = [
        f"{title}/{answer.name}: {answer.error or f'status {answer.status}'}"
        for title, answer in answers
        if answer.error is not None or answer.status != 200
    ]
    slowest = max(answer.seconds for _, answer in answers)
    return settle("answers.status", f"{len(answers)} answers, the slowest in {slowest:.1f} s", bad)


def exact(transcript: Transcript, expectation: Expectation) -> Check:
    """Completions whose answer is known are answered to the letter and end by themselves."""
    known, bad = _wrong(transcript.alone, expectation)
    if not known:
        return not_applicable("answers.exact", "no exact answer is known")
    return settle("answers.exact", f"{known} of {known} to the letter", bad)


def chat(transcript: Transcript, expectation: Expectation) -> Check:
    """Chat is answered, to the letter where known: the template and the parsers of the server have their part here."""
    if not transcript.chat:
        return _absent("chat", bool(probes(expectation.prompts, expectation.bounds, "")["chat"]))
    known, bad = _wrong(transcript.chat, expectation)
    bad += [
        f"{answer.name}: an empty answer" for answer in transcript.chat if not (answer.error or answer.whole.strip())
    ]
    return settle("chat", f"{len(transcript.chat)} answers, {known} of them known and to the letter", bad)


def expect(transcript: Transcript, expectation: Expectation) -> Check:
    """Answers known only in part contain what they must."""
    prompts = _by_name(expectation)
    bad, count = [], 0
    for answer in (*transcript.alone, *transcript.chat):
        pattern = prompts[answer.name].expect if answer.name in prompts else None
        if pattern is None:
            continue
        count += 1
        if answer.error is not None:
            bad.append(f"{answer.name}: not answered")
        elif not re.search(pattern, answer.whole):
            bad.append(f"{answer.name}: {_clip(answer.whole)} has nothing like {pattern!r}")
    if not count:
        return not_applicable("answers.expect", "no answered prompt has a pattern")
    return settle("answers.expect", f"{count} answers contain what they must", bad)


def look(transcript: Transcript, expectation: Expectation) -> Check:
    """No answer looks like garble; answers proven right to the letter need no looking at."""
    prompts = _by_name(expectation)
    bad, seen, right = [], 0, 0
    for title, answer in transcript.answers:
        if answer.error is not None:  # answers.status says so
            continue
        if answer.name in prompts and answer.text == prompts[answer.name].answer:
            right += 1
            continue
        seen += 1
        cut = answer.finish == "length"
        findings = garble.find(answer.whole, answer.ids, cut=cut)
        if findings:
            bad.append(f"{title}/{answer.name}: {', '.join(map(str, findings))}: {_clip(answer.whole)}")
    return settle("answers.garble", f"{seen} answers look like text, {right} more are right to the letter", bad)


def enough(transcript: Transcript, expectation: Expectation) -> Check:
    """At least `min_answers` different prompts were answered right: with less, nothing was shown."""
    prompts = _by_name(expectation)
    good = {
        answer.name
        for answer in (*transcript.alone, *transcript.chat)
        if answer.error is None and answer.name in prompts and _right(answer, prompts[answer.name])
    }
    least = max(1, expectation.min_answers)
    if len(good) < least:
        return failed("answers.enough", f"{len(good)} prompts answered right, at least {least} are needed")
    return passed("answers.enough", f"{len(good)} prompts answered right")


def company(transcript: Transcript, expectation: Expectation) -> Check:
    """Answers in company equal the answers alone. Rows that are mixed up show only here."""
    name, largest = "concurrency", max(expectation.bounds.together, default=0)
    batches = [group for group in transcript.together if group.how == "batch"]
    size = max((len({str(answer.ask) for answer in group.answers}) for group in batches), default=0)
    if size < max(2, largest):
        return failed(name, f"the largest batch had {size} different prompts, {max(2, largest)} are needed")
    bad = [f"{group.name}: the cache was not flushed before" for group in batches if not group.flushed]
    pairs = 0
    for group in transcript.together:
        pairs += len(group.answers)
        bad += _differences(group.name, group, transcript, expectation)
    return settle(name, f"{pairs} answers in {len(transcript.together)} groups of up to {size} as alone", bad)


def repeat(transcript: Transcript, expectation: Expectation) -> Check:
    """Asked once more after everything else, from the cache, the greedy answer is the same."""
    if not transcript.repeat:
        return _absent("repeat", expectation.bounds.repeats > 0)
    again = Group("repeat", "", True, transcript.repeat)
    bad = _differences("repeat", again, transcript, expectation)
    return settle("repeat", f"{len(transcript.repeat)} answers as the first time", bad)


def typed(transcript: Transcript, expectation: Expectation) -> Check:
    """Answers under a JSON schema are JSON of that schema."""
    if not transcript.json:
        planned = probes(expectation.prompts, expectation.bounds, "")["json"]
        return _absent("json", bool(planned))
    bad = []
    for answer in transcript.json:
        if answer.error is not None:
            bad.append(f"{answer.name}: not answered")
            continue
        try:
            value = json.loads(answer.text)
        except ValueError as fault:
            bad.append(f"{answer.name}: not JSON ({fault}): {_clip(answer.text)}")
            continue
        bad += [f"{answer.name}: {fault}" for fault in shape.faults(value, answer.ask.get("schema"))]
    return settle("json", f"{len(transcript.json)} answers of their schema", bad)


def _wrong(answers: tuple[Answer, ...], expectation: Expectation) -> tuple[int, list[str]]:
    """How many of the answers are known to the letter, and which of those are wrong."""
    prompts = _by_name(expectation)
    known, bad = 0, []
    for answer in answers:
        right = prompts[answer.name].answer if answer.name in prompts else None
        if right is None:
            continue
        known += 1
        if answer.error is not None:
            bad.append(f"{answer.name}: not answered")
        elif answer.text != right:
            bad.append(f"{answer.name}: {_parting(answer.text, right)}")
        elif answer.finish != "stop":
            bad.append(f"{answer.name}: right, but it ended by {answer.finish!r}, not by itself")
    if bad:
        bad[0] = f"{len(bad)} of {known} wrong: {bad[0]}"
    return known, bad


def _differences(title: str, group: Group, transcript: Transcript, expectation: Expectation) -> list[str]:
    """How the answers of a group differ from those to the same question asked alone."""
    first = {_question(answer): answer for answer in (*transcript.alone, *transcript.chat)}
    bad = []
    for answer in group.answers:
        alone = first.get(_question(answer))
        if alone is None:
            bad.append(f"{title}/{answer.name}: there is no answer alone to compare with")
        elif answer.error is not None or alone.error is not None:
            bad.append(f"{title}/{answer.name}: {answer.error or 'alone it was not answered'}")
        elif (share := _agreement(alone, answer)) < expectation.agreement:
            parting = _parting(answer.text, alone.text)
            bad.append(f"{title}/{answer.name}: {share:.0%} as alone; {parting}")
        elif share == 1.0 and answer.finish != alone.finish:
            bad.append(f"{title}/{answer.name}: ended by {answer.finish!r}, alone by {alone.finish!r}")
    return bad


def _agreement(one: Answer, other: Answer) -> float:
    """The share of the longer answer up to which both are the same, in tokens where known, else characters.

    Text and ids can part (a detokenizer at fault), so equal ids with different texts agree only as far as the texts.
    """
    shares = [_common(one.whole, other.whole)]
    if one.ids is not None and other.ids is not None:
        shares.append(_common(one.ids, other.ids))
    return min(shares)


def _common(one: Any, other: Any) -> float:
    longest = max(len(one), len(other))
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return same / longest if longest else 1.0


def _right(answer: Answer, prompt: Prompt) -> bool:
    if prompt.answer is not None:
        return answer.text == prompt.answer and answer.finish == "stop"
    if prompt.expect is not None and not re.search(prompt.expect, answer.whole):
        return False
    enough_to_see = prompt.expect is not None or len(answer.whole) >= garble.READABLE
    return enough_to_see and not garble.find(answer.whole, answer.ids, cut=answer.finish == "length")


def _question(answer: Answer) -> str:
    asked: Mapping[str, Any] = {key: value for key, value in answer.ask.items() if key in ("text", "messages")}
    return json.dumps(asked, sort_keys=True)


def _absent(name: str, planned: bool) -> Check:
    return failed(name, "planned, and not answered") if planned else not_applicable(name, "the plan has none")


def _by_name(expectation: Expectation) -> dict[str, Prompt]:
    return {prompt.name: prompt for prompt in expectation.prompts}


def _parting(got: str, right: str) -> str:
    """Where two texts part, with a little of both."""
    at = next((i for i, (a, b) in enumerate(zip(got, right, strict=False)) if a != b), min(len(got), len(right)))
    start = max(0, at - 12)
    return f"parts at character {at}: {_clip(got[start:])}, wanted {_clip(right[start:])}"


def _clip(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else text[:most] + "…")
