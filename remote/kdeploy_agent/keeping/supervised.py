"""Units kept by a supervisor of ours (supervisor.py): where there is no systemd, or no right to use it."""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from kdeploy_agent.asking import logs
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, processes
from kdeploy_agent.keeping import detach
from kdeploy_agent.keeping.units import MARK, Spec, Status, Units, banner, show, tail

_STARTS_WITHIN_S = 30.0


class Supervised(Units):
    """The units of one service, each with a supervisor in its own session."""

    kind = "supervisor"

    def start(self, spec: Spec) -> None:
        """See Units."""
        if self.members(spec.name):
            self.stop(spec.name)
        self.check(spec)
        self.path(spec.name, "restart").unlink(missing_ok=True)
        self.path(spec.name, "pid").unlink(missing_ok=True)
        self._keep(spec)
        env = {**detach.environment(), MARK: self.mark(spec.name)}
        log = self.path(spec.name, "log")
        pid = detach.spawn(["supervise", str(self._layout.root), self._layout.service, spec.name], log, env)
        end = time.monotonic() + _STARTS_WITHIN_S
        while not self._said(spec.name).get("child"):
            if time.monotonic() > end or (processes.identity(pid) is None and not self._said(spec.name)):
                said = " | ".join(logs.mask(line) for line in tail(log, 5))
                raise AgentError("fault", f"the supervisor of unit {spec.name} did not start: {said}")
            time.sleep(0.02)

    def check(self, spec: Spec) -> None:
        """See Units: only systemd can own a port for somebody else."""
        if spec.listen:
            raise AgentError(
                "preflight",
                "the front 'socket' needs systemd, and root's rights on the host",
                "set 'serve.front: router', or connect as root (or with 'sudo: true')",
            )

    def allow_restarts(self, name: str) -> None:
        """See Units; the supervisor looks when the process ends."""
        files.write(self.path(name, "restart"), b"on failure\n")

    def status(self, name: str) -> Status:
        """See Units."""
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

    def supervisor(self, name: str) -> int:
        """See Units."""
        said = self._said(name)
        pid = int(said.get("pid", 0))
        return pid if processes.is_same(pid, said.get("identity", "")) else 0

    def tail(self, name: str, lines: int) -> List[str]:
        """See Units."""
        return tail(self.path(name, "log"), lines, since=banner(self.status(name).release))

    def log(self, name: str) -> Iterator[bytes]:
        """See Units."""
        start, older = self.log_start(name)
        log = str(self.path(name, "log"))
        return logs.lines([(older, start), (log, 0)] if older else [(log, start)])

    def log_start(self, name: str) -> Tuple[int, Optional[str]]:
        """The byte of the unit's log at which it began, and the older part which that byte is in, if it is in that."""
        said = self._said(name)
        rotations = said.get("rotations", 0)
        older = str(self.path(name, "log.1")) if rotations else None
        return (said.get("log_start", 0) if rotations < 2 else 0), older  # after two, what came first is gone

    def show(self, name: str, lines: int, emit: Callable[[str], None], wanted: Optional[Callable[[], bool]]) -> str:
        """See Units."""
        return show(self.path(name, "log"), lines, emit, wanted)

    def survive(self) -> str:
        """See Units: it does not."""
        return "this host's service does not come back by itself after a reboot: that takes systemd, and root's rights"

    def _end(self, name: str, spec: Optional[Spec]) -> None:
        self.path(name, "restart").unlink(missing_ok=True)
        left = self.members(name)
        if not left:
            return
        supervisor = self.supervisor(name)  # it passes the signal on to the group
        processes.send({supervisor} if supervisor else left, signal.SIGTERM)
        end = time.monotonic() + (spec.grace_s if spec else 0.0)
        while self.members(name) and time.monotonic() < end:
            time.sleep(0.05)

    def _said(self, name: str) -> Dict[str, Any]:
        said = files.read_json(self.path(name, "pid"))
        return said if isinstance(said, dict) else {}
