"""What can go wrong, by kind: each kind of error carries its exit code, its place and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes by kind, so that a script can act without reading the message."""

    OK = 0
    FAULT = 1
    USAGE = 2
    PROFILE = 10
    PATCHSET = 11
    ANCHOR = 20
    CONFLICT = 21
    PROOF = 22
    UNREACHABLE = 30
    REMOTE = 31
    LOCKED = 32
    PREFLIGHT = 33
    DRIFT = 34
    GATE = 40
    ROLLBACK_FAILED = 41
    NO_KNOWN_GOOD = 42
    INTERRUPTED = 130


@dataclass(frozen=True, order=True)
class Location:
    """A place in a file a person wrote; line and column count from 1, as editors do."""

    path: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class KdeployError(Exception):
    """An error a user can act on.

    Takes the message (what), `where` it is, a `hint` (what to do) and `details` (lines of evidence, such as a
    diff). The class decides the exit code.
    """

    code: ClassVar[ExitCode] = ExitCode.FAULT

    def __init__(
        self,
        message: str,
        *,
        where: Location | None = None,
        hint: str | None = None,
        details: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class UsageError(KdeployError):
    """The command line asks for something that does not exist."""

    code = ExitCode.USAGE


class ProfileError(KdeployError):
    """A profile, the hosts file or the lock is not valid."""

    code = ExitCode.PROFILE


class PatchSetError(KdeployError):
    """A patch set is not valid, not there, or not what the lock says."""

    code = ExitCode.PATCHSET


class AnchorError(KdeployError):
    """An anchor does not let its patch through."""

    code = ExitCode.ANCHOR


class ConflictError(KdeployError):
    """The patches apply, but the result is not one: it does not compile, or is not the tree in the lock."""

    code = ExitCode.CONFLICT


class ProofError(KdeployError):
    """A proof did not fail on the pristine tree, or did not pass on the patched one."""

    code = ExitCode.PROOF


class UnreachableError(KdeployError):
    """A host or a package index cannot be reached."""

    code = ExitCode.UNREACHABLE


class RemoteError(KdeployError):
    """A command on a host failed, or answered what it should not."""

    code = ExitCode.REMOTE


class LockedError(KdeployError):
    """Somebody else is changing this host."""

    code = ExitCode.LOCKED


class PreflightError(KdeployError):
    """The host cannot serve this release, or this machine cannot stage it; nothing was stopped."""

    code = ExitCode.PREFLIGHT


class GateError(KdeployError):
    """The gate says no: a candidate was rejected and the host serves what it served before, or nothing was changed."""

    code = ExitCode.GATE


class RollbackFailedError(KdeployError):
    """The candidate was rejected and known-good did not come back: hands are needed."""

    code = ExitCode.ROLLBACK_FAILED


class NoKnownGoodError(KdeployError):
    """There is nothing to go back to."""

    code = ExitCode.NO_KNOWN_GOOD


class InterruptedByUser(KdeployError):
    """Ctrl-C, or a termination signal."""

    code = ExitCode.INTERRUPTED
