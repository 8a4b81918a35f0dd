"""One run of the agent on a host: requests go in, sent ahead or not; events and answers come out, in order."""

from __future__ import annotations

import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdeploy import agent
from kdeploy.errors import KdeployError, LockedError, NoKnownGoodError, PreflightError, RemoteError, UsageError
from kdeploy.transport import Channel, ConnectionLost, Exit, Late, Transport

PROTOCOL = 1

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]

_STARTS_WITHIN_S = 60.0
_NOISE = 1000  # lines that a login shell may say before the agent does
_SEND_S = 30.0
_PACKED_FROM = 2000  # bytes of a request
_SIGNALLED = 128  # what a shell adds to the number of the signal that ended a program
_BRINGS = 2  # how often the agent is sent at most: it is wanted once, and again when the first was cut short
SAID_LIMIT = 256 * 1024 * 1024
"""Bytes of all events before one answer, unless they are followed without end: a host is never trusted to stop."""


class Lacking(RemoteError):
    """The host has not got what a push builds on, though it said so: send everything."""


class AgentGone(RemoteError):
    """The agent ended without an answer: what it was asked for may have been done."""


_ERRORS: Mapping[str, type[KdeployError]] = {
    "locked": LockedError,
    "preflight": PreflightError,
    "no-known-good": NoKnownGoodError,
    "usage": UsageError,
    "lacking": Lacking,
}


def _ignore(event: Event) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Ask:
    """One request: what the agent is to do, raw bytes that go with it, who hears its events, how long it may take."""

    verb: str
    request: Mapping[str, Any] = field(repr=False)  # may carry secrets
    payload: bytes = field(default=b"", repr=False)
    on_event: OnEvent = _ignore
    timeout_s: float = 60


