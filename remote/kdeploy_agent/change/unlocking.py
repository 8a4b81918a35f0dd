"""`unlock`: who is changing the service, and an end to that when somebody says so.

Only the processes that change the service are ended, never those that serve. What they leave half-done is healed then
as if they had been killed by anything else: the host is back on what served before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Dict, List, Optional

from kdeploy_agent.change import operate
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, locking, processes
from kdeploy_agent.ground.journal import DONE, INTENT, Journal, Transaction
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.order import Order
from kdeploy_agent.ground.protocol import Call

_FREED_WITHIN_S = 10.0


def unlock(call: Call) -> Dict[str, Any]:
    """Verb: `held` by whom, and nothing else to do when nobody holds the lock and the last change has ended.

    With `yes` the change ends: `ended` are the processes that were killed, and the host is healed (as `recover` says).
    Without, it raises `locked` saying who it is, how far they are, and until when the host goes back by itself.
    """
    layout = call.layout
    held = locking.holder(layout.lock)
    last = Journal(layout.journal).last()
    cut_off = last is not None and not last.finished
    if held is None and not cut_off:
        return {"held": None, "ended": [], "healed": False, "state": last.state if last else None}
    if call.request.get("yes") is not True:
        raise _told(layout, held, last if cut_off else None)
    if held is not None and last is not None and cut_off:
        with contextlib.suppress(OSError):  # on a full disk the reason is only that it was killed
            files.write(layout.ended(last.txn), files.canonical({"by": call.text("by")}))
    ended = _end(layout)
    return {"held": held, "ended": ended, **operate.recover(call)}


def holders(layout: Layout) -> List[int]:
    """Pids of every process that holds the service's lock, though somebody may have removed its file."""
    return sorted({pid for pid, _ in locking.handles(layout.lock)})


def _end(layout: Layout) -> List[int]:
    """Kill whoever holds the lock, all at once: a guardian that outlives its runner would heal in our place."""
    known = {pid: processes.identity(pid) or "" for pid in holders(layout)}
    ended = []
    for pid, identity in known.items():
        if processes.is_same(pid, identity):
            os.kill(pid, signal.SIGKILL)
            ended.append(pid)
    end = time.monotonic() + _FREED_WITHIN_S
    while any(processes.is_same(pid, identity) for pid, identity in known.items()):
        if time.monotonic() > end:
            named = ", ".join(f"{pid} ({processes.command(pid)})" for pid in known)
            raise AgentError(
                "fault", f"they do not end: {named}", "look at dmesg; a process in the kernel's hands stays"
            )
        time.sleep(0.02)
    return ended


def _told(layout: Layout, held: Optional[Dict[str, Any]], at: Optional[Transaction]) -> AgentError:
    if held is None:
        assert at is not None
        message = f"nobody holds the lock, and transaction {at.txn} was cut off at {at.state}"
        return AgentError("locked", message, "`kdeploy unlock --yes` heals the host: what served before serves again")
    error = locking.locked(held)
    details = []
    if at is not None:
        details.append(f"transaction {at.txn}: {at.goal} of {at.release}, {at.state} ({at.phase})")
        limit = deadline(layout, at)
        if limit:
            details.append(limit)
    hint = "wait, or end it: `kdeploy unlock --yes` (what served before serves again)"
    return AgentError("locked", error.message, hint, details)


def deadline(layout: Layout, at: Transaction) -> str:
    """The nearest deadline of a transaction's state, in words; empty when nothing limits it."""
    if at.until is not None and at.state == "PROBED" and at.phase == DONE:
        return f"without a verdict the host goes back by itself {_by(at.until)}"
    try:
        order = Order.read(layout, at.txn)
    except AgentError:
        return ""
    asked = f"{order.probe_s:.0f} s at most for its answers"
    verdict = f"{order.decide_s:.0f} s for the verdict"
    if at.state == "CANDIDATE" and at.phase == INTENT:
        by = _by(at.updated + order.start_s)
        return f"if it has not started by then the host goes back by itself {by}; then come {asked} and {verdict}"
    if at.state == "PROBED":
        by = _by(at.updated + order.probe_s)
        return f"if it has not answered by then the host goes back by itself {by}; then come {verdict}"
    if at.state == "OPEN":
        return f"it is watched, and known-good {_by(at.updated + order.soak_s)}, unless it fails"
    return ""


def _by(until: float) -> str:
    when = time.strftime("%H:%M:%S", time.gmtime(until))
    return f"at {when} UTC, in {max(0, round(until - time.time()))} s"
