"""Running a program that may hang: it gets its seconds, and is then left behind, killed or not."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from typing import Mapping, Optional, Sequence


@dataclass(frozen=True)
class Done:
    """How a program ended, and what it said."""

    status: int
    out: str
    err: str


def run(argv: Sequence[str], within_s: float, env: Mapping[str, str], cwd: str = "/") -> Optional[Done]:
    """Run `argv` with no stdin, in a session of its own; None when it did not end within `within_s`.

    Whatever it started is killed then, but not waited for: a process that hangs in a driver or on a dead network disk
    ends when the kernel lets it. Raises OSError when it cannot be started.
    """
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=within_s)
    except BaseException as fault:
        _leave(child)
        if isinstance(fault, subprocess.TimeoutExpired):
            return None
        raise
    return Done(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _leave(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(timeout=1)
    except subprocess.TimeoutExpired:
        pass
