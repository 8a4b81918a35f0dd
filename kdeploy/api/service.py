"""The verbs about what a host serves: status, history, logs, stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import deploy, ledger, profile, release
from kdeploy.api import hosts
from kdeploy.api.reach import hosts_of
from kdeploy.errors import UsageError
from kdeploy.host import Event, Host, operator
from kdeploy.plan import Facts
from kdeploy.profile import Profile
from kdeploy.progress import Note


@dataclass(frozen=True)
class Status:
    """One service on one host."""

    host: str
    service: str
    root: str
    facts: Facts
    release: Mapping[str, Any] | None
    """The live release's document."""
    clients: str | None
    """Where clients reach the live release: a URL."""
    advice: str | None
    """What to do when something is not right."""


def status(path: Path | None, project: Path | None) -> tuple[Status, ...]:
    """What each host of a profile (the last applied one by default) serves, and whether something is to be done."""
    read = profile.load(path or hosts.last_profile(project))
    found = []
    for host in hosts_of(read):
        known = deploy.facts(host, None, "current", answers=True)
        live = known.documents[known.current]["release"] if known.current else None
        found.append(
            Status(host.name, host.service, host.root, known, live, _clients(host, known, live), _advice(known, read))
        )
    return tuple(found)


def _clients(host: Host, known: Facts, live: Mapping[str, Any] | None) -> str | None:
    try:
        return deploy.clients_url(host, known, release.read(live)) if live else None
    except (KeyError, TypeError):  # a document that somebody edited: `verify` tells of it
        return None


def _advice(known: Facts, read: Profile) -> str | None:
    name = os.path.relpath(read.path)
    again, logs = f"kdeploy apply {name}", f"kdeploy logs {name}"
    last = known.transaction
    if last is not None and last.open:
        if last.running:
            return f"a change is under way ({last.state}): {last.deadline or 'wait until it has ended'}"
        return f"a change was cut off at {last.state}; `{again}` heals the host first, then continues"
    if last is not None and last.state == "NEEDS_OPERATOR":
        return (
            f"the way back failed: {last.reason}. See `{logs}`, then `{again}` "
            f"or `kdeploy rollback {name} --to RELEASE`"
        )
    if known.current is None:
        return f"nothing was deployed yet: `{again}`; `kdeploy adopt {name}` first, if something else serves there"
    if known.server.alive:
        return f"it does not answer: {known.silent}. See `{logs}`" if known.silent else None
    if known.starting:
        return None
    if known.stopped:
        return f"it was stopped on purpose: `kdeploy start {name}` starts it again; `{again}` what is declared now"
    return f"`{logs}` shows its last words; `{again}` starts it, gated"


@dataclass(frozen=True)
class History:
    """Every change of one host, newest first, as its own journal tells it."""

    host: str
    transactions: tuple[Mapping[str, Any], ...]


def history(path: Path | None, project: Path | None) -> tuple[History, ...]:
    """The history of each host of a profile (the last applied one by default)."""
    read = profile.load(path or hosts.last_profile(project))
    return tuple(History(host.name, tuple(host.call("history")["transactions"])) for host in hosts_of(read))


def logs(
    path: Path | None,
    project: Path | None,
    unit: str,
    lines: int,
    follow: bool,
    tell: Callable[[str, Event], None],
    note: Note,
) -> None:
    """The last `lines` of a unit's log on each host, line by line to `tell`; `follow` goes on until Ctrl-C.

    Where there are none, `note` is told why.
    """
    read = profile.load(path or hosts.last_profile(project))
    if follow and len(read.hosts) > 1:
        raise UsageError("--follow works for one host at a time")
    for host in hosts_of(read):
        request = {"unit": unit, "lines": lines, "follow": follow}
        timeout = 7 * 86_400 if follow else 60

        told = 0

        def pass_on(event: Event, name: str = host.name) -> None:
            nonlocal told
            told += 1
            tell(name, event)

        result = host.call("logs", request, on_event=pass_on, timeout_s=timeout)
        if not told:
            note(f"{host.name}: {result.get('empty') or 'nothing was said yet'} ({result.get('path')})")


@dataclass(frozen=True)
class Stopped:
    """One service on one host, and whether there was anything to stop."""

    host: str
    service: str
    ran: bool


def stop(path: Path | None, project: Path | None, note: Note) -> tuple[Stopped, ...]:
    """Stop what a profile's hosts serve; it stays live by name, and `start` starts it again."""
    read = profile.load(path or hosts.last_profile(project))
    stopped = []
    for host in hosts_of(read):
        note(f"{host.name}: stopping {host.service}")
        told = host.call("stop", {"by": operator()}, timeout_s=300)
        ledger.add("stop", read.path, host.service, host.name, "", "stopped")
        stopped.append(Stopped(host.name, host.service, bool(told["ran"])))
    return tuple(stopped)
