"""The transcript as the agent gives it, read strictly: what is missing or of another type is an error with its name.

    protocol      2
    started       seconds since the epoch;  seconds: how long the probes took
    first         healthy_s, answered_s: seconds after the launch; null where it was up already
    server_info, models, health (a list)    replies: status, seconds, body, error
    alone, chat, long, json, after, repeat  answers
    stream        answers with pieces, first_s (to the first piece with text), done
    bounds        answers with how: "stop" or "length"
    lossless      how, why, flushed, answers: name, prompt, n, at, said, again, margins, error
    together      groups: name, how (batch: one POST; threads: requests in flight at once), flushed, answers
    abort         pieces, idle_s, error; or null
    pace          rounds: at_once, round, seconds, tokens, first_s, each_s, error
    processes     one a process of the server: pid, name, tree (first folder of its PYTHONPATH, links resolved; or null)
    port          number, owner (pid or null), ours (the owner is one of our processes)
    log           bytes, lines, matches (line, text) of the plan's signatures, tail (the last lines)
    restarts      how often the supervisor had to start the server again

The last four are null when the server was asked from another machine. What its types mean stands in seen.py.
SGLang names its processes with setproctitle, which overwrites /proc/PID/environ of all but the first: a server whose
PYTHONPATH is to be read there must be started with SPT_NOENV=1 in its environment.
"""

from __future__ import annotations

from kdeploy.verdict.part import Part, TranscriptError
from kdeploy.verdict.prompts import PROTOCOL
from kdeploy.verdict.seen import (
    Aborted,
    Again,
    Answer,
    Bounded,
    First,
    Group,
    Log,
    Port,
    Process,
    Reasked,
    Reply,
    Round,
    Streamed,
    Transcript,
)

__all__ = ["Answer", "Group", "Reply", "Round", "Transcript", "TranscriptError", "read"]

_NULL = type(None)


def read(values: object, *, remote: bool = False) -> Transcript:
    """Read a transcript; of a `remote` server what only its host can see may be null.

    Raises TranscriptError naming the first value that is missing or wrong.
    """
    top = Part(values, "transcript")
    if top.integer("protocol") != PROTOCOL:
        raise TranscriptError(f"transcript.protocol is {top.values['protocol']}, this kdeploy reads {PROTOCOL}")
    unseen = {key for key in ("processes", "port", "log", "restarts") if remote and top.get(key, object) is None}
    return Transcript(
        started=top.number("started"),
        seconds=top.number("seconds"),
        first=top.maybe("first", lambda p: First(p.number_or_none("healthy_s"), p.number("answered_s"))),
        server_info=_reply(top.part("server_info")),
        models=_reply(top.part("models")),
        health=top.each("health", _reply),
        alone=top.each("alone", _answer),
        chat=top.each("chat", _answer),
        stream=top.each("stream", _streamed),
        bounds=top.each("bounds", lambda p: Bounded(p.text("how"), _answer(p))),
        long=top.each("long", _answer),
        lossless=_reasked(top.part("lossless")),
        together=top.each("together", _group),
        json=top.each("json", _answer),
        abort=top.maybe("abort", _aborted),
        pace=top.each("pace", _round),
        after=top.each("after", _answer),
        repeat=top.each("repeat", _answer),
        processes=None if "processes" in unseen else top.each("processes", _process),
        port=None if "port" in unseen else _port(top.part("port")),
        log=None if "log" in unseen else _log(top.part("log")),
        restarts=None if "restarts" in unseen else top.integer("restarts"),
    )


def _reply(part: Part) -> Reply:
    if "body" not in part.values:
        raise TranscriptError(f"{part.path}.body is missing")
    error = part.optional("error", str)
    return Reply(part.integer("status"), part.number("seconds"), part.values["body"], error)


def _answer(part: Part) -> Answer:
    ids = None if part.optional("ids", list) is None else part.items("ids", int)
    return Answer(
        name=part.text("name"),
        kind=part.text("kind"),
        ask=part.part("ask").values,
        at=part.number("at"),
        seconds=part.number("seconds"),
        status=part.integer("status"),
        error=part.optional("error", str),
        text=part.text("text"),
        reasoning=part.text("reasoning"),
        ids=ids,
        finish=part.optional("finish", str),
        n=part.integer("n"),
        meta=part.part("meta").values,
    )


def _streamed(part: Part) -> Streamed:
    return Streamed(_answer(part), part.integer("pieces"), part.number_or_none("first_s"), part.flag("done"))


def _group(part: Part) -> Group:
    return Group(part.text("name"), part.text("how"), part.flag("flushed"), part.each("answers", _answer))


def _reasked(part: Part) -> Reasked:
    return Reasked(part.text("how"), part.text("why"), part.flag("flushed"), part.each("answers", _again))


def _again(part: Part) -> Again:
    at, said, again = part.items("at", int), part.items("said", int), part.items("again", int)
    margins = part.items("margins", int, float, _NULL)
    if not len(at) == len(said) == len(again) == len(margins):
        raise TranscriptError(f"{part.path}: at, said, again and margins have not the same length")
    error = part.optional("error", str)
    return Again(part.text("name"), part.integer("prompt"), part.integer("n"), at, said, again, margins, error)


def _aborted(part: Part) -> Aborted:
    return Aborted(part.integer("pieces"), part.number_or_none("idle_s"), part.optional("error", str))


def _round(part: Part) -> Round:
    return Round(
        at_once=part.integer("at_once"),
        round=part.integer("round"),
        seconds=part.number("seconds"),
        tokens=part.integer("tokens"),
        first_s=part.items("first_s", int, float),
        each_s=part.items("each_s", int, float),
        error=part.optional("error", str),
    )


def _process(part: Part) -> Process:
    return Process(part.integer("pid"), part.text("name"), part.optional("tree", str))


def _port(part: Part) -> Port:
    return Port(part.integer("number"), part.optional("owner", int), part.flag("ours"))


def _log(part: Part) -> Log:
    matches = part.each("matches", lambda match: (match.integer("line"), match.text("text")))
    return Log(part.integer("bytes"), part.integer("lines"), matches, part.items("tail", str))
