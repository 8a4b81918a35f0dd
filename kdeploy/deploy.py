"""Takes one host along a plan. What must not be half-done is a transaction on the host; here we only ask and watch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kdeploy import endings, gating, proving
from kdeploy.change import Change, Step
from kdeploy.errors import PreflightError
from kdeploy.host import Ask, Host, operator, telling
from kdeploy.plan import Facts, Plan
from kdeploy.profile import Gate
from kdeploy.progress import Note
from kdeploy.release import Release
from kdeploy.secrecy import Secrets
from kdeploy.session import Lacking
from kdeploy.stage import tree as staging
from kdeploy.stage.prove import Proven
from kdeploy.stage.tree import Stage
from kdeploy.verdict import prompts as asking
from kdeploy.verdict.judge import Verdict

Tell = Callable[[gating.Judged], None]
"""Is told what a release showed and what was thought of it, before the host is."""
T = TypeVar("T")

LOOKS_WITHIN_S = 900.0
"""How long a host may look at what it would say to a release, seconds."""

_SMALL = 1 << 18  # bytes of a push that is over before a look of its own would be: precheck says it soon enough
_HEALS_WITHIN_S = 7200.0  # it starts a release that may be another, larger one than ours


@dataclass(frozen=True)
class Goal:
    """What a host is taken to, and how it is judged there."""

    release: Release
    stage: Stage | None
    """None for a release that is on the host already (a rollback)."""
    runtime: tuple[str, str, str, tuple[str, ...]] | None
    """Key, lock text, Python version and with-deps of the runtime this project can make; None for one that is there."""
    gate: Gate
    """With the figures of its calibration file, if any."""
    prompts: tuple[asking.Prompt, ...]
    demands: Mapping[str, Any] = field(default_factory=dict)
    """What the host must be, beside what the release says: `machine` of the profile, `archs` of its patch sets."""
    proves_there: bool = False
    """Whether the proofs of the stage run on the host."""
    secrets: Secrets = field(default_factory=Secrets)
    """Values that go with the one request that begins a change; none for a rollback, which uses those on the host."""


@dataclass(frozen=True)
class Outcome:
    """How it ended: with the release live and known-good. Everything else is an exception."""

    host: str
    release: str
    changed: bool
    seconds: float
    reason: str
    clients: str
    """Where clients reach it: a URL."""
    verdict: Verdict | None = None
    proven: tuple[Proven, ...] = ()
    """Proofs that ran on the host."""
    out_s: float | None = None
    """How long clients were without answers, seconds; None when nothing served before."""


def facts(
    host: Host, tree: str | None, documents: str | None = None, *, manifest: str | None = None, answers: bool = False
) -> Facts:
    """What the host says of itself; `tree` has every file's sha256 compared, with `manifest` or what a release says.

    `documents` (`current`, `previous`, or how a known-good's id begins) brings those releases along; with `answers`
    what runs is asked for a sign of life, as it is for a `tree`.
    """
    request = {"rehash": tree, "manifest": manifest, "documents": documents, "answers": answers}
    return Facts.read(host.call("facts", request, timeout_s=120))


def look_ahead(host: Host, known: Facts, release: Release, demands: Mapping[str, Any]) -> None:
    """Have the host say now what it would say after long work: all that needs no tree. Raises PreflightError.

    A change that was cut off there is healed first, by then.
    """
    if known.transaction is None or not known.transaction.open:
        host.call("doctor", precheck_request(host, release, demands, strict=True), timeout_s=LOOKS_WITHIN_S)


def _untold(judged: gating.Judged) -> None:
    """Nobody wants to know."""


def carry_out(
    host: Host, plan: Plan, known: Facts, goal: Goal, note: Note, *, looked: bool = False, tell: Tell = _untold
) -> Outcome:
    """Take `host` along `plan`; gives the outcome once the release is known-good.

    Unless somebody `looked` ahead the host is asked what it would refuse before anything large is pushed. What the
    release shows at the gate is told to `tell`, whatever is thought of it. Raises
    PreflightError or RemoteError before anything was stopped, GateError when the host went back, RollbackFailedError
    when it could not, InterruptedByUser after Ctrl-C.
    """
    started = time.monotonic()
    clients = clients_url(host, known, goal.release)
    if not plan.steps:
        return Outcome(host.name, goal.release.id, False, 0.0, plan.reason, clients)
    if plan.kinds == ("survive",):
        told = host.call("survive", {"by": operator()})["note"]
        if told:  # it serves all the same: as where a release is confirmed, that is said and not refused
            note(f"{host.name}: {told}")
        seconds = round(time.monotonic() - started, 1)
        return Outcome(
            host.name,
            goal.release.id,
            not told,
            seconds,
            told or "what serves comes back after a reboot again",
            clients,
        )
    if known.transaction is not None and known.transaction.open and not known.transaction.running:
        note(f"{host.name}: an earlier change was cut off at {known.transaction.state}; healing")
        host.call("recover", on_event=telling(host.name, note), timeout_s=_HEALS_WITHIN_S)
    verdict, proven, out_s = _insisting(
        host, known, note, lambda known: _change(host, plan, known, goal, note, looked, tell)
    )
    seconds = round(time.monotonic() - started, 1)
    return Outcome(host.name, goal.release.id, True, seconds, "live and known-good", clients, verdict, proven, out_s)


def _insisting(host: Host, known: Facts, note: Note, work: Callable[[Facts], T]) -> T:
    """Do `work` that pushes; once more, sending everything, when the host lacks what it said it had.

    Its store was damaged then, and has made way for a new one; nothing was begun.
    """
    try:
        return work(known)
    except Lacking as fault:
        if not known.commits:
            raise
        note(f"{fault.message}; sending everything")
        return work(replace(known, commits=()))


def _change(
    host: Host, plan: Plan, known: Facts, goal: Goal, note: Note, looked: bool, tell: Tell
) -> tuple[Verdict, tuple[Proven, ...], float | None]:
    steps, proven = _prepare(host, plan, known, goal, note, looked)
    kind = "apply" if goal.stage else "rollback"
    verdict, out_s = _transact(host, known, goal, kind, steps, note, tell)
    return verdict, proven, out_s


def clients_url(host: Host, known: Facts, release: Release) -> str:
    """A URL at which clients reach `release`; of a host that listens everywhere by the address that we reach it by."""
    reached = host.address or "localhost"
    named = known.hostname if reached in ("localhost", "::1") or reached.startswith("127.") else reached
    return f"{release.launch.front.url(release.launch.port, named)}/v1"


def _prepare(
    host: Host, plan: Plan, known: Facts, goal: Goal, note: Note, looked: bool
) -> tuple[list[Step], tuple[Proven, ...]]:
    """What is sent ahead of the request to begin: each is quick, and says no itself when something is not right.

    What is not quick is done now: the runtime, and proofs on the host.
    """
    steps = [_push(host, known, goal, note)] if "push" in plan.kinds else []
    proven: tuple[Proven, ...] = ()
    long = any(len(step.ask.payload) > _SMALL for step in steps) or (bool(steps) and goal.proves_there)
    if not looked and (long or "runtime" in plan.kinds):
        look_ahead(host, known, goal.release, goal.demands)
    if "runtime" in plan.kinds:  # takes minutes: what comes after is asked for by somebody who is still there
        _make_runtime(host, goal, note, steps)
        steps = []
    if goal.proves_there and goal.stage is not None:
        _do(host, steps, note)
        steps, proven = [], proving.on_host(host, goal.stage, goal.release, note)
    request = precheck_request(host, goal.release, goal.demands, strict=True)
    ask = Ask("precheck", request, on_event=telling(host.name, note), timeout_s=600)
    return [*steps, Step(f"{host.name}: precheck", ask)], proven


def bring(host: Host, plan: Plan, known: Facts, goal: Goal, note: Note) -> None:
    """Have the tree and the runtime of `plan` on the host; nothing is stopped or started."""
    if "push" in plan.kinds:
        _insisting(host, known, note, lambda known: _do(host, [_push(host, known, goal, note)], note))
    if "runtime" in plan.kinds:
        _make_runtime(host, goal, note)


def precheck_request(
    host: Host, release: Release, demands: Mapping[str, Any], *, strict: bool = False
) -> dict[str, Any]:
    """What a host is asked to look at; by the operator's clock it tells whether its own is right.

    Of a `remote` host clients are thought to be elsewhere too.
    """
    about = {"now": round(time.time(), 3), "remote": host.address is not None, "strict": strict}
    return {"release": release.as_document(), **demands, **about}


def _do(host: Host, steps: Sequence[Step], note: Note) -> None:
    for step in steps:
        if step.note is not None:
            note(step.note)
        list(host.ask([step.ask]))


def _make_runtime(host: Host, goal: Goal, note: Note, before: Sequence[Step] = ()) -> None:
    wanted = goal.release.launch.runtime["key"]
    if goal.runtime is None or goal.runtime[0] != wanted:
        raise PreflightError(
            f"{host.name}: the runtime {wanted} of {goal.release.id} is gone, and this profile makes another",
            hint="put the lock file back as it was and apply that profile, or go back to another release",
            details=("nothing was stopped: what served before serves on",),
        )
    _do(host, before, note)
    key, lock, python, with_deps = goal.runtime
    host.make_runtime(key, python, lock, with_deps, note)


def _push(host: Host, known: Facts, goal: Goal, note: Note) -> Step:
    assert goal.stage is not None, "a rollback's plan has no push"
    release = goal.release
    request = {"tree": release.tree, "commit": release.commit, "manifest": release.manifest}
    if known.git is None:
        packed, form, how = staging.archive(goal.stage), {"form": "tar"}, ", whole: it has no git"
    else:
        # A damaged tree may stand on a damaged store: send everything then, not only what the host says it lacks.
        packed, form, how = staging.bundle(goal.stage, () if known.rehash_ok is False else known.commits), {}, ""
    text = f"{host.name}: push {len(packed) / 1e3:,.1f} kB{how}, every file compared there"
    return Step(text, Ask("receive", {**request, **form}, packed, telling(host.name, note), timeout_s=900))


def _transact(
    host: Host, known: Facts, goal: Goal, kind: str, before: Sequence[Step], note: Note, tell: Tell
) -> tuple[Verdict, float | None]:
    gate, release = goal.gate, goal.release
    trial = gating.Trial(release, gate, goal.prompts)
    txn = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(3).hex()}"
    request = {
        "txn": txn,
        "by": operator(),
        "goal": kind,
        "release": release.as_document(),
        "probes": trial.probes(),
        "start_s": gate.start_s,
        "probe_s": gate.probe_s,
        "decide_s": gate.decide_s,
        "soak_s": gate.soak_s,
        "secrets": goal.secrets.reveal(),
    }
    patience = gate.start_s * 2 + gate.probe_s + gate.decide_s + gate.soak_s + 300
    compared = known.known_good if known.known_good in known.known_goods else None
    told: list[Any] = []
    if compared is not None:  # sent ahead with the others: it takes no trip of its own
        ask = Ask("evidence", {"release": compared}, timeout_s=120)
        before = [Step(None, ask, lambda evidence: told.append(evidence.get("confirmed"))), *before]
    with Change(host, txn, note, patience) as change:
        result = change.begin(before, request)
        if result["state"] != "PROBED":
            raise endings.fault(host, release.id, result, None)
        shown = told[0] if told and isinstance(told[0], dict) else None
        verdict = trial.judge(result["transcript"], gating.known_from(shown, str(compared)))
        tell(gating.Judged(release.id, result["transcript"], verdict, compared, shown))
        note(f"{host.name}: {sum(check.ok for check in verdict.checks)} of {len(verdict.checks)} checks passed")
        result = change.decide(verdict.accepted, verdict.reasons, verdict.as_json())
    if result["state"] != "CONFIRMED":
        raise endings.fault(host, release.id, result, verdict)
    return verdict, result.get("out_s")
