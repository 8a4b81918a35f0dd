"""The verb prove as a host gets it: what is sent, what it may not be, and that no proof outlives its asker."""

from __future__ import annotations

import hashlib
import io
import signal
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import processes
from kdeploy_agent.proofs import proof_files, trial

from .conftest import git

SEES = "import os, sys\nsys.exit(0 if os.path.exists(os.environ['KDEPLOY_TREE'] + '/sglang/patched.py') else 3)\n"
SLEEPS = (
    "import os, subprocess, sys\nsubprocess.Popen(['sleep', '987']); print(os.environ['WHO'])\nsys.stdout.flush()\n"
)
SLEEPS += "import time\ntime.sleep(987)\n"


def packed(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, text in files.items():
            made.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)
    return buffer.getvalue()


def prepare(rig: Any) -> dict[str, Any]:
    """Have tree one and a pristine commit on the host; gives a request to prove the one against the other."""
    assert rig.receive("one").ok
    folder = rig.layout.root / "base"
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang" / "__init__.py").write_text("")
    text = f"{hashlib.sha256(b'').hexdigest()}  sglang/__init__.py\n"
    (folder / "manifest.sha256").write_text(text)
    git("init", "-q", "-b", "main", cwd=folder)
    git("add", "-A", cwd=folder)
    git("commit", "-qm", "base", cwd=folder)
    git("bundle", "create", "-q", "../base.bundle", "HEAD", cwd=folder)
    git("--git-dir", str(rig.layout.store), "bundle", "unbundle", str(folder.parent / "base.bundle"), cwd=folder)
    commit = git("rev-parse", "HEAD", cwd=folder).strip()
    base = {"commit": commit, "manifest": hashlib.sha256(text.encode()).hexdigest()}
    proof = {"name": "sees", "run": "proofs/p.py", "needs": ["json"], "timeout_s": 20, "env": {"WHO": str(rig.private)}}
    sets = [{"ref": "demo/1.0.0", "digest": "d", "proofs": [proof]}]
    return {"release": rig.release("one"), "base": base, "sets": sets}


def test_red_and_green_and_remembered(rig: Any) -> None:
    request = prepare(rig)
    first = rig.agent("prove", request, packed({"demo/1.0.0/proofs/p.py": SEES}))
    (found,) = first.ok["proven"]
    assert (found["red"]["status"], found["green"]["status"], found["cached"]) == (3, 0, False)
    assert [event["text"] for event in first.events] == ["proving demo/1.0.0 sees"]
    again = rig.agent("prove", request, packed({"demo/1.0.0/proofs/p.py": SEES}))
    assert again.ok["proven"][0]["cached"] is True and again.events == []
    changed = rig.agent("prove", request, packed({"demo/1.0.0/proofs/p.py": SEES + "#"}))
    assert changed.ok["proven"][0]["cached"] is False
    rig.stopped()


def test_what_did_not_do_what_it_must_is_told_and_not_remembered(rig: Any) -> None:
    request = prepare(rig)
    payload = packed({"demo/1.0.0/proofs/p.py": "print('well')\n"})
    for _ in range(2):
        (found,) = rig.agent("prove", request, payload).ok["proven"]
        assert (found["red"]["status"], found["red"]["says"], found["cached"]) == (0, "well", False)


def test_what_comes_after_a_proof_that_failed_is_not_run(rig: Any) -> None:
    request = prepare(rig)
    proofs = request["sets"][0]["proofs"]
    proofs.append({**proofs[0], "name": "later"})
    found = rig.agent("prove", request, packed({"demo/1.0.0/proofs/p.py": "raise SystemExit(7)\n"})).ok["proven"]
    assert [(one["proof"], one["red"]["status"]) for one in found] == [("sees", 7)]


def test_trees_that_are_not_what_they_should_be(rig: Any) -> None:
    request, payload = prepare(rig), packed({"demo/1.0.0/proofs/p.py": SEES})
    wrong = {**request, "base": {**request["base"], "manifest": "0" * 64}}
    assert rig.agent("prove", wrong, payload).error["kind"] == "integrity"
    wrong = {**request, "base": {**request["base"], "commit": "1" * 40}}
    assert rig.agent("prove", wrong, payload).error["kind"] == "preflight"
    patched = rig.layout.tree(request["release"]["tree"]) / "sglang" / "patched.py"
    patched.chmod(0o644)
    patched.write_text("edited")
    assert "patched.py: differs" in rig.agent("prove", request, payload).error["message"]


