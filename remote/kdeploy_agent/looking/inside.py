"""Runs in the runtime's own Python with the environment a server would have: what only that process can know.

Sent as text (`python -c`), so it imports nothing of the agent. One argument: JSON with `args` (null: there is no tree
to import yet) and `gpu` (whether to ask the driver). Prints one JSON line. No CUDA context is made: beside a live
server it would take memory of every GPU, and may be what no longer fits.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn


class Refused(Exception):
    """The tree's own parser does not take the arguments; carries the flags it knows."""

    def __init__(self, message: str, flags: List[str]) -> None:
        super().__init__(message)
        self.flags = flags


def import_engine() -> Dict[str, Any]:
    """Import the engine; gives where it came from and what it calls itself."""
    engine = importlib.import_module("sglang")
    return {"file": engine.__file__, "version": engine.__version__}


def parse_arguments(args: List[str]) -> Dict[str, Any]:
    """Let the tree parse the command line as its server would, up to where it would look at the GPU.

    `prepare_server_args` (SGLang 0.5.11, srt/server_args.py) also merges --config files. What follows the parser,
    ServerArgs.__post_init__, may open a CUDA context beside a live server, so it is left to the candidate's start.
    """
    module = importlib.import_module("sglang.srt.server_args")
    module.ServerArgs.from_cli_args = classmethod(lambda _, parsed: parsed)
    setattr(argparse.ArgumentParser, "error", _refuse)  # noqa: B010 - mypy holds methods for constants
    module.prepare_server_args(args)
    return {"parsed": len(args)}


def this_python() -> Dict[str, Any]:
    """What a wheel's tags are compared with."""
    return {
        "version": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "machine": platform.machine(),
        "libc": list(platform.libc_ver()),
    }


def installed_torch() -> Dict[str, Any]:
    """torch's version, the CUDA it was built with (null: none), and the architectures it brings code for.

    `torch.cuda.get_arch_list` would count the devices first; the flags themselves are a constant of the build.
    """
    torch = importlib.import_module("torch")
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "archs": (flags() or "").split() if flags is not None else [],
    }


def driver() -> Dict[str, Any]:
    """The CUDA version that the driver is good for (13000 is 13.0), what cuInit says (0: well), how many devices.

    cuInit makes no context; it is what tells that the fabric manager is not done (802) or the driver was changed under
    its module (803).
    """
    library = ctypes.CDLL("libcuda.so.1")
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    status = library.cuInit(0)
    if status == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    return {"cuda": version.value, "init": status, "devices": count.value}


def triton_ptxas() -> Dict[str, Any]:
    """The assemblers Triton would call, by name, each with the architectures it knows.

    Triton 3.6 (knobs.py, backends/nvidia/compiler.py) takes ptxas-blackwell from compute capability 10 on and ptxas
    below; older ones know the latter alone. TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH name others; one that
    does not run is passed over.
    """
    found = importlib.util.find_spec("triton")
    if found is None or not found.origin:
        return {"tools": {}}
    own = Path(found.origin).parent / "backends" / "nvidia" / "bin"
    tools = {}
    for name in ("ptxas", "ptxas-blackwell"):
        given = os.environ.get("TRITON_" + name.upper().replace("-", "_") + "_PATH")
        for path in filter(None, [given, str(own / name)]):
            try:
                done = subprocess.run([path, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
            except (OSError, subprocess.TimeoutExpired):
                continue
            known = sorted(set(re.findall(r"'(sm_[0-9]+[a-z]?)'", done.stdout.decode("utf-8", "replace"))))
            if known:
                tools[name] = {"path": path, "archs": known}
                break
    return {"tools": tools}


def nearest(message: str, flags: List[str]) -> str:
    """The known flag nearest to the first unknown one that argparse's message names; empty when none is near."""
    named = [word.split("=")[0].rstrip(":") for word in message.split() if word.startswith("--")]
    unknown = [word for word in named if word not in flags]
    near = difflib.get_close_matches(unknown[0], flags, n=1) if unknown else []
    return f"did you mean {near[0]}?" if near else ""


def attempt(function: Callable[..., Dict[str, Any]], *arguments: Any) -> Dict[str, Any]:
    """Call and give what came of it: `ok` with values, or `error` with `hint`."""
    try:
        return dict(function(*arguments), ok=True)
    except Refused as fault:
        return {"ok": False, "error": str(fault), "hint": nearest(str(fault), fault.flags)}
    except BaseException as fault:
        where = "".join(traceback.format_exception(type(fault), fault, fault.__traceback__)[-3:])
        return {"ok": False, "error": f"{type(fault).__name__}: {fault}", "hint": where}


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise Refused(message, sorted(parser._option_string_actions))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    told = {"python": this_python()}
    if asked["args"] is not None:
        told["engine"] = attempt(import_engine)
        if told["engine"]["ok"]:
            told["arguments"] = attempt(parse_arguments, asked["args"])
    told["torch"] = attempt(installed_torch)
    if asked["gpu"]:
        told["driver"] = attempt(driver)
        told["ptxas"] = attempt(triton_ptxas)
    print("\nkdeploy-inside " + json.dumps(told))
