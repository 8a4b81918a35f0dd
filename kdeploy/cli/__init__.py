"""The command line: arguments in, exit code out. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
from typing import Any

from kdeploy.cli import gate, hosts, patches, upkeep
from kdeploy.cli.app import app
from kdeploy.errors import ExitCode

__all__ = ["app", "gate", "hosts", "main", "patches", "upkeep"]


def main() -> None:
    """The entry point of the `kdeploy` command."""
    gc.set_threshold(50_000, 20, 20)  # imports make objects that stay: looking for dead ones took a fifth of the time
    atexit.register(gc.freeze)  # the same at the end, when all of it goes anyway
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # nobody else's code reads our profiles
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: undo what was begun, then go
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup kdeploy …
                signal.signal(number, _terminated)
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:  # between two commands' worth of code: nothing was begun
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as fault:
        if not hasattr(fault, "format_message"):  # not the command line's: typer keeps the class to itself
            raise
        sys.exit(_misused(fault, sys.argv[1:]))
    sys.exit(status if isinstance(status, int) else ExitCode.OK)


def _misused(fault: Any, words: list[str]) -> int:
    """Say what is wrong with the command line, as JSON when that was asked for; gives the exit status."""
    if "--json" not in words:
        fault.show()
        return int(fault.exit_code)
    from kdeploy import render
    from kdeploy.errors import UsageError

    verb = next((word for word in words if not word.startswith("-")), "kdeploy")
    print(render.envelope(verb, error=UsageError(fault.format_message(), hint=f"see: kdeploy {verb} --help")))
    return int(ExitCode.USAGE)


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt
