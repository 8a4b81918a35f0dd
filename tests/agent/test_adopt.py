"""What a host was found serving becomes a release: kdeploy can go back to it, and says what of it changed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.adoption import startable
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, systemctl
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import adopted, ancestry, bystander

from .conftest import STANDIN, Rig, free_port, processes

SECRET = "hf_handmade-secret-1"
BRIEF = [{"name": "hello", "kind": "prose", "text": "Hello", "max_tokens": 4}]


@contextmanager
def by_hand(rig: Rig, *before: str, env: dict[str, str] | None = None, **kwargs: Any) -> Iterator[int]:
    """A server that somebody started without kdeploy, at the rig's public port, from a folder of their own."""
    folder = rig.layout.root.with_name("hand")
    if not folder.exists():
        shutil.copytree(STANDIN, folder)
        init = folder / "sglang/__init__.py"
        init.write_text(init.read_text().replace("@VERSION@", "0.5.11"))
    environment = {"PATH": os.environ["PATH"], "HF_TOKEN": SECRET, "MODE": "by hand", "ODD": os.fsdecode(b"\xff")}
    argv = [*before, sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(rig.public)]
    child = subprocess.Popen(
        argv, cwd=folder, env={**environment, **(env or {})}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **kwargs,
    )  # fmt: skip
    child.returncode = None
    try:
        end = time.monotonic() + 20
        while rig.answers(rig.public) is None:
            assert time.monotonic() < end and child.poll() is None
            time.sleep(0.05)
        yield child.pid
    finally:
        for pid in list(processes._pids()):
            if processes.cwd(pid) == str(folder) and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        child.wait()


def adopt(rig: Rig, **request: Any) -> Any:
    asked = {"txn": f"adopt-{free_port()}", "by": "tester@here", "ports": [rig.public, rig.private], "brief": BRIEF}
    return rig.agent("adopt", {**asked, **request})


def serves_by_hand(rig: Rig, release: dict[str, Any]) -> dict[str, Any]:
    answer = rig.answers(rig.public)
    assert answer is not None and answer["version"] == "0.5.11"
    assert rig.layout.live() == release["id"]
    facts = rig.facts(rehash=release["tree"])
    assert facts["units"]["server"]["alive"] and facts["units"]["server"]["release"] == release["id"], facts["units"]
    assert facts["answers"]["server"]["ok"] and facts["rehash"]["ok"]
    return facts


def drifts(rig: Rig) -> list[str]:
    return [one["what"] for one in rig.agent("verify").ok["drifts"]]


def test_the_whole_way_there_and_back(rig: Rig) -> None:
    """Adopted; a candidate that dies: it serves again; a good one; rolled back: it serves again, and is as it was."""
    with by_hand(rig) as pid:
        environment, folder = processes.environ(pid), processes.cwd(pid)
        told = adopt(rig)
        release = told.ok["release"]
        assert release["id"].startswith("adopted-") and release["version"] == "0.5.11" and told.ok["notes"] == []
        about = release["adopted"]
        assert (about["keeper"], about["cwd"], about["package"]) == ("bare", folder, f"{folder}/sglang")
        assert "HF_TOKEN" in about["variables"] and SECRET not in json.dumps([told.result, told.events])
        assert serves_by_hand(rig, release)["known_goods"] == [release["id"]]
        assert adopt(rig).ok["release"]["id"] == release["id"]  # again is no change
        assert drifts(rig) == []
        assert processes.identity(pid)

        assert rig.receive("one").ok and rig.receive("two").ok
        findings = rig.agent("precheck", {"release": rig.release("one")}).ok["findings"]
        assert [one for one in findings if "port" in one["check"] and not one["ok"]] == []
        answer = rig.agent("begin", rig.order(rig.release("one", STANDIN="die")))
        assert answer.ok["state"] == "ROLLED_BACK", answer.ok["reason"]
        assert answer.ok["note"] == f"{release['id']} serves again"
        again = serves_by_hand(rig, release)["units"]["server"]["pid"]
        assert again != pid and processes.identity(pid) is None
        assert {**processes.environ(again), **environment} == processes.environ(again)
        assert processes.cwd(again) == folder
        assert drifts(rig) == []

        good = rig.apply("two")
        rig.serves(good)
        assert rig.facts()["known_goods"] == [good["id"], release["id"]]
        order = rig.order(release, goal="rollback", probes={})
        begun = rig.agent("begin", order)
        assert begun.ok["state"] == "PROBED", begun.ok
        assert begun.ok["transcript"] == {"adopted": True, "asked": 1}
        assert rig.decide(order).ok["state"] == "CONFIRMED"
        serves_by_hand(rig, release)
        assert processes.holders(rig.private) == []
        goals = [one["goal"] for one in rig.agent("history").ok["transactions"]]
        assert goals == ["rollback", "apply", "apply", "adopt", "adopt"]
        # Nobody but its owner can read what it was started with, and no word says it.
        kept = rig.layout.release(release["id"]) / "process.json"
        assert kept.stat().st_mode & 0o077 == 0 and SECRET in kept.read_text()
        holders = [
            path for path in rig.layout.root.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
        ]
        assert holders == [kept]
        assert rig.agent("stop", {"by": "me"}).ok["stopped"]
        assert rig.answers(rig.public) is None


