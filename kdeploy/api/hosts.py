"""The verbs that look at a host or change it: plan, apply, rollback, status, history, logs, stop."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import deploy, known_good, ledger, plan, profile, release
from kdeploy.api import stages
from kdeploy.api.reach import approached, hosts_of
from kdeploy.api.stages import Staged
from kdeploy.deploy import Goal, Outcome
from kdeploy.errors import KdeployError, UsageError
from kdeploy.host import Event, Host
from kdeploy.patching.series import SeriesReport
from kdeploy.plan import Facts, Plan
from kdeploy.profile import Profile
from kdeploy.progress import Note
from kdeploy.release import Front, Launch, Release
from kdeploy.secrecy import Secrets
from kdeploy.stage import tree as staging
from kdeploy.stage.prove import Proven
from kdeploy.verdict import prompts as asking


@dataclass(frozen=True)
class Planned:
    """What apply would do: the release, and the steps on each host."""

    staged: Staged
    report: SeriesReport
    release: Release
    plans: Mapping[str, Plan]
    changes: Mapping[str, tuple[str, ...]]
    """By host, what is different from its live release, and whether this one was rejected there before."""
    diff: str | None


def plan_profile(path: Path, note: Note, *, diff: bool = False, offline: bool = False) -> Planned:
    """Everything apply does up to the first effect on a host; `offline` leaves the hosts out."""
    values = Secrets() if offline else profile.read_secrets(profile.load(path))
    staged = stages.stage(path, note, check_out=False)
    declared = staged.declared
    report = staging.check(declared.base, declared.sets, declared.profile.engine_version)
    made = make_release(staged)
    plans, changes = {}, {}
    if not offline:
        for host in hosts_of(declared.profile):
            known = deploy.facts(host, made.tree, "current", manifest=made.manifest)
            plans[host.name] = plan.make(known, made, values)
            changes[host.name] = _changes(host, known, made, values)
    return Planned(staged, report, made, plans, changes, staging.diff(staged.stage) if diff else None)


def _changes(host: Host, known: Facts, made: Release, values: Secrets) -> tuple[str, ...]:
    found: tuple[str, ...] = ()
    if known.current is not None and known.current != made.id:
        found = plan.changes(known_good.release_on(host, known.current, known)[0], made)
    coming = [name for name in values.changed(known.secrets) if f"secret {name} comes" not in found]
    found = (*found, *(f"secret {name} changes" for name in coming))
    tries = [one for one in host.call("history")["transactions"] if one["release"] == made.id]
    if tries and tries[0]["state"] != "CONFIRMED":
        reason = str(tries[0]["reason"]).partition("\n")[0][:120]
        found = (*found, f"it was tried before and ended {tries[0]['state']}: {reason}")
    return found


@dataclass(frozen=True)
class Applied:
    """What apply did."""

    profile: Profile
    release: Release
    proven: tuple[Proven, ...]
    outcomes: tuple[Outcome, ...]


def apply(path: Path, note: Note) -> Applied:
    """Take every host of a profile to what it declares: stage, prove, push, switch, gate, open, confirm.

    Raises what the step that failed raises; a host whose switch had begun is back on its known-good release then.
    """
    values = profile.read_secrets(profile.load(path))  # what is missing is missing before anything happens
    with approached(profile.load(path)) as hosts:
        staged = stages.stage(path, note, check_out=False)
        read = staged.declared.profile
        proven = stages.run_proofs(staged, note)
        made = make_release(staged)
        if _last_release(read.file.service, hosts[0].name) != made.id:  # likely to be pushed: git is slow to import
            with contextlib.suppress(KdeployError):
                staging.open_store(staged.stage)
        outcomes = []
        for host in hosts:
            known = deploy.facts(host, made.tree, manifest=made.manifest)
            steps = plan.make(known, made, values)
            goal = dataclasses.replace(goal_of(read, made, staged), secrets=values)
            with _recorded("apply", read, host, made.id, changes=bool(steps.steps)):
                outcomes.append(deploy.carry_out(host, steps, known, goal, note))
    return Applied(read, made, (*proven, *(one for outcome in outcomes for one in outcome.proven)), tuple(outcomes))


def rollback(path: Path | None, to: str | None, project: Path | None, note: Note) -> Applied:
    """Take every host back to its last known-good release that is not the live one, or to `to`; gated like any other.

    Without a profile it is the one that was last applied. Raises NoKnownGoodError when there is nothing to go back to.
    """
    read = profile.load(path or last_profile(project))
    outcomes = []
    for host in hosts_of(read):
        known = deploy.facts(host, None, to or "previous")
        target, kept = known_good.release_on(host, known_good.choose(known, to, host), known)
        if target.id == known.current:  # is there anything to do? the host mends the tree of another one itself
            known = deploy.facts(host, target.tree)
        steps = known_good.plan_back(known, target)
        with _recorded("rollback", read, host, target.id, changes=bool(steps.steps)):
            outcomes.append(deploy.carry_out(host, steps, known, goal_of(read, target, None, kept), note))
    return Applied(read, target, (), tuple(outcomes))


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
    read = profile.load(path or last_profile(project))
    found = []
    for host in hosts_of(read):
        known = deploy.facts(host, None, "current")
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
    again = f"kdeploy apply {os.path.relpath(read.path)}"
    last = known.transaction
    if last is not None and last.open:
        if last.running:
            return f"a change is under way ({last.state}); it goes back by itself if nobody decides"
        return f"a change was cut off at {last.state}; `{again}` heals the host first, then continues"
    if last is not None and last.state == "NEEDS_OPERATOR":
        return (
            f"the way back failed: {last.reason}. See `kdeploy logs`, then `{again}` or `kdeploy rollback --to RELEASE`"
        )
    if known.current is None:
        return f"nothing was deployed yet: `{again}`"
    if not known.server.alive:
        return f"the server does not run: `{again}` starts it, gated"
    return None


@dataclass(frozen=True)
class History:
    """Every change of one host, newest first, as its own journal tells it."""

    host: str
    transactions: tuple[Mapping[str, Any], ...]


def history(path: Path | None, project: Path | None) -> tuple[History, ...]:
    """The history of each host of a profile (the last applied one by default)."""
    read = profile.load(path or last_profile(project))
    return tuple(History(host.name, tuple(host.call("history")["transactions"])) for host in hosts_of(read))


def logs(
    path: Path | None, project: Path | None, unit: str, lines: int, follow: bool, tell: Callable[[str, Event], None]
) -> None:
    """The last `lines` of a unit's log on each host, line by line to `tell`; `follow` goes on until Ctrl-C."""
    read = profile.load(path or last_profile(project))
    if follow and len(read.hosts) > 1:
        raise UsageError("--follow works for one host at a time")
    for host in hosts_of(read):
        request = {"unit": unit, "lines": lines, "follow": follow}
        timeout = 7 * 86_400 if follow else 60

        def pass_on(event: Event, name: str = host.name) -> None:
            tell(name, event)

        host.call("logs", request, on_event=pass_on, timeout_s=timeout)


