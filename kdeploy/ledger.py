"""The operator's own record: what was asked of which host, when, how it ended. JSON lines, only ever added to."""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kdeploy import places
from kdeploy.secrecy import conceal


@dataclass(frozen=True)
class Entry:
    """One thing done. `at` is seconds since the epoch, `profile` the absolute path of the profile."""

    at: float
    verb: str
    profile: str
    service: str
    host: str
    release: str
    outcome: str


def add(verb: str, profile: Path, service: str, host: str, release: str, outcome: str) -> None:
    """Write down that `verb` was done; the line is on disk when this returns.

    When it cannot be written, stderr says so once, and nothing is raised: the outcome itself matters more.
    """
    path = _path()
    entry = Entry(round(time.time(), 3), verb, str(profile), service, host, release, conceal(outcome))
    line = f"{json.dumps(asdict(entry))}\n".encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if file.write(line) < len(line):  # the disk is full: half a line would spoil the next one
                os.ftruncate(file.fileno(), size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
    except OSError as fault:
        _complain(path, "written", str(fault.strerror))


def entries() -> Iterator[Entry]:
    """All entries, oldest first; a torn or foreign line is left out. None, and a note, when it cannot be read."""
    path = _path()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as fault:
        _complain(path, "read", str(fault.strerror))
        return
    for line in lines:
        try:
            yield Entry(**json.loads(line))
        except (ValueError, TypeError):
            continue


@functools.cache
def _complain(path: Path, done: str, reason: str) -> None:
    """Say once what is wrong with the ledger; the command goes on."""
    print(f"note: the ledger {path} could not be {done}: {reason}", file=sys.stderr)


def last_profile(project: Path) -> Path | None:
    """The profile of `project` that was last applied or rolled back with success (else: at all) and is still there."""
    tried = done = None
    for entry in entries():
        path = Path(entry.profile)
        if entry.verb in ("apply", "rollback", "adopt") and project in path.parents and path.exists():
            tried, done = path, path if entry.outcome == "ok" else done
    return done or tried


def _path() -> Path:
    return places.state() / "ledger.jsonl"
