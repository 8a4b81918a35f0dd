"""Whoever keeps an adopted server beside kdeploy: systemd, docker, or nobody. Seen, stopped and started like a unit.

`Beside` wraps the keeper of our own units on a host that has an adopted release: its server is then the unit `server`.
"""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, gpus, processes, systemctl
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import adopted, ancestry
from kdeploy_agent.keeping.ancestry import Keeper
from kdeploy_agent.keeping.units import Spec, Status, Units

_GRACE_S = 30.0
_GOES_WITHIN_S = 20.0
_SAID_WITHIN_S = 10.0  # nobody waits long for last words


class Bystander:
    """The server of one adopted release, where it is not a unit of ours."""

    def __init__(self, layout: Layout, document: Dict[str, Any]) -> None:
        about = document["adopted"]
        self.release: str = document["id"]
        self.port: int = document["launch"]["port"]
        self.keeper = Keeper(about["keeper"], about["name"], about["group"])
        self._folder = layout.release(self.release)

    def status(self) -> Status:
        """What it is doing."""
        pid = self._pid()
        since = processes.started(pid) if pid else 0.0
        note = "" if pid else f"{self.keeper.kind} {self.keeper.name}".strip() + " does not run it"
        return Status(alive=bool(pid), pid=pid, since=since, release=self.release, port=self.port, note=note)

    def members(self) -> Set[int]:
        """Pids of all its processes."""
        pid = self._pid()
        if self.keeper.starts:
            return processes.in_cgroup(self.keeper.group) if pid else set()
        return ancestry.group_of(pid) if pid else set()

    def stop(self) -> None:
        """End it, and see to it that nobody starts it again; what that took back is remembered for `start`.

        Raises `fault` naming what does not go.
        """
        left = self.members()
        if self.keeper.kind == "systemd":
            self._remember("enabled", systemctl.enabled(self.keeper.name), worth=("enabled", "enabled-runtime"))
            systemctl.disable(self.keeper.name)
            systemctl.stop(self.keeper.name, seconds=300)
        elif self.keeper.kind == "docker":
            self._remember("restart", self._inspect("{{.HostConfig.RestartPolicy.Name}}"), worth=_POLICIES)
            self._docker("update", "--restart=no", self.keeper.name)
            self._docker("stop", "--time", f"{_GRACE_S:.0f}", self.keeper.name)
        else:
            processes.send(left, signal.SIGTERM)
            self._wait(left, _GRACE_S)
            processes.send(self._living(left), signal.SIGKILL)
        self._wait(left, _GOES_WITHIN_S)
        self._gone(left)

    def start(self) -> None:
        """Have its keeper start it, and start it after a reboot as before. Raises `fault` when it does not."""
        kept = files.read_json(self._folder / "kept.json") or {}
        if self.keeper.kind == "systemd":
            if kept.get("enabled"):
                systemctl.enable(self.keeper.name)
            complaint = systemctl.start(self.keeper.name)
            if complaint:
                raise AgentError("fault", f"{self.keeper.name} does not start: {complaint}", "see: systemctl status")
        else:
            if kept.get("restart"):
                self._docker("update", f"--restart={kept['restart']}", self.keeper.name)
            self._docker("start", self.keeper.name)

    def words(self, lines: int) -> List[str]:
        """The last lines it wrote, where its keeper has kept them."""
        if self.keeper.kind == "systemd":
            found = systemctl.journal("--unit", self.keeper.name, lines=str(lines), within_s=_SAID_WITHIN_S)
            return [line.decode("utf-8", "replace").rstrip() for line in found]
        if self.keeper.kind == "docker":
            done = ancestry.docker("logs", "--tail", str(lines), self.keeper.name, seconds=_SAID_WITHIN_S)
            return (done.stdout + done.stderr).decode("utf-8", "replace").splitlines()[-lines:]
        return []

    def _pid(self) -> int:
        if self.keeper.kind == "systemd":
            shown = systemctl.show(self.keeper.name)
            return int(shown["MainPID"] or 0) if shown["ActiveState"] in ("active", "reloading", "deactivating") else 0
        if self.keeper.kind == "docker":
            done = ancestry.docker("inspect", "--format", "{{.State.Pid}}", self.keeper.name)
            told = done.stdout.decode("utf-8", "replace").strip()
            return int(told) if done.returncode == 0 and told.isdigit() else 0
        seen = files.read_json(self._folder / "seen.json") or {}
        pid = int(seen.get("pid", 0))
        return pid if processes.is_same(pid, seen.get("identity", "")) else 0

    def _remember(self, what: str, found: str, worth: "tuple[str, ...]") -> None:
        """Keep how it was started at boot; a second stop finds that switched off already and changes nothing."""
        if found in worth:
            files.write(self._folder / "kept.json", files.canonical({what: found}))

    def _inspect(self, template: str) -> str:
        done = ancestry.docker("inspect", "--format", template, self.keeper.name)
        return done.stdout.decode("utf-8", "replace").strip()

    def _docker(self, *words: str) -> None:
        done = ancestry.docker(*words, seconds=300)
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise AgentError("fault", f"docker {words[0]} {self.keeper.name}: {said}", "see: docker ps -a")

    def _living(self, pids: Set[int]) -> Set[int]:
        return {pid for pid in pids if processes.identity(pid)} | self.members()

    def _wait(self, pids: Set[int], seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._living(pids) and time.monotonic() < end:
            time.sleep(0.05)

    def _gone(self, pids: Set[int]) -> None:
        left = self._living(pids)
        if left:
            named = ", ".join(f"{pid} ({processes.command(pid)})" for pid in sorted(left))
            raise AgentError("fault", f"{self.release} does not end: {named}", f"kill -9 {min(left)}")
        end = time.monotonic() + _GOES_WITHIN_S
        while (processes.holders(self.port) or _on_a_gpu(pids)) and time.monotonic() < end:
            time.sleep(0.1)


_POLICIES = ("always", "unless-stopped", "on-failure")


def _on_a_gpu(pids: Set[int]) -> bool:
    """Whether the driver still counts memory for a process that is gone."""
    try:
        return any(app.pid in pids for app in gpus.apps())
    except AgentError:
        return False


class Beside(Units):
    """Our own units, and the adopted servers beside them: whichever of these runs is the unit `server`."""

    def __init__(self, layout: Layout, own: Units, found: List[Bystander]) -> None:
        super().__init__(layout)
        self._own = own
        self._found = found
        self.kind = own.kind

    def start(self, spec: Spec) -> None:
        """See Units; what is kept by somebody else is started by them."""
        one = self._of(spec.release)
        if one is not None and one.keeper.starts:
            self._own.tidy(spec.name)
            one.start()
        else:
            self._own.start(spec)

    def stop(self, *names: str) -> None:
        """See Units."""
        for one in self._found if "server" in names else []:
            if one.keeper.starts or one.status().alive:  # what is down may be about to be started again
                one.stop()
        self._own.stop(*names)

    def status(self, name: str) -> Status:
        """See Units."""
        own = self._own.status(name)
        running = self._running() if name == "server" and not own.alive else None
        return running.status() if running is not None else own

    def members(self, name: str) -> Set[int]:
        """See Units."""
        beside = {pid for one in self._found for pid in one.members()} if name == "server" else set()
        return self._own.members(name) | beside

    def allow_restarts(self, name: str) -> None:
        """See Units; nothing to allow where somebody else decides."""
        if name != "server" or self._own.status(name).alive or self._running() is None:
            self._own.allow_restarts(name)

    def tail(self, name: str, lines: int) -> List[str]:
        """See Units."""
        running = self._running() if name == "server" and not self._own.status(name).alive else None
        return running.words(lines) if running is not None else self._own.tail(name, lines)

    def check(self, spec: Spec) -> None:
        """See Units."""
        one = self._of(spec.release)
        if one is None or not one.keeper.starts:
            self._own.check(spec)

    def owns(self, pid: int, port: int) -> bool:
        """See Units."""
        return self._own.owns(pid, port) or any(pid in one.members() for one in self._found)

    def log(self, name: str) -> Iterator[bytes]:
        """See Units."""
        return self._own.log(name)

    def show(self, name: str, lines: int, emit: Callable[[str], None], wanted: Optional[Callable[[], bool]]) -> str:
        """See Units."""
        running = self._running() if name == "server" and not self._own.status(name).alive else None
        if running is None or wanted is not None:
            return self._own.show(name, lines, emit, wanted)
        for line in running.words(lines):
            emit(line)
        return f"{running.keeper.kind} {running.keeper.name}".strip()

    def survive(self) -> str:
        """See Units."""
        return self._own.survive()

    def lost(self) -> str:
        """See Units."""
        return self._own.lost()

    def tidy(self, *names: str) -> None:
        """See Units."""
        self._own.tidy(*names)

    def going_down(self) -> bool:
        """See Units."""
        return self._own.going_down()

    def supervisor(self, name: str) -> int:
        """See Units."""
        return self._own.supervisor(name)

    def drift(self) -> List[Dict[str, str]]:
        """See Units."""
        return self._own.drift()

    def _end(self, name: str, spec: Optional[Spec]) -> None:
        self._own._end(name, spec)

    def _of(self, release: str) -> Optional[Bystander]:
        return next((one for one in self._found if one.release == release), None)

    def _running(self) -> Optional[Bystander]:
        return next((one for one in self._found if one.status().alive), None)


def beside(layout: Layout, own: Units) -> Units:
    """The keeper of a service's units, with the adopted servers that are on this host."""
    found = [Bystander(layout, document) for document in adopted.on(layout)]
    return Beside(layout, own, found) if found else own