@pytest.mark.parametrize("name", ["../x.py", "/etc/x", "demo/../../x", "demo//x", "demo/./x", "demo\\x", "demo/1.0.0/"])
def test_paths_that_would_leave_their_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(AgentError) as caught:
        proof_files.unpack(packed({name: "x"}), tmp_path / "in" / "side")
    assert caught.value.kind == "usage"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_is_no_zip_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for payload in (b"", b"PK\x03\x04 cut", packed({"a": "x"})[:-8]):
        with pytest.raises(AgentError, match="no zip"):
            proof_files.unpack(payload, tmp_path)
    monkeypatch.setattr(proof_files, "LIMIT_BYTES", 1000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("bomb", "0" * 100_000)
    assert len(buffer.getvalue()) < 1000
    with pytest.raises(AgentError, match="more than"):
        proof_files.unpack(buffer.getvalue(), tmp_path)


def test_a_proof_outside_its_set_is_refused(rig: Any) -> None:
    request = prepare(rig)
    request["sets"][0]["proofs"][0]["run"] = "../../../../etc/passwd"
    assert rig.agent("prove", request, packed({"a": "x"})).error["kind"] == "usage"


def test_a_proof_on_cpu_whatever_its_set_says(rig: Any) -> None:
    request = prepare(rig)
    request["sets"][0]["proofs"][0]["env"] = {"CUDA_VISIBLE_DEVICES": "0", "EXTRA": "1"}
    says = "import os\nprint(os.environ['EXTRA'], repr(os.environ['CUDA_VISIBLE_DEVICES']), os.listdir())\n"
    (found,) = rig.agent("prove", request, packed({"demo/1.0.0/proofs/p.py": says})).ok["proven"]
    assert found["green"]["says"] == "1 '' []"


def sleepers(rig: Any) -> list[int]:
    return [pid for pid in _pids() if processes.environ(pid).get("WHO") == str(rig.private)]


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def wait_until(rig: Any, count: int) -> None:
    end = time.monotonic() + 20
    while len(sleepers(rig)) != count:
        assert time.monotonic() < end, [processes.command(pid) for pid in sleepers(rig)]
        time.sleep(0.05)


def test_a_proof_that_takes_too_long_ends_with_its_children(rig: Any) -> None:
    request = prepare(rig)
    request["sets"][0]["proofs"][0]["timeout_s"] = 1
    (found,) = rig.agent("prove", request, packed({"demo/1.0.0/proofs/p.py": SLEEPS})).ok["proven"]
    assert found["red"]["status"] is None and found["red"]["says"] == str(rig.private)
    assert sleepers(rig) == []


def test_an_asker_who_hangs_up_ends_the_proof(rig: Any) -> None:
    request = prepare(rig)
    request["sets"][0]["proofs"][0]["timeout_s"] = 600
    child = rig.start("prove", request, packed({"demo/1.0.0/proofs/p.py": SLEEPS}))
    wait_until(rig, 4)  # on both trees the proof and its child
    child.stdout.close()
    wait_until(rig, 0)
    child.wait(timeout=10)
    child.stderr.close()


def test_an_agent_that_is_killed_takes_the_proof_with_it(rig: Any) -> None:
    request = prepare(rig)
    request["sets"][0]["proofs"][0]["timeout_s"] = 600
    child = rig.start("prove", request, packed({"demo/1.0.0/proofs/p.py": "import time\ntime.sleep(987)\n"}))
    wait_until(rig, 2)
    child.send_signal(signal.SIGKILL)
    wait_until(rig, 0)
    child.communicate(timeout=10)


def test_the_last_words_of_a_chatty_proof(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text("for n in range(100000): print('line', n)\nprint('x' * 5000)\n")
    one = trial.Trial(program, tmp_path, Path(sys.executable), {"timeout_s": 20, "env": {}})
    try:
        found = one.finish(lambda: True)
    finally:
        one.end()
    assert found["status"] == 0 and found["says"] == "x" * 2000 and len(found["tail"]) == 20
