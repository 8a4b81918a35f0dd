"""The GPUs of this host and who holds their memory, as nvidia-smi tells it: asked with a deadline, parsed with care.

Fields that a driver does not know are left out one by one (it exits 2 and names the first: driver 580), and every value
may be `N/A`, `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` or `ERR!` instead of what was asked for.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import bounded

ANSWERS_WITHIN_S = 20.0  # without the persistence daemon each call loads the driver anew: seconds on eight GPUs
_ELSEWHERE = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/bin")  # where a bare PATH misses it
_NEEDED = ("index", "uuid", "name", "memory.used", "memory.total")
_TOLD_BY_SOME = (
    "compute_cap",
    "driver_version",
    "mig.mode.current",
    "fabric.state",
    "fabric.status",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.failure",
    "gpu_recovery_action",
)
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_NOTHING = re.compile(r"\[?(n/?a|not supported|insufficient permissions|not available)\]?", re.IGNORECASE)
_AILS = re.compile(r"err!|unknown error|requires reset|is lost|fallen off", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """One GPU; a text is empty and a number None where the driver does not tell."""

    index: int
    uuid: str
    name: str
    used_mib: Optional[int]
    total_mib: Optional[int]
    capability: str
    """Compute capability, `10.3`."""
    driver: str
    mig: str
    """`Enabled` or `Disabled`."""
    fabric_state: str
    """`Completed` once the fabric manager has brought it into the NVLink fabric; empty where there is none."""
    fabric_status: str
    """`Success`, or why the registration failed; told once it is completed."""
    uncorrected: Optional[int]
    """Memory errors that ECC could not correct since the driver was loaded or the GPU reset."""
    remap_failed: str
    """`Yes` when a broken row of its memory could not be replaced."""
    recovery: str
    """What the driver wants done (`Reset`, `Reboot`, `Drain P2P`, ...); `None` when it is well."""
    ails: str = ""
    """The value by which nvidia-smi shows that it cannot talk to the GPU (`ERR!`)."""

    @property
    def arch(self) -> str:
        """`sm_103` for compute capability 10.3; empty when that is not known."""
        return f"sm_{self.capability.replace('.', '')}" if self.capability else ""


@dataclass(frozen=True)
class App:
    """A process that has a CUDA context: it holds memory of one GPU. `pid` is that of the host's own numbering."""

    pid: int
    gpu: str
    """uuid of the GPU."""
    used_mib: Optional[int]
    name: str


def query() -> List[Gpu]:
    """Every GPU of this host; empty without nvidia-smi or without a GPU.

    Raises `fault` when nvidia-smi is here but does not answer: the driver is not loaded, or a GPU is lost.
    """
    if tool() is None:
        return []
    fields = [*_NEEDED, *_TOLD_BY_SOME]
    while True:
        status, said = _run(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        unknown = _UNKNOWN_FIELD.search(said)
        if unknown is None or unknown.group(1) not in fields:
            break
        fields.remove(unknown.group(1))
    if "No devices were found" in said:
        return []
    if status != 0:
        raise _silent(status, said)
    return read_gpus(fields, said)


def apps() -> List[App]:
    """Every process that computes on a GPU here; empty without nvidia-smi. Raises `fault` as `query` does."""
    if tool() is None:
        return []
    fields = "pid,gpu_uuid,used_memory,process_name"
    status, said = _run(f"--query-compute-apps={fields}", "--format=csv,noheader,nounits")
    if "No devices were found" in said:
        return []
    if status != 0:
        raise _silent(status, said)
    return read_apps(said)


def tool() -> Optional[str]:
    """The path of nvidia-smi; None when it is not on this host."""
    return shutil.which("nvidia-smi", path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_ELSEWHERE]))


def read_gpus(fields: Sequence[str], said: str) -> List[Gpu]:
    """GPUs from the lines of --query-gpu=`fields`; a line that is not one of them raises `fault`."""
    found = []
    for line in filter(None, map(str.strip, said.splitlines())):
        values = [value.strip() for value in line.split(", ")]
        if len(values) != len(fields) or not values[0].isdigit():
            raise _silent(0, line)
        row: Dict[str, str] = dict(zip(fields, values))
        told = {key: "" if _NOTHING.fullmatch(value) else value for key, value in row.items()}
        capability = told.get("compute_cap", "")
        found.append(
            Gpu(
                index=int(row["index"]),
                uuid=told["uuid"],
                name=told["name"],
                used_mib=_number(told["memory.used"]),
                total_mib=_number(told["memory.total"]),
                capability=capability if re.fullmatch(r"\d+\.\d+", capability) else "",
                driver=told.get("driver_version", ""),
                mig=told.get("mig.mode.current", ""),
                fabric_state=told.get("fabric.state", ""),
                fabric_status=told.get("fabric.status", ""),
                uncorrected=_number(told.get("ecc.errors.uncorrected.volatile.total", "")),
                remap_failed=told.get("remapped_rows.failure", ""),
                recovery=told.get("gpu_recovery_action", ""),
                ails=next((f"{key}: {value}" for key, value in row.items() if _AILS.search(value)), ""),
            )
        )
    return found


def read_apps(said: str) -> List[App]:
    """Processes from the lines of --query-compute-apps=pid,gpu_uuid,used_memory,process_name."""
    found = []
    for line in filter(None, map(str.strip, said.splitlines())):
        values = [value.strip() for value in line.split(", ", 3)]
        if len(values) == 4 and values[0].isdigit():
            found.append(App(int(values[0]), values[1], _number(values[2]), values[3]))
    return found


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _run(*words: str) -> Tuple[int, str]:
    """nvidia-smi's exit status and what it said; when it hangs it is left to itself: nothing kills a stuck driver."""
    found = tool()
    assert found is not None
    done = bounded.run([found, *words], ANSWERS_WITHIN_S, {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"})
    if done is None:
        hint = "the driver hangs: see `dmesg | grep -i xid`; most often only a reboot helps"
        raise AgentError("fault", f"nvidia-smi did not answer within {ANSWERS_WITHIN_S:.0f} s", hint)
    return done.status, done.out + done.err


def _silent(status: int, said: str) -> AgentError:
    text = " ".join(said.split())[:300] or "nothing"
    return AgentError(
        "fault",
        f"nvidia-smi (exit {status}) says: {text}",
        "the driver is not loaded or not of this kernel, or a GPU is lost: see `dmesg | grep -i -e nvrm -e xid`",
    )
