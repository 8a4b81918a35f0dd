"""What precheck finds, with the runtime's own Python and the tree's own parser; and runtimes made by real pip."""

from __future__ import annotations

import shutil
import socket
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.trees import runtimes, serving

from kdeploy.release import runtime_key


def findings(rig: Any, release: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in rig.agent("precheck", {"release": release}).ok["findings"]}


def test_a_sound_release(rig: Any) -> None:
    assert rig.receive("one").ok
    release = rig.release("one")
    found = findings(rig, release)
    assert [one["detail"] for one in found.values() if not one["ok"]] == []
    assert {"runtime", "import", "arguments", "private port", "public port", "metrics port", "disk"} <= set(found)
    assert release["version"] in found["import"]["detail"]
    rig.stopped()


def test_precheck_beside_a_live_release_stops_nothing(rig: Any) -> None:
    release = rig.apply("one")
    pid = rig.facts()["units"]["server"]["pid"]
    found = findings(rig, release)
    assert all(one["ok"] for one in found.values()), found
    assert "ours" in found["private port"]["detail"]
    assert rig.facts()["units"]["server"]["pid"] == pid


def test_strict_makes_what_is_wrong_an_error(rig: Any) -> None:
    assert rig.receive("one").ok
    release = rig.release("one")
    assert all(one["ok"] for one in rig.agent("precheck", {"release": release, "strict": True}).ok["findings"])
    release["launch"]["args"] += ["--max-total-tokns", "5"]
    release["launch"]["front"]["host"] = "no.such.host.invalid"
    answer = rig.agent("precheck", {"release": release, "strict": True})
    assert answer.error["kind"] == "preflight" and answer.status == 1
    assert answer.error["message"] == "arguments: unrecognized arguments: --max-total-tokns 5"
    assert answer.error["hint"] == "did you mean --max-total-tokens?"
    assert answer.error["details"][0].startswith("public address: this host cannot listen at no.such.host.invalid")
    assert answer.error["details"][-1] == "nothing was stopped"  # nothing serves that could serve on
    assert len([event for event in answer.events if event["event"] == "finding"]) > 5
    lenient = rig.agent("precheck", {"release": release}).ok["findings"]
    assert [one["check"] for one in lenient if not one["ok"]] == ["arguments", "public address"]


def test_an_unknown_flag_names_the_nearest(rig: Any) -> None:
    assert rig.receive("one").ok
    release = rig.release("one")
    release["launch"]["args"] += ["--max-total-tokns", "5"]
    found = findings(rig, release)["arguments"]
    assert not found["ok"] and found["detail"] == "unrecognized arguments: --max-total-tokns 5"
    assert found["hint"] == "did you mean --max-total-tokens?"
    release["launch"]["args"][-2:] = ["--max-total-tokens", "many"]
    found = findings(rig, release)["arguments"]
    assert "invalid int value: 'many'" in found["detail"] and found["hint"] == ""  # the flag itself is known


def test_what_does_not_import_is_said(rig: Any) -> None:
    assert rig.receive("one").ok
    release = {**rig.release("one"), "version": "0.5.11+kd.other"}
    found = findings(rig, release)["import"]
    assert not found["ok"] and "0.5.11+kd.other" in found["hint"]
    release = {**release, "tree": rig.trees["two"].tree}
    assert not findings(rig, release)["tree"]["ok"]
    release = rig.release("one")
    release["launch"]["runtime"] = {"venv": "/nowhere"}
    found = findings(rig, release)["runtime"]
    assert not found["ok"] and "No such file" in found["detail"]


def test_a_stranger_on_a_port_is_named(rig: Any) -> None:
    assert rig.receive("one").ok
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", rig.public))
        stranger.listen()
        found = findings(rig, rig.release("one"))["public port"]
    assert not found["ok"] and f"{rig.public} is held by process" in found["detail"]


