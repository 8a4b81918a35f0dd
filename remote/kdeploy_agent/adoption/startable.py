"""Whether what is found could be started again: a way back that cannot be gone is worse than none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Tuple

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import processes, systemctl
from kdeploy_agent.keeping import ancestry
from kdeploy_agent.keeping.ancestry import Keeper

_GENERATED = "/run/systemd/generator"  # made anew at every boot and reload: as lasting as what it is made from
_DELETED = " (deleted)"


def keeper(found: Keeper) -> Tuple[Keeper, List[str]]:
    """Who can start it again: `found`, or nobody but us where its unit goes when it stops; notes on that.

    Raises `preflight` when its keeper could not start it, or would not let us.
    """
    if found.kind == "docker":
        return _container(found), []
    if found.kind != "systemd":
        return found, []
    shown = systemctl.show(found.name)
    path = shown["FragmentPath"]
    if shown["LoadState"] != "loaded":
        raise _no_way_back(
            f"its unit {found.name} is {shown['LoadState']}: systemd would not start it again",
            f"systemctl unmask {found.name}, or restart it from a unit that is there, then adopt",
        )
    if path.startswith("/run/") and not path.startswith(_GENERATED):
        if shown.get("Restart", "no") != "no":
            raise _no_way_back(
                f"its unit {found.name} goes when it stops ({path}), and until then starts it again by itself",
                "write that unit to /etc/systemd/system, start the server from there, then adopt",
            )
        note = f"its unit {found.name} does not last ({path}): it is gone back to as a process of its own, in no unit"
        return Keeper("bare"), [note]
    if not path or not Path(path).is_file():
        raise _no_way_back(
            f"its unit {found.name} has no file any more ({path or 'none was ever there'})",
            "write that unit anew, systemctl daemon-reload, then adopt",
        )
    return found, []


def check(pid: int, program: str, argv: List[str], cwd: str) -> None:
    """Whether the program, its script and its working folder are still there, for a process of this host.

    Raises `preflight` naming what is not.
    """
    if not Path(cwd).is_dir():
        gone = cwd[: -len(_DELETED)] if cwd.endswith(_DELETED) else cwd
        raise _no_way_back(
            f"process {pid} runs in a folder that was deleted: {gone}",
            "restart it from a folder that is there, then adopt",
        )
    if not Path(program).is_file() or not os.access(program, os.X_OK):
        gone = program[: -len(_DELETED)] if program.endswith(_DELETED) else program
        raise _no_way_back(
            f"process {pid} runs a program that is not there any more: {gone or processes.command(pid)}",
            "restart it from a program that is there, then adopt",
        )
    script = argv[1] if len(argv) > 1 and is_interpreter(program) else "-"
    if not script.startswith("-") and not Path(cwd, script).exists():
        raise _no_way_back(
            f"process {pid} runs a script that is not there any more: {Path(cwd, script)}",
            "restart it from a script that is there, then adopt",
        )


def is_python(program: str) -> bool:
    """Whether a program is a Python, by its name."""
    return Path(program).name.startswith("python")


def is_interpreter(program: str) -> bool:
    """Whether a program's first word, unless it is an option, is a file it runs."""
    return is_python(program) or Path(program).name in ("sh", "bash", "dash", "zsh", "ksh")


def _container(found: Keeper) -> Keeper:
    done = ancestry.docker("inspect", "--format", "{{.HostConfig.AutoRemove}}", found.name)
    if done.returncode:
        raise _no_way_back(f"docker knows no container {found.name}", "see: docker ps -a")
    if done.stdout.strip() == b"true":
        raise _no_way_back(
            f"container {found.name} was started with --rm: it is gone once it is stopped",
            "start it without --rm, then adopt",
        )
    return found


def _no_way_back(message: str, hint: str) -> AgentError:
    return AgentError("preflight", f"{message}; there would be no way back to it", hint)
