"""Looking after a host from the command line: secrets, verify, unlock, adopt. Only the engine is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import socket
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
from tests.conftest import REPOSITORY
from tests.hosts import fleet

VALUE = 'hf_Kp9"x\\wZ0 très secret'
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """A port below those the kernel gives out by itself."""
    for port in range(20400 + os.getpid() % 50, 20499):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


class Here:
    """A project, and this machine as its only host, without systemd."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.project = making.small_project(folder, fleet.engine())
        (self.project / "prompts.json").write_bytes((REPOSITORY / "models/pocket/prompts.json").read_bytes())
        self.venv, self.model = folder / "venv", folder / "model"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], check=True)
        self.model.mkdir()
        for name in ("config.json", "tokenizer.json"):
            (self.model / name).write_text("{}")
        (self.model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        self.port = free_port()
        self.service = self.home / "root/small"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("KDEPLOY_")},
            "PYTHONPATH": str(REPOSITORY), "KDEPLOY_CACHE": str(self.home / "cache"), "PIP_NO_INDEX": "1",
            "KDEPLOY_STATE": str(self.home / "state"), "KDEPLOY_ROOT": str(self.home / "root"), "COLUMNS": "200",
            "PIP_FIND_LINKS": str(folder / "wheels"), "KDEPLOY_UNITS": "supervisor",
        }  # fmt: skip

    def profile(self, name: str, env: dict[str, str] | None = None, **serve: Any) -> str:
        """A patch set of one line and the profile that deploys it; gives the profile's path."""
        if not (self.project / "patchsets" / name).exists():
            edit = {"file": "sglang/__init__.py", "anchor": "from sglang", "insert-before": f"PATCH = '{name}'\n"}
            making.patch_set(self.project, name, [edit])
        text = {
            "service": "small", "engine": "sglang==0.0.1", "patchsets": [f"{name}/1.0.0"], "hosts": ["here"],
            "runtime": {"venv": str(self.venv)},
            "serve": {
                "port": self.port + 100, "private-port": self.port, "front": "none",
                "args": {"model-path": str(self.model), "served-model-name": "pocket"}, "env": env or {}, **serve,
            },
            "gate": {
                "prompts": "../prompts.json", "request-s": 5, "start-s": 10, "probe-s": 30, "decide-s": 10,
                "soak-s": 0.3, "speed": 0.01,  # how fast a stand-in is, is how busy the machine is
            },
        }  # fmt: skip
        (self.project / f"profiles/{name}.yaml").write_text(yaml.safe_dump(text, sort_keys=False))
        return f"profiles/{name}.yaml"

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "kdeploy", *arguments], cwd=self.project, text=True,
            env={**self.environment, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, code: ExitCode = ExitCode.OK, **environment: str) -> str:
        """Run the command to its end; gives all it says, and insists on the exit code."""
        child = self.start(*arguments, **environment)
        told, _ = child.communicate(timeout=120)
        assert child.returncode == code, f"{arguments}: exit {child.returncode}, not {code}\n{told}"
        return told

    def json(self, *arguments: str, code: ExitCode = ExitCode.OK, **environment: str) -> Any:
        document = json.loads(self.run(*arguments, "--json", code=code, **environment))
        assert document["exit"] == code
        return document.get("result", document.get("error"))

    def serves(self) -> str | None:
        """The version that clients get."""
        try:
            with _OPENER.open(f"http://127.0.0.1:{self.port}/server_info", timeout=5) as reply:
                return str(json.load(reply)["version"])
        except (OSError, ValueError):
            return None

    def live(self) -> str | None:
        link = self.service / "current"
        return link.readlink().name if link.is_symlink() else None

    def close(self) -> None:
        """End every process that has our folder in its command line or environment."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                except OSError:
                    continue
                if os.fsencode(str(self.home)) in text:
                    os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path / "here")
    yield made
    made.close()


def every_file(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield path, path.read_bytes()


def test_a_secret_from_the_profile_to_the_server(here: Here) -> None:
    """Applied, unchanged, rotated, rejected, rolled back: its value is nowhere but where it belongs."""
    one = here.profile("one", secrets={"HF_TOKEN": {"env": "MINE"}})
    two = here.profile("two", env={"STANDIN": "garbled"}, secrets={"HF_TOKEN": {"env": "MINE"}})
    told = [here.run("apply", one, code=ExitCode.PROFILE)]
    assert "MINE" in told[0] and f"{one}:" in told[0]
    told.append(here.run("plan", one, MINE=VALUE))
    told.append(here.run("apply", one, MINE=VALUE))
    told.append(here.run("apply", one, MINE=VALUE))
    assert "nothing to do" in told[-1]
    told.append(here.run("plan", one, MINE=VALUE + "2"))
    assert "secret HF_TOKEN changes" in told[-1]
    told.append(here.run("verify", one, MINE=VALUE + "2", code=ExitCode.DRIFT))
    assert "secret HF_TOKEN: expected the value you have, found another" in told[-1]
    told.append(json.dumps(here.json("apply", one, MINE=VALUE + "2")))
    told.append(here.run("apply", two, MINE=VALUE, code=ExitCode.GATE))
    told.append(here.run("verify", one, MINE=VALUE + "2"))
    told.append(here.run("verify", one))
    assert "secrets were not compared with yours" in told[-1]
    told += [here.run(verb, "--json") for verb in ("status", "history", "logs")]
    told.append(here.run("stop"))
    assert not any("hf_Kp9" in text for text in told)
    shown = [path for path, data in every_file(here.home, here.project) if b"hf_Kp9" in data]
    assert shown and {path.relative_to(here.service).parts[0] for path in shown} == {"secrets"}


def test_drift_is_found_and_told(here: Here) -> None:
    one = here.profile("one")
    assert "current: expected a release, found nothing was deployed" in here.run("verify", one, code=ExitCode.DRIFT)
    here.run("apply", one)
    said = here.run("verify")
    assert "as declared (" in said
    (tree,) = (here.service / "trees").iterdir()
    file = tree / "sglang/__init__.py"
    file.chmod(0o644)
    file.write_text(file.read_text() + "\n")
    said = here.run("verify", code=ExitCode.DRIFT)
    assert (
        "sglang/__init__.py: expected as in the manifest, found differs; fix: kdeploy apply profiles/one.yaml" in said
    )
    (found,) = here.json("verify", code=ExitCode.DRIFT)
    assert found["drifts"][0]["found"] == "differs" and found["release"] == here.live()
    here.run("apply", one)
    here.run("verify")
    here.profile("one", env={"MORE": "1"})
    said = here.run("verify", code=ExitCode.DRIFT)
    (line,) = (line for line in said.splitlines() if "release: " in line)
    assert "release: the profile declares " in line and f"; live is {here.live()}; differs: environment MORE" in line
    bad = here.profile("two", env={"STANDIN": "garbled"})
    here.run("apply", bad, code=ExitCode.GATE)
    said = here.run("verify", bad, code=ExitCode.DRIFT)
    assert "fix: kdeploy apply profiles/two.yaml (tried before: it ended ROLLED_BACK: the gate said no" in said
    said = here.run("plan", bad)
    (line,) = (line for line in said.splitlines() if "tried before" in line)
    assert line.startswith("  tried before: it ended ROLLED_BACK: the gate said no") and line.endswith("…")


HAND = "hf_started-by-hand-1"


def by_hand(here: Here, port: int) -> subprocess.Popen[bytes]:
    """The stand-in engine, started from a folder of somebody's own at the public port."""
    folder = here.folder / "hand"
    for name, data in fleet.engine().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "sglang/_version.py").write_bytes(making.VERSION_FILE)
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", "m", "--served-model-name", "pocket"]
    environment = {"PATH": os.environ["PATH"], "HF_TOKEN": HAND, "MARK": str(here.home)}  # so that `close` finds it
    child = subprocess.Popen([*argv, "--port", str(port)], cwd=folder, env=environment, start_new_session=True)
    while version(port) is None:
        assert child.poll() is None
        time.sleep(0.05)
    return child


