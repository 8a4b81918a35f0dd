"""What a release is asked and judged by: from what it is and what its gate demands to plan, expectation and verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kdeploy.profile import Gate
from kdeploy.release import Release, flags
from kdeploy.verdict import figures, transcript
from kdeploy.verdict import judge as judging
from kdeploy.verdict import prompts as asking
from kdeploy.verdict.figures import Known
from kdeploy.verdict.judge import Verdict

_JUDGED_BY = "judged-by"


@dataclass(frozen=True)
class Trial:
    """A release, the gate it must pass, and the prompts it is asked."""

    release: Release
    gate: Gate
    """With the figures of its calibration file, if any (`verdict.thresholds.settle_gate`)."""
    prompts: tuple[asking.Prompt, ...]

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What the release declares that its server is launched with, by flag."""
        if self.release.adopted is not None:
            return {"model-path": "adopted"}  # nobody declared it: there is nothing to compare
        return dict(flags(self.release.launch.args))

    @property
    def bounds(self) -> asking.Bounds:
        """How much is asked, and how a server with these arguments can be asked."""
        gate, how = self.gate, asking.reasking(self.arguments)
        return asking.Bounds(
            quick=not gate.full,
            together=asking.sizes(self.arguments, gate.company),
            json=asking.takes_schemas(self.arguments),
            request_s=gate.request_s,
            lossless=how[0],
            why=how[1],
            agreement=gate.agreement,
            soak_every_s=gate.soak_every_s,
        )

    def probes(self) -> dict[str, Any]:
        """The plan for the agent, and in it what the release is judged by: a host keeps that for the way back."""
        model = str(self.arguments.get("served-model-name") or self.arguments["model-path"])
        kept = {
            "gate": self.gate.model_dump(by_alias=True, exclude={"prompts", "thresholds"}),
            "prompts": [prompt.model_dump(by_alias=True) for prompt in self.prompts],
        }
        return {**asking.probes(self.prompts, self.bounds, model), _JUDGED_BY: kept}

    def expectation(
        self, known: Known | None = None, *, launched: bool = True, remote_url: str | None = None
    ) -> judging.Expectation:
        """What the transcript is judged against; `known` is what known-good showed on the same host.

        A server that was not `launched` to be asked was up already; of one at a `remote_url` the host was not seen.
        """
        gate = self.gate
        return judging.Expectation(
            version=self.release.version,
            tree=self.release.tree,
            args={key: value for key, value in self.arguments.items() if key not in ("host", "port")},
            prompts=self.prompts,
            bounds=self.bounds,
            agreement=gate.agreement,
            lossless=gate.lossless,
            margin=gate.margin,
            min_accept_length=gate.min_accept_length,
            acceptance=gate.acceptance,
            speed=gate.speed,
            first_answer_s=gate.first_answer_s,
            known=known,
            launched=launched,
            remote_url=remote_url,
        )

    def judge(self, values: Mapping[str, Any], known: Known | None) -> Verdict:
        """The verdict on the transcript of a change."""
        if self.release.adopted is not None:
            return judging.as_found(values)
        return judging.judge(values, self.expectation(known))


@dataclass(frozen=True)
class Judged:
    """A transcript and what is thought of it, beside what known-good showed when it was confirmed."""

    release: str
    transcript: Mapping[str, Any]
    verdict: Verdict
    known_good: str | None
    """The release that it was compared with."""
    before: Mapping[str, Any] | None
    """That release's transcript; None when the host has none."""


def judged_by(plan: Any) -> tuple[Gate, tuple[asking.Prompt, ...]] | None:
    """The gate and prompts that a release on a host was confirmed with; None when the host has kept none."""
    try:
        kept = plan["probes"][_JUDGED_BY]
        return Gate.model_validate(kept["gate"]), tuple(map(asking.Prompt.model_validate, kept["prompts"]))
    except (KeyError, TypeError, ValueError):
        return None


def known_from(values: Any, release: str) -> Known | None:
    """The figures of the transcript `values` that `release` was confirmed with; None for one that cannot be read.

    It may be of an earlier protocol, or of an adopted server: then there is nothing to compare with.
    """
    try:
        return figures.figures(transcript.read(values), release)
    except transcript.TranscriptError:
        return None
