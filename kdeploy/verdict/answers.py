"""Is what it says right? Exact answers, patterns, look, chat, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kdeploy.verdict import garble, shape
from kdeploy.verdict.expectation import Check, Expectation, absent, failed, not_applicable, passed, settle
from kdeploy.verdict.lossless import refers
from kdeploy.verdict.prompts import Prompt, probes
from kdeploy.verdict.quoting import clip, parting
from kdeploy.verdict.seen import Answer, Transcript


def asked(transcript: Transcript, expectation: Expectation) -> Check:
    """Every probe of the plan was asked as planned: a probe that was left out cannot fail."""
    plan = probes(expectation.prompts, expectation.bounds, "")
    sections = dict(transcript.sections)
    planned = {title: plan[title] for title in ("alone", "chat", "stream", "long", "json", "repeat")}
    planned |= {group["name"]: group["asks"] for group in plan["together"]}
    planned["after"] = plan["brief"]
    # What an answer was to end at is taken from the answer alone, on the host: all else is as it was alone.
    by_name = {ask["name"]: ask for ask in plan["alone"]}
    planned["bounds"] = [by_name[name] for name in plan["bounds"] for _ in ("stop", "length")]
    sections["bounds"] = tuple(_unbounded(answer, by_name) for answer in sections["bounds"])
    bad = [f"{title}: this group of answers was not planned" for title in sections if title not in planned]
    for title, asks in planned.items():
        answers = sections.get(title, ())
        if [dict(answer.ask) for answer in answers] != asks:
            bad.append(f"{title}: {len(answers)} answers, not those to the {len(asks)} planned probes")
    return settle("answers.asked", f"{sum(map(len, planned.values()))} probes as planned", bad)


def _unbounded(answer: Answer, asks: Mapping[str, Mapping[str, Any]]) -> Answer:
    ask = {key: value for key, value in answer.ask.items() if key != "stop"}
    if "stop" not in answer.ask and answer.name in asks:
        ask["max_tokens"] = asks[answer.name]["max_tokens"]
    return replace(answer, ask=ask)


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
    for answer in (*transcript.alone, *transcript.chat, *transcript.long):
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
        prompt = prompts.get(answer.name)
        if prompt is not None and answer.text in (prompt.answer, prompt.reference):
            right += 1
            continue
        seen += 1
        findings = _findings(answer)
        if findings:
            bad.append(f"{title}/{answer.name}: {', '.join(map(str, findings))}: {clip(answer.whole)}")
    return settle("answers.garble", f"{seen} answers look like text, {right} more are right to the letter", bad)


def _findings(answer: Answer) -> list[garble.Finding]:
    if not answer.ask.get("ignore_eos") or not answer.whole.strip():
        return list(garble.find(answer.whole, answer.ids, cut=answer.finish == "length"))
    # Made to go on past its end a sane model says its end-of-text token, and repeats itself sooner or later.
    text = garble.SPECIAL.split(answer.whole)[0]
    found = garble.find(text, answer.ids, cut=True) if text.strip() else ()
    return [finding for finding in found if finding.kind not in garble.REPETITIVE]


def enough(transcript: Transcript, expectation: Expectation) -> Check:
    """At least `min_answers` different prompts were answered right: with less, nothing was shown."""
    prompts = _by_name(expectation)
    good = {
        answer.name
        for answer in (*transcript.alone, *transcript.chat)
        if answer.error is None
        and answer.name in prompts
        and _right(answer, prompts[answer.name], expectation.agreement)
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


def _right(answer: Answer, prompt: Prompt, agreement: float) -> bool:
    if prompt.answer is not None:
        return answer.text == prompt.answer and answer.finish == "stop"
    if prompt.reference is not None and not refers(answer, prompt, agreement):
        return False
    if prompt.expect is not None and not re.search(prompt.expect, answer.whole):
        return False
    known = prompt.expect is not None or prompt.reference is not None
    return (known or len(answer.whole) >= garble.READABLE) and not _findings(answer)


def _by_name(expectation: Expectation) -> dict[str, Prompt]:
    return {prompt.name: prompt for prompt in expectation.prompts}
