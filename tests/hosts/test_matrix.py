"""The fault matrix on real hosts: whatever happens while a release is deployed, the host ends proven and serving.

Each cell starts on a host that serves a known-good release, applies another one, strikes, lifts the fault, and insists
(ground.py): what serves is confirmed or known-good, clients reach it, no process and nothing half done is left, and the
same command run again succeeds. The server is a stand-in that answers like the pocket model; all else is real.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from . import faults
from .bed import AT_ONCE, Bed
from .faults import BACK, FORWARD, LINES, MOMENTS, Fault
from .ground import Ground

CELLS: dict[str, Fault] = {
    **{
        f"operator-{way}-at-{moment}": faults.operator_lost(way, moment)
        for way in ("killed", "cut", "dead")
        for moment in (*MOMENTS, "received", "prechecking", "PREPARED:intent", *(f"{one}:done" for one in FORWARD))
    },
    **{f"runner-killed-at-{line}": faults.agent_killed(line, False) for line in (*LINES, *BACK)},
    **{f"guardian-killed-too-at-{line}": faults.agent_killed(line, True) for line in (*LINES, *BACK)},
    **{f"power-cut-at-{line}": faults.power_cut(line) for line in (*LINES, *BACK)},
    "disk-full-before": faults.disk_full(None),
    **{f"disk-full-from-{line}": faults.disk_full(line) for line in ("PREPARED:done", "CANDIDATE:done", "PROBED:done")},
    "disk-read-only": faults.disk_read_only,
    "bundle-garbled": faults.bundle_garbled,
    "wire-garbles": faults.wire_garbles,
    "clock-ahead": faults.clock_wrong(3600),
    "clock-behind": faults.clock_wrong(-3600),
    "two-operators": faults.two_operators,
    "server-hangs": faults.server_fails("hangs", **{"start-s": 3}),
    "server-dies-at-start": faults.server_fails("dies-at-start"),
    "server-dies-in-the-gate": faults.server_fails("dies-when-asked"),
    "server-writes-garble": faults.server_fails("garbled"),
    "server-ignores-sigterm": faults.server_clings("ignores-sigterm"),
    "server-leaves-a-child": faults.server_clings("leaves-a-child"),
}


class Walk:
    """Walks the cells on a few hosts side by side: they mostly wait. A host on which one failed is not used again."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self._bed, self._folder = bed, folder
        self._numbers = itertools.count(1)
        self._free: SimpleQueue[Ground] = SimpleQueue()
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures: dict[str, Future[None]] = {}

    def start(self, names: list[str]) -> None:
        """Set out; once only."""
        if not self._futures:
            self._futures = {name: self._pool.submit(self._try, CELLS[name]) for name in names}

    def result(self, name: str) -> None:
        """Wait for a cell; raises what went wrong in it."""
        self._futures[name].result(timeout=900)

    def close(self) -> None:
        """End every host; raises what was wrong with operators that were left at dead wires."""
        self._pool.shutdown(cancel_futures=True)
        grounds = [self._free.get() for _ in range(self._free.qsize())]
        faults = []
        for ground in grounds:
            try:
                ground.close()
            except AssertionError as fault:
                faults.append(fault)
        if faults:
            raise ExceptionGroup("operators at dead wires", faults)

    def _try(self, fault: Fault) -> None:
        if self._free.empty():
            number = next(self._numbers)
            ground = Ground.make(self._bed, f"matrix-{number}", self._folder / str(number))
        else:
            ground = self._free.get()
        before = ground.home.live()
        ground.step()
        try:
            fault(ground)
            ground.settles(before)
            ground.converges()
        except BaseException:
            ground.abort()
            raise
        self._free.put(ground)


@pytest.fixture(scope="module")
def walk(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    made = Walk(bed, tmp_path_factory.mktemp("matrix"))
    yield made
    made.close()


@pytest.mark.parametrize("cell", CELLS)
def test_matrix(walk: Walk, cell: str, request: pytest.FixtureRequest) -> None:
    chosen = [
        item.callspec.params["cell"] for item in request.session.items if getattr(item, "obj", None) is test_matrix
    ]
    walk.start(chosen)
    walk.result(cell)
