"""The commands that touch no host: verify-anchors, stage, prove, freeze, schema."""

from __future__ import annotations

from typing import Annotated

import typer

from kdeploy.cli.app import app
from kdeploy.cli.boundary import Json, ProfilePath, Project, Quiet, command


@app.command("verify-anchors")
def verify_anchors(
    target: Annotated[
        str | None, typer.Argument(metavar="[PROFILE | PATCHSET]", help="Left out: all patch sets.")
    ] = None,
    project: Project = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check every anchor; one line each, as grep -n has it."""
    with command("verify-anchors", json, quiet) as run:
        from kdeploy.api import stages
        from kdeploy.views.patches import anchors, show_anchors

        verified = stages.verify_anchors(target, project, run.note)
        broken = next((one for one in verified if not one.report.ok), None)
        if not json:
            show_anchors(verified)
        elif broken is None:
            run.show(anchors(verified))
        if broken is not None:
            broken.report.require()


@app.command()
def stage(profile: ProfilePath, json: Json = False, quiet: Quiet = False) -> None:
    """Stage the tree; print its folder, one commit a patch."""
    with command("stage", json, quiet) as run:
        from kdeploy.api import stages

        staged = stages.stage(profile, run.note)
        if not run.show({"folder": staged.folder, "tree": staged.stage.tree}):
            print(staged.folder)


@app.command()
def prove(
    profile: ProfilePath,
    again: Annotated[bool, typer.Option("--again", help="Run proofs that were run before, too.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the proofs: red on the pristine tree, then green."""
    with command("prove", json, quiet) as run:
        from kdeploy.api import proofs
        from kdeploy.views.patches import show_proofs

        staged, proven = proofs.prove(profile, run.note, again=again)
        if not run.show({"tree": staged.stage.tree, "proofs": proven}):
            show_proofs(proven)


@app.command()
def freeze(
    target: Annotated[str, typer.Argument(metavar="PROFILE | PATCHSET")],
    project: Project = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pin patch sets and resulting trees in kdeploy.lock."""
    with command("freeze", json, quiet) as run:
        from kdeploy.api import stages

        frozen = stages.freeze(target, project, run.note)
        if not run.show(frozen):
            for name, digest in {**frozen.digests, **frozen.trees}.items():
                print(f"{name}  {digest}")


@app.command()
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="profile, hosts, lock, patchset or patch.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the JSON Schema of the files people write."""
    with command("schema", json) as run:
        import json as codec

        from kdeploy.api import stages

        result = stages.schemas() if name is None else stages.schema(name)
        if not run.show(result):
            print(codec.dumps(result, indent=2))
