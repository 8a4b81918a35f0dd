"""Thresholds from A/A runs: the same server asked several times shows how far its answers and its speed scatter.

A calibration file holds the figures that follow, and with them how they came about: what was measured, of what, where
and when. What a profile's gate section says itself goes before them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from kdeploy import document
from kdeploy.document import Model
from kdeploy.errors import ProfileError, UsageError
from kdeploy.profile import Gate
from kdeploy.profile.values import Share
from kdeploy.verdict.company import agreement, alike
from kdeploy.verdict.figures import COMPANY, EVERYTHING, accept_lengths, paces
from kdeploy.verdict.seen import Transcript

LEAST_RUNS = 2
KEYS = ("agreement", "lossless", "margin", "min_accept_length", "acceptance", "speed")
"""What a calibration file can say of a gate section."""

Figure = Annotated[int | float, Field(ge=0, allow_inf_nan=False)]


class Made(Model):
    """How a calibration file came about."""

    when: str = Field(description="the first run, UTC")
    engine: str = Field(description="version as the server said it")
    release: str
    host: str
    runs: Annotated[int, Field(ge=LEAST_RUNS)]


class Band(Model):
    """The least and the most that was measured of something."""

    of: str
    least: Figure
    most: Figure


class Noise(Model):
    """What was measured while nothing differed."""

    agreement: Share = Field(description="least share of leading tokens that stayed, in company, repeated, run to run")
    lossless: Share = Field(description="most tokens of a run that a prefill said otherwise, as a share")
    margin: Figure | None = Field(default=None, description="the furthest of these apart, nats; none without logprobs")
    speed: list[Band] = Field(default=[], description="tokens/s by requests at once")
    first: list[Band] = Field(default=[], description="seconds to the first piece, by requests at once")
    accept_length: list[Band] = Field(default=[], description="tokens a step by kind of prompt")


class Thresholds(Model):
    """A calibration file."""

    made: Made
    agreement: Share | None = None
    lossless: Share | None = None
    margin: Figure | None = None
    min_accept_length: Annotated[int | float, Field(ge=1, allow_inf_nan=False)] | None = None
    acceptance: Share | None = None
    speed: Share | None = None
    noise: Noise


def load_thresholds(path: Path) -> Thresholds:
    """Read a calibration file; raises ProfileError with the place of the fault."""
    return document.load(path, Thresholds, ProfileError)[0]


def settle_gate(gate: Gate, thresholds: Thresholds | None) -> Gate:
    """The gate with the figures of `thresholds` where its section said nothing."""
    if thresholds is None:
        return gate
    given = {key: getattr(thresholds, key) for key in KEYS if key not in gate.model_fields_set}
    return gate.model_copy(update={key: value for key, value in given.items() if value is not None})


def calibrate(transcripts: Sequence[Transcript], *, release: str, host: str) -> Thresholds:
    """Thresholds from A/A runs of one `release` on one `host`.

    What never scattered stays as strict as it is; what did is given twice the room it took, speed a fifth more.
    Raises UsageError for fewer than two runs.
    """
    if len(transcripts) < LEAST_RUNS:
        raise UsageError(f"{len(transcripts)} run shows no noise: {LEAST_RUNS} at least are needed")
    first = transcripts[0]
    info = first.server_info.body
    engine = str(info.get("version")) if isinstance(info, Mapping) else "unknown"
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first.started))
    margins = [margin for told in transcripts for margin in _margins(told)]
    noise = Noise(
        agreement=_down(min(_agreements(transcripts), default=1.0)),
        lossless=_up(max(_differing(told) for told in transcripts)),
        margin=_up(max(margins)) if margins else None,
        speed=_bands([{str(at): one.tokens_per_s for at, one in paces(told).items()} for told in transcripts]),
        first=_bands([{str(at): one.first_s for at, one in paces(told).items()} for told in transcripts]),
        accept_length=_bands([accept_lengths(told) for told in transcripts]),
    )
    with_logprobs = first.lossless.how == "logprobs"
    return Thresholds(
        made=Made(when=when, engine=engine, release=release, host=host, runs=len(transcripts)),
        agreement=1.0 if noise.agreement == 1.0 else _down(noise.agreement / 2),
        lossless=0.0 if with_logprobs else _up(min(1.0, 2 * noise.lossless)),
        margin=_up(2 * noise.margin) if with_logprobs and noise.margin else None,
        min_accept_length=_floor(noise.accept_length),
        acceptance=_share(noise.accept_length, 0.95),
        speed=_share(noise.speed, 0.8),
        noise=noise,
    )


def as_yaml(thresholds: Thresholds) -> str:
    """The text of a calibration file; `load_thresholds` reads the same from it."""
    values = thresholds.model_dump(by_alias=True, exclude_none=True)
    head = "# Made by `kdeploy gate --calibrate`; what the profile's gate section says itself goes before these.\n"
    return head + "".join(f"{line}\n" for line in _lines(values))


def _agreements(transcripts: Sequence[Transcript]) -> Iterator[float]:
    for told in transcripts:
        yield from (agreement(alone, other) for alone, other in alike(told))
    names = {answer.name: answer for answer in (*transcripts[0].alone, *transcripts[0].long)}
    for told in transcripts[1:]:
        for answer in (*told.alone, *told.long):
            before = names.get(answer.name)
            if before is not None and answer.error is None and before.error is None:
                yield agreement(before, answer)


def _differing(told: Transcript) -> float:
    pairs = [pair for one in told.lossless.answers for pair in zip(one.said, one.again, strict=True)]
    return sum(said != again for said, again in pairs) / len(pairs) if pairs else 0.0


def _margins(told: Transcript) -> Iterator[float]:
    for one in told.lossless.answers:
        for said, again, apart in zip(one.said, one.again, one.margins, strict=True):
            if said != again and apart is not None:
                yield max(0.0, apart)


def _bands(runs: Sequence[Mapping[str, float]]) -> list[Band]:
    """The band of every figure that each run has."""
    common = [name for name in runs[0] if all(name in run for run in runs)]
    columns = {name: [run[name] for run in runs] for name in common}
    return [Band(of=name, least=_down(min(seen)), most=_up(max(seen))) for name, seen in columns.items()]


def _share(bands: Sequence[Band], room: float) -> float | None:
    """The least share of known-good's figure that noise does not reach; `room` of the worst ratio that was seen."""
    ratios = [band.least / band.most for band in bands if band.most > 0]
    return _down(room * min(ratios)) if ratios else None


def _floor(bands: Sequence[Band]) -> float | None:
    """An accept length that is well below what was seen, as far as that is above 1."""
    means = [band.least for band in bands if band.of in (EVERYTHING, COMPANY)]
    return round(max(1.0, 1 + 0.8 * (min(means) - 1)), 3) if means else None


def _down(value: float) -> float:
    return max(0.0, round(value - 0.0005, 3)) if value != round(value, 3) else value


def _up(value: float) -> float:
    return round(value + 0.0005, 3) if value != round(value, 3) else value


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Block YAML; every text in quotes, so that none is read as something else."""
    for key, item in values.items():
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from _lines(item, indent + "  ")
        elif isinstance(item, list):
            yield f"{indent}{key}:{'' if item else ' []'}"
            for one in item:
                yield f"{indent}  - {{{', '.join(f'{name}: {_scalar(value)}' for name, value in one.items())}}}"
        else:
            yield f"{indent}{key}: {_scalar(item)}"


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    shown = (char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08x}" for char in value)
    return f'"{"".join(shown)}"'
