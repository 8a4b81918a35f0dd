"""From a unit's spec to its process: what must be true before, and the last step, in which the agent turns into it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Callable, NoReturn

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, secrets
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping.unit_files import NOT_STARTED
from kdeploy_agent.keeping.units import Spec, banner

Whole = Callable[[Layout, Spec], None]
"""Sees to it that a unit starts with the files it was proven with; raises `integrity` when it would not."""


def execute(layout: Layout, name: str, whole: Whole) -> int:
    """Have the unit's tree `whole`, then become its process; gives an exit status when that cannot be.

    Why it could not is kept in the unit's file `refused`, beside its log.
    """
    folder = layout.units
    with contextlib.suppress(OSError):
        (folder / f"{name}.refused").unlink(missing_ok=True)
    spec = Spec.read(folder / f"{name}.json")
    if spec is None:
        print(f"kdeploy: unit {name} of {layout.service} was stopped; use `kdeploy apply` to serve", flush=True)
        return NOT_STARTED
    run, trusted = folder / f"{name}.run", (folder / f"{name}.restart").exists()
    if run.exists() and not trusted:
        print(f"kdeploy: unit {name} ended before it was trusted; it is not restarted", flush=True)
        return NOT_STARTED
    if not _noted(run, files.canonical({"invocation": os.environ.get("INVOCATION_ID", "")})) and not trusted:
        return NOT_STARTED  # a candidate without a trace of its start would be started again
    print(banner(spec.release), flush=True)
    try:
        whole(layout, spec)
        clear(spec)
        become(layout, spec)
    except (AgentError, OSError) as fault:
        said = fault.message if isinstance(fault, AgentError) else f"cannot run {spec.argv[0]}: {fault}"
        print(f"kdeploy: not started: {said}", flush=True)
        _noted(folder / f"{name}.refused", said.encode("utf-8", "replace"))
        return NOT_STARTED


def _noted(path: Path, data: bytes) -> bool:
    """Write what is only for reading later; on a full disk it is not, and who was proven starts all the same."""
    try:
        files.write(path, data)
    except OSError as fault:
        print(f"kdeploy: {path.name} could not be written: {fault}", flush=True)
        return False
    return True


def clear(spec: Spec) -> None:
    """Give a unit an empty scratch folder."""
    scratch = Path(spec.scratch)
    files.wipe(scratch)
    scratch.mkdir(parents=True, mode=0o700)


def become(layout: Layout, spec: Spec) -> NoReturn:
    """Turn into the unit's process, which alone is given the secrets; nothing else of our environment goes with it.

    Raises what keeps it from that.
    """
    env = {**spec.env, **secrets.load(layout, spec.secrets)}
    os.chdir(spec.cwd)
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python's own setting would be inherited
    os.execve(spec.argv[0], list(spec.argv), env)
