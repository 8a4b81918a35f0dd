"""What was changed on a host behind kdeploy's back is found, named, and told what it was to be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .conftest import Rig, processes, seal


def look(rig: Rig) -> list[dict[str, str]]:
    answer = rig.agent("verify").ok
    assert answer["release"] == rig.layout.live()
    assert answer["checked"] > 0
    drifts: list[dict[str, str]] = answer["drifts"]
    assert all(one["fix"] and one["expected"] != one["found"] for one in drifts)
    return drifts


def whats(rig: Rig) -> list[str]:
    return [one["what"] for one in look(rig)]


def writable(path: Path) -> Path:
    path.parent.chmod(0o755)
    if path.exists():
        path.chmod(0o644)
    return path


def test_a_host_as_declared_has_none(rig: Rig) -> None:
    assert whats(rig) == ["current"]
    rig.apply("one")
    before = {path: path.lstat().st_mtime_ns for path in rig.layout.root.rglob("*")}
    assert look(rig) == []
    assert {path: path.lstat().st_mtime_ns for path in rig.layout.root.rglob("*")} == before


def test_files_links_and_documents(rig: Rig) -> None:
    release = rig.apply("one")
    tree = rig.layout.tree(release["tree"])
    writable(tree / "unix.txt").write_text("edited")
    writable(tree / "sglang/patched.py").unlink()
    (tree / "sglang/extra.py").write_text("")
    found = {one["what"]: one["found"] for one in look(rig)}
    name = f"tree {tree.name[:12]}"
    assert found == {
        f"{name}: unix.txt": "differs", f"{name}: sglang/patched.py": "missing",
        f"{name}: sglang/extra.py": "not in the manifest",
    }  # fmt: skip
    for number in range(40):
        (tree / f"more-{number:02}").write_text("")
    assert len(look(rig)) == 21
    rig.layout.known_good.unlink()
    assert "known-good" in whats(rig)
    path = rig.layout.release(release["id"]) / "release.json"
    document = json.loads(path.read_text())
    document["launch"]["args"].append("--more")
    path.write_text(json.dumps(document))
    assert "release.json" in whats(rig)


def test_a_server_somebody_restarted_by_hand(rig: Rig) -> None:
    """Same port, same tree, another command line and environment."""
    release = rig.apply("one", SOME_SETTING="declared", MY_TOKEN="hunter2-declared")
    pid = rig.facts()["units"]["server"]["pid"]
    env = {**processes.environ(pid), "SOME_SETTING": "by hand", "MY_TOKEN": "hunter2-by-hand", "MORE": "1"}
    argv = [*processes.argv(pid), "--watchdog-timeout", "1"]
    state = json.loads(rig.units.path("server", "pid").read_text())
    for one in rig.units.members("server"):
        os.kill(one, signal.SIGKILL)
    end = time.monotonic() + 10
    while processes.holders(rig.private) and time.monotonic() < end:
        time.sleep(0.05)
    child = subprocess.Popen(argv[:-2], env=env, cwd="/", stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while not processes.holders(rig.private):
            time.sleep(0.05)
        state.update(child=child.pid, child_identity=processes.identity(child.pid))
        rig.units.path("server", "pid").write_text(json.dumps(state))
        found = {one["what"]: (one["expected"], one["found"]) for one in look(rig)}
        name = f"server: process {child.pid}"
        assert found[f"{name}: environment SOME_SETTING"] == ("declared", "by hand")
        assert found[f"{name}: environment MORE"] == ("not set", "1")
        assert found[f"{name}: working folder"] == (str(rig.layout.empty), "/")
        assert f"{name}: environment MY_TOKEN" in found
        assert "hunter2" not in json.dumps(found)
        assert release["id"] == rig.layout.live()
    finally:
        child.kill()
        child.wait()
    assert "server" in whats(rig)


def test_an_edited_unit_and_a_changed_secret(rig: Rig) -> None:
    assert rig.receive("one").ok
    order = rig.order(seal(rig.release("one"), secrets=["HF_TOKEN"]))
    assert rig.agent("begin", {**order, "secrets": {"HF_TOKEN": "first-value"}}).ok["state"] == "PROBED"
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    assert look(rig) == []
    (rig.layout.secrets / "HF_TOKEN").write_text("second-value")
    (one,) = look(rig)
    assert one["what"].endswith("secret HF_TOKEN") and "value" not in one["found"]
    (rig.layout.secrets / "HF_TOKEN").unlink()
    assert "secret HF_TOKEN" in whats(rig)
    (rig.layout.secrets / "HF_TOKEN").write_text("first-value")
    path = rig.units.path("server", "json")
    spec = json.loads(path.read_text())
    path.write_text(
        json.dumps({**spec, "argv": [*spec["argv"], "--more"], "cwd": "/tmp", "env": {**spec["env"], "A": "1"}})
    )
    assert sorted(whats(rig)) == ["server: stored argv", "server: stored cwd", "server: stored environment A"]


def test_a_stranger_on_the_public_port(rig: Rig) -> None:
    rig.apply("one")
    for pid in rig.units.members("front"):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while processes.holders(rig.public):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert {"front", f"public port {rig.public}"} <= set(whats(rig))
    code = f"import socket, time; s = socket.create_server(('127.0.0.1', {rig.public})); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not processes.holders(rig.public):
            time.sleep(0.05)
        (one,) = [one for one in look(rig) if one["what"] == f"public port {rig.public}"]
        assert f"process {child.pid}" in one["found"]
    finally:
        child.kill()
        child.wait()


def test_packages_that_changed_since_the_release_was_confirmed(rig: Rig) -> None:
    rig.apply("one")
    (site,) = rig.venv.glob("lib/python*/site-packages")
    kept = rig.layout.evidence(str(rig.layout.live())) / "installed.json"
    assert len(json.loads(kept.read_text())["runtime"]) == 64
    kept.write_text(json.dumps({"runtime": "0" * 64}))  # the environment itself is shared by tests that run beside
    (one,) = look(rig)
    assert one["what"].startswith("runtime ") and "site-packages" in one["found"] and site.is_dir()


def test_while_somebody_changes_the_host(rig: Rig) -> None:
    assert rig.receive("one").ok
    order = rig.order(rig.release("one"))
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    answer = rig.agent("verify")
    assert answer.error is not None and answer.error["kind"] == "locked"
    rig.decide(order, accept=False)
