"""How a unit of systemd ended, in the words that the supervisor has for it. Pure."""

from __future__ import annotations

import signal
import time
from typing import Dict

from kdeploy_agent.keeping.unit_files import NOT_STARTED
from kdeploy_agent.keeping.units import RESTARTS, WINDOW_S

_EXITED, _KILLED, _DUMPED = "123"  # ExecMainCode, as waitid tells it


def of_candidate(shown: Dict[str, str], kept: str) -> Dict[str, str]:
    """What systemd shows of a unit that may not be restarted, as if it had not tried: `exec` says no to that.

    `kept` is what the unit kept when its process ended (unit_files.ended).
    """
    if shown["ActiveState"] == "activating" and shown["SubState"].startswith("auto-restart"):
        return {**shown, "ActiveState": "failed"}
    words = kept.split()
    if len(words) != 3 or shown["ExecMainStatus"] != str(NOT_STARTED):
        return shown
    result, how, status = words
    number = status if how == "exited" else str(int(getattr(signal, f"SIG{status}", 0)))
    code = {"exited": _EXITED, "killed": _KILLED}.get(how, _DUMPED)
    return {**shown, "Result": result, "ExecMainCode": code, "ExecMainStatus": number, "NRestarts": "0"}


def note(shown: Dict[str, str], refused: str, gave_up: bool) -> str:
    """How a unit that is not alive came to that, in the supervisor's words."""
    if shown["LoadState"] == "not-found":
        return "it was not started since the host booted"
    ended = f"not started: {refused}" if refused else _ended(shown)
    if shown["ActiveState"] in ("activating", "deactivating"):
        return f"{ended}; restarting"
    return (
        f"{ended}; gave up after {RESTARTS} restarts in {WINDOW_S / 60:.0f} minutes"
        if gave_up
        else f"{ended}; not restarted"
    )


def _ended(shown: Dict[str, str]) -> str:
    code, status = shown["ExecMainCode"], shown["ExecMainStatus"]
    if shown["Result"] == "oom-kill":
        return "out of memory: the kernel killed it"
    if shown["Result"] in ("resources", "trigger-limit-hit", "service-start-limit-hit"):
        return f"systemd gave it up ({shown['Result']})"
    return f"killed by signal {status}" if code in (_KILLED, _DUMPED) else f"exited with {status}"


def wall(monotonic_us: str) -> float:
    """Seconds since the epoch of a moment that systemd tells by the monotonic clock; 0 when it has none."""
    since = int(monotonic_us or 0) / 1e6
    return round(time.time() - time.monotonic() + since, 3) if since else 0.0
