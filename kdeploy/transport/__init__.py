"""How a command reaches a host: one interface, so that this machine and a remote one go through the same code."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kdeploy.errors import RemoteError, UnreachableError

LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of one line: what comes from a host is data from elsewhere, bounded and never trusted to end."""


@dataclass(frozen=True)
class Exit:
    """How a command ended: its status (None when that never came) and the last of what it said on stderr."""

    status: int | None
    stderr: str


class ConnectionLost(UnreachableError):
    """A connection that had been made broke, or fell silent: what was asked may have been done."""


class Late(Exception):
    """Nothing came within the time given."""


class Channel(ABC):
    """A running command: bytes go to its stdin, lines come from its stdout."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._seen = 0

    def line(self, timeout_s: float, end: float = math.inf) -> bytes:
        """The next line with its newline, or the last bytes without one; nothing when the command's output has ended.

        Raises Late when nothing at all comes within `timeout_s` seconds, or no whole line before `end` (by the
        monotonic clock); ConnectionLost when the connection broke.
        """
        while (at := self._held.find(b"\n", self._seen)) < 0:
            self._seen = len(self._held)
            if self._seen > LINE_LIMIT:
                raise RemoteError(f"a line from the host is longer than {LINE_LIMIT >> 20} MB")
            left = end - time.monotonic()
            if left <= 0:
                raise Late
            data = self._receive(min(timeout_s, left))
            if not data:
                at = len(self._held) - 1
                break
            self._held += data
        line = bytes(self._held[: at + 1])
        del self._held[: at + 1]
        self._seen = 0
        return line

    @abstractmethod
    def send(self, data: bytes, timeout_s: float) -> None:
        """Write `data` to stdin.

        Raises ConnectionLost when the connection broke, or nothing was taken for `timeout_s` seconds. A command that
        has ended is no error: what it said last tells why.
        """

    @abstractmethod
    def _receive(self, timeout_s: float) -> bytes:
        """Some bytes of stdout, nothing at its end; raises Late and ConnectionLost."""

    @abstractmethod
    def end(self) -> Exit:
        """How the command ended, to be asked after its last line."""

    @abstractmethod
    def close(self) -> None:
        """End the command if it still runs, and let go of it."""


class Transport(Protocol):
    """A way to one host."""

    @property
    def host(self) -> str:
        """The host's name, for people."""
        ...

    @property
    def address(self) -> str | None:
        """The host's address as we reach it, which others may reach as well; None for this machine."""
        ...

    @property
    def python(self) -> str:
        """The host's own Python that runs the agent."""
        ...

    @property
    def silence_s(self) -> float | None:
        """How long a working agent may say nothing, seconds, before the connection counts as lost; None for ever."""
        ...

    def approach(self) -> None:
        """Start to connect, and go on; `open` waits for it and tells what went wrong."""
        ...

    def open(self, argv: Sequence[str]) -> Channel:
        """Run `argv`, connecting first if need be. Raises UnreachableError with what to do about it."""
        ...

    def close(self) -> None:
        """Let go of the connection; the next `open` makes another."""
        ...
