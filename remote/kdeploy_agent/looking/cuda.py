"""Whether torch, the driver and Triton's assembler can work on these GPUs: rules over what the runtime said."""

from __future__ import annotations

import re
from typing import Any, Iterator, List, Mapping, Sequence, Tuple

from kdeploy_agent.ground.gpus import Gpu
from kdeploy_agent.looking.finding import Finding, doubt, judged, well, wrong

# CUresult of cuInit (CUDA driver API, cuda.h), and what mends it.
_INIT = {
    100: ("no device", "does CUDA_VISIBLE_DEVICES name GPUs that are there? may this user open /dev/nvidia*?"),
    802: (
        "the system is not ready",
        "start the fabric manager of this driver: `systemctl restart nvidia-fabricmanager`",
    ),
    803: ("driver and library are of two versions", "the driver was updated under its module: reboot the host"),
    804: ("the compatibility library is not for this GPU", "take cuda-compat out of LD_LIBRARY_PATH in serve.env"),
    999: ("unknown error", "see `dmesg | grep -i -e nvrm -e xid`; often only a reboot helps"),
}


def fits(answer: Mapping[str, Any], found: Sequence[Gpu], together: int) -> Iterator[Finding]:
    """Findings on driver, torch and ptxas for the GPUs `found`; `together` is over how many the model is spread."""
    torch, driver = answer["torch"], answer["driver"]
    if torch["cuda"] is None:
        fix = "install a CUDA build of torch in the runtime, or give '--device cpu'"
        yield wrong("torch", f"torch {torch['version']} is a build without CUDA", fix)
        return
    if not driver["ok"]:
        fix = "install the driver of these GPUs; in a container, pass it through (nvidia-container-toolkit)"
        yield wrong("cuda driver", f"libcuda.so.1 does not load: {driver['error']}", fix)
        return
    yield from against_driver(torch["cuda"], driver["cuda"])
    yield from _devices(driver, together)
    for capability in sorted({gpu.capability for gpu in found if gpu.capability}):
        yield from knows(torch["archs"], capability)
        yield from assembles(answer["ptxas"].get("tools", {}), capability)


def against_driver(torch_cuda: str, driver_cuda: int) -> Iterator[Finding]:
    """torch's CUDA (`13.0`) against the newest one the driver is good for (13000).

    Within a major version an older driver runs newer code, but cannot compile its PTX (NVIDIA, CUDA Compatibility).
    """
    wanted = _pair(torch_cuda)
    here = (driver_cuda // 1000, driver_cuda % 1000 // 10)
    detail = f"torch is built with CUDA {torch_cuda}, the driver is good for {here[0]}.{here[1]}"
    fix = f"install a driver for CUDA {wanted[0]}.{wanted[1]}, or a torch built with CUDA {here[0]}"
    if wanted[0] > here[0]:
        yield wrong("cuda driver", detail, fix)
    elif wanted > here:
        yield doubt("cuda driver", f"{detail}: what is compiled at run time from PTX fails", fix)
    else:
        yield well("cuda driver", detail)


def _devices(driver: Mapping[str, Any], together: int) -> Iterator[Finding]:
    status, count = driver["init"], driver["devices"]
    if status != 0:
        name, fix = _INIT.get(status, ("an error of cuInit", "see its name in cuda.h"))
        yield wrong("cuda", f"CUDA error {status}: {name}", fix)
        return
    enough = count >= max(1, together)
    fix = f"a model spread over {together} needs as many: see tp-size and CUDA_VISIBLE_DEVICES"
    yield judged("cuda", enough, f"{count} devices", fix)


def knows(archs: Sequence[str], capability: str) -> Iterator[Finding]:
    """Whether torch brings code for a compute capability (`10.3`).

    Code for sm_100 runs on any later minor of the same major; sm_100f within its family, sm_100a there alone; PTX
    (compute_90) is compiled for any later one when it is first used (CUDA C Programming Guide, Compute Capabilities).
    """
    here, by_ptx = _pair(capability), False
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if match is None:
            continue
        kind, major, minor, suffix = match.groups()
        built = (int(major), int(minor))
        fitting = built == here if suffix == "a" else built[0] == here[0] and built[1] <= here[1]
        if kind == "sm" and fitting:
            yield well("torch arch", f"{arch} runs on compute capability {capability}")
            return
        by_ptx = by_ptx or (kind == "compute" and not suffix and built <= here)
    listed = ", ".join(archs) or "none"
    fix = f"a torch built for sm_{capability.replace('.', '')}: one of a newer CUDA"
    if by_ptx:
        yield doubt(
            "torch arch", f"torch has code for {listed}: for {capability} it is compiled at first use, slowly", fix
        )
    else:
        yield wrong("torch arch", f"torch has code for {listed}, the GPU is of {capability}: no kernel image", fix)


def assembles(tools: Mapping[str, Any], capability: str) -> Iterator[Finding]:
    """Whether the assembler that Triton would call knows the architecture.

    Triton asks for the exact one from 9.0 on (sm_103a): triton 3.6, backends/nvidia/compiler.py.
    """
    here = _pair(capability)
    arch = f"sm_{capability.replace('.', '')}" + ("a" if here >= (9, 0) else "")
    name = "ptxas-blackwell" if here >= (10, 0) and "ptxas-blackwell" in tools else "ptxas"
    variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
    if name not in tools:
        yield doubt("ptxas", "Triton has none of its own here", f"{variable} in serve.env names one of a CUDA toolkit")
        return
    tool = tools[name]
    fix = f"set {variable} in serve.env to the ptxas of a CUDA toolkit that knows it (12.9 or later for sm_103)"
    yield judged(
        "ptxas", arch in tool["archs"], f"{tool['path']}, newest {_newest(tool['archs'])}; asked for {arch}", fix
    )


def _newest(archs: List[str]) -> str:
    numbered = [(int(found.group(1)), arch) for arch in archs for found in [re.match(r"sm_(\d+)", arch)] if found]
    return max(numbered)[1] if numbered else "none"


def _pair(version: str) -> Tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(re.match(r"\d*", minor).group(0) or 0)  # type: ignore[union-attr]
