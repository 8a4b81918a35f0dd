"""doctor and `prove: host` at the command line, against this machine; only the engine and the GPUs are stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdeploy import proving
from kdeploy.errors import ExitCode, PatchSetError
from kdeploy.patching import patchset
from tests import making
from tests.conftest import REPOSITORY
from tests.test_cli import EDIT, PROOFS, Small

B300 = {
    "index": 0, "uuid": "GPU-0", "name": "NVIDIA B300 SXM6 AC", "memory.used": 4, "memory.total": 275040,
    "compute_cap": "10.3", "driver_version": "580.159.04", "mig.mode.current": "Disabled", "fabric.state": "Completed",
    "fabric.status": "Success", "ecc.errors.uncorrected.volatile.total": 0, "remapped_rows.failure": "No",
    "gpu_recovery_action": "None",
}  # fmt: skip
MACHINE = {"gpus": 2, "gpu": "B300", "compute-capability": "10.3", "nvlink": True}


class Hosts(Small):
    """A project with this machine as its host, and a virtual environment there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], check=True)
        base = yaml.safe_load((self.folder / "profiles/base.yaml").read_text())
        base["runtime"] = {"venv": str(self.venv)}
        base["serve"] |= {"port": _free(), "private-port": _free()}
        self.private = base["serve"]["private-port"]
        (self.folder / "profiles/base.yaml").write_text(yaml.safe_dump(base, sort_keys=False))

    def profile(self, name: str, sets: list[str] | None = None, **keys: Any) -> str:
        making.profile(self.folder, name, "base.yaml", sets or [], **keys)
        return f"profiles/{name}.yaml"

    def gpus(self, rows: list[dict[str, Any]], apps: list[dict[str, Any]] | None = None) -> dict[str, str]:
        """The environment in which nvidia-smi is the stand-in and says this."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / "tests/agent/standin_bin/nvidia-smi", folder)
        (folder / "gpus.json").write_text(json.dumps({"gpus": rows, "apps": apps or []}))
        return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

    def is_sound(self) -> None:
        """From now on there is a torch, and a model: what can be told without the tree is well."""
        (site,) = self.venv.glob("lib/python*/site-packages")
        torch = "from types import SimpleNamespace as S\n__version__ = '0'\nversion, _C = S(cuda=None), S()\n"
        (site / "torch.py").write_text(torch)
        model = self.folder / "model"
        model.mkdir()
        for name in ("config.json", "tokenizer.json"):
            (model / name).write_text("{}")
        (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        base = yaml.safe_load((self.folder / "profiles/base.yaml").read_text())
        base["serve"]["args"] = {"model-path": str(model), "device": "cpu"}
        (self.folder / "profiles/base.yaml").write_text(yaml.safe_dump(base, sort_keys=False))

    def doctor(self, profile: str, code: ExitCode, **env: str) -> dict[str, dict[str, Any]]:
        document = json.loads(self.run("doctor", profile, "--json", code=code, **env).stdout)
        assert (document["verb"], document["exit"]) == ("doctor", code)
        (host,) = document["result"]["hosts"]
        return {one["check"]: one for one in host["findings"]}


def _free() -> int:
    """A port below those that the kernel gives out by itself."""
    for port in range(20330, 20390):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _TAKEN:
            _TAKEN.add(port)
            return port
    raise AssertionError("no port is free")


_TAKEN: set[int] = set()


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Hosts:
    (home / "cache/bases").unlink()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return Hosts(tmp_path)


def test_a_fresh_host_is_looked_at_and_left_as_it_was(hosts: Hosts, home: Path) -> None:
    profile = hosts.profile("fresh")
    found = hosts.doctor(profile, ExitCode.PREFLIGHT)
    assert [check for check, one in found.items() if not one["ok"]] == ["torch", "model"]
    assert found["tree"]["warn"] and "unchecked" in found["tree"]["detail"]
    assert found["reached"]["ok"] and found["python"]["ok"] and found["private port"]["ok"]
    assert not (home / "root/small").exists()
    text = hosts.run("doctor", profile, code=ExitCode.PREFLIGHT).stdout
    line = next(line for line in text.splitlines() if line.startswith("model\t"))
    assert line.split("\t")[1] == "NOT ok" and "does not exist -> put the model there" in line
    assert "tree\twarn\t" in text and "python\tok\t" in text


def test_the_machine_of_a_profile_and_the_arch_of_its_sets(hosts: Hosts) -> None:
    ref = making.patch_set(hosts.folder, "narrow", EDIT, arch=["sm_100"])
    profile = hosts.profile("b300", [ref], machine=MACHINE)
    found = hosts.doctor(profile, ExitCode.PREFLIGHT, **hosts.gpus([B300, {**B300, "index": 1, "uuid": "GPU-1"}]))
    right = ("gpus", "gpu name", "compute capability", "gpu health", "nvlink fabric", "gpu memory")
    assert {check: found[check]["ok"] for check in right} == dict.fromkeys(right, True)
    assert found["patch set arch"]["detail"] == "narrow/1.0.0 is made for sm_100; here: sm_103"
    assert not found["patch set arch"]["ok"]
    none = hosts.doctor(profile, ExitCode.PREFLIGHT, **hosts.gpus([]))
    assert none["gpus"]["detail"] == "0 GPUs, the profile says 2"


def test_a_stranger_on_a_gpu_and_a_fabric_that_is_late(hosts: Hosts) -> None:
    profile = hosts.profile("b300", machine={**MACHINE, "gpus": 1})
    stranger = {"pid": os.getpid(), "gpu_uuid": "GPU-0", "used_memory": 200_000, "process_name": "python3"}
    late = {**B300, "fabric.state": "In Progress", "fabric.status": "N/A"}
    found = hosts.doctor(profile, ExitCode.PREFLIGHT, **hosts.gpus([late], [stranger]))
    assert f"process {os.getpid()} holds 200,000 MiB on GPU 0" in found["gpu memory"]["detail"]
    assert "kdeploy adopt" in found["gpu memory"]["hint"]
    assert "fabricmanager" in found["nvlink fabric"]["hint"]


def test_who_serves_there_now(hosts: Hosts) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", hosts.private))
        server.listen()
        found = hosts.doctor(hosts.profile("taken"), ExitCode.PREFLIGHT)
    assert "pytest" in found["serves now"]["detail"] and "kdeploy adopt" in found["serves now"]["hint"]
    assert not found["private port"]["ok"]


def proving_there(hosts: Hosts, name: str, text: str, **keys: Any) -> str:
    profile = hosts.with_proof(name, text, **keys)
    return hosts.profile(name, [f"{name}/1.0.0"], prove="host") if profile else ""


def test_proofs_on_a_host(hosts: Hosts, home: Path) -> None:
    profile = proving_there(hosts, "good", PROOFS["good"])
    (proof,) = hosts.json("prove", profile)["proofs"]
    assert (proof["red"]["status"], proof["green"]["status"], proof["cached"]) == (3, 0, False)
    assert proof["green"]["says"] == "half is True"
    assert len(list((home / "root/small/trees").iterdir())) == 2  # pristine and patched
    assert "push" not in hosts.run("prove", profile).stderr  # a tree that is there is there, also before its release is
    assert hosts.json("prove", profile)["proofs"][0]["cached"] is True
    assert hosts.json("prove", profile, "--again")["proofs"][0]["cached"] is False
    (site,) = hosts.venv.glob("lib/python*/site-packages")
    (site / "newly_installed.py").write_text("")
    assert hosts.json("prove", profile)["proofs"][0]["cached"] is False  # another runtime
    (proofs,) = (hosts.folder / "patchsets").glob("*/*/proofs/check.py")
    proofs.write_text(proofs.read_text() + "# another proof\n")
    assert hosts.json("prove", profile)["proofs"][0]["cached"] is False


@pytest.mark.parametrize(
    ("name", "keys", "says"),
    [
        ("blind", {}, "passes on the pristine tree too"),
        ("hopeless", {}, "still fails on the patched tree: row 1 is wrong"),
        ("crash", {}, "could not run on the pristine tree: exit 1"),
        ("slow", {"timeout-s": 1}, "took longer than its limit"),
    ],
)
def test_a_proof_that_shows_nothing_on_a_host(hosts: Hosts, name: str, keys: dict[str, Any], says: str) -> None:
    profile = proving_there(hosts, name, PROOFS[name], **keys)
    for _ in range(2):  # what failed is not remembered
        error = hosts.json("prove", profile, code=ExitCode.PROOF)
        assert error["message"].startswith("here: ") and says in error["message"] and error["hint"]


def test_a_proof_that_needs_what_the_host_lacks(hosts: Hosts) -> None:
    profile = proving_there(hosts, "good", PROOFS["good"], needs=["json", "no_such_module"])
    error = hosts.json("prove", profile, code=ExitCode.PREFLIGHT)
    assert "no_such_module" in error["message"] and "json" not in error["message"].replace("no_such_module", "")
    base = yaml.safe_load((hosts.folder / "profiles/base.yaml").read_text())
    (hosts.folder / "profiles/base.yaml").write_text(yaml.safe_dump({**base, "runtime": {"venv": "/nonexistent"}}))
    assert "/nonexistent/bin/python" in hosts.json("prove", profile, code=ExitCode.PREFLIGHT)["message"]


def test_apply_proves_here_before_it_pushes(hosts: Hosts) -> None:
    hosts.is_sound()
    profile = hosts.with_proof("blind", PROOFS["blind"])
    told = hosts.run("apply", profile, code=ExitCode.PROOF).stderr
    assert "passes on the pristine tree too" in told and "push" not in told


def test_apply_proves_on_the_host_before_it_looks_further(hosts: Hosts, home: Path) -> None:
    hosts.is_sound()
    profile = proving_there(hosts, "hopeless", PROOFS["hopeless"])
    assert "nothing was switched" in hosts.json("apply", profile, code=ExitCode.PROOF)["hint"]
    assert not (home / "root/small/journal.jsonl").exists()
    profile = proving_there(hosts, "good", PROOFS["good"])
    assert "import" in hosts.json("apply", profile, code=ExitCode.PREFLIGHT)["message"]  # proven; but it is no engine
    assert list((home / "root/small/caches").glob("*/proofs/*.json"))


def test_a_pristine_tree_that_was_edited_is_placed_anew(hosts: Hosts, home: Path) -> None:
    profile = proving_there(hosts, "good", PROOFS["good"])
    hosts.json("prove", profile)
    for tree in (home / "root/small/trees").iterdir():
        path = tree / "sglang/a.py"
        if "half" not in path.read_text():
            path.chmod(0o644)
            path.write_text(path.read_text() + "half = 0\n")
    (proof,) = hosts.json("prove", profile, "--again")["proofs"]
    assert proof["red"]["status"] == 3


def test_what_travels_is_the_set_as_it_was_read(hosts: Hosts) -> None:
    hosts.with_proof("good", PROOFS["good"])
    one = patchset.find(hosts.folder / "patchsets", "good/1.0.0")
    assert proving.files([one]) == proving.files([one])
    with zipfile.ZipFile(BytesIO(proving.files([one]))) as zipped:
        assert zipped.namelist() == ["good/1.0.0/proofs/check.py"]
    (one.folder / "proofs/check.py").write_text("another")
    with pytest.raises(PatchSetError, match="was changed"):
        proving.files([one])


def test_proofs_without_a_place_are_told_before_apply(hosts: Hosts) -> None:
    hosts.with_proof("good", PROOFS["good"])
    profile = hosts.profile("good", ["good/1.0.0"])  # a runtime that is there, and no `prove`
    for verb in ("plan", "apply"):
        error = hosts.json(verb, profile, code=ExitCode.PROFILE)
        assert "does not say where to run them" in error["message"] and "prove: host" in error["hint"]
    found = hosts.doctor(profile, ExitCode.PREFLIGHT)["proofs"]
    assert not found["ok"] and "prove: host" in found["hint"]
    assert hosts.doctor(hosts.profile("there", ["good/1.0.0"], prove="host"), ExitCode.PREFLIGHT)["proofs"]["ok"]


@pytest.mark.parametrize(("prove", "kinds"), [(None, ["prove", "push"]), ("host", ["push", "prove"])])
def test_plan_says_where_proofs_run_and_what_stops_apply(hosts: Hosts, prove: str | None, kinds: list[str]) -> None:
    profile = hosts.with_proof("good", PROOFS["good"])
    if prove:
        profile = hosts.profile("good", ["good/1.0.0"], prove=prove)
    planned = hosts.json("plan", profile)
    assert [step["kind"] for step in planned["hosts"]["here"]["steps"]][:2] == kinds
    assert [one["check"] for one in planned["refused"]["here"]] == ["torch", "model"]
    assert "apply would stop here: model: " in hosts.run("plan", profile).stdout


def test_what_a_host_refuses_is_said_before_proofs_and_pushes(hosts: Hosts, home: Path) -> None:
    profile = hosts.with_proof("good", PROOFS["good"])
    with socket.socket() as server:
        server.bind(("127.0.0.1", hosts.private))
        server.listen()
        told = hosts.run("apply", profile, code=ExitCode.PREFLIGHT).stderr
    assert f"port {hosts.private}" in told and "nothing was stopped" in told
    assert "proving" not in told and "push" not in told
    (line,) = (home / "state/ledger.jsonl").read_text().splitlines()
    assert "PreflightError" in line  # refused so early it is a change that was asked for all the same
    hosts.run("prove", profile)  # what is remembered and small to push needs no look of its own
    assert "push" in hosts.run("apply", profile, code=ExitCode.PREFLIGHT).stderr


def test_a_runtime_that_apply_makes_is_no_reason_to_refuse(hosts: Hosts) -> None:
    (hosts.folder / "some.lock").write_text("torch==0.0.1\n")
    profile = hosts.profile("made", runtime={"venv": None, "lock": "../some.lock"})
    found = hosts.doctor(profile, ExitCode.PREFLIGHT)["runtime"]
    assert found["ok"] and found["warn"] and "not made yet" in found["detail"]
