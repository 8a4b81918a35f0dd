"""One request in, JSON lines out: the call a verb gets and answers through."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Protocol

from kdeploy_agent import HOME
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import secrets
from kdeploy_agent.ground.layout import Layout

PROTOCOL = 1


class Readable(Protocol):
    """What a payload is read from."""

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, all by default; nothing at the end."""
        ...


@dataclass(frozen=True)
class Call:
    """A request with the place it is about; what a verb reads its arguments from and answers through."""

    layout: Layout
    request: Dict[str, Any]
    payload: Readable

    def text(self, key: str) -> str:
        """The text at `key`, which must be there and not be empty."""
        value = self.request.get(key)
        if not isinstance(value, str) or not value:
            raise AgentError("usage", f"the request needs '{key}' as text")
        return value

    def number(self, key: str, default: Optional[float] = None) -> float:
        """The number at `key`, at least 0; `default` when it is not there."""
        value = self.request.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise AgentError("usage", f"the request needs '{key}' as a number that is not negative")
        return float(value)

    def mapping(self, key: str) -> Dict[str, Any]:
        """The object at `key`; an empty one when it is not there."""
        value = self.request.get(key, {})
        if not isinstance(value, dict):
            raise AgentError("usage", f"the request needs '{key}' as an object")
        return value

    def texts(self, key: str) -> List[str]:
        """The list of texts at `key`; an empty one when it is not there."""
        value = self.request.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise AgentError("usage", f"the request needs '{key}' as a list of texts")
        return list(value)

    def emit(self, event: str, **fields: Any) -> None:
        """Send one event to the operator at once."""
        say({"event": event, **fields})


def call_of(request: Dict[str, Any], payload: Readable) -> Call:
    """The call that a request asks for, about its own root or the one this agent lies in."""
    layout = Layout(Path(request.get("root") or default_root()), str(request.get("service") or ""))
    secrets.hide(layout)
    return Call(layout, request, payload)


_saying = threading.Lock()  # a session's beats come from a thread of their own


def say(answer: Dict[str, Any]) -> None:
    """Write one JSON line to stdout and flush it; no secret of the service leaves the host in it."""
    answer = secrets.hidden(answer)
    with _saying:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def listening() -> bool:
    """Whether somebody still reads our stdout: a silent follower would otherwise outlive its dead connection."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))


def read_request(line: bytes) -> Dict[str, Any]:
    """Parse the request line; raises a usage error when it is not one of this protocol."""
    try:
        request = json.loads(line.decode("utf-8"))
    except ValueError as fault:
        raise AgentError("usage", f"the request is not one line of JSON: {fault}") from fault
    if not isinstance(request, dict):
        raise AgentError("usage", "the request is not a JSON object")
    if request.get("protocol") != PROTOCOL:
        raise AgentError(
            "usage",
            f"this agent speaks protocol {PROTOCOL}, the request says {request.get('protocol')!r}",
            "push the agent that belongs to this kdeploy",
        )
    return request


def default_root() -> str:
    """Where kdeploy lives on this host when the request leaves it open: where this agent lies, else by our rights."""
    if HOME.is_file():  # ROOT/agent/agent-….pyz
        return str(HOME.parent.parent)
    given = os.environ.get("KDEPLOY_ROOT")
    if given:
        return given
    return "/opt/kdeploy" if os.geteuid() == 0 else str(Path.home() / ".local/share/kdeploy")
