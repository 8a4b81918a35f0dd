"""The faults of the matrix. Each is tried while a host goes from its known-good release to another one."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from kdeploy.errors import ExitCode

from .fleet import SERVICE
from .ground import TERMINAL, Ground

Fault = Callable[[Ground], None]

FORWARD = ("PREPARED", "DRAINED", "CANDIDATE", "PROBED", "GATED", "OPEN", "CONFIRMED")
LINES = [f"{state}:{phase}" for state in FORWARD for phase in ("intent", "done")]
BACK = ["ROLLING_BACK:intent", "ROLLING_BACK:done", "ROLLED_BACK:done"]
"""Every line a transaction writes into the journal, forward and back."""


MOMENTS = ("connecting", "logging-in", "asking-for-facts", "pushing", "deciding")
"""When an apply has what it needs from the operator: turns of the wire (Ground.turns). `pushing` has precheck and begin
in it: they are sent ahead."""


def operator_lost(way: str, moment: str) -> Fault:
    """The operator is `killed`, or its connection is `cut` or goes `dead`, at a turn of the wire or later.

    Later is: `received`, `prechecking`, or a line of the journal.
    """

    def fault(ground: Ground) -> None:
        wire, seen = ground.wire(), len(ground.home.journal())
        children: list[subprocess.Popen[str]] = []

        def strike() -> None:
            if way == "killed":
                children[0].kill()
            elif way == "cut":
                wire.cut()
            else:
                wire.die()

        trees = ground.home.trees()
        if moment in MOMENTS:
            wire.watch = lambda turn: strike() if turn == ground.turns[moment] else None
        child = ground.operator.start("apply", ground.over(wire))
        children.append(child)
        if moment == "received":
            _wait(lambda: ground.home.trees() != trees, moment)
        elif moment == "prechecking":
            _wait(ground.prechecking, moment)
        elif moment not in MOMENTS:
            ground.home.wait_for(moment, seen)
        if moment not in MOMENTS:
            strike()
        if way == "dead":
            _wait(lambda: wire.dead, moment)
            if moment in (
                "received",
                "prechecking",
            ):  # `begin` was sent ahead: it comes, unless silence is noticed first
                end = time.monotonic() + 25
                while len(ground.home.journal()) == seen and time.monotonic() < end:
                    time.sleep(0.02)
            ground.abandon(child)
            return
        told, _ = child.communicate(timeout=90)
        allowed = {"killed": (-9, 0), "cut": (ExitCode.OK, ExitCode.UNREACHABLE, ExitCode.GATE)}[way]
        assert child.returncode in allowed, f"exit {child.returncode}\n{told}"
        assert wire.turns >= ground.turns.get(moment, 0), f"there were {wire.turns} turns only\n{told}"

    return fault


def agent_killed(line: str, guardian: bool) -> Fault:
    """The runner (and the guardian) is killed with SIGKILL right after it wrote `line`."""

    def fault(ground: Ground) -> None:
        seen = len(ground.home.journal())
        ground.crash_at(line, guardian)
        try:
            child = ground.operator.start("apply", _profile(ground, line))
            child.communicate(timeout=90)
        finally:
            ground.crash_at(None)
        assert line in ground.home.states()[seen:], ground.home.states()[seen:]
        if ground.home.states()[-1] not in TERMINAL:  # nobody was left to heal it: the next command does
            ground.operator.run("apply", f"profiles/{ground.live}.yaml")

    return fault


def power_cut(line: str) -> Fault:
    """The host loses its power right after `line` was written, and is switched on again."""

    def fault(ground: Ground) -> None:
        seen = len(ground.home.journal())
        ground.crash_at(line, guardian=True)  # whoever would write the next line is gone when the power goes
        child = ground.operator.start("apply", _profile(ground, line))
        try:
            ground.home.wait_for(line, seen)
        finally:
            ground.crash_at(None)
        ground.host.kill()
        ground.host.boot()
        child.communicate(timeout=90)

    return fault


def server_fails(how: str, **gate: float) -> Fault:
    """The candidate's server fails in its way: it is rejected."""

    def fault(ground: Ground) -> None:
        profile = ground.operator.profile(how, [f"{ground.next}/1.0.0"], env={"STANDIN": how}, **gate)
        ground.operator.run("apply", profile, code=ExitCode.GATE)

    return fault


def server_clings(how: str) -> Fault:
    """A release whose server does not go as it should passes the gate; the next release must come all the same."""

    def fault(ground: Ground) -> None:
        profile = ground.operator.profile(how, [f"{ground.next}/1.0.0"], env={"STANDIN": how})
        ground.operator.run("apply", profile)

    return fault


