"""The verb that only looks: what each host of a profile would say to the release, before anything is pushed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import deploy
from kdeploy.api import hosts, stages
from kdeploy.api.reach import hosts_of
from kdeploy.errors import KdeployError
from kdeploy.progress import Note


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at on a host."""

    check: str
    ok: bool
    warn: bool
    """It is no reason to refuse, but look at it."""
    detail: str
    hint: str
    """What mends it."""


@dataclass(frozen=True)
class Examined:
    """What a host said, in the order in which it was looked at."""

    host: str
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """What stands against the release there."""
        return tuple(one for one in self.findings if not one.ok)


def doctor(path: Path, note: Note) -> tuple[Examined, ...]:
    """Look at every host of a profile, also at those that cannot be reached; nothing is stopped, nothing kept there."""
    staged = stages.stage(path, note, check_out=False)
    read = staged.declared.profile
    made = hosts.make_release(staged)
    examined = []
    for host in hosts_of(read):
        note(f"{host.name}: looking")
        try:
            request = deploy.precheck_request(host, made, stages.demands(read, staged.declared.sets))
            answer = host.call("doctor", request, timeout_s=900)
            reached = Finding("reached", True, False, f"kdeploy's folder there is {host.root}", "")
            found = (reached, *map(_read, answer["findings"]))
        except KdeployError as fault:
            found = (Finding("reached", False, False, fault.message, fault.hint or ""),)
        examined.append(Examined(host.name, found))
    return tuple(examined)


def _read(values: Mapping[str, Any]) -> Finding:
    return Finding(
        check=str(values.get("check")),
        ok=bool(values.get("ok")),
        warn=bool(values.get("warn")),
        detail=str(values.get("detail")),
        hint=str(values.get("hint") or ""),
    )
