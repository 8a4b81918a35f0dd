"""The whole line over SSH with a stand-in engine: what it costs in trips and bytes, and what a broken line leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kdeploy.errors import ExitCode
from tests.hosts.fleet import Home, Operator
from tests.hosts.proxy import Wire
from tests.sshd import ADDRESS, Sshd, free_port

CONNECTING = 9
"""Turns that connecting takes at most: versions, key exchange (2), service, one signed request or two."""

CTRL_CS = int(os.environ.get("CTRL_CS", "3"))
"""How often each of the random interruptions strikes; more of them are for an afternoon."""


class Box:
    """A folder of this machine as a host, in the words of tests/hosts."""

    name = "box"
    address = ADDRESS

    def __init__(self, sshd: Sshd) -> None:
        self.sshd = sshd
        self.root = sshd.folder / "there"
        self.root.mkdir()
        self.home = sshd.home
        self.kdeploy = self.root / "opt/kdeploy"

    def free_port(self) -> int:
        return free_port()


class Near(Operator):
    """An operator whose host has no systemd, and lies in a folder."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "KDEPLOY_SSH_CONFIG": str(self.box.sshd.config)}

    @property
    def box(self) -> Box:
        return self.host  # type: ignore[return-value]

    def reach(self, name: str, port: int) -> None:
        port = port if name != "direct" else self.box.sshd.port
        path = self.project / "profiles/hosts.yaml"
        entry = f"  {name}: {{ssh: {{address: {ADDRESS}, port: {port}, key: {self.box.sshd.key}}},"
        entry += f" root: {self.box.kdeploy}, python: {sys.executable}}}\n"
        before = path.read_text() if "ssh" in path.read_text() else "hosts:\n"
        path.write_text(before + entry)

    def profile(self, name: str, patchsets: Any, host: str = "direct", **keys: Any) -> str:
        given = super().profile(name, patchsets, host, **keys)
        path = self.project / given
        text = path.read_text().replace("/srv/", f"{self.box.root}/srv/").replace("front: socket", "front: none")
        path.write_text(text)
        return given


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Near]:
    folder = tmp_path_factory.mktemp("near")
    server = Sshd(folder / "sshd")
    server.configure()
    with server.runs():
        operator = Near(folder / "operator", Box(server))  # type: ignore[arg-type]
        operator.run("apply", "profiles/one.yaml")
        yield operator
        operator.run("stop", "profiles/one.yaml")


@pytest.fixture
def wire(near: Near) -> Iterator[Wire]:
    sshd = near.box.sshd
    with Wire(ADDRESS, (ADDRESS, sshd.port)).laid() as laid:
        sshd.known.write_text(sshd.known.read_text() + f"[{ADDRESS}]:{laid.port} {sshd.public}\n")
        near.reach(f"wire-{laid.port}", laid.port)
        yield laid


def over(near: Near, wire: Wire, name: str) -> str:
    """A profile that takes the host to patch set `name` through the wire."""
    return near.profile(f"{name}-{wire.port}", [f"{name}/1.0.0"], host=f"wire-{wire.port}")


def versions(near: Near) -> str | None:
    live = Home(near.host).live()
    return Home(near.host).version(live) if live else None


def test_an_unchanged_apply_is_one_command_and_writes_nothing(near: Near, wire: Wire) -> None:
    def state() -> dict[str, int]:
        there = near.box.kdeploy
        return {str(path): path.lstat().st_mtime_ns for path in there.rglob("*") if not path.name.endswith(".log")}

    before = state()
    near.run("apply", over(near, wire, "one"))
    assert state() == before
    assert wire.connections == 1
    assert wire.turns <= CONNECTING + 2


def test_a_change_and_the_way_back_take_few_trips_and_bytes(near: Near, wire: Wire) -> None:
    before = versions(near)
    near.release("two")
    near.run("apply", over(near, wire, "two"))
    assert versions(near) != before
    assert wire.connections == 1
    assert wire.turns <= CONNECTING + 5
    assert wire.up < 20_000
    wire.reset()
    near.run("rollback", over(near, wire, "two"))
    assert versions(near) == before
    assert wire.turns <= CONNECTING + 5


def test_answers_of_millions_of_characters_are_rejected_by_the_gate(near: Near) -> None:
    """What a broken server says must not be too long for those who are to hear that it is broken."""
    before = versions(near)
    near.release("endless")
    profile = near.profile("endless", ["endless/1.0.0"], env={"STANDIN": "endless"}, **{"probe-s": 60})
    told = near.run("apply", profile, code=ExitCode.GATE)
    assert "too large" in told
    assert versions(near) == before


