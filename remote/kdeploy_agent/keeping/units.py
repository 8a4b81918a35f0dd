"""Units: the long-running processes of a service, and what a transaction needs of whoever keeps them.

Two do: systemd (systemd.py) where it runs and we are root, else a supervisor of ours (supervised.py): see keeper.py.
"""

from __future__ import annotations

import abc
import dataclasses
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Set, Tuple

from kdeploy_agent.asking import logs
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, processes, secrets
from kdeploy_agent.ground.follow import follow_log
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import memory

MARK = "KDEPLOY_UNIT"
NAMES = ("front", "server")  # in the order in which they are stopped

RESTARTS, WINDOW_S = 3, 600.0  # a server that dies more often than this is broken, not unlucky


@dataclass(frozen=True)
class Spec:
    """How to run a unit. `scratch` is emptied before each start; `ports` must be free once it has stopped.

    A unit that runs the code of a `tree` names it, with its `manifest`: it is not restarted from other files. Of its
    `secrets` a spec holds the names; whoever becomes the unit's process loads their values. With `listen` systemd
    owns the port and hands it to `argv` at the first connection. `gpu_mib` is each GPU's memory in use, by uuid, before
    the unit was started.
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
    listen: str = ""
    gpu_mib: Dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Optional["Spec"]:
        """The spec stored at `path`; None when there is none that is whole."""
        stored = files.read_json(path)
        try:
            listed = {key: tuple(stored.get(key, ())) for key in ("argv", "ports", "secrets")}
            return cls(**{**stored, **listed})
        except (AttributeError, TypeError):  # somebody else's JSON
            return None


@dataclass(frozen=True)
class Status:
    """What a unit is doing. `note` says how its process ended last, or that its keeper gave up."""

    alive: bool = False
    pid: int = 0
    since: float = 0.0
    release: str = ""
    port: int = 0
    restarts: int = 0
    note: str = ""


class Units(abc.ABC):
    """The units of one service. What differs from keeper to keeper is abstract here; stopping is stopping for both."""

    kind = ""
    _dies_within_s = 20.0  # after SIGKILL: a process that frees a GPU's memory takes its time

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @abc.abstractmethod
    def start(self, spec: Spec) -> None:
        """Start a unit that may not restart by itself; what is left of an earlier one is stopped first.

        Returns once its process was started, not when it is ready. Raises `fault` when it cannot be started.
        """

    @abc.abstractmethod
    def allow_restarts(self, name: str) -> None:
        """From now on a unit whose process ends is started again, `RESTARTS` times in `WINDOW_S` at most."""

    @abc.abstractmethod
    def status(self, name: str) -> Status:
        """What the unit is doing now."""

    @abc.abstractmethod
    def _end(self, name: str, spec: Optional[Spec]) -> None:
        """Ask the unit's processes to go and wait for at most its grace."""

    @abc.abstractmethod
    def log(self, name: str) -> Iterator[bytes]:
        """Every line the unit wrote since it was started last."""

    @abc.abstractmethod
    def tail(self, name: str, lines: int) -> List[str]:
        """The last lines the unit wrote since it was started last."""

    @abc.abstractmethod
    def show(self, name: str, lines: int, emit: Callable[[str], None], wanted: Optional[Callable[[], bool]]) -> str:
        """Give the last lines of the unit's log to `emit`, then what it writes for as long as `wanted()`, if given.

        Gives what people call the log.
        """

    @abc.abstractmethod
    def survive(self) -> str:
        """See to it that the service comes back after a reboot; gives what there is to tell about that, or nothing."""

    def lost(self) -> str:
        """Why what runs would not come back after a reboot, where this keeper can see to that; empty when it would."""
        return ""

    def drift(self) -> List[Dict[str, str]]:
        """What of this keeper's own files is not as it wrote them: `what, expected, found, fix` each (drift.py)."""
        return []

    @abc.abstractmethod
    def check(self, spec: Spec) -> None:
        """Raise `preflight` when this keeper cannot keep such a unit."""

    def going_down(self) -> bool:
        """Whether the host is shutting down: what fails now proves nothing."""
        return False

    def tidy(self, *names: str) -> None:
        """Remove what a keeper leaves for the next start of units that are stopped, when there is none to come."""
        return

    def path(self, name: str, suffix: str) -> Path:
        """File of a unit: `json` (its spec), and what its keeper needs."""
        return self._layout.units / f"{name}.{suffix}"

    def mark(self, name: str) -> str:
        """Value of KDEPLOY_UNIT in the environment of every process of the unit; unique on the host."""
        return str(self._layout.units / name)

    def members(self, name: str) -> Set[int]:
        """Pids of every process of the unit, a supervisor of ours included."""
        return processes.members(MARK, self.mark(name))

    def supervisor(self, name: str) -> int:
        """Pid of the unit's supervisor; 0 when there is none."""
        return 0

    def owns(self, pid: int, port: int) -> bool:
        """Whether a process that listens on the port does so for a unit of this service."""
        return any(pid in self.members(name) for name in NAMES)

    def words(self, name: str, lines: int) -> List[str]:
        """The last lines as they may be kept and shown: without what is secret, or looks so.

        They are asked for when something has gone wrong: what keeps us from having them is told in their place, and
        must not keep anybody from going on.
        """
        try:
            found = self.tail(name, lines)
        except (AgentError, OSError) as fault:
            found = [f"kdeploy: its last words could not be had: {getattr(fault, 'message', fault)}"]
        return [logs.mask(secrets.mask(self._layout, line)) for line in found]

    def stop(self, *names: str) -> None:
        """Stop units, one after the other: ask, wait, kill; nothing is left: no process, no port, no GPU memory.

        Ports are waited for when all have stopped: one unit's port may have been taken over by another's. Raises
        `fault` naming who is left, or who holds a port or memory. Nothing happens for a unit that does not run.
        """
        freed = []
        for name in names:
            spec = Spec.read(self.path(name, "json"))
            if spec is not None and spec.gpu_mib:
                freed.append(memory.expect(spec.gpu_mib, spec.env, self.members(name)))
            self._end(name, spec)
            self._kill(name)
        for expected in freed:
            expected.wait()
        for name in names:
            spec = Spec.read(self.path(name, "json"))
            for port in spec.ports if spec else ():
                self._wait_until_free(port)
            self.path(name, "json").unlink(missing_ok=True)  # from now on its ports are anybody's

    def _keep(self, spec: Spec) -> None:
        """Store the spec of a unit that is about to start, and how much of the GPUs is in use without it."""
        if spec.name == "server":  # a front uses no GPU
            spec = dataclasses.replace(spec, gpu_mib=memory.used())
        files.write(self.path(spec.name, "json"), files.canonical(dataclasses.asdict(spec)))

    def _kill(self, name: str) -> None:
        end = time.monotonic() + self._dies_within_s
        while True:
            left = self.members(name)
            if not left:
                return
            if time.monotonic() >= end:
                named = ", ".join(f"{pid} ({processes.command(pid)})" for pid in sorted(left))
                raise AgentError("fault", f"unit {name} does not die: {named}", f"look at dmesg; kill -9 {min(left)}")
            processes.send(left, signal.SIGKILL)
            time.sleep(0.05)

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


def show(log: Path, lines: int, emit: Callable[[str], None], wanted: Optional[Callable[[], bool]]) -> str:
    """Give a log's last lines to `emit`, then what is added for as long as `wanted()`, if given; gives its path."""
    size = log.stat().st_size if log.exists() else 0  # what is written from now on comes second
    for line in tail(log, lines, end=size):
        emit(line)
    if wanted is not None:
        follow_log(log, size, emit, wanted)
    return str(log)


def banner(release: str) -> str:
    """The line in a log that begins what a release wrote."""
    return f"kdeploy: starting release {release}"
