"""`unlock`: who is changing a host, and an end to that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import ledger, profile
from kdeploy.api import hosts
from kdeploy.api.reach import hosts_of
from kdeploy.host import operator, telling
from kdeploy.progress import Note

_HEALS_WITHIN_S = 7200.0


@dataclass(frozen=True)
class Unlocked:
    """One host: who held its lock (None: nobody), what was ended, and where its last change stands now."""

    host: str
    service: str
    held: Mapping[str, Any] | None
    ended: tuple[int, ...]
    healed: bool
    state: str | None


def unlock(path: Path | None, project: Path | None, note: Note, *, yes: bool = False) -> tuple[Unlocked, ...]:
    """End whatever changes the hosts of a profile (the last applied one by default), and heal them; only with `yes`.

    What serves is never ended. Raises LockedError, naming who holds the lock, without `yes`.
    """
    read = profile.load(path or hosts.last_profile(project))
    by = operator()
    found = []
    for host in hosts_of(read):
        told = host.call("unlock", {"by": by, "yes": yes}, on_event=telling(host.name, note), timeout_s=_HEALS_WITHIN_S)
        ended = tuple(map(int, told["ended"]))
        if ended or told["healed"]:
            ledger.add("unlock", read.path, host.service, host.name, "", f"ended {len(ended)} processes")
        found.append(Unlocked(host.name, host.service, told["held"], ended, bool(told["healed"]), told["state"]))
    return tuple(found)
