"""The journal: one fsynced JSON line before and after every effect; folded, it says where each transaction is.

A line that a dying machine left half-written does not count: the next append ends it, readers skip it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from kdeploy_agent.ground import files

STATES = ("PREPARED", "DRAINED", "CANDIDATE", "PROBED", "GATED", "OPEN", "CONFIRMED")
TERMINAL = ("CONFIRMED", "ROLLED_BACK", "NEEDS_OPERATOR")

INTENT = "intent"
DONE = "done"


@dataclass(frozen=True)
class Transaction:
    """Where a transaction is: what it set out to do, the last line of it, and what was live before it."""

    txn: str
    goal: str = "apply"
    by: str = ""
    release: str = ""
    previous: Optional[str] = None
    known_good: Optional[str] = None
    state: str = ""
    phase: str = ""
    reason: str = ""
    note: str = ""
    started: float = 0.0
    updated: float = 0.0
    until: Optional[float] = None
    closed: Optional[float] = None  # when what served before was stopped
    opened: Optional[float] = None  # when clients could come in again
    states: Tuple[str, ...] = field(default=())

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do or to heal."""
        return self.state in TERMINAL and self.phase == DONE

    @property
    def out_s(self) -> Optional[float]:
        """How long clients were without answers, seconds; None when nothing served before, or nothing does now."""
        if self.closed is None or self.opened is None:
            return None
        return round(max(0.0, self.opened - self.closed), 1)

    @property
    def origin(self) -> Dict[str, Any]:
        """What it set out to do, and from where: each of its lines says that, so that any one is enough to go back."""
        return {key: getattr(self, key) for key in ("goal", "by", "release", "previous", "known_good")}

    @property
    def touched(self) -> bool:
        """Whether anything may have been stopped."""
        return not {*self.states}.isdisjoint((*STATES[1:-1], "ROLLING_BACK"))

    def after(self, line: Dict[str, Any]) -> "Transaction":
        """The transaction once `line` was written."""
        state = line["state"]
        keys = ("goal", "by", "release", "previous", "known_good", "reason", "note", "until")
        known = {key: line[key] for key in keys if key in line}
        seen = self.states if state in self.states else (*self.states, state)
        started = self.started or line["at"]
        if state == "DRAINED" and self.closed is None and line.get("served"):
            known["closed"] = line["at"]
        if line["phase"] == DONE and state in ("OPEN", "ROLLING_BACK"):
            known["opened"] = line["at"]
        return replace(
            self, state=state, phase=line["phase"], states=seen, started=started, updated=line["at"], **known
        )


class Journal:
    """The journal file of a service. Only the holder of the service's lock appends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, **line: Any) -> Dict[str, Any]:
        """Add one line and do not return before it is on disk; gives it as it was written."""
        line["at"] = round(time.time(), 3)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with open(str(self.path), "ab+", opener=files.private) as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(line, sort_keys=True).encode("utf-8") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            files.sync_folder(self.path.parent)
        _crash_if_asked(line)
        return line

    def lines(self) -> Iterator[Dict[str, Any]]:
        """Every whole line, oldest first."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        for raw in data.split(b"\n"):
            line = parse(raw)
            if line is not None:
                yield line

    def transactions(self) -> Dict[str, Transaction]:
        """Every transaction by id, oldest first."""
        found: Dict[str, Transaction] = {}
        for line in self.lines():
            if _is_step(line):
                found[line["txn"]] = found.get(line["txn"], Transaction(line["txn"])).after(line)
        return found

    def last(self) -> Optional[Transaction]:
        """The transaction that was begun last, if any."""
        found = list(self.transactions().values())
        return found[-1] if found else None

    def stopped(self) -> bool:
        """Whether somebody stopped the service and no release was confirmed since: it is to stay stopped."""
        return self.stop() is not None

    def stop(self) -> Optional[Dict[str, Any]]:
        """The last line of the stop that still stands (`by`, `at`); None when none does.

        One that was cut off does not: nobody was told that it is stopped, and it may serve.
        """
        stop = None
        for line in self.lines():
            if line.get("verb") == "stop" and line.get("phase") == DONE:
                stop = line
            elif line.get("state") == "CONFIRMED" and line.get("phase") == DONE:
                stop = None
        return stop

    def deeds(self) -> List[Transaction]:
        """What else was done to the service, in the shape of transactions, oldest first: stops, and boots."""
        found: List[Transaction] = []
        for line in self.lines():
            verb, phase = line.get("verb"), line.get("phase")
            if verb not in ("stop", "boot"):
                continue
            if phase == INTENT:
                by = line.get("by") or "the host itself"
                one = Transaction("", verb, str(by), str(line.get("release") or ""), state="CUT OFF", phase=INTENT)
                found.append(replace(one, started=line["at"], updated=line["at"]))
            elif found and found[-1].goal == verb:
                ended = {"stop": "STOPPED", "boot": "SERVES"}[verb] if phase == DONE else "FAILED"
                reason = str(line.get("reason") or "")
                found[-1] = replace(found[-1], state=ended, phase=DONE, updated=line["at"], reason=reason)
        return found

    def confirmed(self) -> List[str]:
        """Ids of all releases that were ever confirmed, the latest first, each once."""
        ids: Dict[str, None] = {}
        for transaction in sorted(self.transactions().values(), key=lambda one: one.updated, reverse=True):
            if transaction.state == "CONFIRMED" and transaction.finished:
                ids.setdefault(transaction.release)
        return list(ids)

    def left(self) -> List[str]:
        """Confirmed releases that somebody went back from by a rollback, and that were not confirmed again since.

        They served and were found wanting: going back once more must not bring them again.
        """
        found: Dict[str, None] = {}
        for transaction in sorted(self.transactions().values(), key=lambda one: one.updated):
            if transaction.state == "CONFIRMED" and transaction.finished:
                found.pop(transaction.release, None)
                if transaction.goal == "rollback" and transaction.previous not in (None, transaction.release):
                    found[str(transaction.previous)] = None
        return list(found)


def parse(raw: bytes) -> Optional[Dict[str, Any]]:
    """One line of the journal; None when it is not whole."""
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("at"), (int, float)) else None


def _is_step(line: Dict[str, Any]) -> bool:
    """Whether a line is a transaction's; what somebody else wrote into the file is passed over."""
    if line.get("state") not in (*STATES, "ROLLING_BACK", *TERMINAL) or line.get("phase") not in (INTENT, DONE):
        return False
    texts = ("goal", "by", "release", "reason", "note")
    return (
        isinstance(line.get("txn"), str)
        and all(isinstance(line.get(key, ""), str) for key in texts)
        and all(isinstance(line.get(key), (str, type(None))) for key in ("previous", "known_good"))
    )


def _crash_if_asked(line: Dict[str, Any]) -> None:
    # Test hook: KDEPLOY_CRASH_AT="STATE:phase" kills the process that wrote that line, as the OOM killer would;
    # KDEPLOY_CRASH_GUARDIAN=1 takes its guardian along (guard() puts its pid there). tests/agent walks all lines.
    wanted = os.environ.get("KDEPLOY_CRASH_AT")
    if wanted and wanted == f"{line.get('state')}:{line.get('phase')}":
        guardian = int(os.environ.get("KDEPLOY_CRASH_GUARDIAN", "0"))
        if guardian > 1:
            os.kill(guardian, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
