"""Is it the same answer in company, and when it is asked again? Compared with the answer alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kdeploy.verdict.expectation import Check, Expectation, absent, failed, not_applicable, settle
from kdeploy.verdict.prompts import probes
from kdeploy.verdict.quoting import parting, shared
from kdeploy.verdict.seen import Answer, Transcript


def together(transcript: Transcript, expectation: Expectation) -> Check:
    """Answers in company equal the answers alone. Rows that are mixed up show only here."""
    name, largest = "concurrency", max(expectation.bounds.together, default=0)
    if not largest:
        return not_applicable(name, "the server is declared to run one request at a time (max-running-requests)")
    batches = [group for group in transcript.together if group.how == "batch"]
    size = max((len({str(answer.ask) for answer in group.answers}) for group in batches), default=0)
    if size < max(2, largest):
        return failed(name, f"the largest batch had {size} different prompts, {max(2, largest)} are needed")
    bad = _apart(transcript, size)
    bad += [f"{group.name}: the cache was not flushed before" for group in batches if not group.flushed]
    pairs = 0
    for group in transcript.together:
        pairs += len(group.answers)
        bad += differences(group.name, group.answers, transcript, expectation)
    return settle(name, f"{pairs} answers in {len(transcript.together)} groups of up to {size} as alone", bad)


def repeat(transcript: Transcript, expectation: Expectation) -> Check:
    """Asked once more after everything else, from the cache, the greedy answer is the same."""
    if not transcript.repeat:
        return absent("repeat", expectation.bounds.repeats > 0)
    bad = differences("repeat", transcript.repeat, transcript, expectation)
    return settle("repeat", f"{len(transcript.repeat)} answers as the first time", bad)


def after(transcript: Transcript, expectation: Expectation) -> Check:
    """After a client hung up, and after many requests at once, the answers are the same: nothing was left behind."""
    if not transcript.after:
        return absent("after", bool(probes(expectation.prompts, expectation.bounds, "")["brief"]))
    bad = differences("after", transcript.after, transcript, expectation)
    return settle("after", f"{len(transcript.after)} answers as before the abort and the crowd", bad)


def _apart(transcript: Transcript, size: int) -> list[str]:
    """Why `size` questions in one batch may still have been computed one by one, or on different replicas."""
    info = transcript.server_info.body
    if not isinstance(info, Mapping):
        return ["/server_info does not say how many requests run at once"]
    listed = info.get("internal_states")
    states = [state for state in listed if isinstance(state, Mapping)] if isinstance(listed, list) else []
    limits = [state.get("effective_max_running_requests_per_dp") for state in states]
    limit = min((one for one in limits if isinstance(one, int)), default=info.get("max_running_requests"))
    bad = []
    if not isinstance(limit, int):
        bad.append("/server_info does not say how many requests run at once (max_running_requests)")
    elif limit < size:
        bad.append(f"the scheduler runs {limit} requests at once, a batch of {size} is never computed together")
    replicas = info.get("dp_size")
    if not isinstance(replicas, int):
        bad.append("/server_info does not say how many replicas there are (dp_size)")
    elif size <= replicas:  # more prompts than replicas: then two of them must meet
        bad.append(f"a batch of {size} over {replicas} replicas may leave every prompt alone")
    return bad


def differences(title: str, answers: Iterable[Answer], transcript: Transcript, expectation: Expectation) -> list[str]:
    """How answers differ from those to the same question asked alone."""
    first = {_question(answer): answer for answer in (*transcript.alone, *transcript.chat, *transcript.long)}
    bad = []
    for answer in answers:
        alone = first.get(_question(answer))
        if alone is None:
            bad.append(f"{title}/{answer.name}: there is no answer alone to compare with")
        elif answer.error is not None or alone.error is not None:
            bad.append(f"{title}/{answer.name}: {answer.error or 'alone it was not answered'}")
        elif (share := agreement(alone, answer)) < expectation.agreement:
            bad.append(f"{title}/{answer.name}: {share:.0%} as alone; {parting(answer.whole, alone.whole)}")
        elif share == 1.0 and answer.finish != alone.finish:
            bad.append(f"{title}/{answer.name}: ended by {answer.finish!r}, alone by {alone.finish!r}")
    return bad


def alike(transcript: Transcript) -> Iterator[tuple[Answer, Answer]]:
    """Every answer alone with each other one to the same question: streamed, in company, repeated, asked after all."""
    first = {_question(answer): answer for answer in (*transcript.alone, *transcript.chat, *transcript.long)}
    for title, answers in transcript.sections.items():
        for answer in answers:
            alone = first.get(_question(answer))
            if alone is None or title in ("alone", "chat", "long", "json", "bounds"):
                continue
            if alone.error is None and answer.error is None:
                yield alone, answer


def agreement(one: Answer, other: Answer) -> float:
    """The share of the longer answer up to which both are the same, in tokens where known, else characters.

    Text and ids can part (a detokenizer at fault), so equal ids with different texts agree only as far as the texts.
    """
    shares = [common(one.whole, other.whole)]
    if one.ids is not None and other.ids is not None:
        shares.append(common(one.ids, other.ids))
    return min(shares)


def common(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The share of the longer sequence up to which both are the same."""
    longest = max(len(one), len(other))
    return shared(one, other) / longest if longest else 1.0


def _question(answer: Answer) -> str:
    asked: Mapping[str, Any] = {key: value for key, value in answer.ask.items() if key in ("text", "messages")}
    return json.dumps(asked, sort_keys=True)