def stop(path: Path | None, project: Path | None, note: Note) -> tuple[str, ...]:
    """Stop what a profile's hosts serve; what is live stays declared, and apply starts it again. Gives their names."""
    read = profile.load(path or last_profile(project))
    stopped = []
    for host in hosts_of(read):
        note(f"{host.name}: stopping {host.service}")
        host.call("stop", {"by": f"{getpass.getuser()}@{socket.gethostname()}"}, timeout_s=300)
        ledger.add("stop", read.path, host.service, host.name, "", "stopped")
        stopped.append(host.name)
    return tuple(stopped)


def make_release(staged: Staged) -> Release:
    """The release a profile declares: its staged tree under its launch configuration."""
    read, file = staged.declared.profile, staged.declared.profile.file
    runtime = {"venv": file.runtime.venv} if file.runtime.venv else {"key": stages.runtime_id(read, file.runtime)}
    launch = Launch(
        runtime=runtime,
        module=release.SERVER_MODULE,
        args=release.server_args(read.args, file.serve.private_port),
        env=dict(sorted(file.serve.env.items())),
        port=file.serve.private_port,
        front=Front(file.serve.front, file.serve.host, file.serve.port, file.serve.metrics_port),
        secrets=tuple(sorted(file.serve.secrets)),
    )
    return release.make(
        service=file.service,
        profile=read.name,
        engine=file.engine,
        patchsets=[(one.ref, one.digest) for one in staged.declared.sets],
        tree=staged.stage.tree,
        launch=launch,
    )


def goal_of(read: Profile, made: Release, staged: Staged | None, kept: Any = None) -> Goal:
    """The goal for `made`; a release that was confirmed before is judged by what it was `kept` with."""
    gate, runtime = read.file.gate, read.file.runtime
    text = stages.lock_text(read, runtime)
    judged = deploy.judged_by(kept) or (gate, prompts_of(read))
    key = stages.runtime_id(read, runtime)
    return Goal(
        release=made,
        stage=staged.stage if staged else None,
        runtime=(key, text, runtime.python, tuple(runtime.with_deps)) if text is not None else None,
        gate=judged[0],
        prompts=judged[1],
        demands=stages.demands(read, staged.declared.sets if staged else ()),
        proves_there=staged is not None and read.proves_on_hosts,
    )


def prompts_of(read: Profile) -> tuple[asking.Prompt, ...]:
    """The prompts of a profile's gate: its own file's, or the built-in ones."""
    path = read.file.gate.prompts
    return asking.load_prompts(read.beside(path, "gate", "prompts")) if path else asking.default_prompts()


def last_profile(project: Path | None) -> Path:
    """The profile that was last applied from the project (the one at hand when None); raises UsageError for none."""
    home = project or profile.find_project(Path.cwd())
    found = ledger.last_profile(home)
    if found is None:
        raise UsageError("nothing was applied from this project yet", hint="name a profile: profiles/….yaml")
    return found


def _last_release(service: str, host: str) -> str | None:
    """What was last applied to a service on a host, as far as we remember."""
    found = [entry.release for entry in ledger.entries() if (entry.service, entry.host) == (service, host)]
    return found[-1] if found else None


class _recorded:
    """Writes to the ledger how a change ended, whatever way it does."""

    def __init__(self, verb: str, read: Profile, host: Host, release_id: str, *, changes: bool) -> None:
        self._line = (verb, read.path, host.service, host.name, release_id)
        self._changes = changes

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: object) -> None:
        if self._changes:
            outcome = "ok" if fault is None else f"{kind.__name__ if kind else ''}: {fault}"
            ledger.add(*self._line, outcome if isinstance(fault, KdeployError | None) else f"fault: {fault!r}")
