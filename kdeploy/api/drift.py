"""`verify`: is what a host serves what its live release declares, and is that what the profile declares today?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import deploy, known_good, plan, profile
from kdeploy.api import hosts, stages
from kdeploy.api.reach import hosts_of
from kdeploy.errors import ProfileError, RemoteError
from kdeploy.host import Host
from kdeploy.profile import Profile
from kdeploy.progress import Note
from kdeploy.release import Release
from kdeploy.secrecy import Secrets

_LOOKS_WITHIN_S = 300.0


@dataclass(frozen=True)
class Drift:
    """One thing that is not as declared, and what puts it right."""

    what: str
    expected: str
    found: str
    fix: str
    differs: tuple[str, ...] = ()
    """Of the release as the profile declares it now: what is different from the live one."""


@dataclass(frozen=True)
class Verified:
    """One host: its live release, everything about it that drifted, and how many things were compared."""

    host: str
    service: str
    release: str | None
    declared: str
    drifts: tuple[Drift, ...]
    checked: int
    notes: tuple[str, ...]
    """What could not be compared, and why."""
    stopped: bool
    """Whether the service was stopped on purpose: then nothing is to run."""


def verify(path: Path | None, project: Path | None, note: Note) -> tuple[Verified, ...]:
    """Compare each host of a profile (the last applied one by default) with what was declared. Changes nothing.

    Raises LockedError while somebody changes a host.
    """
    path = path or hosts.last_profile(project)
    staged = stages.stage(path, note, check_out=False)
    read, made = staged.declared.profile, hosts.make_release(staged)
    values, notes = _values(read)
    found = []
    for host in hosts_of(read):
        note(f"{host.name}: comparing")
        told = host.call("verify", timeout_s=_LOOKS_WITHIN_S)
        here = [_drift(one, host.name, read) for one in told["drifts"]]
        if told["release"] is not None:
            here += _from_profile(host, str(told["release"]), made, read, values)
        checked = int(told["checked"]) + 1 + len(values.names)
        stopped = bool(told["stopped"])
        found.append(Verified(host.name, host.service, told["release"], made.id, tuple(here), checked, notes, stopped))
    return tuple(found)


def _values(read: Profile) -> tuple[Secrets, tuple[str, ...]]:
    """The secrets' values where this machine has them: whoever only looks need not hold them."""
    try:
        return profile.read_secrets(read), ()
    except ProfileError as fault:
        return Secrets(), (f"secrets were not compared with yours: {fault.message}",)


def _drift(told: Any, host: str, read: Profile) -> Drift:
    try:
        fix = str(told["fix"]).replace("apply the profile", f"apply {os.path.relpath(read.path)}")
        return Drift(str(told["what"]), str(told["expected"]), str(told["found"]), fix)
    except (KeyError, TypeError) as fault:
        raise RemoteError(f"{host}: the agent's drift lacks {fault}") from fault


def _from_profile(host: Host, live: str, made: Release, read: Profile, values: Secrets) -> list[Drift]:
    """What the profile declares now and the host does not serve."""
    fix = f"kdeploy apply {os.path.relpath(read.path)}"
    found = []
    if live != made.id:
        tried = hosts.tried(host, made)
        warned = f"{fix} (tried before: it {tried.splitlines()[0]})" if tried else fix
        found.append(Drift("release", made.id, live, warned, _changes(host, live, made)))
    kept = deploy.facts(host, None).secrets if values.names else None
    if kept is not None:
        found += [Drift(f"secret {name}", "the value you have", "another", fix) for name in values.changed(kept)]
    return found


def _changes(host: Host, live: str, made: Release) -> tuple[str, ...]:
    try:
        return plan.changes(known_good.release_on(host, live)[0], made)
    except RemoteError:  # an edited document: the host's own look has told that
        return ()
