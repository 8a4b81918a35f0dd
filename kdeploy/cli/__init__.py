"""The command line: arguments in, exit code out. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import contextlib
import signal
import sys

from kdeploy.cli import care, hosts, patches
from kdeploy.cli.app import app
from kdeploy.errors import ExitCode

__all__ = ["app", "care", "hosts", "main", "patches"]


def main() -> None:
    """The entry point of the `kdeploy` command."""
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: undo what was begun, then go
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup kdeploy …
                signal.signal(number, _terminated)
    try:
        app()
    except KeyboardInterrupt:  # between two commands' worth of code: nothing was begun
        sys.exit(ExitCode.INTERRUPTED)


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt
