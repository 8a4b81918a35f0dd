"""Runs in the runtime's own Python with the environment a server would have: what only that process can know.

Sent as text (`python -c`), so it imports nothing of the agent. One argument: JSON with `args`. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import sys
import traceback
from typing import Any, Callable, Dict, List, NoReturn


class Refused(Exception):
    """The tree's own parser does not take the arguments; carries the flags it knows."""

    def __init__(self, message: str, flags: List[str]) -> None:
        super().__init__(message)
        self.flags = flags


def import_engine() -> Dict[str, Any]:
    """Import the engine; gives where it came from and what it calls itself."""
    engine = importlib.import_module("sglang")
    return {"file": engine.__file__, "version": engine.__version__}


def parse_arguments(args: List[str]) -> Dict[str, Any]:
    """Let the tree parse the command line as its server would, up to where it would look at the GPU.

    `prepare_server_args` (SGLang 0.5.11, srt/server_args.py) also merges --config files. What follows the parser,
    ServerArgs.__post_init__, may open a CUDA context beside a live server, so it is left to the candidate's start.
    """
    module = importlib.import_module("sglang.srt.server_args")
    module.ServerArgs.from_cli_args = classmethod(lambda _, parsed: parsed)
    setattr(argparse.ArgumentParser, "error", _refuse)  # noqa: B010 - mypy holds methods for constants
    module.prepare_server_args(args)
    return {"parsed": len(args)}


def nearest(message: str, flags: List[str]) -> str:
    """The known flag nearest to the first unknown one that argparse's message names; empty when none is near."""
    named = [word.split("=")[0].rstrip(":") for word in message.split() if word.startswith("--")]
    unknown = [word for word in named if word not in flags]
    near = difflib.get_close_matches(unknown[0], flags, n=1) if unknown else []
    return f"did you mean {near[0]}?" if near else ""


def attempt(function: Callable[..., Dict[str, Any]], *arguments: Any) -> Dict[str, Any]:
    """Call and give what came of it: `ok` with values, or `error` with `hint`."""
    try:
        return dict(function(*arguments), ok=True)
    except Refused as fault:
        return {"ok": False, "error": str(fault), "hint": nearest(str(fault), fault.flags)}
    except BaseException as fault:
        where = "".join(traceback.format_exception(type(fault), fault, fault.__traceback__)[-3:])
        return {"ok": False, "error": f"{type(fault).__name__}: {fault}", "hint": where}


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise Refused(message, sorted(parser._option_string_actions))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    told = {"engine": attempt(import_engine)}
    if told["engine"]["ok"]:
        told["arguments"] = attempt(parse_arguments, asked["args"])
    print("\nkdeploy-inside " + json.dumps(told))
