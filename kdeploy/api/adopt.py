"""`adopt`: what a host serves already becomes the release that can be gone back to."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import ledger, profile
from kdeploy.api import hosts
from kdeploy.api.reach import hosts_of
from kdeploy.errors import UsageError
from kdeploy.host import operator
from kdeploy.profile import Profile
from kdeploy.progress import Note
from kdeploy.verdict import prompts as asking

_ADOPTS_WITHIN_S = 600.0


@dataclass(frozen=True)
class Adopted:
    """One host's server, written down."""

    host: str
    release: Mapping[str, Any]
    """Its document: how it is kept, where its package is, the names of its environment; no value of that."""
    notes: tuple[str, ...]
    """What could not be found out, and what that means for the way back."""


def adopt(
    path: Path, note: Note, *, port: int | None = None, unit: str | None = None, pid: int | None = None
) -> tuple[Adopted, ...]:
    """Record what serves now on each host of a profile: at its ports, else at `port`, of `unit`, or process `pid`.

    Changes nothing about the server. Raises PreflightError when there is none, or it may not be looked at.
    """
    read = profile.load(path)
    named = {key: value for key, value in (("port", port), ("unit", unit), ("pid", pid)) if value is not None}
    if len(named) > 1:
        raise UsageError("--port, --unit and --pid each name the server: give one of them")
    if pid is not None and len(read.hosts) > 1:
        raise UsageError("--pid names a process of one host, and the profile has several", hint="use --port or --unit")
    request = {
        "by": operator(),
        "profile": read.name,
        "ports": [read.file.serve.port, read.file.serve.private_port],
        "brief": _questions(read),
        "start_s": read.file.gate.start_s,
        **named,
    }
    found = []
    for host in hosts_of(read):
        note(f"{host.name}: looking at what serves there")
        txn = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(3).hex()}"
        told = host.call("adopt", {**request, "txn": txn}, timeout_s=_ADOPTS_WITHIN_S)
        ledger.add("adopt", read.path, host.service, host.name, str(told["release"]["id"]), "ok")
        found.append(Adopted(host.name, told["release"], tuple(told["notes"])))
    return tuple(found)


def _questions(read: Profile) -> list[dict[str, Any]]:
    """A few of the gate's questions, without the answers that another server would give."""
    name = str(read.file.serve.args.get("served-model-name") or read.file.serve.args["model-path"])
    told = asking.probes(hosts.prompts_of(read), asking.Bounds(json=False), name)
    return [{key: value for key, value in ask.items() if key != "answer"} for ask in told["brief"]]
