"""What a look at this host found: it is well, it is not (and what mends it), or it cannot be judged from here."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from kdeploy_agent.errors import AgentError

Finding = Dict[str, Any]
"""`check` (what was looked at), `ok`, `warn` (ok, but look at it), `detail` (what was seen), `hint` (the fix)."""


def well(check: str, detail: str) -> Finding:
    """Nothing stands against it."""
    return {"check": check, "ok": True, "warn": False, "detail": detail, "hint": ""}


def doubt(check: str, detail: str, hint: str) -> Finding:
    """It cannot be judged, or may do harm later: told, but no reason to refuse."""
    return {"check": check, "ok": True, "warn": True, "detail": detail, "hint": hint}


def wrong(check: str, detail: str, hint: str) -> Finding:
    """A release would not serve here before somebody does what `hint` says."""
    return {"check": check, "ok": False, "warn": False, "detail": detail, "hint": hint}


def judged(check: str, ok: bool, detail: str, hint: str) -> Finding:
    """`well` or `wrong`."""
    return well(check, detail) if ok else wrong(check, detail, hint)


def refusal(findings: Sequence[Finding], serving: bool = True) -> AgentError:
    """The error that says no: the first finding that is wrong, the others line by line, and what was not stopped.

    `serving` is whether anything serves here that goes on.
    """
    bad: List[Finding] = [one for one in findings if not one["ok"]]
    first, *more = bad
    lines = [f"{one['check']}: {one['detail']}" + (f" ({one['hint']})" if one["hint"] else "") for one in more]
    return AgentError(
        "preflight",
        f"{first['check']}: {first['detail']}",
        first["hint"],
        [*lines, "nothing was stopped: what served before serves on" if serving else "nothing was stopped"],
    )