def version(port: int) -> str | None:
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}/server_info", timeout=5) as reply:
            return str(json.load(reply)["version"])
    except (OSError, ValueError):
        return None


def test_a_server_started_by_hand_is_the_way_back(here: Here) -> None:
    """adopt, apply what is garbled, apply what is right, roll back: the server of before serves again."""
    one = here.profile("one")
    bad = here.profile("two", env={"STANDIN": "garbled"})
    told = [here.run("adopt", one, code=ExitCode.PREFLIGHT)]
    assert "nothing listens" in told[0] and "--unit NAME" in told[0]
    child = by_hand(here, here.port)
    try:
        told.append(here.run("apply", one, code=ExitCode.PREFLIGHT))
        assert "kdeploy adopt PROFILE" in told[-1]
        told.append(here.run("adopt", one))
        assert "is the way back now" in told[-1] and "kept by bare" in told[-1] and "note" not in told[-1]
        adopted = here.live()
        assert adopted is not None and adopted.startswith("adopted-")
        told += [here.run("status"), here.run("verify", one, code=ExitCode.DRIFT)]
        assert f"live       {adopted}" in told[-2]
        assert "the profile declares " in told[-1] and "adopted server" not in told[-1]
        assert f"live       {adopted} (known-good)  0.0.1\n" in told[-2] and "front      none" in told[-2]
        assert ", adopted\n" in told[-2] and "patches  " not in told[-2]
        told.append(here.run("plan", one))
        assert "what was adopted goes, and can be gone back to: 0.0.1 (bare)" in told[-1]
        told.append(here.run("apply", bad, code=ExitCode.GATE))
        assert version(here.port) == "0.0.1" and here.live() == adopted
        told.append(here.run("apply", one))
        assert str(version(here.port)).startswith("0.0.1+kd.")
        told.append(json.dumps(here.json("rollback")))
        assert version(here.port) == "0.0.1" and here.live() == adopted
        told.append(here.run("apply", one))  # and forward again
        assert str(version(here.port)).startswith("0.0.1+kd.")
        told.append(here.run("rollback", "--to", "adopted"))
        assert version(here.port) == "0.0.1"
        told += [here.run("history"), here.run("status", "--json"), here.run("logs"), here.run("stop")]
        assert version(here.port) is None
        assert not any(HAND in text for text in told)
        assert {path.name for path, data in every_file(here.home) if HAND.encode() in data} == {"process.json"}
    finally:
        child.kill()
        child.wait()


