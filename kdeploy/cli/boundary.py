"""What every command has in common: its options, and the one error boundary."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from kdeploy import __version__
from kdeploy.errors import ExitCode, InterruptedByUser, KdeployError

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
ProfilePath = Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile: profiles/….yaml.")]
MaybeProfile = Annotated[
    Path | None, typer.Argument(metavar="[PROFILE]", help="A profile; the last applied one when left out.")
]
Project = Annotated[
    Path | None, typer.Option("--project", "-C", help="The project's folder, when not at or above this one.")
]


_ABOUT_HOSTS = re.compile(r"`kdeploy (?:status|history|logs|stop|unlock|verify|rollback)(?=[ `])")


class Command:
    """One command's way out: its result as text or JSON, or its error and exit code."""

    def __init__(self, verb: str, json: bool, quiet: bool = False) -> None:
        from kdeploy.render import Progress

        self.verb, self.json = verb, json
        self.note = Progress(quiet or json)

    def show(self, result: object, code: ExitCode = ExitCode.OK) -> bool:
        """Print the JSON envelope, with the exit `code` it says, if that was asked for; whether it was."""
        if self.json:
            from kdeploy.render import envelope

            print(envelope(self.verb, result, code=code))
        return self.json


@contextlib.contextmanager
def command(verb: str, json: bool, quiet: bool = False, profile: Path | None = None) -> Iterator[Command]:
    """The one error boundary: what a user can act on is told, our own faults leave a log.

    A hint that names another command names the `profile` that was given, too.
    """
    try:
        yield Command(verb, json, quiet)
        sys.stdout.flush()
    except typer.Exit:
        raise
    except KdeployError as fault:
        if fault.hint and profile is not None:
            fault.hint = _ABOUT_HOSTS.sub(lambda found: f"{found[0]} {profile}", fault.hint)
        _fail(verb, json, fault)
    except KeyboardInterrupt:
        _fail(verb, json, InterruptedByUser("interrupted", hint="`kdeploy status` shows where a host stands"))
    except BrokenPipeError:  # `kdeploy … | head` has seen enough; Python must not flush into the pipe at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(int(ExitCode.OK)) from None
    except Exception as fault:
        _fail(verb, json, _our_fault(verb, fault))


def _fail(verb: str, json: bool, fault: KdeployError) -> None:
    from kdeploy import render

    if json:
        print(render.envelope(verb, error=fault))
    else:
        render.error(fault)
    raise typer.Exit(int(fault.code))


def _our_fault(verb: str, fault: Exception) -> KdeployError:
    import time
    import traceback

    from kdeploy import places
    from kdeploy.secrecy import conceal

    text = conceal(f"kdeploy {__version__}, {verb}\n{traceback.format_exc()}")
    path = places.state() / "faults" / f"{time.strftime('%Y%m%dT%H%M%S')}-{verb}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        hint = f"this is a fault of kdeploy; the log is {path}"
    except OSError:
        hint = "this is a fault of kdeploy, and its log could not be written"
        print(text, file=sys.stderr)
    return KdeployError(f"{type(fault).__name__}: {fault}", hint=hint)
