"""The command line: exit codes by kind with messages one can act on, JSON for programs, text for people."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kdeploy.errors import ExitCode
from tests import making
from tests.conftest import REPOSITORY

EDIT = [{"file": "sglang/a.py", "line": 1, "anchor": "one = 1", "insert-after": "half = 1.5\n"}]
SEES_HALF = "import os, sys\ntext = open(os.environ['KDEPLOY_TREE'] + '/sglang/a.py').read()\n"
# What a proof says on the pristine tree and on the patched one, by what it does.
PROOFS = {
    "good": SEES_HALF + "print('half is', 'half' in text)\nsys.exit(0 if 'half' in text else 3)\n",
    "blind": "print('all is well')\n",
    "hopeless": "import sys\nprint('row 1 is wrong')\nsys.exit(3)\n",
    "crash": SEES_HALF + "assert 'half' in text\n",
    "slow": "import time\nprint('waiting', flush=True)\ntime.sleep(30)\n",
}


class Small:
    """A project with an engine of three files, and the real command in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = making.small_project(folder)

    def run(
        self, *arguments: str, code: ExitCode = ExitCode.OK, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "kdeploy", *arguments], cwd=self.folder, text=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: str, code: ExitCode = ExitCode.OK) -> Any:
        document = json.loads(self.run(*arguments, "--json", code=code).stdout)
        assert set(document) == {"kdeploy", "verb", "exit", "result" if code == ExitCode.OK else "error"}
        assert (document["kdeploy"], document["verb"], document["exit"]) == (1, arguments[0], code)
        return document["result" if code == ExitCode.OK else "error"]

    def with_proof(self, name: str, text: str, **keys: Any) -> str:
        proof = {"name": name, "run": "proofs/check.py", "needs": [], "timeout-s": 20, **keys}
        ref = making.patch_set(self.folder, name, EDIT, proofs=[proof])
        (self.folder / "patchsets" / ref / "proofs").mkdir()
        (self.folder / "patchsets" / ref / "proofs/check.py").write_text(text)
        making.profile(self.folder, name, "base.yaml", [ref], prove={"venv": sys.prefix})
        return f"profiles/{name}.yaml"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Small:
    (home / "cache/bases").unlink()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return Small(tmp_path)


def test_proofs_red_and_green(small: Small) -> None:
    profile = small.with_proof("good", PROOFS["good"])
    (proof,) = small.json("prove", profile)["proofs"]
    assert (proof["red"]["status"], proof["green"]["status"], proof["cached"]) == (3, 0, False)
    assert proof["green"]["says"] == "half is True"
    assert small.json("prove", profile)["proofs"][0]["cached"] is True
    assert small.json("prove", profile, "--again")["proofs"][0]["cached"] is False


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("blind", {}, "passes on the pristine tree too"),
        ("hopeless", {}, "still fails on the patched tree: row 1 is wrong"),
        ("crash", {}, "could not run on the pristine tree: exit 1"),
        ("slow", {"timeout-s": 1}, "took longer than its limit"),
        ("good", {"needs": ["no_such_module"]}, "needs what"),
    ],
)
def test_a_proof_that_shows_nothing_is_an_error(small: Small, name: str, keys: dict[str, Any], message: str) -> None:
    profile = small.with_proof(name, PROOFS[name], **keys)
    assert message in small.json("prove", profile, code=ExitCode.PROOF)["message"]


