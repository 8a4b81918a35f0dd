"""How a change ended that did not end well: the error that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdeploy.errors import GateError, InterruptedByUser, RemoteError, RollbackFailedError
from kdeploy.host import Host
from kdeploy.verdict.judge import Verdict

ENDED = "ended by unlock of "
"""How the agent's reason begins for a change that somebody ended."""

_AGAIN = "`kdeploy history` shows who ended it; the same command run again tries anew"

NOTHING_BEFORE = "nothing was serving before"
"""The agent's note on a change that was undone on a host where nothing served."""


def fault(host: Host, release: str, result: Mapping[str, Any], verdict: Verdict | None) -> Exception:
    """The error that tells of a change that did not end with `release` confirmed, by the agent's `result`.

    GateError when the host is back where it was, InterruptedByUser when that is because somebody ended the change,
    RollbackFailedError when it is not back, else RemoteError.
    """
    state = result.get("state")
    first, *more = str(result.get("reason") or "no reason given").splitlines()
    details: tuple[str, ...] = ()
    if verdict is not None and not verdict.accepted:
        first, more = f"the gate says no ({', '.join(check.name for check in verdict.failed)})", []
        details = tuple(
            line
            for check in verdict.failed
            for line in (f"{check.name}: {check.detail}", *map("  {}".format, check.evidence[:4]))
        )
    ended = first.startswith(ENDED)  # nobody has judged it
    said = f"the change to {release} was {first}" if ended else f"{release} was rejected: {first}"
    if state == "ROLLED_BACK":
        after = str(result.get("note") or "")
        if result.get("out_s") is not None:
            after = f"{after}; clients were without answers for {float(result['out_s']):.1f} s"
        if after == NOTHING_BEFORE:
            after = f"{after}, so the public port stays closed"
        if ended:
            return InterruptedByUser(f"{host.name}: {said}", hint=_AGAIN, details=(*more, f"now: {after}"))
        return GateError(
            f"{host.name}: {said}",
            hint=f"evidence: {host.root}/{host.service}/releases/{release}/evidence",
            details=(*more, *details, f"now: {after}"),
        )
    if state == "NEEDS_OPERATOR":
        return RollbackFailedError(
            f"{host.name}: {release} was rejected and the way back failed: {first}",
            hint=f"`kdeploy logs` shows why on {host.name}; `kdeploy rollback --to RELEASE` tries another known-good",
            details=(*more, *details),
        )
    return RemoteError(f"{host.name}: the change of {release} ended {state}: {first}", details=(*more, *details))
