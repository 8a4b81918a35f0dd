"""The whole line with the real SGLang server on CPU: one story on one machine, told in order.

Each test goes on from what the one before left, as an operator's day does: a server takes 15 s to start, so each start
is used for as much as it can show. Everything is real here but the model's size.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdeploy.errors import ExitCode
from tests import making
from tests.conftest import MACHINE_CACHE, MACHINE_ROOT, REPOSITORY

pytestmark = pytest.mark.server

PUBLIC, PRIVATE, METRICS = 21200, 21210, 21220

SAMPLER = {"file": "sglang/srt/layers/sampler.py", "anchor": "batch_next_token_ids = torch.argmax(logits, -1)"}
GARBLE = [{**SAMPLER, "insert-after": "batch_next_token_ids = torch.zeros_like(batch_next_token_ids)\n"}]
START = {"file": "sglang/launch_server.py", "within": "run_server", "anchor": "if server_args.encoder_only:"}
NO_START = [{**START, "insert-before": 'raise RuntimeError("this tree does not start")\n'}]
BENIGN = [{**START, "insert-before": 'print("a benign change")\n'}]
SLOW_START = [{**START, "insert-before": "__import__('time').sleep(600)\n"}]
SYNTAX = [{**START, "insert-before": "if True print('no colon')\n"}]
MOVED_AWAY = [{**START, "anchor": "if server_args.encoder_onyl:", "insert-before": "pass\n"}]


class World:
    """A project, a home and a host of the story's own."""

    def __init__(self, folder: Path) -> None:
        self.project, self.home = folder / "project", folder / "home"
        for part in ("patchsets", "profiles", "locks"):
            shutil.copytree(REPOSITORY / part, self.project / part)
        shutil.copy(REPOSITORY / "kdeploy.lock", self.project)
        (self.project / "models").symlink_to(REPOSITORY / "models")
        for name, there in (("cache/bases", MACHINE_CACHE / "bases"), ("root/runtimes", MACHINE_ROOT / "runtimes")):
            there.mkdir(parents=True, exist_ok=True)
            (self.home / name).parent.mkdir(parents=True)
            (self.home / name).symlink_to(there)
        path = self.project / "profiles/local.yaml"
        text = path.read_text()
        for old, new in (("21000", PUBLIC), ("21010", PRIVATE), ("21020", METRICS)):
            assert f"port: {old}" in text
            text = text.replace(f"port: {old}", f"port: {new}")
        path.write_text(text)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "KDEPLOY_CACHE": str(self.home / "cache"),
            "KDEPLOY_STATE": str(self.home / "state"),
            "KDEPLOY_ROOT": str(self.home / "root"),
        }
        self.service = self.home / "root/local"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "kdeploy", *arguments], cwd=self.project, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, code: ExitCode = ExitCode.OK) -> str:
        """Run the command to its end; gives stdout and stderr together, and insists on the exit code."""
        child = self.start(*arguments)
        out, err = child.communicate(timeout=900)
        assert child.returncode == code, f"{arguments}: exit {child.returncode}\n{out}\n{err}"
        return out + err

    def json(self, *arguments: str, code: ExitCode = ExitCode.OK) -> Any:
        child = self.start(*arguments, "--json")
        out, err = child.communicate(timeout=900)
        assert child.returncode == code, f"{arguments}: exit {child.returncode}\n{out}\n{err}"
        document = json.loads(out)
        assert document["kdeploy"] == 1
        assert document["exit"] == code
        return document.get("result") if code == ExitCode.OK else document["error"]

    def with_set(self, name: str, edits: list[dict[str, Any]], **keys: Any) -> str:
        """A profile like local with one more patch set; gives its path."""
        ref = making.patch_set(self.project, name, edits, engine="==0.5.11")
        making.profile(self.project, name, "local.yaml", ["cpu/1.0.0", ref], **keys)
        return f"profiles/{name}.yaml"

    @property
    def status(self) -> Any:
        (one,) = self.json("status", "profiles/local.yaml")
        return one

    def live(self) -> str | None:
        link = self.service / "current"
        return link.resolve().name if link.exists() else None

    def journal(self) -> list[str]:
        """`STATE phase` of every line that has a state."""
        path = self.service / "journal.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [f"{one['state']} {one['phase']}" for one in lines if "state" in one]

    def wait_for(self, state: str, seen: int, seconds: float = 120) -> None:
        """Wait until the journal says `state` after its first `seen` lines."""
        end = time.monotonic() + seconds
        while state not in self.journal()[seen:]:
            assert time.monotonic() < end, f"{state} did not come: {self.journal()[seen:]}"
            time.sleep(0.05)

    def server_pid(self) -> int:
        pid = self.status["facts"]["server"]["pid"]
        assert isinstance(pid, int)
        return pid


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("line"))
    yield made
    end = time.monotonic() + 120
    while made.service.exists():  # a test that failed may have left a change under way
        child = made.start("stop", "profiles/local.yaml")
        child.communicate()
        if child.returncode == ExitCode.OK or time.monotonic() > end:
            break
        time.sleep(1)
    left = subprocess.run(["pgrep", "-f", str(made.home)], capture_output=True, text=True, check=False).stdout
    assert not left, f"processes were left behind: {left}"


