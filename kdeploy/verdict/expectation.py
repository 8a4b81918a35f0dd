"""What was declared, and what comes of judging it: the types of the judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kdeploy.verdict.prompts import Bounds, Prompt


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
    min_accept_length: float | None = None  # tokens a step of speculative decoding; None: not judged
    max_restarts: int = 0
    allowed_log: tuple[str, ...] = ()  # regular expressions of log lines that are excused


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


def absent(name: str, planned: bool) -> Check:
    """A check without an answer to look at: a failure when there should have been one."""
    return failed(name, "planned, and not answered") if planned else not_applicable(name, "the plan has none")


def settle(name: str, good: str, bad: list[str], shown: int = 8) -> Check:
    """Passed with `good` when `bad` is empty, else failed: the first fault as detail, more of them as evidence."""
    if not bad:
        return passed(name, good)
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return failed(name, bad[0] + more, *bad[1 : shown + 1])