def test_what_changed_since(rig: Rig) -> None:
    with by_hand(rig) as pid:
        release = adopt(rig).ok["release"]
        package = Path(release["adopted"]["package"])
        (package / "srt/more.py").write_text("")
        (package / "launch_server.py").write_text((package / "launch_server.py").read_text() + "\n")
        assert drifts(rig) == [f"{package}: launch_server.py", f"{package}: srt/more.py"]
        assert rig.facts(rehash=release["tree"])["rehash"]["ok"] is False
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while processes.identity(pid):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert "adopted server" in drifts(rig)
    # Whatever it was started with must be what was recorded: the id covers it.
    kept = rig.layout.release(release["id"]) / "process.json"
    kept.write_text(kept.read_text().replace("by hand", "edited"))
    assert drifts(rig) == ["adopted server"]
    answer = rig.agent("begin", rig.order(release, goal="rollback", probes={}))
    assert answer.ok["state"] == "ROLLED_BACK" and "was edited" in answer.ok["reason"]


def test_a_script_around_it_goes_along_and_comes_back(rig: Rig) -> None:
    script = rig.layout.root.with_name("run.sh")
    script.write_text('#!/bin/bash\n"$@"\n')
    with by_hand(rig, "/bin/bash", str(script)) as shell:
        release = adopt(rig).ok["release"]
        assert rig.receive("one").ok
        answer = rig.agent("begin", rig.order(rig.release("one", STANDIN="die")))
        assert answer.ok["state"] == "ROLLED_BACK"
        serves_by_hand(rig, release)
        assert processes.identity(shell) is None


def test_a_shell_around_it_is_not_asked_for_its_package(rig: Rig) -> None:
    """Adopted by the shell's pid, the Python that listens is asked; the shell would run Python's source as its own."""
    script = rig.layout.root.with_name("run.sh")
    script.write_text('#!/bin/bash\n"$@"\n')
    with by_hand(rig, "/bin/bash", str(script)) as shell:
        told = adopt(rig, pid=shell).ok
        assert told["release"]["version"] == "0.5.11" and told["notes"] == []


def test_what_its_python_complains_of_is_not_shown(rig: Rig) -> None:
    with by_hand(rig) as pid:
        init = Path(processes.cwd(pid)) / "sglang/__init__.py"
        init.write_text("import os, sys\nsys.stderr.write('raw-complaint')\nos._exit(3)\n")
        (note,) = adopt(rig).ok["notes"]
        assert "no sglang package was found" in note and "raw-complaint" not in note


