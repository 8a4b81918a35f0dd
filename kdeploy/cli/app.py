"""The application that the commands join."""

from __future__ import annotations

from typing import Annotated

import typer

from kdeploy import __version__

app = typer.Typer(
    name="kdeploy",
    help="Declarative deployment and patch-set management for SGLang.",
    epilog="Exit codes: 0 done, 1 our fault, 2 usage, 10 profile, 11 patch set, 20 anchor, 21 conflict, 22 proof, "
    "30 unreachable, 31 remote, 32 locked, 33 precheck, 34 drift, 40 the gate says no (apply goes back), "
    "41 way back failed, 42 no known-good, 130 interrupted.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
