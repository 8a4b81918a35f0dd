"""Runtimes: virtual environments made from a lock file, keyed by its content, finished or not there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.locking import try_lock
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted
from kdeploy_agent.trees import serving

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([A-Za-z0-9.+!_-]+)")
_PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off")
_SPARE_BYTES = 3 * 1024**3


def runtime(call: Call) -> Dict[str, Any]:
    """Verb: make the runtime `key` with `python` from `lock`, or reuse it; gives `python`, the path of its interpreter.

    The pins named in `with_deps` are installed with their dependencies (torch's differ between a CPU and a CUDA build
    and cannot all be in one lock), everything else exactly as locked. Raises `runtime` with pip's last lines, and
    `integrity` when the key is not the one of this lock: a release's id stands for its runtime through the key.
    """
    folder, lock_text = call.layout.runtime(call.text("key")), call.text("lock")
    right = key_of(lock_text, call.text("python"), call.texts("with_deps"))
    if folder.name != right:
        raise AgentError("integrity", f"the lock that was sent has the key {right}, not {folder.name}")
    found = python(folder)
    if found is not None:
        return {"python": str(found), "made": False}
    with_deps = [_pin_of(name, lock_text) for name in call.texts("with_deps")]
    lock = try_lock(folder.with_name(folder.name + ".lock"), 0)
    while lock is None:
        call.emit("note", text=f"another kdeploy is making runtime {folder.name}; waiting for it")
        lock = try_lock(folder.with_name(folder.name + ".lock"), 10)
    with lock:
        lock.name("kdeploy", "runtime", folder.name)
        found = python(folder)
        if found is None:
            found = _make(call, folder, lock_text, with_deps, lock.handle)
            return {"python": str(found), "made": True}
    return {"python": str(found), "made": False}


def key_of(lock_text: str, python: str, with_deps: List[str]) -> str:
    """The key of a runtime, by the operator's rule (kdeploy/release.py, `runtime_key`): 3.11 stands for python3.11."""
    version = python[len("python") :] if python.startswith("python") else python
    return hashlib.sha256(json.dumps([lock_text, version, with_deps]).encode()).hexdigest()[:12]


def python(folder: Path) -> "Path | None":
    """The interpreter of a finished runtime; None when it is not there or not finished."""
    found = folder / "bin" / "python"
    return found if (folder / ".complete").is_file() and found.exists() else None


def remember(layout: Layout, release: Dict[str, Any]) -> None:
    """Keep what is installed in the runtime at the moment a release is confirmed, to be compared from then on."""
    if adopted.is_adopted(release):
        return
    found = fingerprint(serving.python_of(layout, release).parent.parent)
    files.write(remembered_at(layout, release["id"]), files.canonical({"runtime": found}))


def remembered_at(layout: Layout, release: str) -> Path:
    """Where that is kept."""
    return layout.evidence(release) / "installed.json"


def fingerprint(folder: Path) -> str:
    """What tells the packages of a runtime from those of another time: names, sizes and times, not contents.

    Bytecode is left out: servers have theirs elsewhere (serving.environment), whoever else imports writes it here.
    """
    digest = hashlib.sha256()
    for site in sorted(folder.glob("lib/python*/site-packages")):
        waiting = [str(site)]
        while waiting:
            with os.scandir(waiting.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        waiting.append(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
                name = entry.path[len(str(site)) :]
                digest.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    return digest.hexdigest()


def _make(call: Call, folder: Path, lock_text: str, with_deps: List[str], handle: int) -> Path:
    pins = [match.group(0) for match in map(_PIN.match, lock_text.splitlines()) if match]
    space = files.free_space(folder)
    free = space.f_bavail * space.f_frsize
    call.emit(
        "note",
        text=f"making runtime {folder.name}: {len(pins)} packages; about 1.5 GB with a CPU build of torch, about 5 GB "
        f"with a CUDA build and its libraries; {free >> 30} GB are free",
    )
    if free < _SPARE_BYTES:
        raise AgentError("preflight", f"{free >> 20} MB are free for a runtime on {folder.parent}", "make room first")
    files.wipe(folder)
    began = time.monotonic()
    _stream(call, [_interpreter(call.text("python")), "-m", "venv", str(folder)], handle)
    own = str(folder / "bin" / "python")
    listing, constraints = folder / "lock.txt", folder / "constraints.txt"
    listing.write_text(lock_text, encoding="utf-8")
    constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
    if with_deps:
        _stream(call, [own, *_PIP, "--constraint", str(constraints), *with_deps], handle)
    _stream(call, [own, *_PIP, "--no-deps", "--requirement", str(listing)], handle)
    files.sync_filesystem(folder)
    files.write(folder / ".complete", files.canonical({"seconds": round(time.monotonic() - began, 1)}))
    return Path(own)


def _interpreter(wanted: str) -> str:
    """The program `wanted` (`python3.11`), or the agent's own interpreter where that is one but not on the path."""
    if shutil.which(wanted) is None and wanted == f"python{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    return wanted


def _pin_of(name: str, lock_text: str) -> str:
    for match in filter(None, map(_PIN.match, lock_text.splitlines())):
        if match.group(1).lower().replace("_", "-") == name.lower().replace("_", "-"):
            return match.group(0)
    raise AgentError("usage", f"with_deps names {name}, which the lock does not pin")


def _stream(call: Call, argv: List[str], handle: int) -> None:
    """Run a command, each of its lines an event.

    It inherits the runtime's lock: if we are killed and it goes on writing, nobody may start over beside it.
    """
    kept = ("PATH", "HOME", "USER", "TMPDIR", "http_proxy", "https_proxy", "no_proxy")
    env = {key: value for key, value in os.environ.items() if key in kept or key.startswith(("PIP_", "SSL_"))}
    env.update(LANG="C.UTF-8", PYTHONUNBUFFERED="1", PYTHONNOUSERSITE="1")
    last: Deque[str] = deque(maxlen=15)
    try:
        child = subprocess.Popen(
            argv,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(handle,),
        )
    except OSError as fault:
        raise AgentError("runtime", f"cannot run {argv[0]}: {fault.strerror}", "install that Python first") from fault
    assert child.stdout is not None
    with child:
        try:
            for raw in child.stdout:
                text = raw.decode("utf-8", "replace").rstrip()
                last.append(text)
                call.emit("line", text=text)
        except BaseException:  # the operator hung up: stop here, the leftovers are wiped next time
            child.terminate()
            raise
    if child.returncode != 0:
        what = "pip" if "pip" in argv else "making the virtual environment"
        said = "\n".join(last)
        raise AgentError("runtime", f"{what} failed with {child.returncode}:\n{said}", "see its last lines above")