def says(port: int = PUBLIC) -> str:
    """What a client hears: the pocket model goes on with its first text."""
    body = {"model": "pocket", "prompt": "The sea does not", "max_tokens": 12, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = json.load(answer)["choices"][0]["text"]
    assert isinstance(text, str)
    return text


def closed(port: int = PUBLIC) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_nothing_is_served_before(world: World) -> None:
    assert closed()
    assert world.status["advice"].startswith("nothing was deployed yet")
    error = world.json("rollback", "profiles/local.yaml", code=ExitCode.NO_KNOWN_GOOD)
    assert error["kind"] == "no-known-good"


def test_a_first_release_that_does_not_start_leaves_nothing(world: World) -> None:
    profile = world.with_set("no-start", NO_START)
    told = world.run("apply", profile, code=ExitCode.GATE)
    assert "this tree does not start" in told  # the server's last words
    assert "nothing was serving before" in told
    assert closed()
    assert world.live() is None


def test_a_taken_port_is_seen_before_anything_is_stopped(world: World) -> None:
    stranger = subprocess.Popen([sys.executable, "-m", "http.server", str(PUBLIC), "--bind", "127.0.0.1"])
    try:
        while closed():
            time.sleep(0.1)
        told = world.run("apply", "profiles/local.yaml", code=ExitCode.PREFLIGHT)
    finally:
        stranger.kill()
        stranger.wait()
    assert f"{PUBLIC} is held by process {stranger.pid}" in told
    assert "nothing was stopped" in told


def test_apply(world: World) -> None:
    result = world.json("apply", "profiles/local.yaml")
    assert {proof["patchset"] for proof in result["proofs"]} == {"cpu/1.0.0", "ddtree/0.1.0"}
    assert says().startswith(" hurry. It comes up")
    one = world.status
    assert one["facts"]["current"] == one["facts"]["known_good"] == result["release"]["id"]
    assert one["advice"] is None
    with urllib.request.urlopen(f"http://127.0.0.1:{PRIVATE}/server_info", timeout=30) as answer:
        assert json.load(answer)["version"] == result["release"]["version"]


def test_apply_again_does_nothing(world: World) -> None:
    def seen() -> list[tuple[str, int]]:
        skip = ("server.log", "front.log")
        return sorted((str(one), one.lstat().st_mtime_ns) for one in world.service.rglob("*") if one.name not in skip)

    before, pid = seen(), world.server_pid()
    told = world.run("apply", "profiles/local.yaml")
    assert "nothing to do" in told
    assert seen() == before
    assert world.server_pid() == pid


def test_history_and_logs(world: World) -> None:
    (told,) = world.json("history", "profiles/local.yaml")
    assert [one["state"] for one in told["transactions"]] == ["CONFIRMED", "ROLLED_BACK"]
    assert "fired up and ready" in world.run("logs", "profiles/local.yaml", "-n", "4000")
    transcript = world.service / "current/evidence/transcript.json"
    assert len(json.loads(transcript.read_text())["alone"]) >= 10


def test_the_gate_asks_what_serves_and_changes_nothing(world: World) -> None:
    before, pid = world.journal(), world.server_pid()
    (server,) = world.json("gate", "profiles/local.yaml", "--host", "localhost")["servers"]
    assert server["verdict"]["accepted"] is True
    assert server["live"] == world.live()
    text = Path(server["page"]).read_text(encoding="utf-8")
    assert f"beside known-good {world.live()}" in text and "parts from known-good" not in text
    assert (world.journal(), world.server_pid()) == (before, pid)
    assert says().startswith(" hurry")


def test_a_benign_change_and_back(world: World) -> None:
    first = world.live()
    told = world.run("apply", world.with_set("benign", BENIGN))
    (pushed,) = re.findall(r"push ([\d.,]+) kB", told)
    assert float(pushed.replace(",", "")) < 20, "a host that has the base gets the change alone"
    second = world.live()
    assert second != first, told
    assert says().startswith(" hurry")
    world.run("rollback")  # the profile applied last, the known-good release that is not live
    assert world.live() == first
    assert says().startswith(" hurry")
    assert world.json("rollback", "--to", "zzz", code=ExitCode.NO_KNOWN_GOOD)["hint"].startswith("known-good here")


@pytest.mark.parametrize(
    ("name", "edits", "code", "message"),
    [
        ("syntax", SYNTAX, ExitCode.CONFLICT, "sglang/launch_server.py does not compile"),
        ("moved", MOVED_AWAY, ExitCode.ANCHOR, "if server_args.encoder_only:"),
    ],
)
def test_what_cannot_be_staged_touches_nothing(
    world: World, name: str, edits: list[dict[str, Any]], code: ExitCode, message: str
) -> None:
    pid = world.server_pid()
    assert message in world.run("apply", world.with_set(name, edits), code=code)
    assert world.server_pid() == pid


def test_garble_behind_a_green_health_is_rejected(world: World) -> None:
    before = world.live()
    profile = world.with_set("garble", GARBLE)
    told = world.run("apply", profile, code=ExitCode.GATE)
    assert "answers.exact" in told
    assert "answers.garble" in told
    assert "!!!!" in told
    assert f"{before} serves again" in told
    assert world.live() == before
    assert says().startswith(" hurry")
    verdicts = [json.loads(one.read_text()) for one in world.service.glob("releases/*/evidence/verdict.json")]
    (rejected,) = [verdict for verdict in verdicts if not verdict["accept"]]
    assert "!!!!" in json.dumps(rejected)


def test_two_operators(world: World) -> None:
    """One applies what starts slowly; the other is told who it is; Ctrl-C of the first takes the host back."""
    before = world.live()
    seen = len(world.journal())
    first = world.start("apply", world.with_set("slow", SLOW_START))
    world.wait_for("CANDIDATE intent", seen)
    assert closed(), "the public port must be closed while a candidate is tried"
    error = world.json("apply", "profiles/benign.yaml", code=ExitCode.LOCKED)
    assert "apply" in error["message"]
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=240)
    assert first.returncode == ExitCode.INTERRUPTED, out + err
    assert "ROLLED_BACK" in err
    assert world.live() == before
    assert says().startswith(" hurry")


