"""This machine as a host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kdeploy.errors import RemoteError
from kdeploy.transport import Exit

_LINE_LIMIT = 32 * 1024 * 1024  # a line of the agent is data from elsewhere: bounded, never trusted to end


@dataclass(frozen=True)
class LocalTransport:
    """Runs commands on this machine, each in a session of its own: the terminal's Ctrl-C is ours to answer."""

    host: str

    @property
    def python(self) -> str:
        """The interpreter our own virtual environment was made from: it outlives that environment."""
        return str(getattr(sys, "_base_executable", sys.executable))

    @contextlib.contextmanager
    def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Iterator[tuple[Iterator[bytes], Exit]]:
        """See Transport.run."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as complaints:
            given.write(stdin)
            given.seek(0)
            child = subprocess.Popen(
                argv, stdin=given, stdout=subprocess.PIPE, stderr=complaints, start_new_session=True, cwd="/"
            )
            late = threading.Event()
            timer = threading.Timer(timeout_s, _end, (child, late))
            timer.daemon = True
            timer.start()
            end = Exit()

            def lines() -> Iterator[bytes]:
                assert child.stdout is not None
                while line := child.stdout.readline(_LINE_LIMIT):
                    yield line
                end.status = child.wait()
                complaints.seek(0)
                end.stderr = complaints.read(1 << 16).decode("utf-8", "replace")
                if late.is_set():
                    raise RemoteError(f"{self.host}: no answer within {timeout_s:.0f} s from: {' '.join(argv[:3])} …")

            try:
                yield lines(), end
            finally:
                timer.cancel()
                if child.poll() is None:
                    _end(child, threading.Event())
                assert child.stdout is not None
                child.stdout.close()
                child.wait()


def _end(child: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
