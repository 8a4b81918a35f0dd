"""Facts of a host and a release give the steps to take. Pure: `kdeploy plan` stops here, `kdeploy apply` goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kdeploy.errors import RemoteError
from kdeploy.release import Release, flags
from kdeploy.secrecy import Digests, Secrets

Kind = Literal["prove", "push", "runtime", "precheck", "switch", "gate", "open", "confirm", "survive"]


@dataclass(frozen=True)
class Unit:
    """A supervised process of the service: the server, or the front."""

    alive: bool
    pid: int | None
    since: float | None
    release: str | None
    restarts: int = 0


@dataclass(frozen=True)
class Transaction:
    """The last change of a host."""

    txn: str
    state: str
    goal: str
    release: str
    previous: str | None
    reason: str
    running: bool
    deadline: str = ""
    """What comes next of itself, and when; in words."""

    @property
    def open(self) -> bool:
        """Whether it has not come to an end."""
        return self.state not in ("CONFIRMED", "ROLLED_BACK", "NEEDS_OPERATOR")


@dataclass(frozen=True)
class Facts:
    """What a host says of itself and of the service."""

    hostname: str
    python: str
    root: str
    git: str | None
    """Its version; None where there is none, and trees are sent whole."""
    disk_bytes: int
    runtimes: tuple[str, ...]
    current: str | None
    known_good: str | None
    known_goods: tuple[str, ...]
    left: tuple[str, ...]
    """Those of them that somebody rolled back from: a rollback does not bring them again by itself."""
    releases: tuple[str, ...]
    trees: tuple[str, ...]
    commits: tuple[str, ...]
    transaction: Transaction | None
    lock: Mapping[str, Any] | None
    server: Unit
    front: Unit
    rehash_ok: bool | None
    """Whether every file of the tree asked about has its sha256; None when it is not there or was not asked."""
    rehash_detail: str
    secrets: Digests
    """Of the values that the host keeps, to be compared with ours."""
    documents: Mapping[str, Any]
    """Releases that were asked for along with the facts: each one's `release` and `plan`."""
    silent: str
    """Why server or front, which run, do not answer a client; empty when they do, or when it was not asked."""
    answers: Mapping[str, Any]
    """Of server and front, where that was asked: `ok`, `detail`."""
    stopped: Mapping[str, Any] | None
    """By whom and when the service was stopped on purpose; None when that does not stand."""
    lost: str
    """Why what serves would not come back after a reboot; empty when it would, or when the host never could."""

    @property
    def starting(self) -> str | None:
        """What is about to start the service now, if anything is: a boot or a change."""
        if self.transaction is not None and self.transaction.open and self.transaction.running:
            return f"{self.transaction.goal} is at {self.transaction.state}"
        return "the host was booted" if self.lock and self.lock.get("verb") == "boot" else None

    @property
    def ways_back(self) -> tuple[str, ...]:
        """Where a rollback would go, the first choice first: known-good, not live, and nobody went back from there."""
        return tuple(release for release in self.known_goods if release not in (self.current, *self.left))

    @staticmethod
    def read(result: Mapping[str, Any]) -> Facts:
        """Facts from the agent's answer; raises RemoteError when it lacks something."""
        try:
            service = result["service"]
            last = service["transaction"]
            rehash = service.get("rehash") or {}
            units = service["units"]
            return Facts(
                hostname=result["hostname"],
                python=result["python"],
                root=result["root"],
                git=result["git"],
                disk_bytes=result["disk"]["bytes"],
                runtimes=tuple(result["runtimes"]),
                current=service["current"],
                known_good=service["known_good"],
                known_goods=tuple(service["known_goods"]),
                left=tuple(service["left"]),
                releases=tuple(service["releases"]),
                trees=tuple(service["trees"]),
                commits=tuple(service["commits"]),
                transaction=Transaction(**{key: last[key] for key in Transaction.__dataclass_fields__ if key in last})
                if last
                else None,
                lock=service["lock"],
                server=_unit(units["server"]),
                front=_unit(units["front"]),
                rehash_ok=rehash.get("ok"),
                rehash_detail=rehash.get("detail") or "",
                secrets=Digests(service["secrets"]["salt"], service["secrets"]["values"]),
                documents=result.get("documents") or {},
                silent=_silent(service.get("answers") or {}),
                answers=service.get("answers") or {},
                stopped=service.get("stopped"),
                lost=service.get("lost") or "",
            )
        except (KeyError, TypeError, AttributeError) as fault:
            raise RemoteError(f"the agent's facts lack {fault}") from fault


