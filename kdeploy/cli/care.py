"""The commands that look after a host: verify, adopt, unlock."""

from __future__ import annotations

import typer

from kdeploy.cli.app import app
from kdeploy.cli.boundary import Json, MaybeProfile, Project, Quiet, command
from kdeploy.errors import ExitCode


@app.command()
def verify(profile: MaybeProfile = None, project: Project = None, json: Json = False, quiet: Quiet = False) -> None:
    """Compare what the hosts serve with what was declared."""
    with command("verify", json, quiet) as run:
        from kdeploy.api import drift
        from kdeploy.views import show_drift

        found = drift.verify(profile, project, run.note)
        drifted = any(one.drifts for one in found)
        code = ExitCode.DRIFT if drifted else ExitCode.OK
        if not run.show(found, code):
            show_drift(found)
        if drifted:
            raise typer.Exit(int(code))
