"""kdeploy with a wrong clock: `python -m tests.hosts.shifted SECONDS ARGUMENTS…`."""

from __future__ import annotations

import runpy
import sys
import time


def shift(seconds: float) -> None:
    """Make every reading of the wall clock in this process wrong by `seconds`; monotonic clocks stay."""
    true, gmtime, localtime, strftime = time.time, time.gmtime, time.localtime, time.strftime

    def now() -> float:
        return true() + seconds

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    time.gmtime = lambda at=None: gmtime(now() if at is None else at)
    time.localtime = lambda at=None: localtime(now() if at is None else at)
    time.strftime = lambda form, at=None: strftime(form, time.localtime() if at is None else at)


if __name__ == "__main__":
    shift(float(sys.argv[1]))
    sys.argv[:2] = ["kdeploy"]
    runpy.run_module("kdeploy", run_name="__main__")