def test_adopt_says_which_one_is_meant(here: Here) -> None:
    one = here.profile("one")
    here.run("adopt", one, "--port", "1", "--pid", "2", code=ExitCode.USAGE)
    child = by_hand(here, here.port + 7)
    try:
        found = here.json("adopt", one, "--port", str(here.port + 7))
        assert found[0]["release"]["launch"]["port"] == here.port + 7
        assert here.json("adopt", one, "--pid", str(child.pid))[0]["release"]["id"] == found[0]["release"]["id"]
    finally:
        child.kill()
        child.wait()


def test_somebody_elses_change_is_named_and_ended(here: Here) -> None:
    one = here.profile("one")
    here.run("apply", one)
    before = here.live()
    assert "nothing to do" in here.run("unlock")
    two = here.profile("two", env={"STANDIN": "hangs"})
    slow = here.start("apply", two)
    try:
        journal = here.service / "journal.jsonl"
        while '"CANDIDATE"' not in journal.read_text().splitlines()[-1]:
            assert slow.poll() is None
            time.sleep(0.05)
        said = here.run("unlock", code=ExitCode.LOCKED)
        assert "is changing this service: apply since" in said and "goes back by itself at" in said and "--yes" in said
        assert "`kdeploy unlock profiles/one.yaml --yes`" in here.run("unlock", one, code=ExitCode.LOCKED)
        said = here.run("status")
        assert "server     " in said and "starting: apply is at CANDIDATE" in said and "goes back by itself at" in said
        assert here.json("unlock", code=ExitCode.LOCKED)["kind"] == "locked"
        said = here.run("unlock", "--yes")
        assert "was ended" in said and "ROLLED_BACK" in said
        told, _ = slow.communicate(timeout=60)
        assert slow.returncode == ExitCode.INTERRUPTED  # who watched sees the host go back, and who wanted that
        error = next(line for line in told.splitlines() if line.startswith("error: "))
        assert "was ended by unlock of " in error and "rejected" not in error
        assert "ROLLED_BACK" in here.run("history").splitlines()[0] and "ended by unlock of " in here.run("history")
        assert here.live() == before and str(version(here.port)).startswith("0.0.1+kd.")
        here.run("verify", one)
    finally:
        slow.kill()
        slow.communicate()


def test_back_to_a_release_whose_tree_is_gone(here: Here) -> None:
    """The host's store still has it: it is placed anew, and listed meanwhile."""
    here.run("apply", here.profile("one"))
    first = here.live()
    assert first is not None
    here.run("apply", here.profile("two"))
    status = here.run("status")
    assert f"clients    http://127.0.0.1:{here.port}/v1" in status
    assert "profile    two, sglang==0.0.1" in status
    tree = json.loads((here.service / f"releases/{first}/release.json").read_text())["tree"]
    subprocess.run(["chmod", "-R", "u+w", str(here.service / "trees" / tree)], check=True)
    subprocess.run(["rm", "-r", str(here.service / "trees" / tree)], check=True)
    assert f"way back   {first}" in here.run("status")
    here.run("rollback", "--to", first[:6])
    assert here.live() == first
    here.run("verify", "profiles/one.yaml")
    # Without the store there is nothing to place it from.
    subprocess.run(["rm", "-r", str(here.service / "store.git")], check=True)
    (gone,) = [one.name for one in (here.service / "trees").iterdir() if one.name != tree]
    subprocess.run(["chmod", "-R", "u+w", str(here.service / "trees" / gone)], check=True)
    subprocess.run(["rm", "-r", str(here.service / "trees" / gone)], check=True)
    assert "no known-good release" in here.run("rollback", code=ExitCode.NO_KNOWN_GOOD)


