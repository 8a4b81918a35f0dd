"""Calibrating: a server is asked several times over, and what differs without a cause is its noise."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy.api import gate as gating
from kdeploy.errors import GateError
from kdeploy.gating import Trial
from kdeploy.profile import Profile
from kdeploy.progress import Note
from kdeploy.report import keep
from kdeploy.verdict import thresholds, transcript
from kdeploy.verdict.expectation import Verdict, failed
from kdeploy.verdict.thresholds import KEYS, Thresholds
from kdeploy.verdict.transcript import Transcript, TranscriptError


@dataclass(frozen=True)
class Calibrated:
    """Thresholds that were measured, and where they are kept."""

    host: str
    file: Path
    runs: int
    figures: tuple[tuple[str, str, str], ...]
    """Threshold, its value, and what was measured of it."""
    line: str | None
    """What the profile's gate section lacks to use them; None when it names the file."""


def calibrate(path: Path, note: Note, *, runs: int, host: str | None = None, url: str | None = None) -> Calibrated:
    """Ask one server of a profile `runs` times and write the thresholds that follow beside the profile.

    Every run must pass with them, else GateError is raised and nothing is written: they are for noise, not for faults.
    """
    read, trial = gating.trial_of(path, note)
    gating.must_be_one(read, host, url)
    (made,) = [_measure(target, read, trial, note, runs) for target in gating.targets(read, host, url)]
    return made


def _measure(target: gating.Target, read: Profile, trial: Trial, note: Note, runs: int) -> Calibrated:
    target = dataclasses.replace(target, known_good=None, before=None)  # each run is compared with the others alone
    seen: list[Mapping[str, Any]] = []
    for number in range(1, runs + 1):
        note(f"{target.name}: run {number} of {runs}")
        seen.append(gating.ask(target, trial, note))
    release = target.live or trial.release.id
    found = thresholds.calibrate(
        [_read(target, one, number) for number, one in enumerate(seen, 1)], release=release, host=target.name
    )
    settled = dataclasses.replace(trial, gate=thresholds.settle_gate(read.file.gate, found))
    for number, one in enumerate(seen, 1):
        _must_pass(target.name, number, gating.judged(target, settled, one).verdict)
    file = _file(read)
    keep.write(file, thresholds.as_yaml(found), private=False)
    return Calibrated(target.name, file, runs, _figures(found), _line(read, file))


def _read(target: gating.Target, values: Mapping[str, Any], number: int) -> Transcript:
    try:
        return transcript.read(values, remote=target.url is not None)
    except TranscriptError as fault:
        _must_pass(target.name, number, Verdict((failed("transcript", fault.message),)))
        raise


def _must_pass(host: str, number: int, verdict: Verdict) -> None:
    if not verdict.accepted:
        names = ", ".join(check.name for check in verdict.failed)
        raise GateError(
            f"{host}: in run {number} the gate says no ({names}), whatever noise is allowed for",
            hint="`kdeploy gate` shows all of it; calibrate a server that is right",
            details=(*verdict.reasons, "nothing was written, and nothing was changed"),
        )


def _file(read: Profile) -> Path:
    """The calibration file that the profile names, or the one beside it."""
    named = read.file.gate.thresholds
    return read.beside(named, "gate", "thresholds") if named else read.path.with_suffix(".thresholds.yaml")


def _line(read: Profile, file: Path) -> str | None:
    if read.file.gate.thresholds is not None:
        return None
    return f"gate: {{thresholds: {os.path.relpath(file, read.path.parent)}}}"


def _figures(found: Thresholds) -> tuple[tuple[str, str, str], ...]:
    noise = found.noise
    apart = "" if noise.margin is None else f", at most {noise.margin:g} nats apart"
    bands = {"min_accept_length": noise.accept_length, "acceptance": noise.accept_length, "speed": noise.speed}
    seen = {
        "agreement": f"{noise.agreement:.1%} of leading tokens stayed at least",
        "lossless": f"{noise.lossless:.2%} of tokens differed from a prefill at most{apart}",
        "margin": "no two tokens differed" if noise.margin is None else f"{noise.margin:g} nats at most",
        **{key: "; ".join(f"{one.of}: {one.least:g} to {one.most:g}" for one in some) for key, some in bands.items()},
    }
    values = {key: getattr(found, key) for key in KEYS}
    return tuple((key.replace("_", "-"), f"{value:g}", seen[key]) for key, value in values.items() if value is not None)
