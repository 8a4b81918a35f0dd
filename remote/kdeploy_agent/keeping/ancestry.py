"""Where a process comes from and who keeps it: its family, session, user and control group, as /proc tells them."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import processes, systemctl

_PROC = Path("/proc")
_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?$")
_MULTIPLEXERS = {"tmux: server": "tmux", "tmux": "tmux", "screen": "screen", "SCREEN": "screen"}
_WITHIN_S = 60.0


class Family(NamedTuple):
    """A process's parent, process group and session."""

    parent: int
    group: int
    session: int


class Keeper(NamedTuple):
    """Who keeps a process: `systemd` (a unit), `docker` (a container), or nobody: `tmux, screen, nohup, bare`.

    `group` is the control group that holds all its processes; empty when nothing tells them from others.
    """

    kind: str
    name: str = ""
    group: str = ""

    @property
    def starts(self) -> bool:
        """Whether it starts the process again when it is told to."""
        return self.kind in ("systemd", "docker")


def family(pid: int) -> Optional[Family]:
    """The family of a process; None when it is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return Family(int(fields[1]), int(fields[2]), int(fields[3]))


def ancestors(pid: int) -> List[int]:
    """Its parent, the parent of that, and so on, without process 1."""
    found: List[int] = []
    while True:
        own = family(found[-1] if found else pid)
        if own is None or own.parent <= 1 or own.parent in found:
            return found
        found.append(own.parent)


def leader(pid: int) -> int:
    """The process that started the server `pid` belongs to: the topmost of its process group that is no shell's child.

    A launcher and its workers are one server; a shell that waits for it, or a script around it, is not.
    """
    own = family(pid)
    top = pid
    for parent in ancestors(pid):
        other = family(parent)
        if own is None or other is None or other.group != own.group or _is_shell(parent):
            break
        top = parent
    return top


def group_of(pid: int) -> Set[int]:
    """Every living process of its process group and all that descend from it; never ourselves or who started us."""
    own = family(pid)
    if own is None:
        return set()
    families = {other: family(other) for other in processes.pids()}
    found = {other for other, theirs in families.items() if theirs is not None and theirs.group == own.group} | {pid}
    growing = True
    while growing:
        children = {one for one, theirs in families.items() if theirs is not None and theirs.parent in found}
        growing = not children <= found
        found |= children
    return {one for one in found if processes.identity(one)} - {os.getpid(), *ancestors(os.getpid())}


def user(pid: int) -> "tuple[int, int]":
    """The user and group ids that a process runs with; (-1, -1) when it is gone."""
    try:
        lines = (_PROC / str(pid) / "status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return -1, -1
    told = dict(line.partition(":")[::2] for line in lines)
    return int(told["Uid"].split()[1]), int(told["Gid"].split()[1])


def user_name(uid: int) -> str:
    """A user's name; the number when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def keeper_of(pid: int) -> Keeper:
    """Who keeps the process.

    Raises `preflight` for a unit of a user's own systemd: nobody else can tell it to stop and to start.
    """
    for path in _groups(pid):
        found = container_of(path)
        if found:
            return Keeper("docker", _docker("inspect", "--format", "{{.Name}}", found).lstrip("/"), path.split("/")[-1])
    for path in _groups(pid):
        unit = path.split("/")[-1]
        if unit.endswith(".service") and "/user@" in path:
            raise AgentError(
                "preflight",
                f"process {pid} is kept by a user's own systemd ({unit}), which kdeploy cannot tell to stop and start",
                "make it a unit of the system, or stop it and start the server by hand",
            )
        if unit.endswith(".service") and _runs(unit, pid):
            return Keeper("systemd", unit, unit)
    for parent in ancestors(pid):
        kind = _MULTIPLEXERS.get(_name(parent))
        if kind:
            return Keeper(kind)
    return Keeper("nohup" if _ignores(pid, signal.SIGHUP) else "bare")


def container_of(path: str) -> str:
    """The id of the container whose control group a path is; empty when it is none's."""
    found = _CONTAINER.search(path)
    return found.group(1) if found and ("docker" in path or path.count("/") == 1) else ""


def _groups(pid: int) -> List[str]:
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line.split(":", 2)[-1] for line in lines if line.count(":") >= 2]


def _runs(unit: str, pid: int) -> bool:
    """Whether the unit is the server's own: cron's jobs and sshd's sessions are in the group of another's unit."""
    main = int(systemctl.show(unit).get("MainPID") or 0)
    mine, theirs = family(pid), family(main)
    return main in (pid, *ancestors(pid)) and mine is not None and theirs is not None and mine.session == theirs.session


def _docker(*words: str) -> str:
    done = docker(*words)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise AgentError("preflight", f"docker {words[0]} failed: {said}", "may this user talk to docker?")
    return done.stdout.decode("utf-8", "replace").strip()


def docker(*words: str, seconds: float = _WITHIN_S) -> "subprocess.CompletedProcess[bytes]":
    """Run docker to its end; raises `preflight` when it is not there or does not end."""
    program = shutil.which("docker")
    if program is None:
        raise AgentError(
            "preflight", "the server runs in a container, and there is no docker command here", "install it"
        )
    try:
        return subprocess.run(
            [program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as fault:
        raise AgentError("fault", f"docker {words[0]} did not end within {seconds:.0f} s", "see: docker ps") from fault


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _is_shell(pid: int) -> bool:
    return _name(pid) in ("sh", "bash", "dash", "zsh", "fish", "ksh", "sudo", "su")


def _ignores(pid: int, number: int) -> bool:
    try:
        lines = (_PROC / str(pid) / "status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    told: Dict[str, str] = dict(line.partition(":")[::2] for line in lines)
    return bool(int(told.get("SigIgn", "0").strip(), 16) >> (number - 1) & 1)
