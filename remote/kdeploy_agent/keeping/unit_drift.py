"""How systemd's unit files of a service differ from what kdeploy wrote, and what overrides them."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from kdeploy_agent.asking import logs
from kdeploy_agent.ground import systemctl
from kdeploy_agent.keeping import unit_files

_AGENT = re.compile(r"agent-[0-9a-f]+\.pyz")  # whichever agent wrote it
_RUN = re.compile(r'"((?:[^"\\]|\\.)*/agent-([0-9a-f]{16,64})\.pyz)"')
_FIX = "kdeploy apply the profile after `kdeploy stop`: the unit is written anew"
_MENDED = "kdeploy apply the profile: what serves is not touched for that"


def compare(wanted: Mapping[Path, str]) -> Iterator[Dict[str, str]]:
    """Every unit file that is not as `wanted` (path to text), by the lines that differ, and every drop-in of one."""
    for path, text in wanted.items():
        shown = systemctl.show(path.name)
        if shown.get("LoadState") == "masked":
            yield _told(path.name, "a unit that can be started", "masked", f"systemctl unmask {path.name}")
            continue
        try:
            found = path.read_text("utf-8", "replace")
        except OSError:
            yield _told(str(path), "the unit that kdeploy wrote", "nothing", _FIX)
            continue
        missing, added = _differences(text, found)
        if missing or added:
            yield _told(str(path), "; ".join(missing) or "nothing more", "; ".join(added) or "nothing of that", _FIX)
        more = shown.get("DropInPaths")
        if more:
            fix = f"systemctl revert {path.name}, or say it in the profile"
            yield _told(str(path), "nothing that overrides it", more, fix)


def restarts(barred: Sequence[str]) -> Iterator[Dict[str, str]]:
    """Units of a confirmed release whose process would not be started again when it ends."""
    for unit in barred:
        yield _told(unit, "restarted when its process ends", "not restarted", _FIX)


def enabled(unit: str) -> Iterator[Dict[str, str]]:
    """Whether the unit that brings the service back is started at boot."""
    found = systemctl.enabled(unit)
    if found.startswith("masked"):
        yield _told(unit, "enabled", found, f"systemctl unmask {unit}; then kdeploy apply the profile")
    elif found != "enabled":
        yield _told(unit, "enabled", found or "unknown", _MENDED)


def _differences(wanted: str, found: str) -> Tuple[List[str], List[str]]:
    """Lines of a unit file that are missing, and those that nobody of ours wrote."""
    ours, theirs = ([_AGENT.sub("agent.pyz", line) for line in one.splitlines()] for one in (wanted, found))
    missing = [logs.mask(line) for line in ours if line not in theirs]
    return missing, [logs.mask(line) for line in theirs if line not in ours]


def lost(unit: Path, wanted: str, running: Sequence[Path]) -> str:
    """Why the unit that brings the service back would not do so, or what is `running` not start again; else empty.

    By what is on the disk: systemd takes its time to answer, and every apply asks this.
    """
    try:
        text = unit.read_text("utf-8", "replace")
    except OSError:
        text = ""
    if unit_files.owner(text) != unit_files.owner(wanted):
        return f"{unit} is masked, gone or another's"
    if any(_differences(wanted, text)):
        return f"{unit} is not as kdeploy wrote it"
    if not starts_at_boot(unit):
        return f"{unit.name} is not enabled"
    for path in (place / f"{unit.name}.d" for place in systemctl.PLACES):
        if any(path.glob("*.conf")):
            return f"{path} overrides it (systemctl revert {unit.name})"
    for path in (systemctl.PERSISTENT / one.name for one in running):
        if os.path.lexists(str(path)):
            return f"{path} is in the way of what kdeploy starts (systemctl unmask {path.name}, or remove it)"
    return "; ".join(f"{one['what']} has {one['found']}" for path in (unit, *running) for one in agent(path))


def starts_at_boot(unit: Path) -> bool:
    """Whether a unit file is started at boot, as `systemctl enable` does it."""
    link = unit.parent / "multi-user.target.wants" / unit.name
    return link.is_symlink() and (unit.parent / os.readlink(str(link))).resolve() == unit  # noqa: PTH115


def agent(unit: Path) -> Iterator[Dict[str, str]]:
    """Whether the agent file that a unit runs is there and whole: its name says its sha256, or how that begins."""
    try:
        text = unit.read_text("utf-8", "replace")
    except OSError:
        return  # which `compare` tells
    for quoted, wanted in sorted(set(_RUN.findall(text))):
        path = unit_files.said(quoted)
        try:
            found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError:
            found = ""
        if not found.startswith(wanted):
            yield _told(path, "the agent that was pushed", "another content" if found else "nothing", _MENDED)


def _told(what: str, expected: str, found: str, fix: str) -> Dict[str, str]:
    return {"what": what, "expected": expected, "found": found, "fix": fix}