def changes(near: Near, wire: Wire | None, state: str) -> subprocess.Popen[str]:
    """An operator in the middle of a change: the host has come to `state`."""
    home = Home(near.host)
    seen = len(home.states())
    name = next(f"go{number}" for number in range(1, 99) if not (near.project / f"patchsets/go{number}").exists())
    near.release(name)
    path = over(near, wire, name) if wire else near.profile(name, [f"{name}/1.0.0"])
    child = near.start("apply", path)
    home.wait_for(state, seen)
    return child


@pytest.mark.parametrize("state", ["PREPARED:intent", "CANDIDATE:intent", "PROBED:intent"])
def test_ctrl_c_tells_the_host_no(near: Near, state: str) -> None:
    before = versions(near)
    child = changes(near, None, state)
    os.kill(child.pid, signal.SIGINT)
    told, _ = child.communicate(timeout=30)
    assert child.returncode == ExitCode.INTERRUPTED, told
    assert "the host ended ROLLED_BACK" in told
    assert Home(near.host).states()[-1] == "ROLLED_BACK:done"
    assert versions(near) == before


@pytest.mark.parametrize("state", ["CANDIDATE:intent", "PROBED:intent", "OPEN:intent"])
def test_a_line_that_is_cut_in_a_change_is_taken_up_again(near: Near, wire: Wire, state: str) -> None:
    child = changes(near, wire, state)
    wire.cut()
    told, _ = child.communicate(timeout=60)
    assert child.returncode == ExitCode.OK, told
    assert "connecting again" in told
    assert wire.connections == 2
    assert Home(near.host).states()[-1] == "CONFIRMED:done"


def test_an_operator_who_is_killed_leaves_the_host_as_it_was(near: Near) -> None:
    before = versions(near)
    child = changes(near, None, "CANDIDATE:intent")
    seen = len(Home(near.host).states())
    child.kill()
    child.communicate()
    Home(near.host).wait_for("ROLLED_BACK:done", seen)
    assert versions(near) == before


IMPATIENT = (
    "from kdeploy import change, cli; from kdeploy.transport import settings, ssh; "
    "change.RECONNECTS_WITHIN_S = 1; settings.CONNECT_S = 1; ssh.SILENCE_S = 3; cli.main()"
)


def test_a_line_that_goes_dead_in_a_change_is_told_and_the_host_goes_back(near: Near, wire: Wire) -> None:
    """No FIN, no word: the operator gives up within its deadlines, the host by its own clock."""
    before, home = versions(near), Home(near.host)
    near.release("dark")
    path = over(near, wire, "dark")
    seen = len(home.states())
    argv = [sys.executable, "-c", IMPATIENT, "apply", path]
    child = subprocess.Popen(
        argv, cwd=near.project, env=near.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    home.wait_for("CANDIDATE:intent", seen)
    wire.die()
    told, _ = child.communicate(timeout=60)
    assert child.returncode == ExitCode.UNREACHABLE, told
    assert "does not come back" in told
    assert "goes back to known-good by itself" in told
    home.wait_for("ROLLED_BACK:done", seen)
    assert versions(near) == before


@pytest.mark.parametrize("state", ["CANDIDATE:intent", "OPEN:intent"])
def test_an_agent_that_is_killed_in_a_change_is_started_again(near: Near, state: str) -> None:
    """It only watches: what it has begun goes on without."""
    child = changes(near, None, state)
    argv = ["pgrep", "-f", f"^{sys.executable} -X utf8 {near.box.kdeploy}/agent/agent-.* session$"]
    (pid,) = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(pid), signal.SIGKILL)
    told, _ = child.communicate(timeout=60)
    assert child.returncode == ExitCode.OK, told
    assert "connecting again" in told
    assert Home(near.host).states()[-1] == "CONFIRMED:done"


@pytest.mark.parametrize("seed", [7, 11])
def test_ctrl_c_at_any_moment_and_the_same_apply_converges(near: Near, seed: int) -> None:
    """Wherever it strikes, connecting included, the host is on one release or the other, and goes on from there."""
    random = Random(seed)
    near.release(f"any{seed}")
    path = near.profile(f"any{seed}", [f"any{seed}/1.0.0"])
    before = versions(near)
    for _ in range(CTRL_CS):
        child = near.start("apply", path)
        time.sleep(random.uniform(0.05, 1.6))
        child.send_signal(signal.SIGINT)
        told, _ = child.communicate(timeout=60)
        assert child.returncode in (ExitCode.OK, ExitCode.INTERRUPTED, -signal.SIGINT), told
        assert "Traceback" not in told, told
        assert versions(near) == before or str(versions(near)).startswith("0.0.1+kd.")
        if child.returncode == ExitCode.OK:
            break
    near.run("apply", path)
    assert versions(near) != before
    assert Home(near.host).states()[-1] == "CONFIRMED:done"
