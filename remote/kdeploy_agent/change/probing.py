"""Probing what serves already: the gate's questions, without a change around them."""

from __future__ import annotations

import time
from typing import Any, Dict, Optional
from urllib.parse import urlsplit

from kdeploy_agent.asking import client, probe
from kdeploy_agent.asking.ready import HEALTH_S
from kdeploy_agent.change import inspection
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import locking
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted
from kdeploy_agent.keeping.keeper import of as keeper_of
from kdeploy_agent.keeping.units import Units
from kdeploy_agent.trees import serving

UNSEEN: Dict[str, Any] = {"processes": None, "port": None, "log": None, "restarts": None}  # from outside of a host


def probe_live(call: Call) -> Dict[str, Any]:
    """Verb: ask the release that serves, or any server at `url`, what `probes` say; gives `release` and `transcript`.

    Nothing is changed and no lock is held; but the server's cache is flushed. Everything takes at most `within_s`.
    Raises `preflight` when nothing serves there, and `locked` when a change runs or began meanwhile.
    """
    probes, within_s = call.mapping("probes"), call.number("within_s")
    deadline = time.monotonic() + within_s
    url = call.request.get("url")
    if url is not None:
        _must_answer(_checked(url))
        transcript = _ask(call, url, probes, deadline)
        return {"release": None, "transcript": {**transcript, **UNSEEN}}
    layout, units = call.layout, keeper_of(call.layout)
    _must_be_free(layout)
    release = _serving(layout, units, call.request.get("release"))
    transcript = _ask(call, serving.server_url(release), probes, deadline)
    transcript.update(inspection.inspect(units, release, probes))
    _must_be_free(layout)
    if layout.live() != release["id"]:
        raise AgentError("locked", f"{release['id']} was replaced while it was asked", "ask again")
    return {"release": release["id"], "transcript": transcript}


def _ask(call: Call, url: str, probes: Dict[str, Any], deadline: float) -> Dict[str, Any]:
    """The half that comes from asking; a server that was up already has no first answer."""
    transcript = probe.run(url, probes, deadline, lambda text: call.emit("note", text=text), shared=True)
    return {**transcript, "first": None}


def _must_be_free(layout: Layout) -> None:
    held = locking.holder(layout.lock)
    if held is not None:
        raise locking.locked(held)


def _serving(layout: Layout, units: Units, wanted: Optional[str]) -> Dict[str, Any]:
    """The release that serves here, which is the one that is `wanted`, if any is named."""
    live, status = layout.live(), units.status("server")
    if live is None or not status.alive:
        said = f" ({status.note})" if status.note else ""
        raise AgentError("preflight", f"nothing serves on this host{said}", "kdeploy apply PROFILE, or name a URL")
    if live != (wanted or live) or status.release != live:
        raise AgentError("preflight", f"{status.release} serves on this host, not {wanted or live}", "kdeploy status")
    release = serving.read_release(layout, live)
    if adopted.is_adopted(release):
        message = f"{live} was adopted: nothing declares what it must be"
        raise AgentError("preflight", message, "apply its profile, or probe it by its URL")
    return release


def _checked(url: Any) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return str(url)
    except (ValueError, TypeError, AttributeError):
        pass
    raise AgentError("usage", f"{url!r} is not an http or https URL")


def _must_answer(url: str) -> None:
    """Raise `preflight` when nobody listens there. A server that listens and hangs is for the transcript to tell."""
    reply = client.request(url, "/health", HEALTH_S)
    if reply.silent and not reply.hung:
        raise AgentError("preflight", f"nothing answers at {url}: {reply.error}", "is the server up, and reachable?")
