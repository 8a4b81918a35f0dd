"""Where the matrix is walked: a host whose known-good release serves, an operator, and what must hold in the end."""

from __future__ import annotations

import contextlib
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from kdeploy.errors import ExitCode

from .bed import SSH_PORT, Bed, Host, Process
from .fleet import SERVICE, Home, Operator, version_at
from .proxy import Wire

TERMINAL = ("CONFIRMED:done", "ROLLED_BACK:done", "NEEDS_OPERATOR:done")


@dataclass
class Ground:
    """A host on which a release is live and known-good; every fault is tried while it goes to the next one."""

    host: Host
    operator: Operator
    home: Home
    live: str = "one"
    next: str = "one"
    turns: dict[str, int] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _abandoned: bool = False
    _deaf: set[int] = field(default_factory=set)
    _waiting: list[subprocess.Popen[str]] = field(default_factory=list)

    @classmethod
    def make(cls, bed: Bed, name: str, folder: Path) -> Ground:
        """A new host with release one."""
        stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            host = undo.enter_context(bed.host(name, small="3g"))
            ground = cls(host, Operator(folder, host), Home(host), _stack=stack)
            ground.operator.run("apply", "profiles/one.yaml")
            ground.settles(None)
            ground._learn()
            stack.push(undo.pop_all())
        return ground

    def step(self) -> None:
        """Declare the release that the host is taken to next: one it has never had, so that there is a push."""
        self.next = f"number-{len(list(self.operator.project.glob('profiles/number-*')))}"
        self.operator.release(self.next)

    def _learn(self) -> None:
        """Find out by one apply in which turn of the wire each thing is asked."""
        self.step()
        wire, seen, trees = self.wire(), len(self.home.journal()), self.home.trees()
        at: dict[int, float] = {}
        wire.watch = lambda turn: at.setdefault(turn, time.time()) and None
        self.operator.run("apply", self.over(wire))
        (placed,) = self.home.trees() - trees
        probed = next(
            line["at"] for line in self.home.journal()[seen:] if line["state"] == "PROBED" and line["phase"] == "done"
        )
        pushing = max(turn for turn, when in at.items() if when < (self.home.path / "trees" / placed).stat().st_mtime)
        deciding = min(turn for turn, when in at.items() if when > probed)
        self.turns = {
            "connecting": 1, "logging-in": 5, "asking-for-facts": pushing - 1, "pushing": pushing, "deciding": deciding
        }  # fmt: skip
        self.settles(None)
        self.live = self.next

    def wire(self) -> Wire:
        """A new wire to the host's sshd."""
        wire = Wire(self.host.address, (self.host.address, SSH_PORT))
        self._stack.enter_context(wire.laid())
        self.host.also_at(wire.port)
        return wire

    def over(self, wire: Wire) -> str:
        """The profile that takes the host to the next release through `wire`."""
        self.operator.reach(f"wire-{wire.port}", wire.port)
        return self.operator.profile(f"wired-{wire.port}", [f"{self.next}/1.0.0"], host=f"wire-{wire.port}")

    def abandon(self, child: subprocess.Popen[str]) -> None:
        """Leave an operator at a dead wire; `close` insists that it has found out.

        An agent that waits there for the next request is no stray: it holds nothing, and ends when TCP gives up.
        """
        self._waiting.append(child)
        self._abandoned = True

    def crash_at(self, line: str | None, guardian: bool = False) -> None:
        """From the next login on, the agent's runner is killed when it has written `line` (its guardian as well)."""
        hooks = f"KDEPLOY_CRASH_AT={line}\n" if line else ""
        hooks += "KDEPLOY_CRASH_GUARDIAN=1\n" if guardian else ""
        (self.host.root / "etc/environment").write_text(hooks)

    def settles(self, before: str | None, seconds: float = 60) -> None:
        """Wait until nobody changes anything, then insist: something proven serves, it alone, and all is told so."""
        end = time.monotonic() + seconds
        while self._busy() and time.monotonic() < end:
            time.sleep(0.02)
        assert not self._busy(), f"still at work after {seconds} s: {self.home.states()[-3:]} {self._ours()}"
        live, good = self.home.live(), self.home.good()
        assert live is not None and live == good, f"live {live}, known-good {good}: {self.home.states()[-6:]}"
        last = self.home.journal()[-1]
        if last["state"] != "CONFIRMED":
            assert last["state"] == "ROLLED_BACK", last
            assert before in (None, live), f"{before} served before, now it is {live}"
        self.serves(live)
        self.host.sh(f"test -d /opt/kdeploy/{SERVICE}/releases/{live}")

    def serves(self, release: str, seconds: float = 20) -> None:
        """Insist that clients are served by `release`, and that no process is there but its own."""
        wanted = self.home.version(release)
        end = time.monotonic() + seconds
        while (said := version_at(self.host.address, self.operator.public)) is None and time.monotonic() < end:
            time.sleep(0.05)
        assert said == wanted, f"clients are served by {said}, not by {wanted}"
        while (strays := self.strays()) and time.monotonic() < end:
            time.sleep(0.05)
        assert not strays, f"left behind: {strays}"

    def converges(self) -> None:
        """Run the command again without the fault: it succeeds, and once more there is nothing to do."""
        self._abandoned = False
        self.operator.run("apply", f"profiles/{self.next}.yaml")
        self.settles(None)
        assert "nothing to do" in self.operator.run("apply", f"profiles/{self.next}.yaml")
        self.live = self.next

    def prechecking(self) -> bool:
        """Whether the release is being imported by the runtime's Python."""
        return any(one.command[:2] == ["/srv/engine/bin/python", "-c"] for one in self.host.processes())

    def strays(self) -> list[Process]:
        """Our processes that belong to no unit of the service."""
        if self._abandoned:
            self._deaf |= {one.pid for one in self._ours() if one.command[-1] == "session"}
        foreign = [one for one in self._ours() if not one.unit.startswith(f"kdeploy-{SERVICE}-")]
        return [one for one in foreign if one.pid not in self._deaf]

    def close(self) -> None:
        """End it all; insists that operators at dead wires have ended, and said why."""
        try:
            for child in self._waiting:
                told, _ = child.communicate(timeout=120)
                assert child.returncode == ExitCode.UNREACHABLE, f"exit {child.returncode}\n{told}"
        finally:
            self.abort()

    def abort(self) -> None:
        """End it all without asking how it is."""
        for child in self._waiting:
            child.kill()
            child.communicate()
        self._stack.close()

    def _busy(self) -> bool:
        """Whether a change is under way."""
        at_work = any({"guard", "heal", "boot"} & set(one.command) for one in self._ours())
        return at_work or not self.home.states()[-1:] or self.home.states()[-1] not in TERMINAL

    def _ours(self) -> list[Process]:
        return [
            one for one in self.host.processes() if any("kdeploy" in word or "sglang" in word for word in one.command)
        ]
