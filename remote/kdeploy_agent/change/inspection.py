"""The half of a transcript that comes from looking at the host, not from asking the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Optional

from kdeploy_agent.asking import logs
from kdeploy_agent.ground import processes
from kdeploy_agent.keeping.units import MARK, Units
from kdeploy_agent.trees import serving


def inspect(units: Units, release: Dict[str, Any], probes: Dict[str, Any]) -> Dict[str, Any]:
    """Processes of the server and whose code they have, who owns its port, what its log says, its restarts."""
    port = serving.ports(release)["private"]
    pids = units.members("server")
    owners = [one.pid for one in processes.holders(port)]
    status = units.status("server")
    return {
        "processes": _processes(units, pids),
        "port": {
            "number": port,
            "owner": owners[0] if owners else None,
            "ours": bool(owners) and all(pid in pids for pid in owners),
        },
        "log": logs.scan_log(units.log("server"), probes.get("log", [])),
        "restarts": status.restarts,
    }


def _processes(units: Units, pids: "set[int]") -> List[Dict[str, Any]]:
    supervisor = units.supervisor("server")
    told = []
    for pid in sorted(pids - {supervisor}):
        if processes.identity(pid) is None:
            continue
        told.append({"pid": pid, "name": processes.command(pid), "tree": _tree(pid)})
    return told


def _tree(pid: int) -> Optional[str]:
    environ = processes.environ(pid)
    first = environ.get("PYTHONPATH", "").split(os.pathsep)[0]
    return str(Path(first).resolve()) if first and MARK in environ else None
