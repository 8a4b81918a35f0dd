"""What a host says to a release before anything is pushed: asked by doctor, plan and apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kdeploy import deploy
from kdeploy.host import Host
from kdeploy.release import Release


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at on a host."""

    check: str
    ok: bool
    warn: bool
    """It is no reason to refuse, but look at it."""
    detail: str
    hint: str
    """What mends it."""


def look(host: Host, made: Release, demands: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Everything that `host` can say of the release `made`; of its tree only when that is there. Changes nothing."""
    answer = host.call("doctor", deploy.precheck_request(host, made, demands), timeout_s=deploy.LOOKS_WITHIN_S)
    return tuple(map(_read, answer["findings"]))


def _read(values: Mapping[str, Any]) -> Finding:
    return Finding(
        check=str(values.get("check")),
        ok=bool(values.get("ok")),
        warn=bool(values.get("warn")),
        detail=str(values.get("detail")),
        hint=str(values.get("hint") or ""),
    )
