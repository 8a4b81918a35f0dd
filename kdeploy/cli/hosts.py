"""The commands that look at a host or change it."""

from __future__ import annotations

import contextlib
from json import dumps
from typing import Annotated, Any

import typer

from kdeploy.cli.app import app
from kdeploy.cli.boundary import Json, MaybeProfile, ProfilePath, Project, Quiet, command
from kdeploy.errors import ExitCode


@app.command()
def plan(
    profile: ProfilePath,
    diff: Annotated[bool, typer.Option("--diff", help="Show what the patches change.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Leave the hosts out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what apply would do, and do nothing."""
    with command("plan", json, quiet, profile) as run:
        from kdeploy.api import hosts
        from kdeploy.views.hosts import show_plan

        planned = hosts.plan_profile(profile, run.note, diff=diff, offline=offline)
        if not run.show(_plan_result(planned)):
            show_plan(planned)


def _plan_result(planned: Any) -> dict[str, object]:
    return {
        "release": planned.release.as_document(),
        "patches": [
            {"patchset": one.ref, "patch": patch.name, "reason": patch.reason}
            for one in planned.staged.declared.sets
            for patch in one.patches
        ],
        "hosts": planned.plans,
        "changes": planned.changes,
        "tried": planned.tried,
        "refused": planned.refused,
        "diff": planned.diff,
    }


@app.command()
def doctor(profile: ProfilePath, json: Json = False, quiet: Quiet = False) -> None:
    """Look at the hosts as apply would, and name every fix."""
    with command("doctor", json, quiet, profile) as run:
        from kdeploy.api import doctor as looking
        from kdeploy.views.hosts import show_examined

        examined = looking.doctor(profile, run.note)
        code = ExitCode.PREFLIGHT if any(one.wrong for one in examined) else ExitCode.OK
        if not run.show({"hosts": examined}, code):
            show_examined(examined)
        if code:
            raise typer.Exit(int(code))


@app.command()
def apply(profile: ProfilePath, json: Json = False, quiet: Quiet = False) -> None:
    """Take the hosts to what the profile declares, gated."""
    with command("apply", json, quiet, profile) as run:
        from kdeploy.api.reach import hurry

        hurry(profile)
        from kdeploy.api import hosts
        from kdeploy.views.hosts import show_applied

        applied = hosts.apply(profile, run.note)
        if not run.show(_applied_result(applied)):
            show_applied(applied)


@app.command()
def rollback(
    profile: MaybeProfile = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="RELEASE", help="A known-good release (a prefix will do).")
    ] = None,
    project: Project = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go back to the last known-good release, gated again."""
    with command("rollback", json, quiet, profile) as run:
        from kdeploy.api.reach import hurry

        if profile is not None:
            hurry(profile)
        from kdeploy.api import hosts
        from kdeploy.views.hosts import show_applied

        applied = hosts.rollback(profile, to, project, run.note)
        if not run.show(_applied_result(applied)):
            show_applied(applied)


def _applied_result(applied: Any) -> dict[str, object]:
    return {
        "release": applied.release.as_document(),
        "proofs": applied.proven,
        "hosts": applied.outcomes,
        "pages": applied.pages,
    }


@app.command()
def status(profile: MaybeProfile = None, project: Project = None, json: Json = False) -> None:
    """Say what the hosts serve, and what is to be done."""
    with command("status", json, profile=profile) as run:
        from kdeploy.api import service
        from kdeploy.views.hosts import show_status

        found = service.status(profile, project)
        if not run.show(found):
            show_status(found)


@app.command()
def history(profile: MaybeProfile = None, project: Project = None, json: Json = False) -> None:
    """List every change, newest first, as the hosts tell it."""
    with command("history", json, profile=profile) as run:
        from kdeploy.api import service
        from kdeploy.views.hosts import show_history

        found = service.history(profile, project)
        if not run.show(found):
            show_history(found)


@app.command()
def logs(
    profile: MaybeProfile = None,
    unit: Annotated[str, typer.Option("--unit", "-u", help="server, front or runner.")] = "server",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="How many.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    project: Project = None,
    json: Json = False,
) -> None:
    """Show the last lines of the server's log.

    With --follow, --json gives one object a line: host, text.
    """
    with command("logs", json, profile=profile) as run:
        from kdeploy.api import service
        from kdeploy.render import clean

        kept: list[dict[str, str]] = []

        def tell(host: str, event: Any) -> None:
            text = str(event.get("text", ""))
            if json and follow:
                print(dumps({"host": host, "text": text}, ensure_ascii=False), flush=True)
            elif json:
                kept.append({"host": host, "text": text})
            else:
                print(clean(text), flush=follow)

        with contextlib.suppress(*((KeyboardInterrupt,) if follow else ())):  # the way to end --follow
            service.logs(profile, project, unit, lines, follow, tell, run.note)
        if not follow:
            run.show(kept)


@app.command()
def start(profile: MaybeProfile = None, project: Project = None, json: Json = False, quiet: Quiet = False) -> None:
    """Start again what was stopped, gated; `kdeploy apply` takes the profile's release instead."""
    with command("start", json, quiet, profile) as run:
        from kdeploy.api import hosts
        from kdeploy.views.hosts import show_applied

        applied = hosts.start(profile, project, run.note)
        if not run.show(_applied_result(applied)):
            show_applied(applied)


@app.command()
def stop(profile: MaybeProfile = None, project: Project = None, json: Json = False, quiet: Quiet = False) -> None:
    """Stop serving, also after a reboot; `kdeploy start` starts it again, gated."""
    with command("stop", json, quiet, profile) as run:
        from kdeploy.api import service
        from kdeploy.views.hosts import show_stopped

        stopped = service.stop(profile, project, run.note)
        if not run.show({"hosts": stopped}):
            show_stopped(stopped)
