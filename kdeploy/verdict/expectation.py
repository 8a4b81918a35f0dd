"""What was declared, and what comes of judging it: the types of the judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kdeploy.verdict.figures import Known
from kdeploy.verdict.prompts import Bounds, Prompt
from kdeploy.verdict.seen import Transcript


class Outcome(Enum):
    """What came of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Expectation:
    """What was declared: by the release (version, tree, args) and by the profile's gate section (the rest)."""

    version: str  # what /server_info must say: 0.5.11+kd.<first 12 of tree>
    tree: str  # the git tree id: the name of the folder every process must have first on its path
    args: Mapping[str, Any]  # serve arguments as written, dashes or not; false and null mean left out
    prompts: tuple[Prompt, ...]
    bounds: Bounds = field(default_factory=Bounds)
    min_answers: int = 6  # so many different prompts answered right at least, else nothing was shown
    agreement: float = 1.0  # least share of leading tokens that company and repetition leave as they were
    lossless: float = 0.0  # share of tokens that may be others than a prefill of the same text says
    margin: float = 0.1  # nats: two tokens that are not further apart are near ties
    min_accept_length: float | None = None  # tokens a step of speculative decoding; None: no floor
    acceptance: float = 0.8  # least share of the accept length of `known`
    speed: float = 0.5  # least share of the tokens/s of `known`
    first_answer_s: float = 15.0  # from green health to the first answer
    known: Known | None = None  # what known-good showed on this host; None: nothing to compare with
    launched: bool = True  # whether it was started to be asked; else it was up already
    remote_url: str | None = None  # where it was asked from another machine: its host could not be looked at
    max_restarts: int = 0
    allowed_log: tuple[str, ...] = ()  # regular expressions of log lines that are excused

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm that was declared."""
        declared = self.args.get("speculative-algorithm") or self.args.get("speculative_algorithm")
        return str(declared) if declared else None

    def comparable(self, transcript: Transcript) -> Known | None:
        """The figures of known-good, when it serves the same model."""
        info = transcript.server_info.body
        model = info.get("model_path") if isinstance(info, Mapping) else None
        return self.known if self.known is not None and self.known.model == model else None


@dataclass(frozen=True)
class Check:
    """One named question and its answer; `evidence` are lines a person can look at."""

    name: str
    outcome: Outcome
    detail: str
    evidence: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether this check lets the candidate through."""
        return self.outcome is not Outcome.FAILED


@dataclass(frozen=True)
class Verdict:
    """All checks of one candidate, in the order in which they were made."""

    checks: tuple[Check, ...]

    @property
    def accepted(self) -> bool:
        """Whether clients may reach the candidate: something passed and nothing failed."""
        return any(check.outcome is Outcome.PASSED for check in self.checks) and not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that say no."""
        return tuple(check for check in self.checks if not check.ok)

    @property
    def reasons(self) -> tuple[str, ...]:
        """`name: detail` of every failed check."""
        return tuple(f"{check.name}: {check.detail}" for check in self.failed)

    def as_json(self) -> dict[str, Any]:
        """The verdict as plain values, for the evidence and for --json."""
        checks = [
            {
                "name": check.name,
                "outcome": check.outcome.value,
                "detail": check.detail,
                "evidence": list(check.evidence),
            }
            for check in self.checks
        ]
        return {"accepted": self.accepted, "checks": checks}


def passed(name: str, detail: str, *evidence: str) -> Check:
    """A check that lets the candidate through."""
    return Check(name, Outcome.PASSED, detail, evidence)


def failed(name: str, detail: str, *evidence: str) -> Check:
    """A check that does not."""
    return Check(name, Outcome.FAILED, detail, evidence)


def not_applicable(name: str, why: str) -> Check:
    """A check that has nothing to look at, and says why."""
    return Check(name, Outcome.NOT_APPLICABLE, why)


def unseen(name: str, expectation: Expectation) -> Check:
    """A check of what was not looked at, because the server was asked from another machine."""
    return not_applicable(name, f"asked at {expectation.remote_url}: its host was not looked at")


def absent(name: str, planned: bool) -> Check:
    """A check without an answer to look at: a failure when there should have been one."""
    return failed(name, "planned, and not answered") if planned else not_applicable(name, "the plan has none")


def settle(name: str, good: str, bad: list[str], shown: int = 8) -> Check:
    """Passed with `good` when `bad` is empty, else failed: the first fault as detail, more of them as evidence."""
    if not bad:
        return passed(name, good)
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return failed(name, bad[0] + more, *bad[1 : shown + 1])
