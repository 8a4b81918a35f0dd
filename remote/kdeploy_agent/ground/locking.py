"""One changer at a time: a kernel lock that dies with its holder, and a file that says who that is."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, Optional

from kdeploy_agent.errors import AgentError

_PATIENCE_S = 0.5  # `holder` takes the lock for an instant to look; that must not look like a competitor


class Lock:
    """A held flock; give it back with `release`, or by dying."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self.handle = handle

    def name(self, by: str, verb: str, txn: str = "") -> None:
        """Write into the file who holds it; people and `holder` read that, the kernel does not."""
        entry = {"by": by, "verb": verb, "txn": txn, "pid": os.getpid(), "since": round(time.time(), 3)}
        data = (json.dumps(entry, sort_keys=True) + "\n").encode("utf-8")
        os.pwrite(self.handle, data.ljust(512), 0)

    def release(self) -> None:
        """Close our handle: the lock is free once every process that inherited it has done so."""
        os.close(self.handle)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def try_lock(path: Path, patience: float = _PATIENCE_S) -> Optional[Lock]:
    """Take the lock at `path`, trying for `patience` seconds; None when somebody else holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o644)
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Lock(path, handle)
        except BlockingIOError:
            if time.monotonic() >= end:
                os.close(handle)
                return None
            time.sleep(0.02)


def take(path: Path, by: str, verb: str, txn: str = "") -> Lock:
    """Take the lock and put our name into it.

    Raises `locked` naming by whom, since when and in which process it is held.
    """
    lock = try_lock(path)
    if lock is None:
        raise locked(holder(path) or {})
    lock.name(by, verb, txn)
    return lock


def wait_for(path: Path) -> Lock:
    """Take the lock however long that takes."""
    lock = try_lock(path, float("inf"))
    assert lock is not None
    return lock


def holder(path: Path) -> Optional[Dict[str, Any]]:
    """Who holds the lock (`by, verb, txn, pid, since`); None when nobody does. Writes nothing."""
    try:
        handle = os.open(str(path), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        try:
            named = json.loads(os.pread(handle, 4096, 0) or b"{}")
        except ValueError:
            named = {}
        return {"by": "", "verb": "", "txn": "", "pid": 0, "since": 0.0, **named}
    finally:
        os.close(handle)


def locked(held: Dict[str, Any]) -> AgentError:
    """The error that names the holder of a lock."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(held.get("since") or 0))
    return AgentError(
        "locked",
        f"{held.get('by') or 'somebody'} is changing this service: {held.get('verb') or 'unknown'} "
        f"since {since} UTC, process {held.get('pid') or 'unknown'}",
        "wait until it is done (the lock goes with its process), or see `kdeploy unlock`, which can end it",
    )
