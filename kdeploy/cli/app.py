"""The application that the commands join."""

from __future__ import annotations

from typing import Annotated

import typer

from kdeploy import __version__

app = typer.Typer(
    name="kdeploy",
    help="Declarative deployment and patch-set management for SGLang.",
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
