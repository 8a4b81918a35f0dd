"""The command that asks what serves, and the two that teach the gate: --calibrate and --record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kdeploy.cli.app import app
from kdeploy.cli.boundary import Command, Json, ProfilePath, Quiet, command
from kdeploy.errors import ExitCode, UsageError

_RUNS = 5


@app.command()
def gate(
    profile: ProfilePath,
    host: Annotated[str | None, typer.Option("--host", help="Only this host of the profile's.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="Whatever serves there, instead of the hosts.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the page there.")] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this server's own noise, A/A.")] = False,
    runs: Annotated[int | None, typer.Option("--runs", min=2, max=100, help="Of --calibrate; 5 if not said.")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write prompts with its answers as references.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask what serves now the gate's questions; change nothing."""
    with command("gate", json, quiet, profile) as run:
        if sum((calibrate, record is not None, html is not None)) > 1:
            raise UsageError("--calibrate, --record and --html are three things", hint="ask for one at a time")
        if runs is not None and not calibrate:
            raise UsageError("--runs is of --calibrate", hint="add --calibrate")
        if calibrate:
            _calibrate(run, profile, host, url, runs or _RUNS)
        elif record is not None:
            _record(run, profile, record, host, url)
        else:
            _gate(run, profile, host, url, html)


def _gate(run: Command, profile: Path, host: str | None, url: str | None, html: Path | None) -> None:
    from kdeploy.api import gate as gating
    from kdeploy.views.gate import gated, show_gated

    found = gating.gate(profile, run.note, host=host, url=url, html=html)
    code = ExitCode.OK if all(one.verdict.accepted for one in found) else ExitCode.GATE
    if not run.show({"servers": gated(found)}, code):
        show_gated(found)
    if code:
        raise typer.Exit(int(code))


def _record(run: Command, profile: Path, file: Path, host: str | None, url: str | None) -> None:
    from kdeploy.api import recording
    from kdeploy.views.gate import show_recorded

    recorded = recording.record(profile, file, run.note, host=host, url=url)
    if not run.show(recorded):
        show_recorded(recorded)


def _calibrate(run: Command, profile: Path, host: str | None, url: str | None, runs: int) -> None:
    from kdeploy.api import calibration
    from kdeploy.views.gate import show_calibrated

    calibrated = calibration.calibrate(profile, run.note, runs=runs, host=host, url=url)
    if not run.show(calibrated):
        show_calibrated(calibrated)
