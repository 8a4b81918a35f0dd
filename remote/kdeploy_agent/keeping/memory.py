"""GPU memory that a unit must give back: a process may be gone before its memory is, and the next one has no room.

Only what can be seen is waited for: without nvidia-smi, or when it does not answer, there is nothing to wait for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Set

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import gpus, processes

TOLERANCE_MIB = 512  # contexts of drivers and of monitoring come and go
RETURNS_WITHIN_S = 60.0
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Expected:
    """What must be free again: how much was in use before, by GPU uuid, and who holds memory beside the unit."""

    base: Dict[str, int]
    neighbours: FrozenSet[int]

    def wait(self, seconds: float = RETURNS_WITHIN_S) -> None:
        """Wait until the memory of every GPU is back; raises `fault` naming who still holds it."""
        end = time.monotonic() + seconds
        while True:
            missing = self.missing()
            if not missing:
                return
            if time.monotonic() >= end:
                raise AgentError("fault", _complaint(missing), "end those processes; nvidia-smi shows who they are")
            time.sleep(0.5)

    def missing(self) -> Dict[str, int]:
        """MiB by GPU uuid that are in use beyond what was before, without what neighbours hold."""
        now = used()
        for app in _apps():
            if app.pid in self.neighbours and app.gpu in now:
                now[app.gpu] -= app.used_mib or 0
        over = {uuid: now[uuid] - mib for uuid, mib in self.base.items() if uuid in now}
        return {uuid: mib for uuid, mib in over.items() if mib > TOLERANCE_MIB}


def used() -> Dict[str, int]:
    """MiB in use by GPU uuid; empty where that cannot be told."""
    try:
        return {gpu.uuid: gpu.used_mib for gpu in gpus.query() if gpu.used_mib is not None}
    except AgentError:
        return {}


def expect(base: Dict[str, int], env: Dict[str, str], members: Set[int]) -> Expected:
    """What a unit that is about to be stopped must give back, of the GPUs that it uses.

    Those are where its processes are seen; where a container hides them, what its environment shows it; else all.
    Processes that are not the unit's keep what they have: another service may share a GPU with it.
    """
    apps = _apps()
    seen = {app.gpu for app in apps if app.pid in members} or _visible(env)
    neighbours = frozenset(app.pid for app in apps if app.pid not in members and processes.identity(app.pid))
    return Expected({uuid: mib for uuid, mib in base.items() if not seen or uuid in seen}, neighbours)


def _visible(env: Dict[str, str]) -> Set[str]:
    """uuids of the GPUs that an environment names; empty when it names none that we know."""
    named = [word.strip() for key in _VISIBLE for word in env.get(key, "").split(",") if word.strip()]
    if not named:
        return set()
    try:
        found = gpus.query()
    except AgentError:
        return set()
    return {gpu.uuid for gpu in found if any(str(gpu.index) == word or gpu.uuid.startswith(word) for word in named)}


def _apps() -> List[gpus.App]:
    try:
        return gpus.apps()
    except AgentError:
        return []


def _complaint(missing: Dict[str, int]) -> str:
    told = []
    apps = _apps()
    for uuid, mib in sorted(missing.items()):
        who = [f"process {app.pid} ({app.name}, {app.used_mib or '?'} MiB)" for app in apps if app.gpu == uuid]
        told.append(f"{mib} MiB of {uuid}: {', '.join(who) or 'nobody that nvidia-smi shows'}")
    return f"GPU memory is not given back after {RETURNS_WITHIN_S:.0f} s: {'; '.join(told)}"
