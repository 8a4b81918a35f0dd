"""A unit's process begins with the files it was proven with: those that were edited meanwhile are put back."""

from __future__ import annotations

import os
from pathlib import Path

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import manifests
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import becoming, supervisor
from kdeploy_agent.keeping.units import Spec
from kdeploy_agent.trees import serving, store

_WAITS_S = 60.0  # for who is at the store: a push may take its time, and clients wait


def execute(layout: Layout, name: str) -> int:
    """Command `exec`: become a unit's process; gives an exit status when that cannot be."""
    return becoming.execute(layout, name, whole)


def supervise(layout: Layout, name: str) -> int:
    """Command `supervise`: run a unit until its process ends for good; gives the supervisor's exit status."""
    return supervisor.supervise(layout, name, whole)


def whole(layout: Layout, spec: Spec) -> None:
    """Have every file of the unit's tree as it was declared; what is not is placed anew from the store, and told.

    Raises `integrity` when that cannot be done: it was proven with other files than those it would start with.
    """
    if not spec.tree:
        return
    try:
        manifests.verify(Path(spec.tree), spec.manifest)
    except AgentError as fault:
        release = serving.find_release(layout, spec.release)
        if release is None or os.path.realpath(str(layout.tree(release["tree"]))) != os.path.realpath(spec.tree):
            raise
        store.ensure(layout, release, lambda text: print(f"kdeploy: {text}", flush=True), _WAITS_S)
        manifests.verify(Path(spec.tree), spec.manifest)
        serving.make_room(layout, release)  # what was compiled from the edited files went with them
        print(f"kdeploy: every file of {spec.tree} is as declared again ({fault.message})", flush=True)
