"""From a unit's spec to its process: what must be true before, and the last step, in which the agent turns into it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, manifests, secrets
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping.unit_files import NOT_STARTED
from kdeploy_agent.keeping.units import Spec, banner


def execute(layout: Layout, name: str) -> int:
    """Command `exec`: verify the unit's tree, then become its process; gives an exit status when that cannot be.

    Why it could not is kept in the unit's file `refused`, beside its log.
    """
    folder = layout.units
    (folder / f"{name}.refused").unlink(missing_ok=True)
    spec = Spec.read(folder / f"{name}.json")
    if spec is None:
        print(f"kdeploy: unit {name} of {layout.service} was stopped; use `kdeploy apply` to serve", flush=True)
        return NOT_STARTED
    run = folder / f"{name}.run"
    if run.exists() and not (folder / f"{name}.restart").exists():
        print(f"kdeploy: unit {name} ended before it was trusted; it is not restarted", flush=True)
        return NOT_STARTED
    files.write(run, files.canonical({"invocation": os.environ.get("INVOCATION_ID", "")}))
    print(banner(spec.release), flush=True)
    try:
        verify(spec)
        clear(spec)
        become(layout, spec)
    except (AgentError, OSError) as fault:
        said = fault.message if isinstance(fault, AgentError) else f"cannot run {spec.argv[0]}: {fault}"
        print(f"kdeploy: not started: {said}", flush=True)
        files.write(folder / f"{name}.refused", said.encode("utf-8", "replace"))
        return NOT_STARTED


def verify(spec: Spec) -> None:
    """Raise `integrity` when a unit would start with other files than those it was proven with."""
    if spec.tree:
        manifests.verify(Path(spec.tree), spec.manifest)


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