def test_an_interrupted_proof_leaves_no_process(small: Small, tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    text = f"import os, time\nopen({str(marker)!r}, 'a').write(str(os.getpid()) + ' ')\ntime.sleep(60)\n"
    profile = small.with_proof("long", text, **{"timeout-s": 90})
    child = subprocess.Popen(
        [sys.executable, "-m", "kdeploy", "prove", profile], cwd=small.folder, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, start_new_session=True,
    )  # fmt: skip
    while not marker.exists() or len(marker.read_text().split()) < 2:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == ExitCode.INTERRUPTED
    assert "interrupted" in err
    for pid in marker.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_anchors_like_grep(small: Small) -> None:
    ref = making.patch_set(small.folder, "half", EDIT)
    assert small.run("verify-anchors").stdout == "sglang/a.py:1: one = 1\tapplicable\thalf/1.0.0 change\n"
    assert small.run("verify-anchors", ref).stdout == small.run("verify-anchors").stdout
    (one,) = small.json("verify-anchors", "half")
    assert one["ok"] is True
    assert one["anchors"][0]["line"] == 1
    assert one["anchors"][0]["state"] == "applicable"


def test_a_lost_anchor_shows_the_nearest(small: Small) -> None:
    making.patch_set(small.folder, "lost", [{**EDIT[0], "anchor": "one = 11"}])
    done = small.run("verify-anchors", code=ExitCode.ANCHOR)
    assert "missing" in done.stdout
    assert "-one = 11" in done.stderr
    assert "+one = 1" in done.stderr


def test_plan_shows_what_changes_and_does_nothing(small: Small, home: Path) -> None:
    ref = making.patch_set(small.folder, "half", EDIT)
    making.profile(small.folder, "p", "base.yaml", [ref])
    done = small.run("plan", "profiles/p.yaml", "--diff")
    assert "patch   half/1.0.0 change  sglang/a.py +1 -0" in done.stdout
    assert "+half = 1.5" in done.stdout
    assert "1. push" in done.stdout
    assert not (home / "root/small/journal.jsonl").exists()
    assert small.json("plan", "profiles/p.yaml", "--offline")["hosts"] == {}


def test_a_host_that_cannot_be_reached_is_told_with_its_line(small: Small) -> None:
    (small.folder / "profiles/hosts.yaml").write_text("hosts:\n  here: {ssh: {address: 127.0.0.1, port: 1}}\n")
    error = small.json("plan", "profiles/base.yaml", code=ExitCode.UNREACHABLE)
    assert "127.0.0.1:1 refuses connections" in error["message"]
    assert error["where"]["path"].endswith("hosts.yaml")
    assert error["where"]["line"] == 2
    small.run("plan", "profiles/base.yaml", "--offline")


def test_precheck_names_what_is_wrong(small: Small) -> None:
    error = small.json("apply", "profiles/base.yaml", code=ExitCode.PREFLIGHT)
    assert "/nonexistent/venv" in error["message"]
    assert error["details"][-1].startswith("nothing was stopped")
    assert any("/nonexistent/model" in line for line in error["details"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["apply", "profiles/nowhere.yaml"], ExitCode.PROFILE, "nowhere.yaml does not exist"),
        (["verify-anchors", "nothing"], ExitCode.PATCHSET, "there is no patch set 'nothing'"),
        (["schema", "profle"], ExitCode.USAGE, "no schema is called 'profle'"),
        (["rollback"], ExitCode.USAGE, "nothing was applied from this project yet"),
        (["status"], ExitCode.USAGE, "nothing was applied from this project yet"),
        (["rollback", "profiles/base.yaml"], ExitCode.NO_KNOWN_GOOD, "no known-good release"),
        (["logs", "profiles/base.yaml", "-u", "kitchen"], ExitCode.USAGE, "there is no unit 'kitchen'"),
    ],
)
def test_errors_by_kind(small: Small, arguments: list[str], code: ExitCode, message: str) -> None:
    assert message in small.json(*arguments, code=code)["message"]
    assert message in small.run(*arguments, code=code).stderr


