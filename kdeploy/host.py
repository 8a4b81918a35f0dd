"""One host's verbs, as requests to the agent that runs there. The agent travels by content: its name is its hash."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kdeploy.errors import (
    KdeployError,
    LockedError,
    NoKnownGoodError,
    PreflightError,
    RemoteError,
    UsageError,
)
from kdeploy.progress import Note
from kdeploy.transport import Transport

PROTOCOL = 1
PACKAGE = "kdeploy_agent"

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]

_ERRORS: Mapping[str, type[KdeployError]] = {
    "locked": LockedError,
    "preflight": PreflightError,
    "no-known-good": NoKnownGoodError,
    "usage": UsageError,
}


def _ignore(event: Event) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Host:
    """A service on a host. Every method is one request; each raises RemoteError when the agent fails."""

    transport: Transport
    root: str
    service: str

    @property
    def name(self) -> str:
        """The host's name."""
        return self.transport.host

    def call(
        self,
        verb: str,
        request: Mapping[str, Any] | None = None,
        *,
        payload: bytes = b"",
        on_event: OnEvent = _ignore,
        timeout_s: float = 60,
    ) -> dict[str, Any]:
        """Ask the agent to do `verb`; installs the agent first when the host has not got this one.

        Gives the result. Raises LockedError, PreflightError, NoKnownGoodError or RemoteError by what it answers.
        """
        try:
            return self._call(verb, request or {}, payload, on_event, timeout_s)
        except _NoAgent:
            self._install()
            return self._call(verb, request or {}, payload, on_event, timeout_s)

    def make_runtime(self, key: str, python: str, lock: str, with_deps: Sequence[str], note: Note) -> Path:
        """Make (or find) the virtual environment `key` from the text of a lock file; gives its Python's path there."""
        request = {"key": key, "python": f"python{python}", "lock": lock, "with_deps": list(with_deps)}
        result = self.call("runtime", request, on_event=telling(self.name, note), timeout_s=3600)
        return Path(result["python"])

    def _call(
        self, verb: str, request: Mapping[str, Any], payload: bytes, on_event: OnEvent, timeout_s: float
    ) -> dict[str, Any]:
        common = {"protocol": PROTOCOL, "root": self.root, "service": self.service}
        line = json.dumps({**common, **request}).encode() + b"\n"
        argv = [self.transport.python, self._agent_path(), verb]
        answer: dict[str, Any] | None = None
        with self.transport.run(argv, line + payload, timeout_s) as (lines, end):
            for raw in lines:
                message = _parse(raw, self.name)
                if "event" in message:
                    on_event(message)
                else:
                    answer = message
        if answer is None:
            if end.status == 2 and "can't open file" in end.stderr:
                raise _NoAgent
            raise RemoteError(
                f"{self.name}: the agent ended without an answer to '{verb}' (exit {end.status})",
                details=tuple(end.stderr.splitlines()[-10:]),
            )
        if "error" in answer:
            raise _error(self.name, answer["error"])
        result = answer.get("result")
        if not isinstance(result, dict):
            raise RemoteError(f"{self.name}: the agent's answer to '{verb}' has no result")
        return result

    def _agent_path(self) -> str:
        return f"{self.root}/agent/agent-{archive()[0]}.pyz"

    def _install(self) -> None:
        path = self._agent_path()
        script = 'umask 077 && mkdir -p "$(dirname "$1")" && cat > "$1.$$" && mv "$1.$$" "$1"'
        with self.transport.run(["/bin/sh", "-c", script, "sh", path], archive()[1], 60) as (lines, end):
            for _ in lines:
                pass
        if end.status != 0:
            raise RemoteError(
                f"{self.name}: the agent cannot be written to {path}",
                hint="may this user write there? `root:` in hosts.yaml names another folder",
                details=tuple(end.stderr.splitlines()[-5:]),
            )


def telling(host: str, note: Note) -> OnEvent:
    """A listener that notes what the agent does, each thing once: a transaction is followed from its start on."""
    told: set[str] = set()

    def tell(event: Event) -> None:
        line = json.dumps(event, sort_keys=True)
        if line in told:
            return
        told.add(line)
        kind = event.get("event")
        if kind == "state" and event.get("phase") != "intent":
            note(f"{host}: {event.get('state')} {event.get('note') or ''}".rstrip())
        elif kind == "note":
            note(f"{host}: {event.get('text')}")
        elif kind == "line":
            note(f"{host}: {event.get('text')}", passing=True)

    return tell


class _NoAgent(Exception):
    """The host has not got this agent yet."""


def _parse(raw: bytes, host: str) -> dict[str, Any]:
    try:
        message = json.loads(raw)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise RemoteError(f"{host}: not a line of the agent's protocol: {raw[:200]!r}")
    return message


def _error(host: str, error: Any) -> KdeployError:
    kind = _ERRORS.get(str(error.get("kind")), RemoteError)
    return kind(f"{host}: {error.get('message')}", hint=error.get("hint"), details=tuple(error.get("details") or ()))


@cache
def archive() -> tuple[str, bytes]:
    """The first 16 hex digits of its sha256, and the agent: one zip file that Python runs. Same source, same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as zipped:
        _add(zipped, "__main__.py", f"import sys\n\nfrom {PACKAGE}.__main__ import main\n\nsys.exit(main())\n".encode())
        for source in sorted(_agent_folder().glob("*.py")):
            _add(zipped, f"{PACKAGE}/{source.name}", source.read_bytes())
    content = buffer.getvalue()
    return hashlib.sha256(content).hexdigest()[:16], content


def _add(zipped: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_STORED
    zipped.writestr(entry, content)


def _agent_folder() -> Path:
    here = Path(__file__).resolve().parent
    for folder in (here / "_remote" / PACKAGE, here.parent / "remote" / PACKAGE):  # in a wheel; in a checkout
        if folder.is_dir():
            return folder
    raise RemoteError("this installation of kdeploy has lost its agent", hint="install kdeploy again")
