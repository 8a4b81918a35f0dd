"""The supervisor of one unit: starts its process, keeps its log small, reaps what it leaves, restarts it if it may.

It ends with its process. Its own death does not take the process along: a server that answers is worth more than its
keeper, and is found by its mark when it has to be stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import List, Optional

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, processes
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import becoming
from kdeploy_agent.keeping.supervised import Supervised
from kdeploy_agent.keeping.units import MARK, RESTARTS, WINDOW_S, Spec, banner

LOG_LIMIT = 64 * 1024 * 1024
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM}


def supervise(layout: Layout, name: str, whole: becoming.Whole) -> int:
    """Run the unit until its process ends for good; gives the supervisor's exit status.

    Before its process is started again its tree must be `whole`.
    """
    units = Supervised(layout)
    spec = Spec.read(units.path(name, "json"))
    if spec is None:
        print(f"kdeploy: there is no unit {name}", flush=True)
        return 1
    # Orphans of the server become our children instead of init's: the port and the GPU they keep stay in sight.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        print("kdeploy: prctl(PR_SET_CHILD_SUBREAPER) failed; orphans are found by their mark only", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    return _Supervisor(layout, units, spec, whole).run()


class _Supervisor:
    def __init__(self, layout: Layout, units: Supervised, spec: Spec, whole: becoming.Whole) -> None:
        self.layout = layout
        self.whole = whole
        self.units = units
        self.spec = spec
        self.log = units.path(spec.name, "log")
        self.child = 0
        self.stopping = False
        self.starts: List[float] = []
        self.log_start = self.rotations = 0

    def run(self) -> int:
        while True:
            self.begin()
            ended = self.wait()
            # What the process leaves behind would keep the port and the GPU: it goes before anything comes.
            processes.kill_all(MARK, self.units.mark(self.spec.name), time.monotonic() + 20)
            self.reap()
            verdict = self.verdict(ended)
            self.say(verdict or ended)
            if verdict is not None:
                print(f"kdeploy: {verdict}", flush=True)
                return 0
            print(f"kdeploy: {ended}; restarting", flush=True)
            if signal.sigtimedwait({signal.SIGTERM}, 1) is not None:
                self.say(f"stopped ({ended})")
                return 0

    def begin(self) -> None:
        """Start the process in its own session, in an empty scratch folder."""
        becoming.clear(self.spec)
        self.starts.append(time.time())
        print(banner(self.spec.release), flush=True)
        if len(self.starts) == 1:
            self.log_start = self.log.stat().st_size
        self.child = os.fork()
        if self.child == 0:
            _become(self.layout, self.spec)
        self.say("")

    def wait(self) -> str:
        """Wait for the process to end, looking after its log and passing SIGTERM on; gives how it ended."""
        while True:
            ended = self.reap()
            if ended is not None:
                return ended
            got = signal.sigtimedwait(_SIGNALS, 2)
            if got is not None and got.si_signo == signal.SIGTERM:
                self.stop()
            if _rotate(self.log):
                self.rotations += 1
                self.say("")

    def stop(self) -> None:
        """Somebody wants the unit to end: no restart, and the whole group is asked to go."""
        self.stopping = True
        try:
            os.killpg(self.child, signal.SIGTERM)
        except ProcessLookupError:
            pass

    def reap(self) -> Optional[str]:
        """Collect every child that ended, adopted ones too; gives how the process itself ended, once it has."""
        ended = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid == self.child:
                number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                ended = f"killed by signal {number}" if number else f"exited with {os.WEXITSTATUS(status)}"

    def verdict(self, ended: str) -> Optional[str]:
        """Why the process is not started again; None when it is."""
        if self.stopping:
            return f"stopped ({ended})"
        if not self.units.path(self.spec.name, "restart").exists():
            return f"{ended}; not restarted"
        recent = [at for at in self.starts[1:] if at > time.time() - WINDOW_S]
        if len(recent) >= RESTARTS:
            return f"{ended}; gave up after {RESTARTS} restarts in {WINDOW_S / 60:.0f} minutes"
        try:
            self.whole(self.layout, self.spec)
        except AgentError as fault:  # it was proven with other files than those it would start with now
            return f"{ended}; not restarted: {fault.message}"
        return None

    def say(self, note: str) -> None:
        """Tell `Units.status` what there is."""
        state = {
            "pid": os.getpid(),
            "identity": processes.identity(os.getpid()),
            "child": self.child,
            "child_identity": processes.identity(self.child) or "",
            "since": round(self.starts[-1], 3),
            "release": self.spec.release,
            "port": self.spec.ports[0] if self.spec.ports else 0,
            "restarts": len(self.starts) - 1,
            "log_start": self.log_start,
            "rotations": self.rotations,
            "note": note,
        }
        path, data = self.units.path(self.spec.name, "pid"), files.canonical(state)
        try:
            files.write(path, data)
        except OSError:  # on a full disk there is no room beside it, but where it is: a server must not go unkept
            with contextlib.suppress(OSError), path.open("r+b") as file:
                file.write(data)
                file.truncate()


def _become(layout: Layout, spec: Spec) -> None:
    """In the forked child: turn into the unit's process, which alone is given the secrets. Never returns."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        becoming.become(layout, spec)
    except BaseException as fault:
        print(f"kdeploy: cannot run {spec.argv[0]}: {fault}", flush=True)
    finally:
        sys.stdout.flush()
        os._exit(127)


def _rotate(log: Path) -> bool:
    """Keep one older part once the log is too large; gives whether it was.

    Copied and cut, not renamed: the process goes on writing to the file it has (O_APPEND).
    """
    if log.stat().st_size <= LOG_LIMIT:
        return False
    log.with_name(log.name + ".1").write_bytes(log.read_bytes())
    os.truncate(str(log), 0)
    return True
