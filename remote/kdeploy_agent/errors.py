"""The one error of the agent."""

from __future__ import annotations

from typing import Sequence


class AgentError(Exception):
    """What a verb could not do.

    `kind` is one of the protocol's (locked, preflight, no-known-good, integrity, lacking, runtime, usage, fault),
    `message` says what happened, `hint` what a person can do about it, `details` (lines) what else there is to say.
    """

    def __init__(self, kind: str, message: str, hint: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.details = tuple(details)
