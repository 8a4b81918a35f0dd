"""How a command reaches a host: one interface, so that this machine and a remote one go through the same code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass
class Exit:
    """How a command ended; filled in when its output has been read to the end."""

    status: int | None = None
    stderr: str = ""


class Transport(Protocol):
    """A way to one host."""

    @property
    def host(self) -> str:
        """The host's name, for people."""
        ...

    @property
    def python(self) -> str:
        """The host's own Python that runs the agent."""
        ...

    def run(
        self, argv: Sequence[str], stdin: bytes, timeout_s: float
    ) -> AbstractContextManager[tuple[Iterator[bytes], Exit]]:
        """Run `argv` with `stdin`; gives its stdout line by line, and its end after the last one.

        Leaving the context ends the command if it still runs. Raises UnreachableError when the host cannot be
        reached, RemoteError when the command takes longer than `timeout_s` seconds.
        """
        ...
