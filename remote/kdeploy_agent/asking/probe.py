"""Asks a server on this host what the operator's plan says, and writes down what came back. Judges nothing.

No request outlives its deadline or the plan's `request-s`; a hang is written down as such, and a part that the plan
does not ask for is empty in the transcript.
"""

from __future__ import annotations

import time
from typing import Any, List

from kdeploy_agent.asking import company, pace, reasking
from kdeploy_agent.asking.client import Json
from kdeploy_agent.asking.logs import SECRET
from kdeploy_agent.asking.ready import Note
from kdeploy_agent.asking.session import Session

PROTOCOL = 2


def run(base_url: str, probes: Json, deadline: float, note: Note, shared: bool = False) -> Json:
    """Run the plan `probes`; gives the transcript's half that comes from asking (kdeploy/verdict/transcript.py).

    `deadline` is a value of time.monotonic(). `note` is called with one line of text when there is something to tell.
    A server that is `shared` with clients is not expected to be idle. Everything is asked in an order in which a later
    part sees what an earlier one left behind.
    """
    session, started = Session(base_url, probes, deadline, note), time.time()
    told: Json = {"protocol": PROTOCOL, "started": started, "base_url": base_url}
    told["server_info"] = _withhold(session.get("/server_info"))
    told["models"] = session.get("/v1/models")
    told["alone"] = session.each("alone", probes["alone"], session.complete)
    told["chat"] = session.each("chat", probes["chat"], session.chat)
    told["stream"] = session.each("streamed", probes.get("stream", []), session.streamed)
    told["bounds"] = company.bounds(session, probes.get("bounds", []), told["alone"])
    told["long"] = session.each("long", probes.get("long", []), session.either)
    told["lossless"] = reasking.lossless(session, probes.get("lossless"), told["alone"] + told["long"])
    told["together"] = [company.group(session, group) for group in probes["together"]]
    told["json"] = session.each("json", probes["json"], session.chat)
    told["abort"] = pace.abort(session, probes.get("abort"), shared)
    told["pace"] = pace.pace(session, probes.get("pace"))
    told["after"] = session.each("after that", probes.get("brief", []), session.either)
    told["repeat"] = session.each("repeat", probes["repeat"], session.either)
    told["health"] = _health(session)
    told["seconds"] = session.now
    return told


def _health(session: Session) -> List[Json]:
    """Up to three replies of /health, until one is good: one alone is no reason to reject."""
    replies: List[Json] = []
    while len(replies) < 3 and not (replies and replies[-1]["error"] is None):
        replies.append(session.get("/health"))
    return replies


def _withhold(value: Any, name: str = "") -> Any:
    """The same without the values of fields that look like secrets: a transcript is kept and shown."""
    if isinstance(value, dict):
        return {key: _withhold(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_withhold(item, name) for item in value]
    return "(withheld)" if isinstance(value, str) and value and SECRET.search(name.lower()) else value
