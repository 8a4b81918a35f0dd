"""Units kept by systemd: written to /run, so that none is there after a reboot until the service was brought back.

Their output is in the journal. It is read by invocation: a release's log begins where the release began.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Set

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, processes, systemctl
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import detach, draining, unit_drift, unit_ends, unit_files
from kdeploy_agent.keeping.units import NAMES, Spec, Status, Units, banner

_TAIL_S = 5.0  # last words are for reading: nobody waits long for them


class Systemd(Units):
    """The units of one service, each a unit of systemd."""

    kind = "systemd"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._names = unit_files.Names(layout.service)

    def start(self, spec: Spec) -> None:
        """See Units. With `listen` it is the port that is opened; its process comes with the first connection."""
        shown = systemctl.show_all(self._all(spec.name))
        active = any(one["ActiveState"] not in ("inactive", "failed") for one in shown.values())
        if active or self.path(spec.name, "json").exists() or self.members(spec.name):
            self.stop(spec.name)
        self._check(spec, shown)
        for suffix in ("restart", "run", "refused", "ended"):
            self.path(spec.name, suffix).unlink(missing_ok=True)
        self._keep(spec)
        self._write(spec, shown)
        opened = self._names.socket if spec.listen else self._names.unit(spec.name)
        complaint = systemctl.start(opened)
        if complaint:
            said = " | ".join(self.words(spec.name, 5))
            raise AgentError("fault", f"systemd does not start {opened}: {complaint} {said}".strip())

    def check(self, spec: Spec) -> None:
        """See Units: a unit of the name may be another root's, or another service's whose name ends like ours."""
        self._check(spec, systemctl.show_all(self._all(spec.name)))
        for current in self._layout.root.glob("*/current"):
            both = self._names.clashes(current.parent.name)
            if both:
                message = f"service {current.parent.name} is on this host, and both would have a unit {both}"
                raise AgentError("preflight", message, "name this service differently")

    def _check(self, spec: Spec, shown: Dict[str, Dict[str, str]]) -> None:
        for unit, one in shown.items():
            if one.get("LoadState") == "masked":
                raise AgentError("preflight", f"the unit {unit} is masked", f"systemctl unmask {unit}")
            stranger = self._stranger(Path(one.get("FragmentPath") or systemctl.RUNTIME / unit))
            if stranger:
                raise AgentError("preflight", stranger, "stop that service, or name this one differently")
        if spec.listen and draining.proxy() is None:
            raise AgentError(
                "preflight",
                "the front 'socket' needs systemd-socket-proxyd, which is not on this host",
                "install it (it comes with the package systemd), or set 'serve.front: router'",
            )

    def allow_restarts(self, name: str) -> None:
        """See Units. What was started until now does not count."""
        spec = Spec.read(self.path(name, "json"))
        if spec is not None and not spec.listen:
            systemctl.reset(self._names.unit(name))
            files.write(self.path(name, "restart"), b"always\n")

    def status(self, name: str) -> Status:
        """See Units. A unit that only listens is alive, without a process."""
        spec = Spec.read(self.path(name, "json"))
        if spec is None:
            return Status(note="stopped")
        known = systemctl.show_all([self._names.unit(name), *([self._names.socket] if spec.listen else [])])
        shown = known[self._names.unit(name)]
        alive = shown["ActiveState"] in ("active", "reloading", "deactivating") and shown["MainPID"] != "0"
        pid = int(shown["MainPID"]) if alive else 0
        began = shown["ExecMainStartTimestampMonotonic"]
        if spec.listen:
            opened = known[self._names.socket]
            alive, began = opened["ActiveState"] == "active", opened["ActiveEnterTimestampMonotonic"]
            shown = {**shown, **{key: opened[key] for key in ("LoadState", "ActiveState", "Result")}}
        refused = _read(self.path(name, "refused"))
        trusted = self.path(name, "restart").exists()
        if not trusted and not refused:
            shown = unit_ends.of_candidate(shown, _read(unit_files.ended(self._layout, name)))
        # Out of restarts systemd leaves the result as it was, and counts the one that it refused.
        gave_up = shown["ActiveState"] == "failed" and trusted and not refused
        return Status(
            alive=alive,
            pid=pid,
            since=unit_ends.wall(began),
            release=spec.release,
            port=next(iter(spec.ports), 0),
            restarts=int(shown["NRestarts"]) - gave_up,
            note="" if alive else unit_ends.note(shown, refused, gave_up),
        )

    def members(self, name: str) -> Set[int]:
        """See Units: all that is in its control group, and what an agent without systemd had started."""
        return super().members(name) | processes.in_unit(self._names.unit(name))

    def owns(self, pid: int, port: int) -> bool:
        """See Units: systemd itself listens for a front `socket`."""
        if pid != 1:
            return super().owns(pid, port)
        front = Spec.read(self.path("front", "json"))
        return front is not None and bool(front.listen) and port in front.ports and self.status("front").alive

    def log(self, name: str) -> Iterator[bytes]:
        """See Units."""
        mark = banner(self.status(name).release).encode()
        return (line for line in self._journal(name, "all") if line.rstrip(b"\n") != mark)

    def tail(self, name: str, lines: int) -> List[str]:
        """See Units."""
        mark = banner(self.status(name).release)
        found = [_shown(line) for line in self._journal(name, str(lines + 1), _TAIL_S)]
        return [line for line in found if line != mark][-lines:] if lines > 0 else []

    def show(self, name: str, lines: int, emit: Callable[[str], None], wanted: Optional[Callable[[], bool]]) -> str:
        """See Units: systemd's own words about the unit are among them."""
        units = [word for unit in self._all(name) for word in ("--unit", unit)]
        if wanted is None:
            for line in systemctl.journal(*units, lines=str(lines)):
                emit(_shown(line))
        else:
            child = systemctl.follow(*units, lines=str(lines))
            try:
                for line in systemctl.lines_while(child, wanted):
                    emit(_shown(line))
            finally:
                systemctl.end(child)
        return f"journalctl {' '.join(units)}"

    def survive(self) -> str:
        """See Units: one enabled unit serves again what `current` says, by the agent that confirmed it.

        What runs is given an agent that is there, without being touched.
        """
        run = self._agent("boot")
        wanted = unit_files.boot(self._layout, run, self._environment())
        path = systemctl.PERSISTENT / self._names.boot
        for spec in self._specs():
            if any(one for unit in self._texts(spec) for one in unit_drift.agent(systemctl.RUNTIME / unit)):
                self._write(spec, systemctl.show_all(self._all(spec.name)))
        stranger = self._stranger(path) or self._stranger(systemctl.RUNTIME / self._names.boot)
        if stranger:
            return f"{stranger}; so the service does not come back by itself after a reboot"
        if _read(path) != wanted:
            if run[1].endswith(".pyz"):  # a shell put the agent there: it must outlive power as its unit does
                files.sync(Path(run[1]))
            files.write(path, wanted.encode("utf-8"))
            path.chmod(0o644)
            systemctl.reload()
        if not unit_drift.starts_at_boot(path):  # systemd reads all of its units again for that
            systemctl.enable(self._names.boot)
        return self.lost()

    def lost(self) -> str:
        """See Units; by what is on the disk, since systemd takes its time to answer."""
        if Spec.read(self.path("server", "json")) is None:  # an adopted server, which its own keeper brings back
            return ""
        running = [systemctl.RUNTIME / unit for spec in self._specs() for unit in self._texts(spec)]
        boot = unit_files.boot(self._layout, self._agent("boot"), self._environment())
        return unit_drift.lost(systemctl.PERSISTENT / self._names.boot, boot, running)

    def _specs(self) -> List[Spec]:
        return [spec for spec in (Spec.read(self.path(name, "json")) for name in NAMES) if spec is not None]

    def tidy(self, *names: str) -> None:
        """See Units: none of their files is left in /run."""
        units = [unit for name in names for unit in self._all(name)]
        taken = [systemctl.take(systemctl.RUNTIME / unit) for unit in units]
        if any(taken):
            systemctl.reload()
            systemctl.reset(*units)

    def going_down(self) -> bool:
        """See Units."""
        return systemctl.stopping()

    def _end(self, name: str, spec: Optional[Spec]) -> None:
        grace_s = spec.grace_s if spec else 0.0
        if spec is not None and spec.listen:
            draining.drain(self._layout, spec, self._drain_unit)
        # systemd kills after the grace, waits as long again, and gives up
        systemctl.stop(*self._all(name), seconds=2 * grace_s + self._dies_within_s)
        processes.send(super().members(name), 15)  # an agent without systemd had started these

    def drift(self) -> List[Dict[str, str]]:
        """See Units: the files of what runs now and of what brings it back after a reboot, and what overrides them."""
        specs = self._specs()
        if not specs:  # nothing of ours runs where an adopted server does, and nothing is to come back
            return []
        texts = [item for spec in specs for item in self._texts(spec).items()]
        wanted = {systemctl.RUNTIME / unit: text for unit, text in texts}
        boot = unit_files.boot(self._layout, self._agent("boot"), self._environment())
        wanted[systemctl.PERSISTENT / self._names.boot] = boot
        barred = [self._names.unit(spec.name) for spec in specs if self._barred(spec)]
        agents = {one["what"]: one for path in wanted for one in unit_drift.agent(path)}  # most run the same one
        return [
            *unit_drift.compare(wanted),
            *unit_drift.restarts(barred),
            *unit_drift.enabled(self._names.boot),
            *agents.values(),
        ]

    def _barred(self, spec: Spec) -> bool:
        """Whether a release that was confirmed would not be restarted."""
        return not spec.listen and self._layout.good() == spec.release and not self.path(spec.name, "restart").exists()

    def _texts(self, spec: Spec) -> Dict[str, str]:
        """The unit files of a spec, by name."""
        layout, names = self._layout, self._names
        if spec.listen:
            return {
                names.unit(spec.name): unit_files.proxy(layout, spec),
                names.socket: unit_files.socket(layout, spec),
            }
        run = self._agent("exec", spec.name)
        return {names.unit(spec.name): unit_files.server(layout, spec, run, self._environment())}

    def _write(self, spec: Spec, shown: Dict[str, Dict[str, str]]) -> None:
        """Have the unit files of a spec there and known to systemd, which reads all of its units again for that.

        So that is done only when one differs from what systemd has read: the texts are the same for most releases.
        """
        wanted = self._texts(spec)
        changed = [systemctl.put(systemctl.RUNTIME / unit, text) for unit, text in wanted.items()]
        others = set(self._all(spec.name)) - {*wanted, self._names.drain}
        changed += [systemctl.take(systemctl.RUNTIME / unit) for unit in others]
        if any(changed) or any(systemctl.unread(shown[unit]) for unit in wanted):
            systemctl.reload()
        systemctl.reset(*wanted)

    def _drain_unit(self) -> str:
        """Write the unit that makes the public port deaf; gives its name."""
        agent = detach.argv("deafen", keep=self._layout.root / "agent")
        text = unit_files.drain(self._layout, agent, self._environment())
        if systemctl.put(systemctl.RUNTIME / self._names.drain, text) or systemctl.unread(
            systemctl.show(self._names.drain)
        ):
            systemctl.reload()
        return self._names.drain

    def _agent(self, command: str, *more: str) -> List[str]:
        root, service = self._layout.root, self._layout.service
        return detach.argv(command, str(root), service, *more, keep=root / "agent")

    def _environment(self) -> Dict[str, str]:
        kept = ("PYTHONPATH", "PYTHONUTF8", "LANG", "PATH")
        return {key: value for key, value in detach.environment().items() if key in kept}

    def _all(self, name: str) -> List[str]:
        """Every unit that may belong to `name`, in the order in which they are stopped."""
        more = [self._names.socket, self._names.drain] if name == "front" else []
        return [*more, self._names.unit(name)]

    def _stranger(self, path: Path) -> str:
        """What to say when a unit file is there and is another root's or service's, or not kdeploy's at all.

        One of this service whose root is gone is what a root that was moved here has left, if this one has served.
        """
        text = _read(path)
        if not text or unit_files.owner(text) == unit_files.owned(self._layout):
            return ""
        root = unit_files.root_of(text, self._layout.service)
        if root and not os.path.lexists(root) and self._layout.good() is not None:
            return ""
        owner = ", ".join(unit_files.owner(text).split("\n")[:-1]) or "not kdeploy's"
        return f"there is a unit {path} already, which is not of this service ({owner})"

    def _journal(self, name: str, lines: str, within_s: float = 60.0) -> Iterator[bytes]:
        """What the unit's process wrote since it was started; what systemd says of it when there was no process."""
        kept = files.read_json(self.path(name, "run")) or {}
        invocation = kept.get("invocation") or systemctl.show(self._names.unit(name)).get("InvocationID")
        if not invocation:
            return iter(())
        field = "_SYSTEMD_INVOCATION_ID" if kept else "INVOCATION_ID"
        return systemctl.journal(f"{field}={invocation}", lines=lines, within_s=within_s)


def _shown(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]  # a progress bar: what it showed last


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
