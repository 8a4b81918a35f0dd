"""Processes as the kernel shows them in /proc: who is who, who carries our mark, who owns a port."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from kdeploy_agent.ground import secrets

_PROC = Path("/proc")


class Holder(NamedTuple):
    """Who listens on a port; `pid` is 0 when the kernel does not let us see it (another user's process)."""

    pid: int
    command: str


def identity(pid: int) -> Optional[str]:
    """What tells this process from any other that had or will have its pid; None when it is gone or a zombie."""
    try:
        # The command name may hold spaces and brackets: fields count from after the last one.
        fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return f"{_boot()}/{fields[19]}"


def is_same(pid: int, known: str) -> bool:
    """Whether `pid` is alive and still the process that had `known` as its identity."""
    return pid > 0 and identity(pid) == known


def environ(pid: int) -> Dict[str, str]:
    """The environment a process was started with; empty when it is gone or not ours to see."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in os.fsdecode(raw).split("\0") if "=" in item)
    return {key: value for key, _, value in pairs}


def command(pid: int) -> str:
    """A process's command line for people; its short name when it has none."""
    try:
        words = os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes()).split("\0")
        line = " ".join(word for word in words if word)
        return secrets.cut(line, 200) or (_PROC / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "(gone)"


def pids() -> List[int]:
    """Every process there is."""
    return _pids()


def started(pid: int) -> float:
    """When a process was started, seconds since the epoch; 0 when it is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        uptime = float((_PROC / "uptime").read_text().split()[0])
    except OSError:
        return 0.0
    return round(time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK"), 3)


def listened(pids: Set[int]) -> List[int]:
    """Every TCP port that one of the processes listens on, sorted."""
    inodes = {name for pid in pids for name in _sockets(pid)}
    return sorted({port for port, fields in _all_sockets() if f"socket:[{fields[9]}]" in inodes and fields[3] == "0A"})


def addresses(port: int) -> List[str]:
    """Where the TCP port is listened at: `any`, or addresses as text."""
    found = []
    for fields in _sockets_at(port):
        if fields[3] == "0A":
            found.append(_address(fields[1].partition(":")[0]))
    return found


def _address(raw: str) -> str:
    """An address of /proc/net/tcp: hexadecimal words in the machine's byte order."""
    words = [bytes.fromhex(raw[at : at + 8])[::-1] for at in range(0, len(raw), 8)]
    if sys.byteorder == "big":
        words = [word[::-1] for word in words]
    packed = b"".join(words)
    if not any(packed):
        return "any"
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def argv(pid: int) -> List[str]:
    """A process's command line, word by word; empty when it is gone, or has none."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return os.fsdecode(raw).split("\0")[:-1] if raw.endswith(b"\0") else os.fsdecode(raw).split("\0")


def cwd(pid: int) -> str:
    """A process's working folder; empty when it is gone or not ours to see."""
    return _link(pid, "cwd")


def program(pid: int) -> str:
    """The program file a process runs; ends with ` (deleted)` when another was put in its place."""
    return _link(pid, "exe")


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")  # noqa: PTH115 - Path.readlink came with Python 3.9
    except OSError:
        return ""


def members(variable: str, value: str) -> Set[int]:
    """Every living process that carries `variable=value` in its environment, and all their descendants.

    The mark finds what reparented, descent finds what wiped its environment. Ourselves excluded, and containers on this
    host: one that has kdeploy inside may serve under the very same mark.
    """
    parents = _parents()
    found = {pid for pid in parents if environ(pid).get(variable) == value and not _contained(pid)}
    children: Dict[int, List[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    queue = list(found)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    found.discard(os.getpid())
    return found


def in_unit(unit: str) -> Set[int]:
    """Every living process of a unit of this host's systemd. A container's systemd may have one of the same name."""
    group = f"{_manager()}/system.slice/{unit}"
    return {pid for pid in _pids() if any(f"{one}/".startswith(f"{group}/") for one in _groups(pid)) and identity(pid)}


def in_cgroup(name: str) -> Set[int]:
    """Every living process in the control group `name` or in one below it, wherever groups are mounted."""
    return {pid for pid in _pids() if any(name in one.split("/") for one in _groups(pid)) and identity(pid)}


def connections(port: int) -> int:
    """How many connections are open that came in at the TCP port, ours or in our network at least."""
    return sum(1 for fields in _sockets_at(port) if fields[3] in ("01", "08"))  # established; the client has said all


def holders(port: int) -> List[Holder]:
    """Every process that listens on the TCP port, on any address; empty when the port is free."""
    inodes = _listening(port)
    if not inodes:
        return []
    found = [Holder(pid, command(pid)) for pid in _pids() if inodes & _sockets(pid)]
    return found or [Holder(0, "a process of another user")]


def send(pids: Set[int], number: int) -> None:
    """Signal processes; those that are gone meanwhile are fine."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def kill_all(variable: str, value: str, deadline: float) -> Set[int]:
    """SIGKILL everything that carries the mark, again and again until nothing does; gives what is left at the deadline.

    `deadline` is a value of time.monotonic().
    """
    while True:
        left = members(variable, value)
        if not left or time.monotonic() >= deadline:
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.05)


def _pids() -> List[int]:
    return [int(name) for name in os.listdir(str(_PROC)) if name.isdigit()]  # noqa: PTH208 - names are all we need


def _parents() -> Dict[int, int]:
    found: Dict[int, int] = {}
    for pid in _pids():
        try:
            fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            found[pid] = int(fields[1])
    return found


def _groups(pid: int) -> List[str]:
    """The control groups a process is in, of every hierarchy, as paths."""
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line.split(":", 2)[-1] for line in lines]


def _manager() -> str:
    """The group below which this host's systemd puts its units: the one it is in itself, without its last part."""
    ends = "/init.scope"
    return next((one[: -len(ends)] for one in _groups(1) if one.endswith(ends)), "")


def _contained(pid: int) -> bool:
    """Whether a process has another numbering than ours: it belongs to a container."""
    theirs = _link(pid, "ns/pid")
    return bool(theirs) and theirs != _link(os.getpid(), "ns/pid")


def _listening(port: int) -> Set[str]:
    return {f"socket:[{fields[9]}]" for fields in _sockets_at(port) if fields[3] == "0A"}


def _sockets_at(port: int) -> Iterator[List[str]]:
    """The fields of every TCP socket whose own port this is."""
    return (fields for number, fields in _all_sockets() if number == port)


def _all_sockets() -> Iterator[Tuple[int, List[str]]]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            yield int(fields[1].rpartition(":")[2], 16), fields


def _sockets(pid: int) -> Set[str]:
    found: Set[str] = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                found.add(os.readlink(entry.path))  # noqa: PTH115 - Path.readlink came with Python 3.9
            except OSError:
                continue
    except OSError:
        pass
    return found


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown-boot"
