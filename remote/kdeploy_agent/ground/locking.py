"""One changer at a time: a kernel lock that dies with its holder, and a file that says who that is.

Whoever removes the file frees nothing: a file that is new is only taken when nobody holds the one that was there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import processes

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
    end = time.monotonic() + patience
    while True:
        handle = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o644)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_the_lock(path, handle):
                return Lock(path, handle)
        os.close(handle)
        if time.monotonic() >= end:
            return None
        time.sleep(0.02)


def _is_the_lock(path: Path, handle: int) -> bool:
    """Whether a locked handle locks anybody out: its file is at `path`, and nobody holds one that was there before."""
    here = os.fstat(handle)
    try:
        if not os.path.samestat(here, path.stat()):
            return False
    except FileNotFoundError:
        return False
    if here.st_size == 0:  # new; one that was ever taken is not empty any more
        if any(True for _ in handles(path)):
            return False
        with contextlib.suppress(OSError):
            os.pwrite(handle, b"\n", 0)
    return True


def handles(path: Path) -> Iterator[Tuple[int, Path]]:
    """Process and handle of every other one who holds the lock at `path`, also of a file that was removed there since.

    The kernel says which handle is locked; the name in the file may be anybody's, and can be damaged.
    """
    name = str(path.parent.resolve() / path.name)
    for pid in processes.pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                if _locks(handle, name):
                    yield pid, handle


def _locks(handle: Path, name: str) -> bool:
    try:
        if os.readlink(str(handle)) not in (name, f"{name} (deleted)"):  # noqa: PTH115
            return False
        lines = (handle.parents[1] / "fdinfo" / handle.name).read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    return any(line.startswith("lock:") and "FLOCK" in line and "WRITE" in line for line in lines)


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
    held = _holder(path)
    if held is None and path.parent.exists() and not (path.exists() and path.stat().st_size):
        for _, handle in handles(path):
            held = _holder(handle)
            if held is not None:
                break
    return held


def _holder(path: Path) -> Optional[Dict[str, Any]]:
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
