"""Proofs: each must fail on the pristine tree and pass on the patched one, in the runtime's own Python."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kdeploy import places
from kdeploy.errors import ProofError
from kdeploy.patching.patchset import PatchSet, Proof
from kdeploy.progress import Note
from kdeploy.stage.cache import written

RED = 3
"""A proof's exit status for "the fault is here". An uncaught exception is 1: a proof that cannot run is never red."""


@dataclass(frozen=True)
class Run:
    """One run of a proof on one tree. `status` is its exit status, None after a timeout."""

    status: int | None
    seconds: float
    says: str
    """The last line it printed: one sentence for people."""
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proven:
    """A proof that did what it must: red on the pristine tree, green on the patched one."""

    patchset: str
    proof: str
    red: Run
    green: Run
    cached: bool


@dataclass(frozen=True)
class Ground:
    """Where proofs run: the two trees, and the runtime's Python."""

    pristine: Path
    patched: Path
    python: Path


def prove(
    sets: Sequence[PatchSet],
    key: str,
    ground: Callable[[], Ground],
    note: Note,
    *,
    again: bool = False,
) -> tuple[Proven, ...]:
    """Run every proof of `sets` on both trees, unless it was run for the same `key` (tree + runtime) before.

    `again` runs it all the same. `ground` is asked only when a proof has to run: to check out trees and make a runtime
    takes its time. Raises ProofError for the first proof that passes where it must fail, fails where it must pass, or
    cannot run.
    """
    results = []
    for one in sets:
        for proof in one.proofs:
            cached = _cached(key, one, proof)
            found = None if again else _read(cached)
            if found is None:
                note(f"proving {one.ref} {proof.name}")
                where = ground()
                _require_modules(one, proof, where.python)
                red, green = _red_and_green(one, proof, where)
                found = Proven(one.ref, proof.name, red, green, cached=False)
                judge(found)
                _keep(cached, found)
            results.append(found)
    return tuple(results)


def remembered(sets: Sequence[PatchSet], key: str) -> bool:
    """Whether `prove` would find every proof of `sets` done for `key`."""
    return all(_read(_cached(key, one, proof)) is not None for one in sets for proof in one.proofs)


def judge(result: Proven) -> None:
    """Raise ProofError unless a proof was red on the pristine tree and green on the patched one."""
    name = f"{result.patchset} {result.proof}"
    for tree, run in (("pristine", result.red), ("patched", result.green)):
        if run.status not in (0, RED):
            how = f"took longer than its limit ({run.seconds:.0f} s)" if run.status is None else f"exit {run.status}"
            raise ProofError(
                f"proof {name} could not run on the {tree} tree: {how}",
                hint="a proof says 0 (right) or 3 (the fault is here); anything else is an error, not a skip",
                details=run.tail,
            )
    if result.red.status == 0:
        raise ProofError(
            f"proof {name} passes on the pristine tree too: it does not show the fault its patches cure",
            hint="either the engine has the fix (retire the patch), or the proof looks at the wrong thing",
            details=result.red.tail,
        )
    if result.green.status == RED:
        raise ProofError(
            f"proof {name} still fails on the patched tree: {result.green.says}",
            hint="the patches apply but do not cure the fault; nothing was switched",
            details=result.green.tail,
        )


def _require_modules(one: PatchSet, proof: Proof, python: Path) -> None:
    code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    try:
        done = subprocess.run(
            [python, "-I", "-c", code, *proof.needs], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as fault:
        raise ProofError(
            f"proof {one.ref} {proof.name} cannot run: {python}: {fault.strerror}",
            hint="the profile's 'prove' (or 'runtime') names a virtual environment that is not there",
        ) from fault
    if done.returncode != 0 or done.stdout.split():
        missing = ", ".join(done.stdout.split()) or done.stderr.strip()
        raise ProofError(
            f"proof {one.ref} {proof.name} needs what {python} does not have: {missing}",
            hint="add it to the runtime's lock; a proof that cannot run proves nothing",
        )


def _dies_with_us() -> Callable[[], None] | None:
    """What a child does first, so that the kernel ends it when we are killed (prctl(2)); None where that is not known.

    Made before the fork, so that the child only has to call it.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, set_signal, parent = ctypes.CDLL(None).prctl, 1, os.getpid()  # 1: PR_SET_PDEATHSIG in linux/prctl.h

    def first() -> None:
        prctl(set_signal, signal.SIGKILL)
        if os.getppid() != parent:  # we were gone before it was asked for
            os._exit(1)

    return first


class _Running:
    """A proof at work on one tree, in a session of its own so that nothing of it outlives us."""

    def __init__(self, one: PatchSet, proof: Proof, tree: Path, python: Path) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="kdeploy-proof-"))
        environment = {
            "PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._scratch), "LANG": "C.UTF-8",
            "KDEPLOY_TREE": str(tree), "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "TRITON_CACHE_DIR": str(self._scratch / "triton"), **dict(proof.env),
        }  # fmt: skip
        self._limit = proof.timeout_s
        self._started = time.monotonic()
        with (self._scratch / "output").open("wb") as output:
            self._child = subprocess.Popen(
                [python, one.folder / proof.run],
                cwd=self._scratch,
                env=environment,
                start_new_session=True,
                preexec_fn=_dies_with_us(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def finish(self) -> Run:
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._child.wait(timeout=max(0, self._started + self._limit - time.monotonic()))
        seconds = round(time.monotonic() - self._started, 2)
        output = (self._scratch / "output").read_text(errors="replace")
        lines = [line for line in output.splitlines() if line.strip()]
        return Run(status, seconds, lines[-1] if lines else "", tuple(lines[-20:]))

    def end(self) -> None:
        """Kill what is left of it, and clean up; safe to call at any time."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _red_and_green(one: PatchSet, proof: Proof, ground: Ground) -> tuple[Run, Run]:
    with contextlib.ExitStack() as stack:
        running = []
        for tree in (ground.pristine, ground.patched):  # side by side: they take a core each
            running.append(_Running(one, proof, tree, ground.python))
            stack.callback(running[-1].end)
        red, green = (item.finish() for item in running)
    return red, green


def _cached(key: str, one: PatchSet, proof: Proof) -> Path:
    parts = [key, one.ref, one.digest, proof.name]
    return places.cache() / "proofs" / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}.json"


@written()
def _keep(cached: Path, found: Proven) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    scratch = cached.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(json.dumps(asdict(found)))
    scratch.replace(cached)


def _read(cached: Path) -> Proven | None:
    try:
        return read(json.loads(cached.read_text()), cached=True)
    except (OSError, ValueError):
        return None


def read(values: Any, *, cached: bool) -> Proven | None:
    """A result from its JSON values, as a cache or a host keeps it; None when it is none."""
    try:
        red, green = (Run(**{**values[name], "tail": tuple(values[name]["tail"])}) for name in ("red", "green"))
        return Proven(values["patchset"], values["proof"], red, green, cached=cached)
    except (TypeError, KeyError):
        return None
