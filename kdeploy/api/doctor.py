"""The verb that only looks: what each host of a profile would say to the release, before anything is pushed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kdeploy.api import findings, hosts, stages
from kdeploy.api.findings import Finding
from kdeploy.api.reach import hosts_of
from kdeploy.api.stages import Staged
from kdeploy.errors import KdeployError, ProfileError
from kdeploy.progress import Note


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
    proofs, examined = _proofs(staged), []
    for host in hosts_of(read):
        note(f"{host.name}: looking")
        try:
            said = findings.look(host, made, stages.demands(read, staged.declared.sets))
            reached = Finding("reached", True, False, f"kdeploy's folder there is {host.root}", "")
            found = (reached, *proofs, *said)
        except KdeployError as fault:
            found = (Finding("reached", False, False, fault.message, fault.hint or ""), *proofs)
        examined.append(Examined(host.name, found))
    return tuple(examined)


def _proofs(staged: Staged) -> tuple[Finding, ...]:
    """Whether the profile says where its proofs run; nothing when there are none."""
    try:
        where = stages.where_proofs_run(staged)
    except ProfileError as fault:
        return (Finding("proofs", False, False, fault.message, fault.hint or ""),)
    return (Finding("proofs", True, False, f"they run {where}", ""),) if where else ()
