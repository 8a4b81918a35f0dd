"""Does an answer come in pieces, end where it is told to, and go away when nobody wants it any more?"""

from __future__ import annotations

from collections.abc import Mapping

from kdeploy.verdict.acceptance import longest_step
from kdeploy.verdict.company import common, differences
from kdeploy.verdict.expectation import Check, Expectation, absent, failed, passed, settle
from kdeploy.verdict.figures import paces
from kdeploy.verdict.prompts import ABORTED, probes
from kdeploy.verdict.quoting import clip, parting
from kdeploy.verdict.seen import Answer, Bounded, Streamed, Transcript

PIECES = 3  # after which the agent hangs up
_GRACE_S = 2.0 + 0.8  # SGLang 0.5.11 waits 2 s before it aborts (srt/managers/tokenizer_manager.py, create_abort_task)
_TO_ITS_END = 0.7  # of the time that the rest of an aborted answer would have taken: then nobody stopped it


def stream(transcript: Transcript, expectation: Expectation) -> Check:
    """A streamed answer comes in pieces, says when it is over, and is the answer that came whole."""
    if not transcript.stream:
        return absent("stream", bool(probes(expectation.prompts, expectation.bounds, "")["stream"]))
    bad = differences("stream", (one.answer for one in transcript.stream), transcript, expectation)
    for one in transcript.stream:
        bad += [f"stream/{one.answer.name}: {fault}" for fault in _not_streamed(one, transcript, expectation)]
    pieces = sum(one.pieces for one in transcript.stream)
    return settle("stream", f"{len(transcript.stream)} answers in {pieces} pieces, as they are when whole", bad)


def _not_streamed(one: Streamed, transcript: Transcript, expectation: Expectation) -> list[str]:
    if one.answer.error is not None:
        return []  # differences says so
    bad = []
    if not one.done:
        bad.append("the stream did not say that it was over")
    if one.first_s is None:
        bad.append("no piece had any text")
    info = transcript.server_info.body
    every = info.get("stream_interval") if isinstance(info, Mapping) else None  # tokens: a piece has so many at least
    step = longest_step(info, expectation.algorithm) or 1
    if isinstance(every, int) and one.answer.n >= 4 * max(every, step) and one.pieces < 2:
        bad.append(f"{one.answer.n} tokens in {one.pieces} piece")
    return bad


def bounds(transcript: Transcript, expectation: Expectation) -> Check:
    """Asked to stop at words of its own answer, or after fewer tokens, it gives that answer up to there."""
    planned = probes(expectation.prompts, expectation.bounds, "")["bounds"]
    if not transcript.bounds:
        return absent("bounds", bool(planned))
    alone = {answer.name: answer for answer in transcript.alone}
    bad = [
        f"{name}: not asked by '{how}'"
        for name in planned
        for how in ("stop", "length")
        if not any(one.how == how and one.answer.name == name for one in transcript.bounds)
    ]
    for one in transcript.bounds:
        whole, title = alone.get(one.answer.name), f"{one.how}/{one.answer.name}"
        if whole is None or one.how not in ("stop", "length"):
            bad.append(f"{title}: there is no answer alone to compare with")
        elif one.answer.error is not None or whole.error is not None:
            bad.append(f"{title}: {one.answer.error or 'alone it was not answered'}")
        else:
            judge = _stopped if one.how == "stop" else _cut
            bad += [f"{title}: {fault}" for fault in judge(one, whole, expectation.agreement)]
    return settle("bounds", f"{len(transcript.bounds)} answers ended where they were told to", bad)


def _stopped(one: Bounded, whole: Answer, least: float) -> list[str]:
    """What is wrong with an answer that was to end before a text that the `whole` answer has."""
    answer, asked = one.answer, one.answer.ask.get("stop")
    stop = str(asked[0]) if isinstance(asked, list) and asked else ""
    if not stop or stop not in whole.text:
        return [f"asked to stop at {clip(stop)}, which the answer alone does not have"]
    if stop in answer.text:
        return [f"went on past {clip(stop)}"]
    wanted = whole.text.partition(stop)[0]
    share = common(answer.text, wanted)
    if share < least:
        return [f"{share:.0%} as alone; {parting(answer.text, wanted)}"]
    if share == 1.0 and answer.finish != "stop":
        return [f"stopped, but says that it ended by {answer.finish!r}"]
    return []


def _cut(one: Bounded, whole: Answer, least: float) -> list[str]:
    """What is wrong with an answer that was to have fewer tokens than the `whole` one."""
    answer, most = one.answer, one.answer.ask.get("max_tokens")
    if not isinstance(most, int) or not 0 < most < whole.n:
        return [f"asked for {most} tokens, and the answer alone has {whole.n}"]
    if answer.n > most:
        return [f"{answer.n} tokens, at most {most} were asked for"]
    wanted = whole.text[: len(answer.text.rstrip("\ufffd"))]  # it may be cut within a character
    share = common(answer.text.rstrip("\ufffd"), wanted)
    if answer.ids is not None and whole.ids is not None:
        share = min(share, common(answer.ids, whole.ids[:most]))
    if share < least:
        return [f"{share:.0%} as alone; {parting(answer.text, wanted)}"]
    if share == 1.0 and (answer.n, answer.finish) != (most, "length"):
        return [f"{answer.n} of {most} tokens, and it says that it ended by {answer.finish!r}"]
    return []


def abort(transcript: Transcript, expectation: Expectation) -> Check:
    """When a client hangs up the server stops its work, and soon."""
    name, told = "abort", transcript.abort
    if told is None:
        return absent(name, probes(expectation.prompts, expectation.bounds, "")["abort"] is not None)
    if told.error is not None:
        return failed(name, told.error)
    if told.pieces < PIECES:
        return failed(name, f"there was nothing to hang up on: {told.pieces} pieces")
    if told.idle_s is None:
        return failed(name, "it was still at work when no longer waited for, with nobody to answer to")
    pace = paces(transcript).get(1)
    rest = (ABORTED - told.pieces) / pace.tokens_per_s if pace else None
    if rest is not None and told.idle_s > max(_GRACE_S, _TO_ITS_END * rest):
        return failed(name, f"idle after {told.idle_s:.1f} s: as long as the whole answer takes, about {rest:.1f} s")
    return passed(name, f"idle {told.idle_s:.1f} s after the client was gone")
