"""Judging: a transcript and what was declared give a verdict. Nothing here talks to anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kdeploy.verdict.prompts import Prompt


class Outcome(Enum):
    """What came of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Expectation:
    """What was declared: by the release (version, tree, args) and by the profile's gate section (the rest)."""

    version: str  # what /server_info must say: 0.5.11+kd.<first 12 of tree>
    tree: str  # the git tree id; the name of the folder every process must have first on its path
    args: Mapping[str, Any]  # serve arguments as written, `--attention-backend: torch_native` or `attention_backend`
    prompts: tuple[Prompt, ...]
    min_answers: int = 6  # so many right answers at least, else nothing was shown
    company: int = 4  # the largest group must have at least so many answers
    agreement: float = 1.0  # least share of leading tokens that company and repetition must leave as they were
    min_accept_length: float | None = None  # for speculative decoding
    max_restarts: int = 0


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
        """Whether clients may reach the candidate."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """`name: detail` of every failed check."""
        return tuple(f"{check.name}: {check.detail}" for check in self.checks if not check.ok)

    def as_json(self) -> dict[str, Any]:
        """The verdict as plain values, for the evidence and for --json."""
        raise NotImplementedError


def judge(transcript: Mapping[str, Any], expectation: Expectation) -> Verdict:
    """Judge a transcript (as the agent gave it) against what was declared. Raises nothing: what is missing fails."""
    raise NotImplementedError