def test_what_could_not_be_started_again_is_not_adopted(rig: Rig) -> None:
    program = rig.layout.root.with_name("bin") / "python3"
    program.parent.mkdir()
    program.symlink_to(os.path.realpath(sys.executable))
    script = '#!/bin/bash\n"$@"\n'
    runs = rig.layout.root.with_name("run.sh")
    runs.write_text(script)
    with by_hand(rig, "/bin/bash", str(runs)) as shell:
        runs.unlink()
        refused = adopt(rig, pid=shell).error
        assert refused["kind"] == "preflight" and f"a script that is not there any more: {runs}" in refused["message"]
    with by_hand(rig, str(program), "-c", "import os, sys; os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:])") as pid:
        program.unlink()
        refused = adopt(rig, pid=pid).error
        assert refused["kind"] == "preflight" and f"not there any more: {program}" in refused["message"]
        assert refused["hint"] == "restart it from a program that is there, then adopt"
    with by_hand(rig) as pid:
        folder = Path(processes.cwd(pid))
        folder.rename(folder.with_name("moved"))
        shutil.copytree(folder.with_name("moved"), folder)
        shutil.rmtree(folder.with_name("moved"))
        refused = adopt(rig).error
        os.kill(pid, signal.SIGKILL)
        assert refused["kind"] == "preflight" and "runs in a folder that was deleted" in refused["message"]
    assert rig.layout.live() is None


@pytest.mark.parametrize(
    ("fragment", "shown", "kind", "refusal"),
    [
        ("/etc/kept.service", {}, "systemd", ""),
        ("/run/systemd/transient/kept.service", {}, "bare", ""),
        ("/run/systemd/transient/kept.service", {"Restart": "always"}, "", "starts it again by itself"),
        ("/etc/kept.service", {"LoadState": "masked"}, "", "is masked"),
        ("/etc/gone.service", {}, "", "has no file any more"),
    ],
)
def test_a_unit_must_be_able_to_start_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fragment: str, shown: dict[str, str], kind: str, refusal: str
) -> None:
    (tmp_path / "kept.service").write_text("[Service]\n")
    path = fragment.replace("/etc", str(tmp_path))
    told = {"LoadState": "loaded", "FragmentPath": path, "Restart": "no", **shown}
    monkeypatch.setattr(systemctl, "show", lambda unit: told)
    found = ancestry.Keeper("systemd", "kept.service", "kept.service")
    if refusal:
        with pytest.raises(AgentError, match=refusal):
            startable.keeper(found)
        return
    keeper, notes = startable.keeper(found)
    assert keeper.kind == kind and len(notes) == (kind == "bare")


def test_a_container_that_goes_when_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\necho true\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(AgentError, match="--rm"):
        startable.keeper(ancestry.Keeper("docker", "serving"))


def test_who_cannot_be_adopted(rig: Rig) -> None:
    answer = adopt(rig)
    assert answer.error["kind"] == "preflight" and "nothing listens" in answer.error["message"]
    assert "--pid" in answer.error["hint"]
    assert adopt(rig, pid=2**22 - 1).error["kind"] == "preflight"
    assert "neither a unit nor a container" in adopt(rig, unit="no-such-unit-here").error["message"]
    release = rig.apply("one")
    answer = adopt(rig)
    assert answer.error["kind"] == "preflight" and release["id"] in answer.error["message"]
    rig.serves(release)
    order = rig.order(rig.release("one"))
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    assert adopt(rig).error["kind"] == "locked"
    rig.decide(order, accept=False)


def test_a_stranger_on_the_port_may_be_adopted(rig: Rig) -> None:
    with by_hand(rig):
        assert rig.receive("one").ok
        answer = rig.agent("precheck", {"release": rig.release("one")})
        (wrong,) = [one for one in answer.ok["findings"] if not one["ok"]]
        assert "kdeploy adopt PROFILE" in wrong["hint"]


