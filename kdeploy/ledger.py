"""The operator's own record: what was asked of which host, when, how it ended. JSON lines, only ever added to."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kdeploy import places


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
    """Write down that `verb` was done; the line is on disk when this returns."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = Entry(round(time.time(), 3), verb, str(profile), service, host, release, outcome)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(entry)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def entries() -> Iterator[Entry]:
    """All entries, oldest first; a torn or foreign line is left out."""
    try:
        lines = _path().read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield Entry(**json.loads(line))
        except (ValueError, TypeError):
            continue


def last_profile(project: Path) -> Path | None:
    """The profile of `project` that was last applied or rolled back with success (else: at all) and is still there."""
    tried = done = None
    for entry in entries():
        path = Path(entry.profile)
        if entry.verb in ("apply", "rollback") and project in path.parents and path.exists():
            tried, done = path, path if entry.outcome == "ok" else done
    return done or tried


def _path() -> Path:
    return places.state() / "ledger.jsonl"