def test_a_killed_operator(world: World) -> None:
    """kill -9 while the candidate waits for its verdict: silence is a no, and the host goes back alone.

    Even when somebody damages the tree it goes back to: every file is compared, and it is placed anew.
    """
    before = world.live()
    profile = world.with_set("orphan", BENIGN, gate={"decide-s": 2})
    seen = len(world.journal())
    child = world.start("apply", profile)
    world.wait_for("CANDIDATE done", seen)
    child.kill()
    child.communicate()
    tree = world.service / "trees" / json.loads((world.service / "current/release.json").read_text())["tree"]
    victim = tree / "sglang/launch_server.py"
    victim.chmod(0o644)
    victim.write_text("raise SystemExit('the way back mends this')\n")
    world.wait_for("ROLLED_BACK done", seen)
    assert world.live() == before
    assert says().startswith(" hurry")
    assert "no decision within 2 s" in json.dumps(world.json("history"))


def test_a_tampered_tree_is_noticed_and_mended(world: World) -> None:
    tree = world.service / "trees" / json.loads((world.service / "current/release.json").read_text())["tree"]
    victim = tree / "sglang/launch_server.py"
    victim.chmod(0o644)
    victim.write_text(victim.read_text() + "\n# by hand\n")
    (steps,) = world.json("plan", "profiles/local.yaml")["hosts"].values()
    kinds = [step["kind"] for step in steps["steps"]]
    assert kinds == ["prove", "push", "precheck", "switch", "gate", "open", "confirm"]
    assert "sglang/launch_server.py: differs" in steps["reason"]
    world.run("apply", "profiles/local.yaml")
    assert "by hand" not in victim.read_text()
    assert "nothing to do" in world.run("apply", "profiles/local.yaml")


def test_when_the_way_back_fails_too(world: World) -> None:
    seen = len(world.journal())
    child = world.start("apply", "profiles/garble.yaml")
    world.wait_for("CANDIDATE done", seen)
    for victim in (world.service / "trees").glob("*/sglang/launch_server.py"):  # or an older known-good would serve
        victim.chmod(0o644)
        victim.write_text("raise SystemExit('nobody comes back from here')\n")
    shutil.rmtree(world.service / "store.git")  # or the host would place the tree anew
    out, err = child.communicate(timeout=240)
    assert child.returncode == ExitCode.ROLLBACK_FAILED, out + err
    assert "sglang/launch_server.py: differs" in err or "git" in err
    assert closed()
    assert "the way back failed" in world.status["advice"]
    world.run("apply", "profiles/local.yaml")
    assert says().startswith(" hurry")


def test_stop_and_start_again(world: World) -> None:
    world.run("stop")
    assert closed()
    assert closed(PRIVATE)
    assert "was stopped on purpose" in world.status["advice"]
    world.run("apply", "profiles/local.yaml")
    assert says().startswith(" hurry")


def test_the_ledger_remembers(world: World) -> None:
    entries = [json.loads(line) for line in (world.home / "state/ledger.jsonl").read_text().splitlines()]
    outcomes = {entry["outcome"].partition(":")[0] for entry in entries if entry["verb"] == "apply"}
    assert {"ok", "GateError", "PreflightError", "LockedError", "InterruptedByUser", "RollbackFailedError"} <= outcomes


def test_profiles_of_the_repository_are_those_tested() -> None:
    """The story changes nothing of local.yaml but its ports."""
    read = yaml.safe_load((REPOSITORY / "profiles/local.yaml").read_text())
    assert read["patchsets"] == ["cpu/1.0.0", "ddtree/0.1.0"]
