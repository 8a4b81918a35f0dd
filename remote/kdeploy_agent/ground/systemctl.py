"""The one door to systemd: systemctl, journalctl and systemd-run, each with a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import bounded

RUNTIME = Path("/run/systemd/system")  # units that are gone after a reboot
PERSISTENT = Path("/etc/systemd/system")
PLACES = (PERSISTENT, RUNTIME, *map(Path, ("/etc/systemd/system.control", "/run/systemd/system.control")))
"""Where people, and `systemctl set-property`, override a unit."""

WITHOUT = "KDEPLOY_UNITS"  # `supervisor` in the agent's environment: do without systemd

_QUICKLY_S = 60.0  # a manager that is busy with a boot or a reload answers late
_SYNC_S = 3.0  # for journald to write what it has: milliseconds, unless it is stuck
_SHOWN = (
    "LoadState", "ActiveState", "SubState", "Result", "MainPID", "ExecMainCode", "ExecMainStatus", "NRestarts",
    "ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic", "InvocationID", "FragmentPath", "DropInPaths",
    "NeedDaemonReload", "Restart",
)  # fmt: skip


def keeps_units() -> bool:
    """Whether systemd keeps units here: it runs, and we have the rights."""
    return os.environ.get(WITHOUT) != "supervisor" and os.geteuid() == 0 and RUNTIME.is_dir()


def show(unit: str) -> Dict[str, str]:
    """What systemd knows of a unit, by property; LoadState is `not-found` when there is none."""
    return show_all([unit])[unit]


def show_all(units: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """The same of several units, by their names."""
    done = _run("systemctl", "show", f"--property={','.join(_SHOWN)}", "--", *units)
    blocks = done.stdout.decode("utf-8", "replace").strip("\n").split("\n\n")
    if done.returncode != 0 or len(blocks) != len(units):
        raise AgentError("fault", f"systemd does not answer: {_said(done)}", "see: systemctl status")
    pairs = [(line.partition("=") for line in block.splitlines()) for block in blocks]
    return {unit: {key: value for key, _, value in found} for unit, found in zip(units, pairs)}


def unread(shown: Dict[str, str]) -> bool:
    """Whether a unit's file is not as systemd has read it."""
    return shown["LoadState"] != "loaded" or shown["NeedDaemonReload"] != "no"


def take(path: Path) -> bool:
    """Remove a file; gives whether it was there."""
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def put(path: Path, text: str) -> bool:
    """Have a file there with this text; gives whether it had to be written."""
    with contextlib.suppress(OSError):
        if path.read_text("utf-8", "replace") == text:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, "utf-8")
    beside.chmod(0o644)
    beside.replace(path)
    return True


def start(*units: str) -> str:
    """Start units and wait until systemd has; gives what it complains of, or nothing."""
    done = _run("systemctl", "start", "--", *units)
    return _said(done) if done.returncode else ""


def stop(*units: str, seconds: float) -> None:
    """Stop units and wait for that; those that are not there are fine. What stays is for the caller to see."""
    try:
        _run("systemctl", "stop", "--", *units, seconds=seconds)
    except AgentError:
        pass


def reset(*units: str) -> None:
    """Forget how units ended and how often they were started."""
    _run("systemctl", "reset-failed", "--", *units)


def reload() -> None:
    """Have unit files read again."""
    done = _run("systemctl", "daemon-reload")
    if done.returncode:
        raise AgentError("fault", f"systemd does not read its units again: {_said(done)}", "see: systemctl status")


def enable(unit: str) -> None:
    """Have a unit started at every boot."""
    done = _run("systemctl", "enable", "--quiet", "--", unit)
    if done.returncode:
        raise AgentError("fault", f"{unit} cannot be enabled: {_said(done)}", f"see: systemctl status {unit}")


def enabled(unit: str) -> str:
    """Whether a unit is started at every boot, in systemd's word: enabled, disabled, static, …"""
    return _run("systemctl", "is-enabled", "--", unit).stdout.decode("utf-8", "replace").strip()


def disable(unit: str) -> None:
    """Have a unit no longer started at boot; one that never was is fine."""
    _run("systemctl", "disable", "--quiet", "--", unit)


def stopping() -> bool:
    """Whether the machine is on its way down."""
    return _run("systemctl", "is-system-running").stdout.strip() == b"stopping"


def journal(*words: str, lines: str = "all", within_s: float = _QUICKLY_S) -> Iterator[bytes]:
    """Lines of the journal that match, as they were written, the oldest first; each ends with its newline.

    Raises `fault` when the journal says nothing for `within_s` while there is more to come.
    """
    with contextlib.suppress(OSError):  # what a process said last may not have arrived yet; without that, what has
        bounded.run(["journalctl", "--sync"], min(within_s, _SYNC_S), _environment())
    child = follow(*words, lines=lines, more=False)
    assert child.stdout is not None
    handle, rest = child.stdout.fileno(), b""
    try:
        while select.select([handle], [], [], within_s)[0]:
            data = os.read(handle, 1 << 16)
            *whole, rest = (rest + data).split(b"\n")
            yield from (line + b"\n" for line in whole)
            if rest and (not data or len(rest) > 1 << 20):
                yield rest
                rest = b""
            if not data:
                return
        raise AgentError(
            "fault", f"journalctl says nothing for {within_s:.0f} s", "see: systemctl status systemd-journald"
        )
    finally:
        end(child)


def follow(*words: str, lines: str, more: bool = True) -> "subprocess.Popen[bytes]":
    """journalctl on what matches: the last `lines`, then what comes, on its stdout. End it with `end`."""
    argv = ["journalctl", "--quiet", "--no-pager", "--all", "--output=cat", f"--lines={lines}"]
    argv += ["--follow"] if more else []
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.Popen([*argv, *words], stdin=null, stdout=pipe, stderr=null, env=_environment())
    except OSError as fault:
        raise _cannot(argv[0], fault) from fault


def lines_while(child: "subprocess.Popen[bytes]", wanted: Callable[[], bool]) -> Iterator[bytes]:
    """The lines that a process writes, for as long as it lives and `wanted()`."""
    assert child.stdout is not None
    handle, rest = child.stdout.fileno(), b""
    while wanted():
        if not select.select([handle], [], [], 0.25)[0]:
            continue
        data = os.read(handle, 1 << 16)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        yield from whole


def end(child: "subprocess.Popen[bytes]") -> None:
    """End a journalctl, which may have ended already; one that hangs in the kernel is left behind."""
    child.kill()
    if child.stdout is not None:
        child.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1)


def _cannot(program: str, fault: OSError) -> AgentError:
    return AgentError("fault", f"cannot run {program}: {fault.strerror}", "kdeploy needs it beside systemd")


def _run(*argv: str, seconds: float = _QUICKLY_S) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, env=_environment(), timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as fault:
        what = " ".join(argv[:2])
        raise AgentError("fault", f"{what} did not end within {seconds:.0f} s", "see: systemctl list-jobs") from fault
    except OSError as fault:
        raise _cannot(argv[0], fault) from fault


def _environment() -> Dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}


def _said(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines: List[str] = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return " ".join(lines)[:400] or f"exit {done.returncode}"


def scope(unit: str, after: Sequence[str]) -> List[str]:
    """The words that run a command in a scope of its own: no session that ends takes it along. It keeps its handles.

    When the machine goes down it ends before the units `after` which it comes.
    """
    order = [f"--property=After={one}" for one in after]
    return ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={unit}", *order, "--"]