def test_a_proof_without_its_python(small: Small, tmp_path: Path) -> None:
    small.with_proof("good", PROOFS["good"])
    profile = small.folder / "profiles/good.yaml"
    profile.write_text(profile.read_text().replace(sys.prefix, str(tmp_path / "gone")))
    error = small.json("prove", str(profile), code=ExitCode.PROOF)
    assert f"cannot run: {tmp_path}/gone/bin/python: No such file" in error["message"]
    assert "virtual environment that is not there" in error["hint"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_proof_does_not_outlive_us(small: Small, tmp_path: Path, number: int) -> None:
    waits = "import os, pathlib, time\npathlib.Path(os.environ['SEEN'], str(os.getpid())).touch()\ntime.sleep(60)\n"
    seen = tmp_path / "seen"
    seen.mkdir()
    profile = small.with_proof("slow", waits, env={"SEEN": str(seen)})
    with subprocess.Popen(
        [sys.executable, "-m", "kdeploy", "prove", profile], cwd=small.folder, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # whoever runs us under nohup has it ignored
    ) as child:  # fmt: skip
        deadline = time.monotonic() + 60
        while len(list(seen.iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(number)
        child.wait(timeout=10)
    proofs = [Path("/proc", item.name, "cmdline") for item in seen.iterdir()]
    deadline = time.monotonic() + 2
    while any(proof.exists() and b"check.py" in proof.read_bytes() for proof in proofs):
        assert time.monotonic() < deadline, "a proof is still there"
        time.sleep(0.05)


def test_an_unknown_patch_set_in_a_profile_has_its_place(small: Small) -> None:
    making.patch_set(small.folder, "half", EDIT)
    making.profile(small.folder, "p", "base.yaml", ["half/1.0.0", "halff/1.0.0"])
    error = small.json("stage", "profiles/p.yaml", code=ExitCode.PATCHSET)
    assert (error["where"]["line"], error["where"]["column"]) == (4, 3)
    assert "half/1.0.0" in error["hint"]


def test_an_index_that_serves_another_file(small: Small) -> None:
    lock = small.folder / "kdeploy.lock"
    digest = re.search(r"[0-9a-f]{64}", lock.read_text())
    assert digest is not None
    lock.write_text(lock.read_text().replace(digest[0], "f" * 64))
    error = small.json("stage", "profiles/base.yaml", code=ExitCode.REMOTE)
    assert f"has sha256 {digest[0]}, the lock pins ffffff" in error["message"]
    assert "do not use it" in error["hint"]


def test_an_unreachable_index(small: Small) -> None:
    small.run("stage", "profiles/base.yaml", code=ExitCode.UNREACHABLE, PIP_FIND_LINKS="/nonexistent")


def test_our_own_fault_leaves_a_log(small: Small, home: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import kdeploy.lock\nkdeploy.lock.load = lambda project: 1 / 0\n")
    path = f"{tmp_path}:{REPOSITORY}"
    done = small.run("stage", "profiles/base.yaml", code=ExitCode.FAULT, PYTHONPATH=path)
    (log,) = (home / "state/faults").iterdir()
    assert str(log) in done.stderr
    assert "ZeroDivisionError" in log.read_text()


@pytest.mark.parametrize("cache", ["file", "file/below", "x" * 300])
def test_a_cache_that_cannot_be_made(small: Small, tmp_path: Path, cache: str) -> None:
    (tmp_path / "file").write_text("")
    done = small.run("stage", "profiles/base.yaml", code=ExitCode.PREFLIGHT, KDEPLOY_CACHE=str(tmp_path / cache))
    assert f"error: the cache {tmp_path / cache} cannot be used" in done.stderr
    assert "hint: make room there" in done.stderr


def test_a_machine_without_git(small: Small, tmp_path: Path) -> None:
    done = small.run("stage", "profiles/base.yaml", code=ExitCode.PREFLIGHT, PATH=str(tmp_path))
    assert "error: staging needs git, and none is in the PATH" in done.stderr


def test_a_name_no_file_system_has(small: Small) -> None:
    long = "x" * 300
    assert "cannot be read: File name too long" in small.run("stage", long, code=ExitCode.PROFILE).stderr
    assert "there is no patch set" in small.run("verify-anchors", long, code=ExitCode.PATCHSET).stderr
    (small.folder / "profiles/p.yaml").write_text(f"extends: {long}\n")
    assert (
        "profiles/p.yaml:1:1: error: 'extends'" in small.run("stage", "profiles/p.yaml", code=ExitCode.PROFILE).stderr
    )


def test_usage_of_the_command_line(small: Small) -> None:
    assert "No such option" in small.run("apply", "--frobnicate", code=ExitCode.USAGE).stderr
    assert small.run("--version").stdout.startswith("kdeploy ")


def test_a_closed_pipe_is_no_error(small: Small) -> None:
    making.patch_set(small.folder, "half", EDIT)
    command = f"{sys.executable} -m kdeploy schema | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=small.folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_schemas_describe_every_key() -> None:
    from kdeploy.api import stages

    schemas = stages.schemas()
    assert set(schemas) == {"profile", "hosts", "lock", "patchset", "patch"}
    assert schemas["profile"]["properties"]["serve"]
    assert "private-port" in json.dumps(schemas["profile"])


def test_terminal_escapes_of_others_are_shown_not_obeyed(small: Small) -> None:
    from kdeploy.render import clean

    assert clean("a\x1b[2Jb") == "a\\x1b[2Jb"