def disk_full(at: str | None) -> Fault:
    """/opt/kdeploy is full: before anything is sent, or from a journal line on, and it stays so on the way back."""

    def fault(ground: Ground) -> None:
        seen, before = len(ground.home.journal()), ground.home.live()
        if at is None:
            _fill(ground)
        child = ground.operator.start("apply", f"profiles/{ground.next}.yaml")
        try:
            if at is not None:
                ground.home.wait_for(at, seen)
                _fill(ground)
            told, _ = child.communicate(timeout=90)
            assert child.returncode not in (ExitCode.FAULT, ExitCode.ROLLBACK_FAILED), told
            ground.settles(before)
        finally:
            _remount(ground, "size=3g")

    return fault


def disk_read_only(ground: Ground) -> None:
    """/opt/kdeploy cannot be written: the operator is told, what serves serves on."""
    before = ground.home.live()
    _remount(ground, "ro")
    try:
        child = ground.operator.start("apply", f"profiles/{ground.next}.yaml")
        told, _ = child.communicate(timeout=90)
        assert child.returncode in (ExitCode.REMOTE, ExitCode.PREFLIGHT), f"exit {child.returncode}\n{told}"
        assert "ead-only" in told
        ground.settles(before)
    finally:
        _remount(ground, "rw")


def bundle_garbled(ground: Ground) -> None:
    """What is pushed is damaged, cut short or nothing at all: it is refused, and nothing of it is placed."""
    told = json.loads(ground.operator.run("stage", f"profiles/{ground.next}.yaml", "--json"))["result"]
    stamped = {key: told["tree"][key] for key in ("tree", "commit", "manifest")}
    bundle = _git(Path(told["folder"]), "bundle", "create", "-q", "-", "HEAD")
    request = {"protocol": 1, "root": "/opt/kdeploy", "service": SERVICE, **stamped}
    line = json.dumps(request).encode() + b"\n"
    (agent,) = (ground.host.kdeploy / "agent").glob("agent-*.pyz")
    middle = len(bundle) // 2
    flipped = bundle[:middle] + bytes([bundle[middle] ^ 1]) + bundle[middle + 1 :]
    for payload in (flipped, bundle[:-20], bundle[:middle], b"garbage\n" * 9, b""):
        done = ground.host.ssh(f"python3 /opt/kdeploy/agent/{agent.name} receive", stdin=line + payload)
        answer = json.loads(done.stdout.splitlines()[-1])
        assert done.returncode == 1 and answer["error"]["kind"] in ("integrity", "lacking", "fault"), answer
        assert stamped["tree"] not in ground.home.trees()


def wire_garbles(ground: Ground) -> None:
    """One bit of what is pushed is flipped on the way: SSH notices, and nothing of it arrives."""
    wire = ground.wire()
    wire.flip_at = ground.turns["pushing"]
    told, _ = (child := ground.operator.start("apply", ground.over(wire))).communicate(timeout=90)
    assert child.returncode in (ExitCode.OK, ExitCode.UNREACHABLE), f"exit {child.returncode}\n{told}"
    assert wire.flipped


def clock_wrong(seconds: float) -> Fault:
    """The operator's clock is wrong: nothing depends on it."""

    def fault(ground: Ground) -> None:
        ground.operator.run("apply", f"profiles/{ground.next}.yaml", clock=seconds)

    return fault


def two_operators(ground: Ground) -> None:
    """Two want different things at once: one gets it, the other one is told who it is, or comes after."""
    children = [ground.operator.start("apply", f"profiles/{name}.yaml") for name in (ground.live, ground.next)]
    ends = [(*child.communicate(timeout=90), child.returncode) for child in children]
    codes = sorted(end[-1] for end in ends)
    assert codes in ([ExitCode.OK, ExitCode.OK], [ExitCode.OK, ExitCode.LOCKED]), ends


def _git(folder: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True).stdout


def _profile(ground: Ground, line: str) -> str:
    """The profile whose transaction writes `line`: a good one, or one that must go back."""
    if line not in BACK:
        return f"profiles/{ground.next}.yaml"
    return ground.operator.profile("garbled", [f"{ground.next}/1.0.0"], env={"STANDIN": "garbled"})


def _fill(ground: Ground) -> None:
    """Make the file system as small as what is on it."""
    used = subprocess.run(
        ["df", "--output=used", "-k", ground.host.kdeploy], capture_output=True, text=True, check=True
    )
    _remount(ground, f"size={used.stdout.split()[-1]}k")


def _remount(ground: Ground, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(ground.host.kdeploy)], check=True)


def _wait(there: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.005)
