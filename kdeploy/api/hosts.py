"""The verbs that take a host to a release: plan, apply, rollback."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import deploy, gating, known_good, ledger, plan, profile, release
from kdeploy.api import findings, pages, stages
from kdeploy.api.findings import Finding
from kdeploy.api.reach import approached, hosts_of
from kdeploy.api.stages import Staged
from kdeploy.deploy import Goal, Outcome
from kdeploy.errors import KdeployError, UsageError
from kdeploy.host import Host
from kdeploy.patching.series import SeriesReport
from kdeploy.plan import Facts, Plan
from kdeploy.profile import Gate, Profile
from kdeploy.progress import Note
from kdeploy.release import Front, Launch, Release
from kdeploy.secrecy import Secrets
from kdeploy.stage import tree as staging
from kdeploy.stage.prove import Proven
from kdeploy.verdict import prompts as asking
from kdeploy.verdict import thresholds


@dataclass(frozen=True)
class Planned:
    """What apply would do: the release, and the steps on each host."""

    staged: Staged
    report: SeriesReport
    release: Release
    plans: Mapping[str, Plan]
    changes: Mapping[str, tuple[str, ...]]
    """By host, what is different from its live release."""
    tried: Mapping[str, str | None]
    """By host, how this release ended there when it was tried before, if not well."""
    refused: Mapping[str, tuple[Finding, ...]]
    """By host, what it would refuse the release for, as far as that can be told without its tree."""
    diff: str | None


def plan_profile(path: Path, note: Note, *, diff: bool = False, offline: bool = False) -> Planned:
    """Everything apply does up to the first effect on a host; `offline` leaves the hosts out."""
    values = Secrets() if offline else profile.read_secrets(profile.load(path))
    staged = stages.stage(path, note, check_out=False)
    declared = staged.declared
    report = staging.check(declared.base, declared.sets, declared.profile.engine_version)
    made, proofs = make_release(staged), stages.where_proofs_run(staged)
    plans, changes, before, refused = {}, {}, {}, {}
    if not offline:
        for host in hosts_of(declared.profile):
            known = deploy.facts(host, made.tree, "current", manifest=made.manifest)
            plans[host.name] = plan.make(known, made, values, proofs)
            changes[host.name] = _changes(host, known, made, values)
            before[host.name] = tried(host, made)
            if plans[host.name].steps:
                seen = findings.look(host, made, stages.demands(declared.profile, declared.sets))
                refused[host.name] = tuple(one for one in seen if not one.ok)
    return Planned(staged, report, made, plans, changes, before, refused, staging.diff(staged.stage) if diff else None)


def _changes(host: Host, known: Facts, made: Release, values: Secrets) -> tuple[str, ...]:
    found: tuple[str, ...] = ()
    if known.current is not None and known.current != made.id:
        found = plan.changes(known_good.release_on(host, known.current, known)[0], made)
    coming = [name for name in values.changed(known.secrets) if f"secret {name} comes" not in found]
    found = (*found, *(f"secret {name} changes" for name in coming))
    return found


def tried(host: Host, made: Release) -> str | None:
    """How the last try of a release on a host ended, if not well."""
    tries = [one for one in host.call("history")["transactions"] if one["txn"] and one["release"] == made.id]
    if not tries or tries[0]["state"] == "CONFIRMED":
        return None
    return f"ended {tries[0]['state']}: {tries[0]['reason']}"


@dataclass(frozen=True)
class Applied:
    """What apply did."""

    profile: Profile
    release: Release
    proven: tuple[Proven, ...]
    outcomes: tuple[Outcome, ...]
    pages: Mapping[str, Path]
    """By host, the page about what was judged there."""


def apply(path: Path, note: Note) -> Applied:
    """Take every host of a profile to what it declares: stage, prove, push, switch, gate, open, confirm.

    Raises what the step that failed raises; a host whose switch had begun is back on its known-good release then.
    """
    values = profile.read_secrets(profile.load(path))  # what is missing is missing before anything happens
    with approached(profile.load(path)) as hosts:
        staged = stages.stage(path, note, check_out=False)
        read = staged.declared.profile
        made, proofs = make_release(staged), stages.where_proofs_run(staged)
        looked = not stages.proofs_remembered(staged)
        if looked:
            for host in hosts:
                _look_ahead(read, host, made, values, stages.demands(read, staged.declared.sets))
        proven = stages.run_proofs(staged, note)
        if _last_release(read.file.service, hosts[0].name) != made.id:  # likely to be pushed: git is slow to import
            with contextlib.suppress(KdeployError):
                staging.open_store(staged.stage)
        outcomes, written = [], {}
        for host in hosts:
            known = deploy.facts(host, made.tree, manifest=made.manifest)
            steps = plan.make(known, made, values, proofs)
            goal = dataclasses.replace(goal_of(read, made, staged), secrets=values)
            changes = bool(steps.steps)
            with (
                _recorded("apply", read, host, made.id, changes=changes),
                _page("apply", host, known, goal, note) as page,
            ):
                outcomes.append(deploy.carry_out(host, steps, known, goal, note, looked=looked, tell=page))
            written[host.name] = page.path
    there = (one for outcome in outcomes for one in outcome.proven)
    return Applied(read, made, (*proven, *there), tuple(outcomes), _kept(written))


def _page(verb: str, host: Host, known: Facts, goal: Goal, note: Note) -> pages.Keeper:
    trial = gating.Trial(goal.release, goal.gate, goal.prompts)
    return pages.Keeper(host.name, verb, trial, deploy.clients_url(host, known, goal.release), note)


def _kept(found: Mapping[str, Path | None]) -> dict[str, Path]:
    return {host: path for host, path in found.items() if path is not None}


def _look_ahead(read: Profile, host: Host, made: Release, values: Secrets, demands: Mapping[str, Any]) -> None:
    """What a host would refuse is said before proofs take their time, if there is anything to do there."""
    known = deploy.facts(host, made.tree, manifest=made.manifest)
    if "switch" not in plan.make(known, made, values).kinds:
        return
    try:
        deploy.look_ahead(host, known, made, demands)
    except KdeployError:  # a refusal ends the change as much as any other end does
        with _recorded("apply", read, host, made.id, changes=True):
            raise


def rollback(path: Path | None, to: str | None, project: Path | None, note: Note) -> Applied:
    """Take every host back to its last known-good release that is not the live one, or to `to`; gated like any other.

    Without a profile it is the one that was last applied. Raises NoKnownGoodError when there is nothing to go back to.
    """

    def choose(known: Facts, host: Host) -> str:
        return known_good.choose(known, to, host)

    return _back("rollback", path, project, note, to or "previous", choose)


def start(path: Path | None, project: Path | None, note: Note) -> Applied:
    """Start again what every host of a profile has live and does not serve; gated like any other change.

    Raises NoKnownGoodError where nothing was confirmed.
    """
    return _back("start", path, project, note, "current", known_good.live)


def _back(
    verb: str, path: Path | None, project: Path | None, note: Note, documents: str, choose: Callable[[Facts, Host], str]
) -> Applied:
    """Take every host to the confirmed release that is chosen; `documents` are what its choice will want."""
    read = profile.load(path or last_profile(project))
    outcomes, written = [], {}
    for host in hosts_of(read):
        known = deploy.facts(host, None, documents)
        target, kept = known_good.release_on(host, choose(known, host), known)
        if verb != "start" and target.id != known.current:
            note(f"{host.name}: going back to {target.id}")
        if target.id == known.current:  # is there anything to do? the host mends the tree of another one itself
            known = deploy.facts(host, target.tree)
        steps = known_good.plan_back(known, target)
        goal, changes = goal_of(read, target, None, kept), bool(steps.steps)
        with (
            _recorded(verb, read, host, target.id, changes=changes),
            _page(verb, host, known, goal, note) as page,
        ):
            outcomes.append(deploy.carry_out(host, steps, known, goal, note, tell=page))
        written[host.name] = page.path
    return Applied(read, target, (), tuple(outcomes), _kept(written))


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
    runtime = read.file.runtime
    text = stages.lock_text(read, runtime)
    judged = gating.judged_by(kept) or (gate_of(read), prompts_of(read))
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


def gate_of(read: Profile) -> Gate:
    """The gate of a profile, with the figures of its calibration file where its own section says nothing."""
    path = read.file.gate.thresholds
    given = thresholds.load_thresholds(read.beside(path, "gate", "thresholds")) if path else None
    return thresholds.settle_gate(read.file.gate, given)


def prompts_of(read: Profile) -> tuple[asking.Prompt, ...]:
    """The prompts of a profile's gate: its own file's, or the built-in ones."""
    path = read.file.gate.prompts
    return asking.load_prompts(read.beside(path, "gate", "prompts")) if path else asking.default_prompts()


def last_profile(project: Path | None) -> Path:
    """The profile that was last applied from the project (the one at hand when None); raises UsageError for none."""
    home = project or profile.find_project(Path.cwd())
    found = ledger.last_profile(home)
    if found is None:
        raise UsageError(
            "nothing was applied from this project yet",
            hint="name a profile, profiles/….yaml: the ledger is yours alone, and tells nothing of what others applied",
        )
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
