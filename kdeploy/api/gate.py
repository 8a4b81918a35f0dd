"""The verb that asks what serves now: the gate's questions and its verdict, with nothing changed on any host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import deploy, gating, places
from kdeploy.api import hosts, pages, stages
from kdeploy.api.reach import hosts_of
from kdeploy.errors import KdeployError, UsageError
from kdeploy.gating import Judged, Trial
from kdeploy.host import Host, telling
from kdeploy.profile import Profile
from kdeploy.progress import Note
from kdeploy.report import keep
from kdeploy.transport.local import LocalTransport
from kdeploy.verdict import judge
from kdeploy.verdict.judge import Verdict

_ON_THE_WAY_S = 60.0
"""What a request may take beyond the time for its questions, seconds."""


@dataclass(frozen=True)
class Target:
    """A server to be asked: what serves on `host`, or whatever is at `url`, asked by the agent there."""

    name: str
    host: Host
    url: str | None
    live: str | None
    """The release that serves on the host; None for a URL."""
    known_good: str | None
    before: Mapping[str, Any] | None
    """What known-good's host has kept of it: its transcript when it was confirmed."""


@dataclass(frozen=True)
class Gated:
    """What came of asking one server."""

    host: str
    service: str
    url: str | None
    live: str | None
    verdict: Verdict
    seconds: float
    """How long the questions took."""
    page: Path | None
    """The HTML page about it; None when it could not be kept."""


def gate(
    path: Path, note: Note, *, host: str | None = None, url: str | None = None, html: Path | None = None
) -> tuple[Gated, ...]:
    """Ask every server of a profile (one `host`'s, or the one at `url`) and judge what it answers.

    The page about it is written to `html`, or kept with kdeploy's own. Raises PreflightError when nothing serves,
    LockedError while a host is being changed.
    """
    read, trial = trial_of(path, note)
    if html is not None:
        must_be_one(read, host, url)
    return tuple(_gated(target, trial, note, html) for target in targets(read, host, url))


def trial_of(path: Path, note: Note) -> tuple[Profile, Trial]:
    """A profile, and what its servers are asked today. They must be just what it declares: its tree is staged."""
    staged = stages.stage(path, note, check_out=False)
    read = staged.declared.profile
    return read, Trial(hosts.make_release(staged), hosts.gate_of(read), hosts.prompts_of(read))


def must_be_one(read: Profile, host: str | None, url: str | None) -> None:
    """Raise UsageError unless it is said which one server is meant."""
    if url is None and host is None and len(read.hosts) > 1:
        raise UsageError("this is about one server, and the profile has more", hint=f"--host: {', '.join(read.hosts)}")


def targets(read: Profile, host: str | None, url: str | None) -> Iterator[Target]:
    """The servers to ask, each connected to when its turn comes."""
    if url is not None:
        yield from _elsewhere(read, host, url)
        return
    if host is not None and host not in read.hosts:
        raise UsageError(f"{read.name} has no host '{host}'", hint=f"its hosts: {', '.join(read.hosts)}")
    for one in hosts_of(read):
        if host in (None, one.name):
            facts = deploy.facts(one, None)
            known = facts.known_good if facts.known_good in facts.known_goods else None
            kept = one.call("evidence", {"release": known})["confirmed"] if known else None
            yield Target(one.name, one, None, facts.current, known, kept if isinstance(kept, Mapping) else None)


def _elsewhere(read: Profile, host: str | None, url: str) -> Iterator[Target]:
    found = re.fullmatch(r"https?://([^/?#@\s]+)(/[^?#\s]*)?", url)
    if found is None:
        raise UsageError(f"'{url}' is no URL of a server", hint="http://HOST:PORT")
    if host is not None:
        raise UsageError("--host and --url name two servers", hint="give one of them")
    with Host(LocalTransport("localhost"), str(places.host_root()), read.file.service) as here:
        yield Target(found[1], here, url.rstrip("/"), None, None, None)


def ask(target: Target, trial: Trial, note: Note) -> Mapping[str, Any]:
    """Have the server asked; gives the transcript."""
    request = {"probes": trial.probes(), "release": None, "url": target.url, "within_s": trial.gate.probe_s}
    within = trial.gate.probe_s + _ON_THE_WAY_S
    told = target.host.call("probe", request, on_event=telling(target.name, note), timeout_s=within)
    if told["release"] not in (None, trial.release.id):
        note(f"{target.name}: {told['release']} serves, the profile declares {trial.release.id}: see `kdeploy plan`")
    transcript: Mapping[str, Any] = told["transcript"]
    return transcript


def judged(target: Target, trial: Trial, transcript: Mapping[str, Any]) -> Judged:
    """The verdict on a server that was up already, beside what known-good showed."""
    known = gating.known_from(target.before, str(target.known_good))
    verdict = judge.judge(transcript, trial.expectation(known, launched=False, remote_url=target.url))
    return Judged(target.live or trial.release.id, transcript, verdict, target.known_good, target.before)


def _gated(target: Target, trial: Trial, note: Note, html: Path | None) -> Gated:
    seen = judged(target, trial, ask(target, trial, note))
    facts = {"asked at": target.url} if target.url else {}
    if seen.release != trial.release.id:
        facts["declared"] = trial.release.id
    about = pages.of(target.name, "gate", trial, seen, facts)
    try:
        path: Path | None = keep.write(html or keep.place(about), pages.text(about, seen, trial))
    except KdeployError as fault:
        if html is not None:
            raise
        note(f"{target.name}: {fault.message}")
        path = None
    seconds = float(seen.transcript.get("seconds") or 0.0)
    return Gated(target.name, trial.release.service, target.url, target.live, seen.verdict, seconds, path)
