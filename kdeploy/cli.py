"""The command line: arguments in, exit code out. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kdeploy import __version__
from kdeploy.errors import ExitCode, InterruptedByUser, KdeployError

app = typer.Typer(
    name="kdeploy",
    help="Declarative deployment and patch-set management for SGLang.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
ProfilePath = Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile: profiles/….yaml.")]
MaybeProfile = Annotated[
    Path | None, typer.Argument(metavar="[PROFILE]", help="A profile; the last applied one when left out.")
]
Project = Annotated[
    Path | None, typer.Option("--project", "-C", help="The project's folder, when not at or above this one.")
]


def main() -> None:
    """The entry point of the `kdeploy` command."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except KeyboardInterrupt:  # between two commands' worth of code: nothing was begun
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:  # `kdeploy … | head`
        sys.stderr.close()
        sys.exit(ExitCode.OK)


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class _Command:
    """One command's way out: its result as text or JSON, or its error and exit code."""

    def __init__(self, verb: str, json: bool, quiet: bool = False) -> None:
        from kdeploy.render import Progress

        self.verb, self.json = verb, json
        self.note = Progress(quiet or json)

    def show(self, result: object) -> bool:
        """Print the JSON envelope if that was asked for; whether it was."""
        if self.json:
            from kdeploy.render import envelope

            print(envelope(self.verb, result))
        return self.json


@contextlib.contextmanager
def _command(verb: str, json: bool, quiet: bool = False) -> Iterator[_Command]:
    """The one error boundary: what a user can act on is told, our own faults leave a log."""
    try:
        yield _Command(verb, json, quiet)
    except typer.Exit:
        raise
    except KdeployError as fault:
        _fail(verb, json, fault)
    except KeyboardInterrupt:
        _fail(verb, json, InterruptedByUser("interrupted; nothing on a host was begun"))
    except BrokenPipeError:
        raise
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

    text = f"kdeploy {__version__}, {verb}\n{traceback.format_exc()}"
    path = places.state() / "faults" / f"{time.strftime('%Y%m%dT%H%M%S')}-{verb}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        hint = f"this is a fault of kdeploy; the log is {path}"
    except OSError:
        hint = "this is a fault of kdeploy, and its log could not be written"
        print(text, file=sys.stderr)
    return KdeployError(f"{type(fault).__name__}: {fault}", hint=hint)


