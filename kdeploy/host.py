"""One host's verbs, as requests to the agent that runs there; the agent is started once and serves them all."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from kdeploy.progress import Note
from kdeploy.session import Ask, Event, OnEvent, Session
from kdeploy.transport import Transport

__all__ = ["Ask", "Event", "Host", "OnEvent", "operator", "telling"]


def _ignore(event: Event) -> None:
    """Nobody listens."""


class Host:
    """A service on a host. Connects when it is first asked something, and stays connected until it is closed.

    Every request raises UnreachableError when the host cannot be reached, or what the agent answers.
    """

    def __init__(self, transport: Transport, root: str, service: str) -> None:
        """Takes the way to the host, kdeploy's folder there (empty: the host's default) and the service's name."""
        self.transport = transport
        self.service = service
        self._root = root
        self._session: Session | None = None

    @property
    def name(self) -> str:
        """The host's name."""
        return self.transport.host

    @property
    def address(self) -> str | None:
        """The host's address as we reach it; None for this machine."""
        return self.transport.address

    @property
    def root(self) -> str:
        """kdeploy's folder there; the host is asked when it was left open."""
        if not self._root:
            session = self._open()
            session.greet()
            self._root = session.root
        return self._root

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
        (result,) = self.ask([Ask(verb, request or {}, payload, on_event, timeout_s)])
        return result

    def ask(self, asks: Sequence[Ask]) -> Iterator[dict[str, Any]]:
        """Send several requests at once; gives their results, each when it comes.

        When one is answered by an error, those behind it are not done. Whoever stops listening half-way hangs up:
        what the agent has not begun by then it does not begin.
        """
        session = self._open()
        try:
            session.send(asks)
            for ask in asks:
                result = session.answer(ask)
                self._root = self._root or session.root
                yield result
        except BaseException:
            self.hang_up()
            raise

    def approach(self) -> None:
        """Start to connect while there is other work to do; the first request tells what went wrong."""
        self.transport.approach()

    def hang_up(self) -> None:
        """End the agent's session, whatever it is doing; the connection stays, and the next request starts another."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def reconnect(self) -> None:
        """Let go of a connection that broke; the next request makes a new one."""
        self.hang_up()
        self.transport.close()

    close = reconnect

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make_runtime(self, key: str, python: str, lock: str, with_deps: Sequence[str], note: Note) -> Path:
        """Make (or find) the virtual environment `key` from the text of a lock file; gives its Python's path there."""
        request = {"key": key, "python": f"python{python}", "lock": lock, "with_deps": list(with_deps)}
        result = self.call("runtime", request, on_event=telling(self.name, note), timeout_s=3600)
        return Path(result["python"])

    def _open(self) -> Session:
        if self._session is None:
            self._session = Session(self.transport, self._root, self.service)
        return self._session


def operator() -> str:
    """Who asks, as hosts write it down: user@machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


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
        elif kind == "finding" and event.get("warn"):
            note(f"{host}: {event.get('check')}: {event.get('detail')} ({event.get('hint')})")

    return tell
