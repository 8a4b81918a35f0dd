"""Is what it says right? Exact answers, patterns, look, chat, JSON."""

from __future__ import annotations

import json
import re

from kdeploy.verdict import garble, shape
from kdeploy.verdict.expectation import Check, Expectation, absent, failed, not_applicable, passed, settle
from kdeploy.verdict.prompts import Prompt, probes
from kdeploy.verdict.quoting import clip, parting
from kdeploy.verdict.transcript import Answer, Transcript


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
        return absent("chat", bool(probes(expectation.prompts, expectation.bounds, "")["chat"]))
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
            bad.append(f"{answer.name}: {clip(answer.whole)} has nothing like {pattern!r}")
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
            bad.append(f"{title}/{answer.name}: {', '.join(map(str, findings))}: {clip(answer.whole)}")
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


def typed(transcript: Transcript, expectation: Expectation) -> Check:
    """Answers under a JSON schema are JSON of that schema."""
    if not transcript.json:
        planned = probes(expectation.prompts, expectation.bounds, "")["json"]
        return absent("json", bool(planned))
    bad = []
    for answer in transcript.json:
        if answer.error is not None:
            bad.append(f"{answer.name}: not answered")
            continue
        try:
            value = json.loads(answer.text)
        except ValueError as fault:
            bad.append(f"{answer.name}: not JSON ({fault}): {clip(answer.text)}")
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
            bad.append(f"{answer.name}: {parting(answer.text, right)}")
        elif answer.finish != "stop":
            bad.append(f"{answer.name}: right, but it ended by {answer.finish!r}, not by itself")
    if bad:
        bad[0] = f"{len(bad)} of {known} wrong: {bad[0]}"
    return known, bad


def _right(answer: Answer, prompt: Prompt) -> bool:
    if prompt.answer is not None:
        return answer.text == prompt.answer and answer.finish == "stop"
    if prompt.expect is not None and not re.search(prompt.expect, answer.whole):
        return False
    enough_to_see = prompt.expect is not None or len(answer.whole) >= garble.READABLE
    return enough_to_see and not garble.find(answer.whole, answer.ids, cut=answer.finish == "length")


def _by_name(expectation: Expectation) -> dict[str, Prompt]:
    return {prompt.name: prompt for prompt in expectation.prompts}
