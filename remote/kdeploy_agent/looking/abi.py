"""Whether a Python may run a tree: the tags of the wheel that the tree was unpacked from (PEP 425, PEP 600)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator, List, Mapping, Optional, Tuple

from kdeploy_agent.looking.finding import Finding, judged


def fits(tree: Path, python: Mapping[str, Any]) -> Iterator[Finding]:
    """The runtime's Python against the tree's wheel; nothing when the tree is of no wheel."""
    tags = [tag for path in tree.glob("*.dist-info/WHEEL") for tag in read_tags(path.read_text("utf-8", "replace"))]
    if not tags:
        return
    version = f"{python['version'][0]}.{python['version'][1]}"
    whys = [why for why in (obstacle(tag, python) for tag in tags) if why]
    bad = len(whys) == len(tags)
    detail = whys[0] if bad else f"the tree is for {', '.join(tags)}"
    built = re.match(r"cp3(\d+)-", tags[0])
    other = f"3.{built.group(1)}" if built else "another Python"
    fix = f"set 'runtime.python' to \"{version}\" (another wheel), or make the runtime with {other}"
    yield judged("python abi", not bad, detail, fix)


def read_tags(wheel: str) -> List[str]:
    """The tags in the text of a .dist-info/WHEEL: `cp311-cp311-manylinux_2_34_x86_64`."""
    return re.findall(r"^Tag:\s*(\S+)\s*$", wheel, re.MULTILINE)


def obstacle(tag: str, python: Mapping[str, Any]) -> Optional[str]:
    """Why a Python cannot run what has this tag, in words; None when it can."""
    parts = tag.split("-")
    if len(parts) != 3:
        return None
    major, minor = python["version"][:2]
    why = _interpreter(parts[0].split("."), parts[1].split("."), major, minor)
    if why is not None:
        return f"the tree is for {tag}, the runtime is Python {major}.{minor}: {why}"
    why = _platform(parts[2].split("."), python["machine"], python["libc"])
    return f"the tree is for {tag}: {why}" if why is not None else None


def _interpreter(pythons: List[str], abis: List[str], major: int, minor: int) -> Optional[str]:
    if any(one in (f"py{major}", f"cp{major}{minor}", f"py{major}{minor}") for one in pythons):
        return None
    if "abi3" in abis:  # the stable ABI: of this Python or any later one
        since = [int(one[3:]) for one in pythons if re.fullmatch(rf"cp{major}\d+", one)]
        if since and min(since) <= minor:
            return None
    return "its extension modules would not load"


def _platform(platforms: List[str], machine: str, libc: List[str]) -> Optional[str]:
    whys = []
    for one in platforms:
        if one == "any":
            return None
        match = re.fullmatch(r"(?:manylinux_(\d+)_(\d+)|manylinux\d+|linux)_(\w+)", one)
        if match is None:
            return None  # a kind of tag that is not known here is not judged
        if match.group(3) != machine:
            whys.append(f"this host is {machine}")
            continue
        needed = (int(match.group(1)), int(match.group(2))) if match.group(1) else None
        here = _version(libc[1]) if libc[0] == "glibc" else None
        if needed is None or here is None or here >= needed:
            return None
        whys.append(f"this host has glibc {libc[1]}")
    return whys[0] if whys else None


def _version(text: str) -> Optional[Tuple[int, int]]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else None
