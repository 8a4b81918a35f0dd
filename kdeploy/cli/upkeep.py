"""The commands that look after a host: verify, adopt, unlock."""

from __future__ import annotations

from typing import Annotated

import typer

from kdeploy.cli.app import app
from kdeploy.cli.boundary import Json, MaybeProfile, ProfilePath, Project, Quiet, command
from kdeploy.errors import ExitCode


@app.command()
def verify(profile: MaybeProfile = None, project: Project = None, json: Json = False, quiet: Quiet = False) -> None:
    """Compare what the hosts serve with what was declared."""
    with command("verify", json, quiet, profile) as run:
        from kdeploy.api import drift
        from kdeploy.views.hosts import show_drift

        found = drift.verify(profile, project, run.note)
        drifted = any(one.drifts for one in found)
        code = ExitCode.DRIFT if drifted else ExitCode.OK
        if not run.show(found, code):
            show_drift(found)
        if drifted:
            raise typer.Exit(int(code))


@app.command()
def adopt(
    profile: ProfilePath,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="It listens there.")] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="A unit of systemd, or a container.")] = None,
    pid: Annotated[int | None, typer.Option("--pid", min=2, help="Its process.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make what serves now the way back."""
    with command("adopt", json, quiet, profile) as run:
        from kdeploy.api import adopt as adopting
        from kdeploy.views.hosts import show_adopted

        found = adopting.adopt(profile, run.note, port=port, unit=unit, pid=pid)
        if not run.show(found):
            show_adopted(found)


@app.command()
def unlock(
    profile: MaybeProfile = None,
    yes: Annotated[bool, typer.Option("--yes", help="End that change; what served before serves again.")] = False,
    project: Project = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say who is changing the hosts, or end that."""
    with command("unlock", json, quiet, profile) as run:
        from kdeploy.api import unlock as unlocking
        from kdeploy.views.hosts import show_unlocked

        found = unlocking.unlock(profile, project, run.note, yes=yes)
        if not run.show(found):
            show_unlocked(found)
