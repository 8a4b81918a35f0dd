"""One run of a proof on one tree: on CPU, in a session of its own, limited in time, and gone when we are."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TAIL_BYTES = 64 * 1024
_SAYS = 2000  # characters of a line


class Trial:
    """A proof at work. Its environment is that of a run on the operator's machine (kdeploy/stage/prove.py)."""

    def __init__(self, program: Path, tree: Path, python: Path, proof: Dict[str, Any]) -> None:
        """Start `program` with `python` on `tree`; `proof` has `timeout_s` and `env`."""
        self._limit = float(proof["timeout_s"])
        self._scratch = Path(tempfile.mkdtemp(prefix="kdeploy-proof-"))
        self._output = self._scratch.with_name(self._scratch.name + ".output")
        work = self._scratch / "work"
        work.mkdir()
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._scratch),
            "TMPDIR": str(self._scratch),
            "LANG": "C.UTF-8",
            "KDEPLOY_TREE": str(tree),
            "PYTHONPATH": str(tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "TRITON_CACHE_DIR": str(self._scratch / "triton"),
            **{str(key): str(value) for key, value in dict(proof["env"]).items()},
            "CUDA_VISIBLE_DEVICES": "",  # beside a live server: whatever the set says
        }
        self._started = time.monotonic()
        with self._output.open("wb") as output:
            self._child = subprocess.Popen(
                [str(python), str(program)],
                cwd=str(work),
                env=env,
                start_new_session=True,
                preexec_fn=_dies_with_us(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def finish(self, wanted: Callable[[], bool]) -> Dict[str, Any]:
        """Wait for its end: `status` (null: it took too long), `seconds`, `says` (its last line), `tail`.

        Raises BrokenPipeError when nobody has `wanted` it any more.
        """
        end = self._started + self._limit
        status: Optional[int] = self._child.poll()
        while status is None and time.monotonic() < end:
            if not wanted():
                raise BrokenPipeError("nobody waits for this proof any more")
            try:
                status = self._child.wait(timeout=min(_POLL_S, max(0.01, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                pass
        seconds = round(time.monotonic() - self._started, 2)
        lines = [line[:_SAYS] for line in self._said().splitlines() if line.strip()]
        return {"status": status, "seconds": seconds, "says": lines[-1] if lines else "", "tail": lines[-20:]}

    def end(self) -> None:
        """Kill what is left of it, and clean up; safe to call at any time."""
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._child.wait()
        shutil.rmtree(str(self._scratch), ignore_errors=True)
        try:
            self._output.unlink()
        except OSError:
            pass

    def _said(self) -> str:
        with self._output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")


def _dies_with_us() -> Callable[[], None]:
    """What a child does first, so that the kernel ends it when we are killed (prctl(2)); made before the fork."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def first() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # we were gone before it was asked for
            os._exit(1)

    return first