def _silent(answers: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {one['detail']}" for name, one in answers.items() if one and not one["ok"])


def _unit(values: Mapping[str, Any]) -> Unit:
    return Unit(
        bool(values["alive"]),
        values.get("pid"),
        values.get("since"),
        values.get("release"),
        values.get("restarts") or 0,
    )


@dataclass(frozen=True)
class Step:
    """One thing to do, in words a person reads before it is done."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Plan:
    """The steps that take a host to a release; none when it is there already."""

    release: str
    steps: tuple[Step, ...]
    reason: str

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its steps, in order."""
        return tuple(step.kind for step in self.steps)


def make(facts: Facts, release: Release, secrets: Secrets | None = None, proofs: str | None = None) -> Plan:
    """The plan that takes the host of `facts` to `release`, started with `secrets` (None: those that are there).

    `proofs` says where they run, `here` or `on the host`; None for none.
    """
    wrong = _not_right(facts, release, secrets or Secrets())
    if wrong is None and facts.lost:
        again = Step("survive", "have the service come back after a reboot; what serves is not touched")
        return Plan(release.id, (again,), f"{release.id} is live, but would be gone after a reboot: {facts.lost}")
    if wrong is None:
        return Plan(release.id, (), f"{release.id} is live, known-good, and every file is what was declared")
    tree, live = release.tree[:12], facts.current
    prove = Step("prove", f"run the proofs {proofs}: each must fail on the pristine tree and pass on the patched one")
    steps = [prove] if proofs == "here" else []
    if release.tree not in facts.trees or facts.rehash_ok is False:
        steps.append(Step("push", f"push tree {tree} and compare every file's sha256 with the manifest"))
    if (key := release.launch.runtime.get("key")) and key not in facts.runtimes:
        steps.append(Step("runtime", f"make the virtual environment {key} from its lock"))
    if proofs == "on the host":
        steps.append(prove)
    steps.append(Step("precheck", "import the tree, parse the launch arguments with its parser, check model and ports"))
    if live and facts.server.alive:
        stop = f"stop {live}" if live != release.id else f"restart {live}"
    else:
        stop = "nothing serves"
    steps += [
        Step("switch", f"{stop}; start {release.id} on 127.0.0.1:{release.launch.port}, the public port closed"),
        Step("gate", "ask it, judge its answers"),
        Step("open", f"open {release.launch.front.url(release.launch.port)} and watch it"),
        Step("confirm", "mark it known-good"),
    ]
    return Plan(release.id, tuple(steps), wrong)


def _not_right(facts: Facts, release: Release, secrets: Secrets) -> str | None:
    """Why the host does not serve `release` as declared; None when it does."""
    if facts.transaction is not None and facts.transaction.open:
        return f"a change was not finished (transaction {facts.transaction.txn}, {facts.transaction.state})"
    if facts.current is None:
        return "nothing was deployed here yet"
    if facts.current != release.id:
        return f"{facts.current} is live"
    if facts.known_good != release.id:
        return f"{release.id} is live but was never confirmed"
    fronted = release.launch.front.kind != "none"
    for name, unit in (("server", facts.server), *((("front", facts.front),) if fronted else ())):
        if not unit.alive:
            return f"the {name} of {release.id} does not run"
        if unit.release != release.id:
            return f"the {name} that runs is of {unit.release}, not of {release.id}"
    if changed := secrets.changed(facts.secrets):
        return f"secret {', '.join(changed)} changes"
    if facts.silent:
        return f"{release.id} runs but does not answer: {facts.silent}"
    if facts.rehash_ok is not True:
        return f"the tree of {release.id} is not what was declared: {facts.rehash_detail or 'it is gone'}"
    if facts.stopped:
        return f"{release.id} serves, though {facts.stopped.get('by') or 'somebody'} stopped it, which still stands"
    return None


def changes(live: Release, new: Release) -> tuple[str, ...]:
    """What is different in `new` from the release that is live, a line each; of environment values only the names."""
    if live.adopted is not None:
        return (f"what was adopted goes, and can be gone back to: {live.version or 'a server'} {_kept(live.adopted)}",)
    found = []
    if live.engine != new.engine:
        found.append(f"engine {live.engine} -> {new.engine}")
    before, after = ({one["ref"]: one["digest"] for one in release.patchsets} for release in (live, new))
    found += [f"patch set {ref} goes" for ref in before if ref not in after]
    found += [f"patch set {ref} comes" for ref in after if ref not in before]
    found += [f"patch set {ref} has changed" for ref in after if before.get(ref, after[ref]) != after[ref]]
    found += _differences(flags(live.launch.args), flags(new.launch.args))
    old, env = live.launch.env, new.launch.env
    found += [f"environment {name} changes" for name in sorted({*old, *env}) if old.get(name) != env.get(name)]
    found += [f"secret {name} comes" for name in new.launch.secrets if name not in live.launch.secrets]
    found += [f"secret {name} goes" for name in live.launch.secrets if name not in new.launch.secrets]
    for what in ("runtime", "front"):
        if getattr(live.launch, what) != getattr(new.launch, what):
            found.append(f"{what} {getattr(live.launch, what)} -> {getattr(new.launch, what)}")
    return tuple(found)


def _kept(adopted: Mapping[str, Any]) -> str:
    return f"({adopted.get('keeper')} {adopted.get('name') or ''}".rstrip() + ")"


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    keys = sorted({*before, *after})
    shown = {key: (before.get(key, "not given"), after.get(key, "not given")) for key in keys}
    return [f"--{key}: {old} -> {new}" for key, (old, new) in shown.items() if old != new]