class Session:
    """The agent, started on a host. After any error it is of no use any more: close it and start another."""

    def __init__(self, transport: Transport, root: str, service: str) -> None:
        """Start the agent; `root` may be empty: the host chooses by the rights we have there."""
        self._transport = transport
        self._common = {"protocol": PROTOCOL, "service": service, **({"root": root} if root else {})}
        self._ahead = b""
        self._greeted = False
        self.root = root
        self._channel: Channel = transport.open(agent.start(root, transport.python))

    def send(self, asks: Sequence[Ask]) -> None:
        """Send requests, to be answered in this order."""
        data = b"".join(self._lines(ask) for ask in asks)
        if not self._greeted:
            if any(ask.payload for ask in asks) or data.count(b"\n") > len(asks):
                self.greet()
            else:  # plain lines are sent ahead even of the agent itself: one trip less
                self._ahead = data
        self._write(data)

    def answer(self, ask: Ask) -> dict[str, Any]:
        """The result of the first request that was not answered yet, which is `ask`.

        Raises what the agent answers (LockedError, PreflightError, NoKnownGoodError, UsageError, RemoteError), a
        RemoteError when it takes longer than the request may, ConnectionLost when nothing is heard any more.
        """
        end = time.monotonic() + ask.timeout_s
        if not self._greeted:
            self.greet(min(ask.timeout_s, _STARTS_WITHIN_S), ask.verb)
        said = 0
        while True:
            raw = self._line(end, ask)
            message = self._parse(raw)
            if "event" not in message:
                break
            said += len(raw)
            if said > SAID_LIMIT and not ask.request.get("follow"):
                raise RemoteError(
                    f"{self._transport.host}: more than {SAID_LIMIT >> 20} MB were said and no answer to '{ask.verb}'"
                )
            if message["event"] == "beat":
                self._channel.send(b"\n", _SEND_S)
            else:
                ask.on_event(message)
        if "error" in message:
            raise _error(self._transport.host, message["error"], raw)
        result = message.get("result")
        if not isinstance(result, dict):
            raise RemoteError(f"{self._transport.host}: the agent's answer to '{ask.verb}' has no result")
        return result

    def close(self) -> None:
        """End the agent; what it has begun on the host goes on."""
        self._channel.close()

    def greet(self, timeout_s: float = _STARTS_WITHIN_S, verb: str = "session") -> None:
        """Wait for the agent's first word, past what the login shell says; bring the agent if it is not there."""
        host, noise = self._transport.host, deque[str](maxlen=10)
        wait = Ask(verb, {}, timeout_s=timeout_s)
        end, brought = time.monotonic() + timeout_s, 0
        for _ in range(_NOISE):
            line = self._line(end, wait, noise)
            message = _json(line)
            if message.get("event") == "hello":
                self.root = str(message.get("root") or self.root)
                self._greeted = True
                return
            word = message.get("kdeploy")
            if word == "agent-wanted" and brought < _BRINGS:
                self._channel.send(b"\n" + agent.archive(), _SEND_S)
                self._channel.send(self._ahead, _SEND_S)
                end, brought = time.monotonic() + timeout_s, brought + 1
            elif word is not None:
                raise self._not_started(str(word), noise)
            elif line.strip():
                noise.append(line.decode("utf-8", "replace").strip()[:200])
        raise RemoteError(
            f"{host}: the login shell says more than {_NOISE} lines and the agent none",
            hint="what ~/.bashrc and the like print must be for interactive shells only",
            details=tuple(noise),
        )

    def _lines(self, ask: Ask) -> bytes:
        head = {**self._common, "verb": ask.verb, **ask.request}
        if ask.payload:
            head["payload"] = len(ask.payload)
        line = json.dumps(head, separators=(",", ":")).encode()
        if len(line) > _PACKED_FROM:
            packed = zlib.compress(line)
            line = json.dumps({"protocol": PROTOCOL, "packed": len(packed)}).encode() + b"\n" + packed
        else:
            line += b"\n"
        return line + ask.payload

    def _write(self, data: bytes) -> None:
        self._channel.send(data, self._transport.silence_s or _SEND_S)

    def _line(self, end: float, ask: Ask, noise: Sequence[str] = ()) -> bytes:
        """The next whole line; what it means when there is none, or half of one, or none before `end`."""
        host, silence = self._transport.host, self._transport.silence_s
        left = end - time.monotonic()
        try:
            if left <= 0:
                raise Late
            line = self._channel.line(left if silence is None else min(left, silence), end)
        except Late:
            if silence is not None and time.monotonic() < end:
                raise ConnectionLost(
                    f"{host}: nothing was heard for {silence:.0f} s", hint="is the network there? try again"
                ) from None
            raise RemoteError(f"{host}: no answer within {ask.timeout_s:.0f} s to '{ask.verb}'") from None
        if line.endswith(b"\n"):
            return line
        ended = self._channel.end()
        if not self._greeted:
            half = line.decode("utf-8", "replace").strip()[:200]
            raise self._not_started("", (*noise, half) if half else noise, ended)
        raise AgentGone(
            f"{host}: the agent ended without an answer to '{ask.verb}' (exit {ended.status})",
            details=_last(ended.stderr),
        )

    def _not_started(self, word: str, noise: Sequence[str], ended: Exit | None = None) -> KdeployError:
        host, python = self._transport.host, self._transport.python
        if ended is None:
            ended = self._channel.end()
        said = (*noise, *_last(ended.stderr))
        if word == "no-python":
            return PreflightError(
                f"{host}: there is no {python} on this host",
                hint="install Python 3.8 or newer there, or name it: `python:` in hosts.yaml",
            )
        if word == "python-too-old":
            return PreflightError(f"{host}: {said[-1] if said else word}", hint="name another: `python:` in hosts.yaml")
        if word in ("agent-refused", "agent-damaged"):
            return RemoteError(
                f"{host}: the agent cannot be written to {self.root or 'its folder'}",
                hint="may this user write there? `root:` in hosts.yaml names another folder",
                details=said,
            )
        if "sudo:" in ended.stderr:
            return PreflightError(
                f"{host}: sudo refuses: {[line for line in said if 'sudo:' in line][-1]}",
                hint="allow this user `NOPASSWD` in sudoers, log in as root, or take `sudo: true` out of hosts.yaml",
            )
        if word:
            return RemoteError(f"{host}: the agent was brought and did not start: {word[:100]}", details=said)
        if ended.status is None:
            return ConnectionLost(
                f"{host}: the connection ended before the agent had started", hint="try again", details=said
            )
        if ended.status < 0 or ended.status > _SIGNALLED:
            return RemoteError(
                f"{host}: the agent was killed before it had started (signal {abs(ended.status) % _SIGNALLED})",
                hint="who ends processes there: is memory short? see dmesg and the journal",
                details=said,
            )
        return RemoteError(
            f"{host}: the agent did not start (exit {ended.status}): {said[-1] if said else 'nothing was said'}",
            hint="the login shell there must be one that runs commands (sh, bash, zsh), and sha256sum must be there",
            details=said[:-1],
        )

    def _parse(self, raw: bytes) -> dict[str, Any]:
        message = _json(raw)
        texts = ("event", "state", "phase", "text") if "event" in message else ()
        if not message or any(not isinstance(message.get(name, ""), str) for name in texts):
            raise _stray(self._transport.host, raw)
        return message


def _json(raw: bytes) -> dict[str, Any]:
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        message = None
    return message if isinstance(message, dict) else {}


def _last(text: str) -> tuple[str, ...]:
    return tuple(text.splitlines()[-10:])


def _stray(host: str, raw: bytes) -> RemoteError:
    return RemoteError(f"{host}: not a line of the agent's protocol: {raw[:200]!r}")


def _error(host: str, error: Any, raw: bytes) -> KdeployError:
    """The error that an agent's answer means; what is not shaped like one is an error of its own."""
    if not isinstance(error, dict):
        return _stray(host, raw)
    message, hint, details = error.get("message"), error.get("hint"), error.get("details") or []
    right = isinstance(message, str) and isinstance(error.get("kind"), str) and isinstance(hint, str | None)
    if not right or not isinstance(details, list) or not all(isinstance(line, str) for line in details):
        return _stray(host, raw)
    return _ERRORS.get(error["kind"], RemoteError)(f"{host}: {message}", hint=hint, details=tuple(details))