def test_going_back_twice_does_not_come_back(here: Here) -> None:
    """What was rolled back from served and was found wanting: only --to brings it again, or its own apply."""
    releases = []
    for name in ("one", "two", "three"):
        here.run("apply", here.profile(name))
        releases.append(here.live())
    told = here.run("rollback")
    assert f"here: going back to {releases[1]}" in told and "/v1, without answers for " in told
    assert here.json("history")[0]["transactions"][0]["out_s"] > 0
    assert f"way back   {releases[0]}\n" in here.run("status")
    here.run("rollback")
    assert here.live() == releases[0]
    told = here.run("rollback", code=ExitCode.NO_KNOWN_GOOD)
    assert str(releases[2]) in told and "`kdeploy rollback --to " in told
    here.run("rollback", "--to", str(releases[1]))
    assert here.live() == releases[1]
    here.run("apply", "profiles/three.yaml")  # declared again: it may be gone back to again
    here.run("apply", "profiles/one.yaml")
    here.run("rollback")
    assert here.live() == releases[2]


def test_what_was_stopped_is_started_again_not_what_is_declared(here: Here) -> None:
    here.run("apply", here.profile("one"))
    first = here.live()
    here.run("apply", here.profile("two"))
    here.run("rollback", "profiles/two.yaml")
    here.run("stop", "profiles/two.yaml")
    assert "`kdeploy start profiles/two.yaml` starts it again" in here.run("status", "profiles/two.yaml")
    assert "stopped on purpose, and else as declared" in here.run("verify", "profiles/one.yaml")
    assert "without answers" not in here.run("start", "profiles/two.yaml")  # it was out by choice, and for longer
    assert here.live() == first and str(here.serves()).startswith("0.0.1+kd.")
    assert "nothing to do" in here.run("start", "profiles/two.yaml")


def test_a_log_in_a_pipe_and_an_empty_one(here: Here) -> None:
    here.run("apply", here.profile("one"))
    follower = here.start("logs", "--follow", "--json")
    assert follower.stdout is not None
    first = json.loads(follower.stdout.readline())
    assert first["host"] == "here" and first["text"]
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=20)
    assert "its process said nothing" in here.run("logs", "-u", "runner")


def test_a_damaged_store_is_made_anew_by_the_same_apply(here: Here) -> None:
    """The host said what it had, and has it no more: everything is sent, without anybody asking twice."""
    here.run("apply", here.profile("one"))
    for path in (here.service / "store.git/objects").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"damaged")
    told = here.run("apply", here.profile("two"))
    assert "beginning a new one" in told and "sending everything" in told
    here.run("verify", "profiles/two.yaml")
    fsck = ["git", "--git-dir", str(here.service / "store.git"), "fsck", "--full"]
    subprocess.run(fsck, check=True, capture_output=True, timeout=30)


@pytest.mark.parametrize(
    ("words", "verb"),
    [(("apply", "--json"), "apply"), (("status", "--frobnicate", "--json"), "status"), (("dance", "--json"), "dance")],
)
def test_usage_errors_are_json_too(here: Here, words: tuple[str, ...], verb: str) -> None:
    document = json.loads(here.run(*words, code=ExitCode.USAGE))
    assert (document["verb"], document["exit"], document["error"]["kind"]) == (verb, 2, "usage")
    assert document["error"]["message"] and verb in document["error"]["hint"]


def test_a_stop_a_crash_and_an_answer_are_told_apart(here: Here) -> None:
    one = here.profile("one")
    here.run("apply", one)
    (said,) = (line for line in here.run("status").splitlines() if "server " in line)
    assert said.endswith(", answers")
    assert "  front      none" in here.run("status")
    assert here.run("stop", "-q") == "small on here: stopped\n"
    assert here.run("stop", "-q") == "small on here: was stopped already\n"
    said = here.run("status")
    assert "server     stopped by " in said and "crashed" not in said
    assert f"`kdeploy start {one}` starts it again" in said
    assert [line.split("\t")[2::2][:2] for line in here.run("history").splitlines()][:2] == [["stop", "STOPPED"]] * 2
    here.run("apply", one)
    os.kill(here.json("status")[0]["facts"]["server"]["pid"], signal.SIGSTOP)
    assert "does NOT answer: /model_info at " in here.run("status")