def wheel(folder: Path, name: str, requires: str = "") -> str:
    """A wheel that holds one module; gives its line for a lock."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as zipped:
        zipped.writestr(f"{name}.py", "")
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        zipped.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        zipped.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        zipped.writestr(f"{info}/RECORD", "")
    return f"{name}==1.0"


def keyed(lock: str, python: str, with_deps: list[str] | None = None) -> dict[str, Any]:
    """A request for a runtime, with the key that belongs to it."""
    deps = with_deps or []
    key = runtimes.key_of(lock, python, deps)
    return {"key": key, "python": python, "lock": lock, "with_deps": deps}


def test_a_runtime_is_made_once_and_left_whole(rig: Any) -> None:
    wheels = rig.layout.root / "wheels"
    wheels.mkdir(parents=True)
    wheel(wheels, "libdeep")
    lines = [wheel(wheels, "framework", "libdeep"), wheel(wheels, "engine", "never-installed")]
    request = keyed("\n".join(lines) + "\n", sys.executable, ["framework"])
    key = request["key"]
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    bad = rig.agent("runtime", keyed("framework==1.0\nabsent==1.0\n", sys.executable, ["framework"]), **pip)
    assert bad.error["kind"] == "runtime" and "absent" in bad.error["message"]
    assert rig.agent("facts").ok["runtimes"] == []
    rig.layout.runtime(key).mkdir()
    (rig.layout.runtime(key) / "leftover").write_text("of the attempt that failed")
    made = rig.agent("runtime", request, **pip)
    assert made.ok["made"] and Path(made.ok["python"]).exists()
    assert "2 packages" in made.events[0]["text"] and len(made.events) > 3
    site = next((rig.layout.runtime(key) / "lib").glob("python*/site-packages"))
    assert {"framework.py", "libdeep.py", "engine.py"} <= {path.name for path in site.iterdir()}
    assert not (rig.layout.runtime(key) / "leftover").exists()
    assert rig.agent("facts").ok["runtimes"] == [key]
    again = rig.agent("runtime", request)
    assert again.ok == {"python": made.ok["python"], "made": False} and again.events == []


def test_a_runtime_without_its_python(rig: Any) -> None:
    error = rig.agent("runtime", keyed("a==1\n", "/no/python")).error
    assert error["kind"] == "runtime" and "/no/python" in error["message"]
    error = rig.agent("runtime", keyed("a==1\n", "python3", ["b"])).error
    assert error["kind"] == "usage"


def test_the_key_of_a_runtime_is_the_one_of_its_lock(rig: Any) -> None:
    """As kdeploy counts it; a runtime under the key of another lock would be served by every release that names it."""
    request = {"python": "python3.11", "lock": "a==1\n", "with_deps": ["a"]}
    key = runtime_key("a==1\n", "3.11", ["a"])
    assert runtimes.key_of("a==1\n", "python3.11", ["a"]) == key
    error = rig.agent("runtime", {**request, "key": key, "lock": "a==2\n"}).error
    assert error["kind"] == "integrity" and key in error["message"]
    assert not rig.layout.runtime(key).exists()


def test_a_release_that_passed_is_not_imported_again(rig: Any) -> None:
    """Only where the runtime is one that we made: somebody else's may have changed."""
    release = rig.release("one")
    assert rig.receive("one").ok
    runtime = rig.layout.runtime("abc")
    runtime.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(rig.venv, runtime, symlinks=True)
    (site,) = runtime.glob("lib/python*/site-packages")
    for source, known in (({"venv": str(rig.venv)}, False), ({"key": "abc"}, True)):
        release["launch"]["runtime"] = source
        first = rig.agent("precheck", {"release": release}).ok["findings"]
        remembered = list((rig.layout.cache(release["tree"]) / "precheck").glob("*.json"))
        assert bool(remembered) is known
        again = rig.agent("precheck", {"release": release}).ok["findings"]
        assert _steady(again) == _steady(first)
    remembered[0].write_text(remembered[0].read_text().replace("cpython", "CPYTHON"))
    again = rig.agent("precheck", {"release": release}).ok["findings"]
    assert any("CPYTHON" in finding["detail"] for finding in again)
    (site / "newly_installed.py").write_text("")
    again = rig.agent("precheck", {"release": release}).ok["findings"]
    assert not any("CPYTHON" in finding["detail"] for finding in again)
    broken = {**release, "id": "other", "launch": {**release["launch"], "args": ["--no-such-flag"]}}
    assert not all(finding["ok"] for finding in rig.agent("precheck", {"release": broken}).ok["findings"])
    assert not (remembered[0].parent / "other.json").exists()


def _steady(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what says how much is free at this moment."""
    return [one for one in found if one["check"] not in ("disk", "inodes")]


@pytest.mark.parametrize(("host", "ok"), [("203.0.113.7", False), ("no.such.host.invalid", False), ("0.0.0.0", True)])
def test_an_address_the_host_does_not_have(rig: Any, host: str, ok: bool) -> None:
    assert rig.receive("one").ok
    release = rig.release("one")
    release["launch"]["front"]["host"] = host
    found = findings(rig, release)["public address"]
    assert found["ok"] is ok and host in found["detail"]


def test_an_ipv6_address_has_brackets_in_a_url() -> None:
    front = {"kind": "router", "host": "::", "port": 30000}
    assert serving.public_url({"launch": {"front": front}}) == "http://[::1]:30000"


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_a_front_that_only_the_host_itself_reaches_is_told_to_whoever_is_elsewhere(
    rig: Any, host: str, warned: bool
) -> None:
    assert rig.receive("one").ok
    release = rig.release("one")
    release["launch"]["front"]["host"] = host
    for remote in (True, False):
        request = {"release": release, "remote": remote}
        found = {one["check"]: one for one in rig.agent("precheck", request).ok["findings"]}["public address"]
        assert found["ok"] and found["warn"] == (warned and remote)
        assert ("serve.host: 0.0.0.0" in found["hint"]) == (warned and remote)


def test_doctor_compares_the_files_of_what_is_live(rig: Any) -> None:
    def live() -> Any:
        findings = rig.agent("doctor", {"release": rig.release("one")}).ok["findings"]
        return next((one for one in findings if one["check"] == "live tree"), None)

    assert rig.receive("one").ok and live() is None  # nothing is
    release = rig.apply("one")
    assert live()["ok"] and not live()["warn"] and live()["detail"] == f"11 files of {release['id']} are as declared"
    edited = rig.layout.tree(release["tree"]) / "crlf.txt"
    edited.chmod(0o644)
    edited.write_text("edited\n")
    found = live()
    assert found["ok"] and found["warn"] and found["detail"] == "1 file is not as declared: crlf.txt: differs"
    assert "kdeploy verify" in found["hint"]
    (rig.layout.release(release["id"]) / "release.json").write_text("{")
    assert live()["warn"] and "damaged" in live()["detail"]
