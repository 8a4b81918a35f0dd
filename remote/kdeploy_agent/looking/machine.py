"""Whether this host's GPUs are those a release was made for, well, joined, and free: judged by nvidia-smi's word."""

from __future__ import annotations

from typing import AbstractSet, Any, Dict, Iterator, List, Mapping, Optional, Sequence

from kdeploy_agent.ground import processes
from kdeploy_agent.ground.gpus import App, Gpu
from kdeploy_agent.looking.finding import Finding, doubt, judged, well, wrong
from kdeploy_agent.trees import serving

_HOLDS_MIB = 1024  # a stranger with less (a desktop, a monitor's context) leaves room for the model
_TP_FLAGS = ("--tp-size", "--tensor-parallel-size", "--tp")


def needs_gpus(release: Mapping[str, Any]) -> bool:
    """Whether the release's launch lets its server use a GPU at all."""
    launch = release["launch"]
    on_cpu = serving.argument(launch["args"], "--device") == "cpu"
    return not on_cpu and launch.get("env", {}).get("CUDA_VISIBLE_DEVICES") != ""


def together(release: Mapping[str, Any]) -> int:
    """Over how many processes one model is spread (tensor parallelism)."""
    given = serving.argument(release["launch"]["args"], *_TP_FLAGS) or "1"
    return int(given) if given.isdigit() else 1


def usable(release: Mapping[str, Any], found: Sequence[Gpu]) -> List[Gpu]:
    """The GPUs that the release's server will see: CUDA_VISIBLE_DEVICES may name some by index or uuid."""
    named = release["launch"].get("env", {}).get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return list(found)
    words = [word.strip() for word in named.split(",") if word.strip()]
    return [gpu for gpu in found if any(_is(gpu, word) for word in words)]


def _is(gpu: Gpu, word: str) -> bool:
    return str(gpu.index) == word or (not word.isdigit() and gpu.uuid.startswith(word))


def as_declared(machine: Mapping[str, Any], found: Sequence[Gpu]) -> Iterator[Finding]:
    """The profile's `machine`: how many GPUs, part of their name, their compute capability."""
    fix = "is this the right host? correct 'machine' or 'hosts' of the profile, or mend the host"
    count = machine["gpus"]
    if len(found) != count:
        missing = "; one that fell off the bus is not listed: `lspci | grep -i nvidia`" if len(found) < count else ""
        yield wrong("gpus", f"{len(found)} GPUs, the profile says {count}", fix + missing)
    else:
        yield well("gpus", f"{count} GPUs")
    others = sorted({gpu.name for gpu in found if machine["gpu"].lower() not in gpu.name.lower()})
    names = ", ".join(sorted({gpu.name for gpu in found})) or "no GPU"
    yield judged("gpu name", not others and bool(found), f"{names}; the profile says {machine['gpu']}", fix)
    told = sorted({gpu.capability for gpu in found if gpu.capability})
    if not told:
        yield doubt(
            "compute capability", "this driver's nvidia-smi does not tell it", "a driver of 2022 (510) or later does"
        )
        return
    right = told == [machine["compute_capability"]]
    yield judged(
        "compute capability", right, f"{', '.join(told)}; the profile says {machine['compute_capability']}", fix
    )


def fits_sets(archs: Mapping[str, Sequence[str]], found: Sequence[Gpu]) -> Iterator[Finding]:
    """Whether every patch set that names architectures (`arch` in its patchset.yaml) names that of these GPUs."""
    here = sorted({gpu.arch for gpu in found if gpu.arch})
    if not archs or not here:
        return
    for ref, listed in sorted(archs.items()):
        other = [arch for arch in here if arch not in listed]
        detail = f"{ref} is made for {', '.join(listed)}; here: {', '.join(here)}"
        yield judged(
            "patch set arch", not other, detail, "another set, or another host; 'arch' says where it was tried"
        )


def health(found: Sequence[Gpu]) -> Iterator[Finding]:
    """Every GPU that the driver says is not well, with what mends it."""
    ill = 0
    for gpu in found:
        for detail, hint in _ills(gpu):
            ill += 1
            yield wrong("gpu health", f"GPU {gpu.index}: {detail}", hint)
    if found and not ill:
        yield well("gpu health", f"{len(found)} answer, no uncorrected memory error")