def test_by_pid_and_by_port(rig: Rig) -> None:
    with by_hand(rig) as pid:
        first = adopt(rig, pid=pid, ports=[]).ok["release"]
        assert first["launch"]["port"] == rig.public
        assert adopt(rig, port=rig.public, ports=[1]).ok["release"]["id"] == first["id"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_users_server(rig: Rig) -> None:
    for folder in (rig.layout.root.with_name("hand"), *rig.layout.root.parents):
        if folder.exists() and folder != Path("/"):
            folder.chmod(0o755)
    if not os.access("/usr/bin/setpriv", os.X_OK):
        pytest.skip("no setpriv here")
    if subprocess.run(["/usr/bin/setpriv", "--reuid=65534", sys.executable, "-c", ""], check=False).returncode:
        pytest.skip("that user cannot run this Python")
    with by_hand(rig, "/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"):
        release = adopt(rig).ok["release"]
        assert release["adopted"]["uid"] == 65534
        assert rig.receive("one").ok
        answer = rig.agent("begin", rig.order(rig.release("one", STANDIN="die")))
        assert answer.ok["state"] == "ROLLED_BACK", answer.ok["reason"]
        again = serves_by_hand(rig, release)["units"]["server"]["pid"]
        assert ancestry.user(again)[0] == 65534


def test_secret_flags_are_not_shown() -> None:
    from kdeploy_agent.adoption.found import shown

    words = ["--api-key", "k1", "--port", "1", "--admin-api-key=k2", "--hf-token", "k3", "--tokenizer-path", "/t"]
    assert shown(words) == [
        "--api-key", "***", "--port", "1", "--admin-api-key=***", "--hf-token", "***", "--tokenizer-path", "/t",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "container"),
    [
        (f"/system.slice/docker-{'a' * 64}.scope", "a" * 64),
        (f"/docker/{'b' * 64}", "b" * 64),
        ("/system.slice/sglang.service", ""),
        ("/user.slice/user-0.slice/session-3.scope", ""),
        ("/", ""),
    ],
)
def test_containers_by_their_control_group(path: str, container: str) -> None:
    assert ancestry.container_of(path) == container


DOCKER = """#!/bin/sh
# Says that it is docker: keeps one container's process as a plain one, and writes down what it was told.
echo "$@" >> "$(dirname "$0")/told"
state="$(dirname "$0")/pid"
case "$1" in
  inspect) case "$3" in
      *Pid*) if grep -qs "^State:.[^Z]" "/proc/$(cat "$state")/status"; then cat "$state"; else echo 0; fi;;
      *RestartPolicy*) cat "$(dirname "$0")/policy";;
    esac;;
  update) echo "$2" | sed 's/--restart=//' > "$(dirname "$0")/policy";;
  stop) kill "$(cat "$state")";;
  start) setsid sleep 60 > /dev/null 2>&1 & echo $! > "$state";;
  logs) echo "said by the container";;
  *) exit 1;;
esac
"""


def test_a_container_is_stopped_and_started_by_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the command docker: containers cannot run here."""
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "policy").write_text("always\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    layout = Layout(tmp_path / "root", "local")
    about = {"keeper": "docker", "name": "serving", "group": "docker-x.scope"}
    document = {"id": "adopted-1", "adopted": about, "launch": {"port": free_port()}}
    one = bystander.Bystander(layout, document)
    assert not one.status().alive
    one.start()
    status = one.status()
    assert status.alive and processes.identity(status.pid) and one.words(3) == ["said by the container"]
    # Its control group is not docker's here: what it holds is told apart.
    monkeypatch.setattr(processes, "in_cgroup", lambda name: {status.pid} if processes.identity(status.pid) else set())
    one.stop()
    assert not one.status().alive and (tmp_path / "policy").read_text() == "no\n"
    one.stop()  # again: what it took back the first time is still known
    assert files.read_json(layout.release("adopted-1") / "kept.json") == {"restart": "always"}
    one.start()
    assert (tmp_path / "policy").read_text() == "always\n"
    os.kill(one.status().pid, signal.SIGKILL)
    told = (tmp_path / "told").read_text()
    assert "stop --time 30 serving" in told and "update --restart=no serving" in told
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(AgentError, match="no docker command"):
        one.status()


def test_a_document_is_what_its_id_says() -> None:
    document = {"kind": "adopted", "manifest": "m", "tree": "t", "launch": {}, "adopted": {"process": "p"}}
    first = adopted.identify(document)
    assert first.startswith("adopted-") and adopted.identify({**document, "adopted": {"process": "q"}}) != first