def _version(asked: bool) -> None:
    if asked:
        print(f"kdeploy {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


@app.command("verify-anchors")
def verify_anchors(
    target: Annotated[
        str | None, typer.Argument(metavar="[PROFILE | PATCHSET]", help="Left out: all patch sets.")
    ] = None,
    project: Project = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check that every anchor of the patches is where it must be; one line an anchor, like grep -n."""
    with _command("verify-anchors", json, quiet) as command:
        from kdeploy.api import stages
        from kdeploy.views import anchors, show_anchors

        verified = stages.verify_anchors(target, project, command.note)
        broken = next((one for one in verified if not one.report.ok), None)
        if not json:
            show_anchors(verified)
        elif broken is None:
            command.show(anchors(verified))
        if broken is not None:
            broken.report.require()


@app.command()
def plan(
    profile: ProfilePath,
    diff: Annotated[bool, typer.Option("--diff", help="Show what the patches change.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Leave the hosts out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what apply would do, and do nothing."""
    with _command("plan", json, quiet) as command:
        from kdeploy.api import hosts
        from kdeploy.views import show_plan

        planned = hosts.plan_profile(profile, command.note, diff=diff, offline=offline)
        if not command.show(_plan_result(planned)):
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
        "diff": planned.diff,
    }


@app.command()
def stage(profile: ProfilePath, json: Json = False, quiet: Quiet = False) -> None:
    """Stage the patched tree and print its folder: a git work tree, one commit a patch."""
    with _command("stage", json, quiet) as command:
        from kdeploy.api import stages

        staged = stages.stage(profile, command.note)
        if not command.show({"folder": staged.folder, "tree": staged.stage.tree}):
            print(staged.folder)


@app.command()
def prove(
    profile: ProfilePath,
    again: Annotated[bool, typer.Option("--again", help="Run proofs that were run before, too.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every proof on the pristine tree (must fail) and on the patched one (must pass)."""
    with _command("prove", json, quiet) as command:
        from kdeploy.api import stages
        from kdeploy.views import show_proofs

        staged, proven = stages.prove(profile, command.note, again=again)
        if not command.show({"tree": staged.stage.tree, "proofs": proven}):
            show_proofs(proven)


@app.command()
def apply(profile: ProfilePath, json: Json = False, quiet: Quiet = False) -> None:
    """Take the profile's hosts to what it declares: stage, prove, push, switch, gate, open, confirm."""
    with _command("apply", json, quiet) as command:
        from kdeploy.api import hosts
        from kdeploy.views import show_applied

        applied = hosts.apply(profile, command.note)
        if not command.show(_applied_result(applied)):
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
    """Go back to the last known-good release that is not the live one; it is gated again."""
    with _command("rollback", json, quiet) as command:
        from kdeploy.api import hosts
        from kdeploy.views import show_applied

        applied = hosts.rollback(profile, to, project, command.note)
        if not command.show(_applied_result(applied)):
            show_applied(applied)


def _applied_result(applied: Any) -> dict[str, object]:
    return {"release": applied.release.as_document(), "proofs": applied.proven, "hosts": applied.outcomes}


@app.command()
def status(profile: MaybeProfile = None, project: Project = None, json: Json = False) -> None:
    """Say what the hosts serve, and what is to be done when something is not right."""
    with _command("status", json) as command:
        from kdeploy.api import hosts
        from kdeploy.views import show_status

        found = hosts.status(profile, project)
        if not command.show(found):
            show_status(found)


@app.command()
def history(profile: MaybeProfile = None, project: Project = None, json: Json = False) -> None:
    """List every change of the hosts, newest first, from the hosts' own journals."""
    with _command("history", json) as command:
        from kdeploy.api import hosts
        from kdeploy.views import show_history

        found = hosts.history(profile, project)
        if not command.show(found):
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
    """Show the last lines of the server's log."""
    with _command("logs", json) as command:
        from kdeploy.api import hosts
        from kdeploy.render import clean

        kept: list[dict[str, str]] = []

        def tell(host: str, event: Any) -> None:
            text = str(event.get("text", ""))
            if json:
                kept.append({"host": host, "text": text})
            else:
                print(clean(text), flush=follow)

        hosts.logs(profile, project, unit, lines, follow, tell)
        command.show(kept)


@app.command()
def stop(profile: MaybeProfile = None, project: Project = None, json: Json = False, quiet: Quiet = False) -> None:
    """Stop serving; `kdeploy apply` starts the same release again, gated."""
    with _command("stop", json, quiet) as command:
        from kdeploy.api import hosts

        stopped = hosts.stop(profile, project, command.note)
        if not command.show({"hosts": stopped}):
            print(f"stopped on {', '.join(stopped)}")


@app.command()
def freeze(
    target: Annotated[str, typer.Argument(metavar="PROFILE | PATCHSET")],
    project: Project = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Record the digests of patch sets (and a profile's resulting tree) in kdeploy.lock."""
    with _command("freeze", json, quiet) as command:
        from kdeploy.api import stages

        frozen = stages.freeze(target, project, command.note)
        if not command.show(frozen):
            for name, digest in {**frozen.digests, **frozen.trees}.items():
                print(f"{name}  {digest}")


@app.command()
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="profile, hosts, lock, patchset or patch.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the JSON Schema of the files people write, for editors and CI."""
    with _command("schema", json) as command:
        import json as codec

        from kdeploy.api import stages

        result = stages.schemas() if name is None else stages.schema(name)
        if not command.show(result):
            print(codec.dumps(result, indent=2))


if __name__ == "__main__":
    main()