def _ills(gpu: Gpu) -> "Iterator[tuple[str, str]]":
    reset = f"when nothing runs on it: `nvidia-smi -i {gpu.index} --gpu-reset`; a reboot if that is refused"
    if gpu.ails:
        yield (
            f"nvidia-smi shows {gpu.ails}",
            "it does not answer its driver: reboot the host, see `dmesg | grep -i xid`",
        )
    if gpu.uncorrected:
        yield f"{gpu.uncorrected} memory errors that ECC could not correct", reset
    if gpu.remap_failed == "Yes":
        yield "a broken row of its memory could not be replaced", "have it exchanged; leave it out until then"
    if gpu.recovery and gpu.recovery != "None":
        yield f"its driver asks for: {gpu.recovery}", reset


def whole(found: Sequence[Gpu], all_of_it: bool) -> Iterator[Finding]:
    """MIG is off: a partitioned GPU shows a server one part of it. `all_of_it` when the release needs whole ones."""
    parted = [str(gpu.index) for gpu in found if gpu.mig == "Enabled"]
    if parted:
        detail = f"MIG is on on GPU {', '.join(parted)}: a server sees one part of it"
        hint = "when nothing runs on it: `nvidia-smi -i N -mig 0`"
        yield wrong("mig", detail, hint) if all_of_it else doubt("mig", detail, hint)


def fabric(found: Sequence[Gpu], declared: bool) -> Iterator[Finding]:
    """NVLink: until the fabric manager is done, cuInit fails with 802, which engines report as "no accelerator"."""
    fix = (
        "`systemctl status nvidia-fabricmanager` (its version must be the driver's); "
        "until it is done CUDA fails with error 802"
    )
    told = [gpu for gpu in found if gpu.fabric_state]
    late = [gpu for gpu in told if gpu.fabric_state != "Completed"]
    failed = [gpu for gpu in told if gpu.fabric_state == "Completed" and gpu.fabric_status not in ("", "Success")]
    for gpu in late:
        yield wrong("nvlink fabric", f"GPU {gpu.index}: {gpu.fabric_state}", fix)
    for gpu in failed:
        yield wrong("nvlink fabric", f"GPU {gpu.index}: {gpu.fabric_status}", fix)
    if late or failed:
        return
    if told:
        yield well("nvlink fabric", f"{len(told)} GPUs have joined it")
    elif declared and found:
        yield doubt("nvlink fabric", "the driver does not say whether the GPUs have joined it", fix)


def strangers(
    found: Sequence[Gpu], running: Sequence[App], ours: AbstractSet[int], whole_machine: bool
) -> Iterator[Finding]:
    """Processes on these GPUs that are not ours; `whole_machine` when the profile says that all of them are."""
    index = {gpu.uuid: gpu.index for gpu in found}
    held: Dict[int, List[App]] = {}
    for app in running:
        if app.gpu in index and app.pid not in ours:
            held.setdefault(app.pid, []).append(app)
    for pid, parts in sorted(held.items()):
        most = max((part.used_mib or 0) for part in parts)
        on = ", ".join(f"{_mib(part.used_mib)} on GPU {index[part.gpu]}" for part in parts[:8])
        here = processes.identity(pid) is not None
        what = " ".join(processes.command(pid).split()) if here else f"{parts[0].name} (of another container)"
        detail = f"process {pid} holds {on}: {what}"
        hint = "stop it, or `kdeploy adopt` if it is the server you started by hand"
        bad = whole_machine and (most >= _HOLDS_MIB or parts[0].used_mib is None)
        yield wrong("gpu memory", detail, hint) if bad else doubt("gpu memory", detail, hint)
    if held or not found:
        return
    # Memory without a process: what died hard, or runs in a container whose processes are hidden from this one.
    mine = any(app.gpu in index for app in running)
    orphan = [gpu for gpu in found if (gpu.used_mib or 0) >= _HOLDS_MIB]
    if orphan and not mine:
        detail = ", ".join(f"{_mib(gpu.used_mib)} on GPU {gpu.index}" for gpu in orphan)
        yield doubt(
            "gpu memory",
            f"{detail}, of no process seen from here",
            "another container, or a process that died hard: `fuser -v /dev/nvidia*` as root",
        )
        return
    yield well("gpu memory", "only ours" if mine else "nobody's")


def _mib(size: Optional[int]) -> str:
    return f"{size:,} MiB" if size is not None else "memory (how much is not told)"
