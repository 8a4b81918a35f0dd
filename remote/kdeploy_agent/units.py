"""Units: long-running processes of a service, kept by a supervisor of ours (supervisor.py) where there is no systemd.

What a transaction needs of whoever keeps its processes is `start`, `stop`, `status` and `allow_restarts`.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

from kdeploy_agent import detach, files, probe, processes, secrets
from kdeploy_agent.errors import AgentError
from kdeploy_agent.layout import Layout

MARK = "KDEPLOY_UNIT"

_STARTS_WITHIN_S = 30.0


@dataclass(frozen=True)
class Spec:
    """How to run a unit. `scratch` is emptied before each start; `ports` must be free once it has stopped.

    A unit that runs the code of a `tree` names it, with its `manifest`: it is not restarted from other files. Of its
    `secrets` a spec holds the names; whoever becomes the unit's process loads their values.
    """

    name: str
    release: str
    argv: Tuple[str, ...]
    env: Dict[str, str]
    cwd: str
    scratch: str
    ports: Tuple[int, ...]
    grace_s: float
    tree: str = ""
    manifest: str = ""
    secrets: Tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Optional["Spec"]:
        """The spec stored at `path`; None when there is none."""
        stored = files.read_json(path)
        if stored is None:
            return None
        listed = {key: tuple(stored.get(key, ())) for key in ("argv", "ports", "secrets")}
        return cls(**{**stored, **listed})


@dataclass(frozen=True)
class Status:
    """What a unit is doing. `note` says how its process ended last, or that the supervisor gave up."""

    alive: bool = False
    pid: int = 0
    since: float = 0.0
    release: str = ""
    port: int = 0
    restarts: int = 0
    note: str = ""


class Units:
    """The units of one service, each with a supervisor in its own session."""

    _dies_within_s = 20.0  # after SIGKILL: a process that frees a GPU's memory takes its time

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def path(self, name: str, suffix: str) -> Path:
        """File of a unit: `json` (spec), `pid` (what the supervisor says), `restart` (a flag), `log`."""
        return self._layout.units / f"{name}.{suffix}"

    def mark(self, name: str) -> str:
        """Value of KDEPLOY_UNIT in the environment of every process of the unit; unique on the host."""
        return str(self._layout.units / name)

    def start(self, spec: Spec) -> None:
        """Start a unit that may not restart by itself; what is left of an earlier one is stopped first.

        Returns once its process was started, not when it is ready.
        """
        if self.members(spec.name):
            self.stop(spec.name)
        self.path(spec.name, "restart").unlink(missing_ok=True)
        self.path(spec.name, "pid").unlink(missing_ok=True)
        files.write(self.path(spec.name, "json"), files.canonical(dataclasses.asdict(spec)))
        env = {**detach.environment(), MARK: self.mark(spec.name)}
        log = self.path(spec.name, "log")
        pid = detach.spawn(["supervise", str(self._layout.root), self._layout.service, spec.name], log, env)
        end = time.monotonic() + _STARTS_WITHIN_S
        while not self._said(spec.name).get("child"):
            if time.monotonic() > end or (processes.identity(pid) is None and not self._said(spec.name)):
                said = " | ".join(probe.mask(line) for line in tail(log, 5))
                raise AgentError("fault", f"the supervisor of unit {spec.name} did not start: {said}")
            time.sleep(0.02)

    def allow_restarts(self, name: str) -> None:
        """From now on a unit whose process ends is started again (the supervisor looks when that happens)."""
        files.write(self.path(name, "restart"), b"on failure\n")

    def status(self, name: str) -> Status:
        """What the unit is doing now."""
        said = self._said(name)
        alive = processes.is_same(said.get("child", 0), said.get("child_identity", ""))
        return Status(
            alive=alive,
            pid=said.get("child", 0) if alive else 0,
            since=said.get("since", 0.0),
            release=said.get("release", ""),
            port=said.get("port", 0),
            restarts=said.get("restarts", 0),
            note=said.get("note", ""),
        )

    def members(self, name: str) -> Set[int]:
        """Pids of every process of the unit, its supervisor included."""
        return processes.members(MARK, self.mark(name))

    def supervisor(self, name: str) -> int:
        """Pid of the unit's supervisor; 0 when there is none."""
        said = self._said(name)
        pid = int(said.get("pid", 0))
        return pid if processes.is_same(pid, said.get("identity", "")) else 0

    def stop(self, *names: str) -> None:
        """Stop units, one after the other: ask, wait, kill; returns when no process is left and their ports are free.

        Ports are waited for when all have stopped: one unit's port may have been taken over by another's. Raises
        `fault` naming who is left, or who holds a port. Nothing happens for a unit that does not run.
        """
        for name in names:
            self._end(name)
        for name in names:
            spec = Spec.read(self.path(name, "json"))
            for port in spec.ports if spec else ():
                self._wait_until_free(port)
            self.path(name, "json").unlink(missing_ok=True)  # from now on its ports are anybody's

    def _end(self, name: str) -> None:
        spec = Spec.read(self.path(name, "json"))
        self.path(name, "restart").unlink(missing_ok=True)
        left = self.members(name)
        if left:
            supervisor = self.supervisor(name)  # it passes the signal on to the group
            processes.send({supervisor} if supervisor else left, signal.SIGTERM)
            end = time.monotonic() + (spec.grace_s if spec else 0.0)
            while self.members(name) and time.monotonic() < end:
                time.sleep(0.05)
        left = processes.kill_all(MARK, self.mark(name), time.monotonic() + self._dies_within_s)
        if left:
            named = ", ".join(f"{pid} ({processes.command(pid)})" for pid in sorted(left))
            raise AgentError("fault", f"unit {name} does not die: {named}", f"look at dmesg; kill -9 {min(left)}")

    def tail(self, name: str, lines: int) -> List[str]:
        """The last lines the unit wrote since it was started last."""
        return tail(self.path(name, "log"), lines, since=banner(self.status(name).release))

    def words(self, name: str, lines: int) -> List[str]:
        """The same as it may be kept and shown: without what is secret, or looks so."""
        return [probe.mask(secrets.mask(self._layout, line)) for line in self.tail(name, lines)]

    def log_start(self, name: str) -> Tuple[int, Optional[str]]:
        """The byte of the unit's log at which it began, and the older part which that byte is in, if it is in that."""
        said = self._said(name)
        rotations = said.get("rotations", 0)
        older = str(self.path(name, "log.1")) if rotations else None
        return (said.get("log_start", 0) if rotations < 2 else 0), older  # after two, what came first is gone

    def _said(self, name: str) -> Dict[str, Any]:
        said = files.read_json(self.path(name, "pid"))
        return said if isinstance(said, dict) else {}

    def _wait_until_free(self, port: int) -> None:
        end = time.monotonic() + self._dies_within_s
        while True:
            held = processes.holders(port)
            if not held:
                return
            if time.monotonic() > end:
                raise AgentError("fault", f"port {port} is still held by {name_holders(held)}", "stop that process")
            time.sleep(0.1)


def name_holders(held: List[processes.Holder]) -> str:
    """Holders of a port as people read them: process number and command."""
    return ", ".join(f"process {one.pid} ({one.command})" if one.pid else one.command for one in held)


def tail(log: Path, lines: int, since: str = "", end: Optional[int] = None) -> List[str]:
    """The last lines of a log, or of its first `end` bytes; at most 16 MB, after the last line that is `since`."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END) if end is None else end
            start = file.seek(max(0, size - 16 * 1024 * 1024))
            found = file.read(size - start).decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        return []
    found = [line.rstrip("\r").rpartition("\r")[2] for line in found]  # a progress bar: what it showed last
    if found and not found[-1]:
        found.pop()  # after the last newline
    if since and since in found:
        found = found[len(found) - 1 - found[::-1].index(since) + 1 :]
    return found[-lines:] if lines > 0 else []


def banner(release: str) -> str:
    """The line in a log that begins what a release wrote."""
    return f"kdeploy: starting release {release}"
