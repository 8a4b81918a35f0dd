"""Releases that misbehave, operators that vanish, commands that come twice."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from kdeploy_agent.ground import processes

from .conftest import REMOTE, parse, seal


def begin(rig: Any, release: dict[str, Any], **changes: Any) -> tuple[Any, dict[str, Any]]:
    order = rig.order(release, **changes)
    return rig.agent("begin", order), order


@pytest.mark.parametrize("live", [True, False], ids=["live", "first"])
@pytest.mark.parametrize(
    ("how", "start_s", "says"),
    [
        ("die", 15, "CUDA out of memory, says the stand-in"),
        ("hang", 3, "did not become ready"),
        ("unhealthy", 3, "no completion within 3 s"),
    ],
)
def test_a_candidate_that_does_not_start(rig: Any, live: bool, how: str, start_s: float, says: str) -> None:
    before = rig.apply("one") if live else None
    assert rig.receive("two").ok
    answer, _ = begin(rig, rig.release("two", STANDIN=how), start_s=start_s)
    assert answer.ok["state"] == "ROLLED_BACK"
    assert says in answer.ok["reason"]
    if before:
        rig.serves(before)
        assert answer.ok["note"] == f"{before['id']} serves again"
    else:
        rig.silent()
        assert answer.ok["note"] == "nothing was serving before"


def test_the_gate_says_no(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    _, order = begin(rig, rig.release("two"))
    answer = rig.decide(order, accept=False)
    assert (answer.ok["state"], answer.ok["reason"]) == ("ROLLED_BACK", "the gate said no: garbled prose")
    rig.serves(before)
    evidence = rig.agent("evidence", {"release": order["release"]["id"]}).ok
    assert evidence["verdict"]["reasons"] == ["garbled prose"] and evidence["transcript"]
    assert rig.decide(order, accept=True).ok["state"] == "ROLLED_BACK"  # too late, and harmless


def test_silence_is_a_no(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    answer, _ = begin(rig, rig.release("two"), decide_s=0.5)
    assert answer.ok["state"] == "PROBED" and answer.ok["until"] > 0
    rig.wait_for("ROLLED_BACK:done")
    assert "no decision within" in rig.facts()["transaction"]["reason"]
    rig.serves(before)


def test_a_killed_operator_changes_nothing(rig: Any) -> None:
    assert rig.receive("one").ok
    order = rig.order(rig.release("one"))
    watching = rig.start("begin", order)
    rig.wait_for("CANDIDATE:intent")
    watching.send_signal(signal.SIGKILL)
    watching.communicate()
    again = rig.agent("begin", order)  # the same transaction: watched, not begun twice
    assert again.ok["state"] == "PROBED" and again.states[0] == "PREPARED:intent"
    deciding = rig.start("decide", {"txn": order["txn"], "accept": True})
    end = time.monotonic() + 10
    while not (rig.layout.transaction(order["txn"]) / "decision.json").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    deciding.send_signal(signal.SIGKILL)
    deciding.communicate()
    rig.wait_for("CONFIRMED:done")
    rig.serves(order["release"])
    assert rig.journal().count("PREPARED:intent") == 1


def test_two_operators_at_once(rig: Any) -> None:
    assert rig.receive("one").ok
    first, second = (rig.order(rig.release("one", STANDIN_N=n), by=f"{n}@desk") for n in ("ann", "bob"))
    both = [rig.start("begin", order) for order in (first, second)]
    answers = [parse(child.communicate(timeout=60)[0]) for child in both]
    winner, loser = sorted(zip(answers, (first, second), strict=True), key=lambda pair: pair[0].error is not None)
    assert winner[0].ok["state"] == "PROBED"
    error = loser[0].error
    assert error["kind"] == "locked" and winner[1]["by"] in error["message"] and "process" in error["message"]
    held = rig.facts()["lock"]
    assert held["by"] == winner[1]["by"] and held["txn"] == winner[1]["txn"] and held["pid"] > 0
    assert rig.facts()["transaction"]["running"] is True
    assert rig.agent("stop", {"by": "carl"}).error["kind"] == "locked"
    assert rig.decide(winner[1]).ok["state"] == "CONFIRMED"


def test_a_server_that_ignores_sigterm_goes_anyway(rig: Any) -> None:
    before = rig.apply("one", STANDIN="ignore-term")
    assert before
    rig.serves(rig.apply("two"))


def test_a_child_left_on_the_port_goes_too(rig: Any) -> None:
    first = rig.apply("one", STANDIN="leave-child")
    assert len(processes.holders(rig.private)) == 2
    leader = rig.facts()["units"]["server"]["pid"]
    rig.serves(first)
    os.kill(leader, signal.SIGKILL)  # the scheduler is an orphan now, and holds the port
    rig.serves(rig.apply("two"))


def test_a_front_that_only_systemd_has_is_refused_before_anything_stops(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    answer, _ = begin(rig, rig.release("two", front="socket"))
    assert answer.ok["state"] == "ROLLED_BACK" and answer.ok["note"] == "nothing was stopped"
    assert "the front 'socket' needs systemd" in answer.ok["reason"]
    rig.serves(before)


def test_a_stranger_on_a_port_stops_nothing(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        release = rig.release("two")
        release["launch"]["front"]["metrics_port"] = stranger.getsockname()[1]
        answer, _ = begin(rig, seal(release))
    assert answer.ok["state"] == "ROLLED_BACK" and answer.ok["note"] == "nothing was stopped"
    assert "is held by process" in answer.ok["reason"] and "pytest" in answer.ok["reason"]
    rig.serves(before)
    assert "DRAINED:intent" not in rig.journal()[14:]


def test_a_front_that_does_not_open(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    _, order = begin(rig, rig.release("two", STANDIN="front-dies"))
    answer = rig.decide(order)
    assert answer.ok["state"] == "ROLLED_BACK" and "the router has no worker" in answer.ok["reason"]
    rig.serves(before)


def test_a_server_that_dies_while_it_is_watched(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    release = rig.release("two", STANDIN="die-later", STANDIN_SECONDS="8")
    _, order = begin(rig, release, soak_s=30)
    answer = rig.decide(order)
    assert answer.ok["state"] == "ROLLED_BACK" and "exited with 7" in answer.ok["reason"]
    rig.serves(before)


def test_a_server_that_dies_while_it_waits_for_the_verdict(rig: Any) -> None:
    assert rig.receive("one").ok
    begin(rig, rig.release("one", STANDIN="die-later", STANDIN_SECONDS="2"))
    rig.wait_for("ROLLED_BACK:done")
    assert "waited for a decision" in rig.facts()["transaction"]["reason"]
    rig.silent()


def test_the_way_back_mends_its_tree(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    server = rig.layout.tree(before["tree"]) / "sglang/launch_server.py"
    server.chmod(0o644)
    server.write_text("raise SystemExit('edited by hand')\n")
    answer, _ = begin(rig, rig.release("two", STANDIN="die"))
    assert answer.ok["state"] == "ROLLED_BACK"
    assert "by hand" not in server.read_text()
    rig.serves(before)


def test_the_way_back_fails(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"))
    rig.launch(order, KDEPLOY_CRASH_AT="CANDIDATE:intent", KDEPLOY_CRASH_GUARDIAN="1")
    rig.wait_until_abandoned()
    rig.layout.tree(before["tree"]).chmod(0o755)
    (rig.layout.tree(before["tree"]) / "sglang").rename(rig.layout.tree(before["tree"]) / "gone")
    shutil.rmtree(rig.layout.store)
    answer = rig.agent("recover")
    assert answer.ok["state"] == "NEEDS_OPERATOR"
    assert "killed at CANDIDATE" in answer.ok["reason"] and "git" in answer.ok["reason"]
    assert "kdeploy" in answer.ok["note"]
    rig.stopped()
    assert rig.layout.live() == rig.layout.good() == before["id"]
    assert not rig.facts(rehash=before["tree"])["rehash"]["ok"]
    rig.serves(rig.apply("one"))  # mended by applying again: the tree is placed anew


def test_a_dead_live_server_is_begun_again(rig: Any) -> None:
    release = rig.apply("one")
    assert rig.agent("stop", {"by": "tester"}).ok
    rig.stopped()
    assert rig.layout.live() == release["id"]
    _, order = begin(rig, release)
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    rig.serves(release)


def test_what_was_stopped_stays_stopped_when_a_change_is_rejected(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.agent("stop", {"by": "tester"}).ok
    assert rig.receive("two").ok
    answer, _ = begin(rig, rig.release("two", STANDIN="die"))
    assert answer.ok["state"] == "ROLLED_BACK" and "stays stopped" in answer.ok["note"]
    rig.stopped()
    assert (rig.layout.live(), rig.layout.good()) == (before["id"], before["id"])
    _, order = begin(rig, before)
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    answer, _ = begin(rig, rig.release("two", STANDIN="die"))  # the stop is over: it goes back to what serves
    assert answer.ok["state"] == "ROLLED_BACK"
    rig.serves(before)


def test_without_a_front_clients_use_the_servers_port(rig: Any) -> None:
    release = rig.apply("one", front="none")
    assert rig.answers(rig.private)["version"] == release["version"]
    assert rig.facts()["units"]["front"]["alive"] is False


def test_rollback_goes_only_to_what_was_confirmed(rig: Any) -> None:
    rig.apply("one")
    assert rig.receive("two").ok
    answer, _ = begin(rig, rig.release("two"), goal="rollback")
    assert answer.error["kind"] == "no-known-good"
    assert rig.facts()["lock"] is None


def test_the_release_id_stands_for_one_content(rig: Any) -> None:
    before = rig.apply("one")
    answer, _ = begin(rig, {**before, "version": "0.5.11+kd.other"})
    assert answer.ok["state"] == "ROLLED_BACK" and "with other content" in answer.ok["reason"]
    rig.serves(before)


def test_a_begin_heals_what_two_kills_left(rig: Any) -> None:
    before = rig.apply("one")
    for name in ("two", "three"):
        assert rig.receive(name).ok
    rig.launch(rig.order(rig.release("two")), KDEPLOY_CRASH_AT="DRAINED:done", KDEPLOY_CRASH_GUARDIAN="1")
    rig.wait_until_abandoned()
    assert rig.answers(rig.public) is None
    answer, order = begin(rig, rig.release("three"))
    assert answer.ok["previous"] == before["id"]
    assert [line for line in rig.journal() if line.startswith("ROLLED_BACK")]
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    rig.serves(order["release"])


def test_a_watching_operator_heals_when_both_are_killed(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"))
    answer = rig.agent("begin", order, KDEPLOY_CRASH_AT="CANDIDATE:intent", KDEPLOY_CRASH_GUARDIAN="1")
    assert answer.ok["state"] == "ROLLED_BACK" and "killed at CANDIDATE (intent)" in answer.ok["reason"]
    rig.serves(before)


def test_recover_may_be_killed_as_well(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    rig.launch(rig.order(rig.release("two")), KDEPLOY_CRASH_AT="OPEN:intent", accept=True, KDEPLOY_CRASH_GUARDIAN="1")
    rig.wait_until_abandoned()
    error = rig.agent("recover", KDEPLOY_CRASH_AT="ROLLING_BACK:intent").error  # two healers die, then it says so
    assert error["kind"] == "fault" and "could not be healed" in error["message"]
    assert rig.journal()[-1] == "ROLLING_BACK:intent"
    answer = rig.agent("recover", KDEPLOY_CRASH_AT="ROLLING_BACK:done")  # the second healer finds nothing left to do
    assert answer.ok["healed"] and answer.ok["state"] == "ROLLED_BACK"
    assert rig.agent("recover").ok["healed"] is False
    rig.serves(before)


@pytest.mark.parametrize("verb", ["recover", "begin"])
def test_healing_goes_on_when_the_connection_is_cut(rig: Any, verb: str) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"))
    rig.launch(order, KDEPLOY_CRASH_AT="CANDIDATE:done", KDEPLOY_CRASH_GUARDIAN="1")
    rig.wait_until_abandoned()
    watching = rig.start(verb, rig.order(rig.release("two", STANDIN="die")) if verb == "begin" else None)
    rig.wait_for("ROLLING_BACK:intent")
    watching.send_signal(signal.SIGKILL)
    watching.communicate()
    end = time.monotonic() + 30
    while rig.facts()["transaction"]["state"] != "ROLLED_BACK" or rig.facts()["lock"]:
        assert time.monotonic() < end, rig.journal()
        time.sleep(0.1)
    rig.serves(before)


def test_a_stop_ends_what_was_cut_off_and_starts_nothing(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    rig.launch(rig.order(rig.release("two")), KDEPLOY_CRASH_AT="CANDIDATE:done", KDEPLOY_CRASH_GUARDIAN="1")
    rig.wait_until_abandoned()
    seen = rig.units.path("server", "log").read_text().count("kdeploy: starting release")
    assert rig.agent("stop", {"by": "tester"}).ok["stopped"]
    assert rig.units.path("server", "log").read_text().count("kdeploy: starting release") == seen
    assert rig.facts()["transaction"]["state"] == "ROLLED_BACK"
    assert (rig.layout.live(), rig.layout.good()) == (before["id"], before["id"])
    rig.stopped()


@pytest.mark.parametrize("after_s", [0.1, 0.5, 1.0, 1.6])
def test_killed_in_the_middle_of_an_effect(rig: Any, after_s: float) -> None:
    before = rig.apply("one", STANDIN="ignore-term")  # two seconds of DRAINED are an effect's middle
    assert rig.receive("two").ok
    rig.launch(rig.order(rig.release("two"), start_s=5), accept=True)
    time.sleep(after_s)
    for pid in processes._pids():
        if f"guard {rig.layout.root}" in processes.command(pid):
            processes.send({pid}, signal.SIGKILL)
    rig.wait_until_abandoned()
    assert rig.agent("recover").ok
    assert rig.layout.live() in (before["id"], rig.release("two")["id"])
    rig.serves(before if rig.layout.live() == before["id"] else rig.release("two"))


def test_nothing_of_the_caller_reaches_the_server(rig: Any) -> None:
    assert rig.receive("one").ok
    order = rig.order(rig.release("one", PYTHONPATH="/second", MINE="1"))
    rig.agent("begin", order, SECRET_OF_CALLER="x", LD_LIBRARY_PATH="/nowhere")
    server = processes.environ(rig.facts()["units"]["server"]["pid"])
    tree = rig.layout.tree(order["release"]["tree"])
    assert server["PYTHONPATH"] == f"{tree}:/second" and server["MINE"] == "1"
    assert not {"SECRET_OF_CALLER", "LD_LIBRARY_PATH", "KDEPLOY_CRASH_AT"} & set(server)
    assert server["TRITON_CACHE_DIR"].startswith(str(rig.layout.cache(order["release"]["tree"])))
    assert len(server["TMPDIR"]) <= 95
    assert server["HF_HOME"] == f"{server['HOME']}/.cache/huggingface"


def test_logs_and_what_hangs_up(rig: Any) -> None:
    rig.apply("one")
    told = rig.agent("logs", {"unit": "server", "lines": 5})
    assert any("stand-in server" in event["text"] for event in told.events)
    assert rig.agent("logs", {"unit": "runner", "lines": 5}).ok["path"].endswith("runner.log")
    assert rig.agent("logs", {"unit": "nope", "lines": 5}).error["kind"] == "usage"
    follower = rig.start("logs", {"unit": "server", "lines": 1, "follow": True})
    assert follower.stdout.readline()
    with rig.units.path("server", "log").open("a") as log:
        log.write("one more line\n")
    assert b"one more line" in follower.stdout.readline()
    follower.stdout.close()
    assert follower.wait(timeout=5) is not None
    follower.stderr.close()


def test_the_protocol_refuses_what_it_does_not_know(rig: Any) -> None:
    for request in ({"protocol": 2}, {"service": "../up"}, {"service": "runtimes"}, {"root": "relative"}):
        error = rig.agent("facts", request).error
        assert error["kind"] == "usage", request
    assert rig.agent("decide", {"txn": "nope", "accept": True}).error["kind"] == "usage"
    assert rig.agent("begin", {**rig.order(rig.release("one")), "release": {"id": "x"}}).error["kind"] == "usage"
    assert rig.agent("evidence", {"release": "../../etc"}).error["kind"] == "usage"
    raw = subprocess.run(
        [sys.executable, "-m", "kdeploy_agent", "facts"], input=b"not json\n", capture_output=True,
        env={"PYTHONPATH": str(REMOTE), "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert raw.returncode == 1 and parse(raw.stdout).error["kind"] == "usage"
