"""This machine as a host."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kdeploy.errors import RemoteError
from kdeploy.transport import Channel, ConnectionLost, Exit, Late

_BLOCK = 1 << 16
_ENDS_WITHIN_S = 5.0
_HELD_LIMIT = 256 * 1024 * 1024


class Pipes(Channel):
    """A process of this machine, in a session of its own: the terminal's Ctrl-C is ours to answer."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        try:
            self._child = subprocess.Popen(
                argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,
                cwd="/",
            )
        except OSError:
            self._complaints.close()
            raise
        assert self._child.stdin is not None and self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin, self._child.stdout
        os.set_blocking(self._stdin.fileno(), False)

    def send(self, data: bytes, timeout_s: float) -> None:
        """See Channel.send. Reads meanwhile: both sides may have more to say than a pipe holds."""
        view = memoryview(data)
        end = time.monotonic() + timeout_s
        while view:
            left = max(end - time.monotonic(), 0)
            readable, writable, _ = select.select([self._stdout], [self._stdin], [], left)
            if writable:
                try:
                    view = view[os.write(self._stdin.fileno(), view[:_BLOCK]) :]
                except BrokenPipeError:
                    return
                end = time.monotonic() + timeout_s
            elif readable and left:
                said = os.read(self._stdout.fileno(), _BLOCK)
                if not said:
                    return
                self._held += said
                if len(self._held) > _HELD_LIMIT:
                    raise RemoteError(f"the agent said more than {_HELD_LIMIT >> 20} MB while it took nothing")
            else:
                raise ConnectionLost(f"the agent took nothing for {timeout_s:.0f} s")

    def _receive(self, timeout_s: float) -> bytes:
        if not select.select([self._stdout], [], [], timeout_s)[0]:
            raise Late
        return os.read(self._stdout.fileno(), _BLOCK)

    def end(self) -> Exit:
        """See Channel.end."""
        try:
            status = self._child.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            status = None
        self._complaints.seek(0)
        return Exit(status, self._complaints.read(_BLOCK).decode("utf-8", "replace"))

    def close(self) -> None:
        """See Channel.close. An agent that has nothing to do ends by itself; one that works is ended."""
        for pipe in (self._stdin, self._stdout):
            pipe.close()
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._complaints.close()


@dataclass(frozen=True)
class LocalTransport:
    """Runs commands on this machine."""

    host: str

    @property
    def address(self) -> None:
        """We are here."""
        return

    @property
    def python(self) -> str:
        """The interpreter our own virtual environment was made from: it outlives that environment."""
        return str(getattr(sys, "_base_executable", sys.executable))

    @property
    def silence_s(self) -> None:
        """A process here cannot be cut off, only slow."""
        return

    def approach(self) -> None:
        """We are here."""

    def open(self, argv: Sequence[str]) -> Channel:
        """See Transport.open."""
        try:
            return Pipes(argv)
        except OSError as fault:
            raise RemoteError(f"{self.host}: cannot run {argv[0]}: {fault.strerror}") from fault

    def close(self) -> None:
        """There is no connection."""
