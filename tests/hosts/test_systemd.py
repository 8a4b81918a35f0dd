"""Serving under systemd, on a real host: units, journal, the public port, a stop that is whole, and reboots."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.agent.conftest import MARK, Layout, Tree, make_tree, processes

from .bed import Bed
from .station import ROOT, SERVICE, Station

SERVER, FRONT, SOCKET, BOOT = (
    f"kdeploy-{SERVICE}{end}" for end in ("-server.service", "-front.service", "-front.socket", ".service")
)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tree]:
    base = tmp_path_factory.mktemp("trees")
    return {name: make_tree(base / name, name) for name in ("one", "two", "three")}


@pytest.fixture
def station(bed: Bed, trees: dict[str, Tree], request: pytest.FixtureRequest) -> Iterator[Station]:
    with bed.host(f"s{abs(hash(request.node.nodeid)) % 10**8}") as host:
        made = Station(host, trees)
        yield made


def begin(rig: Station, release: dict[str, Any], **changes: Any) -> tuple[Any, dict[str, Any]]:
    order = rig.order(release, **changes)
    return rig.agent("begin", order), order


def wait(condition: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def ask(station: Station, text: str) -> str:
    """A client's question at the public port."""
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{station.public}/generate", body, timeout=30) as reply:
        answer: str = json.loads(reply.read())["text"]
        return answer


def test_the_whole_way(station: Station) -> None:
    first = station.apply("one")
    station.serves(first)
    assert station.show(SERVER, "Restart", "KillMode", "NRestarts") == ["always", "mixed", "0"]
    assert station.systemctl("is-enabled", BOOT) == "enabled"
    assert station.facts()["units"]["front"]["port"] == station.public
    assert station.receive("two").ok
    answer, order = begin(station, station.release("two", STANDIN="die"))
    assert answer.ok["state"] == "ROLLED_BACK"
    assert "CUDA out of memory, says the stand-in" in answer.ok["reason"]
    assert "exited with 1; not restarted" in answer.ok["reason"]
    kept = station.layout.evidence(order["release"]["id"]) / "rejected.json"
    assert not any(station.trees["one"].version in line for line in json.loads(kept.read_text())["log"])
    station.serves(first)
    second = station.apply("two")
    station.serves(second)
    transcript = station.agent("evidence", {"release": second["id"]}).ok["transcript"]
    assert transcript["port"]["ours"] and transcript["restarts"] == 0
    assert {one["tree"] for one in transcript["processes"]} == {f"{ROOT}/{SERVICE}/trees/{second['tree']}"}
    log = transcript["log"]["tail"]
    assert any(second["version"] in line for line in log) and not any(first["version"] in line for line in log)
    assert station.agent("stop", {"by": "tester"}).ok
    station.stopped()
    assert station.host.ssh("ls", "/run/systemd/system").stdout.count(b"kdeploy") == 0
    assert processes.holders(station.public) == [] and processes.holders(station.private) == []


def test_nothing_of_systemd_reaches_the_server(station: Station) -> None:
    release = station.apply("one", MINE="100 % $HOME")
    pid = station.facts()["units"]["server"]["pid"]
    environ = station.host.ssh("cat", f"/proc/{pid}/environ").stdout.decode().split("\0")
    found = dict(pair.split("=", 1) for pair in environ if pair)
    assert found["MINE"] == "100 % $HOME" and found["PYTHONPATH"] == f"{ROOT}/{SERVICE}/trees/{release['tree']}"
    assert not {"INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "SHLVL"} & set(found)
    assert station.show(SERVER, "LimitMEMLOCK", "TasksMax", "OOMPolicy") == ["infinity", "infinity", "stop"]


def test_restarts_end_and_begin_anew_with_a_change(station: Station) -> None:
    release = station.apply("one")
    for number in range(1, 4):
        pid = station.facts()["units"]["server"]["pid"]
        station.host.ssh("kill", "-9", str(pid))
        wait(lambda number=number: station.facts()["units"]["server"]["restarts"] == number)
        wait(lambda: station.answers(station.public))
    pid = station.facts()["units"]["server"]["pid"]
    station.host.ssh("kill", "-9", str(pid))
    wait(lambda: not station.facts()["units"]["server"]["alive"])
    wait(lambda: "gave up" in station.facts()["units"]["server"]["note"])
    assert station.facts()["units"]["server"]["note"] == "killed by signal 9; gave up after 3 restarts in 10 minutes"
    assert sum("kdeploy: starting release" in line for line in station.said("server", 200)) == 4
    _, order = begin(station, release)
    assert station.decide(order).ok["state"] == "CONFIRMED"
    station.serves(release)


def test_a_candidate_is_not_restarted(station: Station) -> None:
    """Nobody of ours is left to see it end: systemd starts it again, and it does not become a server."""
    before = station.apply("one")
    assert station.receive("two").ok
    order = station.order(station.release("two"))
    station.launch(order, KDEPLOY_CRASH_AT="PROBED:done", KDEPLOY_CRASH_GUARDIAN="1")
    station.wait_until_abandoned()
    station.host.ssh("kill", "-SEGV", str(station.facts()["units"]["server"]["pid"]))
    wait(lambda: station.show(SERVER, "ActiveState", "ExecMainStatus") == ["failed", "78"])
    told = station.facts()["units"]["server"]
    assert (told["alive"], told["restarts"], told["note"]) == (False, 0, "killed by signal 11; not restarted")
    assert sum("kdeploy: starting release" in line for line in station.said("server", 200)) == 2  # one's and two's
    assert station.agent("recover").ok["state"] == "ROLLED_BACK"
    station.serves(before)


def test_a_change_does_not_have_systemd_read_its_units_again(station: Station) -> None:
    def reloads() -> int:
        return station.host.sh("journalctl -b -o cat --no-pager _PID=1").count("Reloading.")

    station.apply("one")
    before = reloads()
    assert before
    station.serves(station.apply("two"))
    assert reloads() == before
    station.host.sh(f"sed -i s/Restart=always/Restart=no/ /run/systemd/system/{SERVER}")  # and nobody told systemd
    assert any("Restart" in one["expected"] for one in station.agent("verify").ok["drifts"])
    station.serves(station.apply("one"))
    assert reloads() == before + 1 and station.show(SERVER, "Restart", "NeedDaemonReload") == ["always", "no"]


def test_a_server_is_not_restarted_from_other_files(station: Station) -> None:
    release = station.apply("one")
    edited = station.layout.tree(release["tree"]) / "unix.txt"

    def edit() -> None:
        edited.chmod(0o644)
        edited.write_text("by hand\n")
        station.host.ssh("kill", "-9", str(station.facts()["units"]["server"]["pid"]))

    edit()
    wait(lambda: "by hand" not in edited.read_text())  # it is placed anew from the store
    station.serves(release, 20)
    assert any("unix.txt: differs" in line for line in station.said("server"))
    store = station.layout.store
    store.rename(store.with_name("elsewhere"))
    edit()
    wait(lambda: "not started" in station.facts()["units"]["server"]["note"])
    note = station.facts()["units"]["server"]["note"]
    assert "unix.txt: differs" in note and note.endswith("not restarted")
    store.with_name("elsewhere").rename(store)
    station.host.reboot()
    station.serves(release, 20)
    assert "by hand" not in edited.read_text()


def test_who_is_being_answered_is_not_cut_off(station: Station) -> None:
    station.apply("one")
    heard: list[str] = []
    client = threading.Thread(target=lambda: heard.append(ask(station, "wait 4")))
    client.start()
    time.sleep(0.5)
    began = time.monotonic()
    second = station.apply("two")
    assert time.monotonic() - began >= 3
    client.join()
    assert heard == [f" wait 4 from {station.trees['one'].version}"]
    station.serves(second)


@pytest.mark.parametrize("how", ["ignore-term", "leave-child"])
def test_stopping_is_whole(station: Station, how: str) -> None:
    station.apply("one", STANDIN=how)
    assert station.agent("stop", {"by": "tester"}).ok
    station.stopped()
    assert not any("time.sleep(600)" in " ".join(one.command) for one in station.host.processes())
    assert processes.holders(station.private) == []


def test_gpu_memory_is_waited_for(station: Station) -> None:
    """The stand-in says what is in /srv/gpu: one GPU, and who holds its memory."""
    tool, said = station.host.root / "usr/local/bin/nvidia-smi", station.host.root / "srv/gpu"
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    said.write_text("100\n")
    station.apply("one")
    said.write_text("90000\n4711, GPU-standin, 89000, a stand-in for a scheduler\n")
    stopping = station.start("stop", {"by": "tester"})
    wait(lambda: station.answers(station.private) is None)
    time.sleep(2)
    assert stopping.poll() is None  # it has gone, its memory has not
    said.write_text("600\n")
    assert stopping.wait(20) == 0
    stopping.communicate()


NVIDIA_SMI = """#!/bin/sh
# A stand-in for nvidia-smi in a test: one GPU, as /srv/gpu says.
case "$1" in
    *compute-apps*) tail -n +2 /srv/gpu ;;
    --query-gpu=*)
        echo "$1" | sed 's/--query-gpu=//' | tr ',' '\n' | while read -r field; do
            case "$field" in
                index) printf 0 ;; uuid) printf GPU-standin ;; name) printf 'stand-in for a GPU' ;;
                memory.used) printf %s "$(head -n 1 /srv/gpu)" ;; memory.total) printf 98304 ;; *) printf '[N/A]' ;;
            esac
            printf ', '
        done | sed 's/, $//'
        echo ;;
esac
"""


def test_after_a_stop_nothing_comes_back_by_itself(station: Station) -> None:
    release = station.apply("one")
    assert station.agent("stop", {"by": "tester"}).ok
    assert station.receive("two").ok
    answer, _ = begin(station, station.release("two", STANDIN="die"))
    assert answer.ok["state"] == "ROLLED_BACK" and "stays stopped" in answer.ok["note"]
    station.stopped()
    station.host.reboot()
    wait(lambda: "stays stopped" in station.host.ssh("journalctl", "-b", "-o", "cat", "-u", BOOT).stdout.decode())
    station.stopped()
    assert (station.layout.live(), station.layout.good()) == (release["id"], release["id"])
    _, order = begin(station, release)
    assert station.decide(order).ok["state"] == "CONFIRMED"
    station.host.kill()
    station.host.boot()
    station.serves(release, 20)


def test_a_boot_opens_only_what_passes(station: Station) -> None:
    release = station.apply("one")
    plan = station.layout.evidence(release["id"]) / "plan.json"
    right = plan.read_text()
    plan.write_text(right.replace("Hello from", "Goodbye from"))
    station.host.kill()
    station.host.boot()
    wait(lambda: station.systemctl("is-failed", BOOT) == "failed", 120)  # it tries three times
    station.stopped()
    lines = [json.loads(line) for line in station.layout.journal.read_text().splitlines()]
    assert lines[-1]["verb"] == "boot" and "it started, but hello: answered" in lines[-1]["reason"]
    plan.write_text(right)
    station.host.reboot()
    station.serves(release, 20)
    assert station.systemctl("is-failed", BOOT) != "failed"


@pytest.mark.parametrize("line", ["CANDIDATE:done", "CONFIRMED:intent"])
def test_a_first_release_that_was_only_tried_is_gone_after_a_power_cut(station: Station, line: str) -> None:
    assert station.receive("one").ok
    order = station.order(station.release("one"), decide_s=60)
    station.launch(order, True, KDEPLOY_CRASH_AT=line, KDEPLOY_CRASH_GUARDIAN="1")
    station.wait_for(line)
    station.host.kill()
    station.host.boot()
    station.wait_for("ROLLED_BACK:done")
    station.wait_until_abandoned()
    assert station.facts()["transaction"]["state"] == "ROLLED_BACK"
    station.stopped()
    assert (station.layout.live(), station.layout.good()) == (None, None)
    station.serves(station.apply("one"))


def test_an_orderly_shutdown_in_the_middle_is_gone_on_with(station: Station) -> None:
    """Systemd stops the server while the runner still waits: that says nothing about the release before it."""
    before = station.apply("one")
    assert station.receive("two").ok
    station.launch(station.order(station.release("two"), decide_s=60))
    station.wait_for("PROBED:done")
    station.host.reboot()
    station.serves(before, 30)
    assert station.facts()["transaction"]["state"] == "ROLLED_BACK"
    assert "NEEDS_OPERATOR:done" not in station.journal()


def test_both_killed_and_healed_by_the_next(station: Station) -> None:
    before = station.apply("one")
    assert station.receive("two").ok
    for line in ("DRAINED:done", "OPEN:done", "ROLLING_BACK:intent"):
        accept = not line.startswith("ROLLING")
        station.launch(station.order(station.release("two")), accept, KDEPLOY_CRASH_AT=line, KDEPLOY_CRASH_GUARDIAN="1")
        station.wait_for(line)
        station.wait_until_abandoned()
        assert station.agent("recover").ok["state"] == "ROLLED_BACK"
        station.serves(before)


def test_a_container_with_the_same_service_is_not_touched(station: Station) -> None:
    """Seen from out here the test's host is a container: its server has the mark and the unit that ours would have."""
    station.apply("one")
    mark = f"{ROOT}/{SERVICE}/units/server"
    inside = station.facts()["units"]["server"]["pid"]
    assert station.host.sh(f"cat /proc/{inside}/cgroup").strip().endswith(f"/system.slice/{SERVER}")
    assert processes.in_cgroup(SERVER)  # it can be seen
    assert processes.members(MARK, mark) == processes.in_unit(SERVER) == set()


def test_a_login_that_ends_takes_nothing_along(station: Station) -> None:
    (station.host.root / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\n")
    station.systemctl("restart", "systemd-logind")
    assert station.receive("one").ok
    order = station.order(station.release("one"))
    station.launch(order, True)
    station.wait_for("CONFIRMED:done")
    station.serves(order["release"])


def test_the_boot_unit_follows_the_agent_that_confirmed(station: Station) -> None:
    station.apply("one")
    old = station.there
    station.there = station.push(b"a newer agent")
    release = station.apply("two")
    assert old != station.there
    unit = (station.host.root / "etc/systemd/system" / BOOT).read_text()
    assert station.there.rpartition("/")[2] in unit and old.rpartition("/")[2] not in unit
    station.host.kill()
    (station.layout.root / "agent" / old.rpartition("/")[2]).unlink()
    station.host.boot()
    station.serves(release, 20)


def test_what_would_not_come_back_is_told_and_mended(station: Station) -> None:
    release = station.apply("one")
    pid = station.facts()["units"]["server"]["pid"]
    old = station.layout.root / "agent" / station.there.rpartition("/")[2]
    unit = station.host.root / "etc/systemd/system" / BOOT

    def disable() -> None:
        station.systemctl("disable", BOOT)

    def mask() -> None:
        unit.unlink()
        unit.symlink_to("/dev/null")

    def empty() -> None:  # the agent that the unit names; ours is another from now on
        station.there = station.push(b"a newer agent")
        old.write_bytes(b"")

    def replace() -> None:
        unit.write_text(re.sub("ExecStart=.*", "ExecStart=/bin/true", unit.read_text()))

    spoiled = {disable: "not enabled", mask: "masked", unit.unlink: "gone", replace: "not as kdeploy wrote it"}
    for spoil, said in {**spoiled, empty: "another content"}.items():
        assert station.facts(rehash=release["tree"])["lost"] == ""
        spoil()
        assert said in station.facts(rehash=release["tree"])["lost"]
        assert station.agent("survive", {"by": "tester@here"}).ok == {"note": ""}
    assert station.facts(rehash=release["tree"])["lost"] == ""
    assert station.facts()["units"]["server"]["pid"] == pid
    old.unlink()  # nothing needs it any more: what runs is started again by the agent that is there
    assert not [one for one in station.agent("verify").ok["drifts"] if "agent" in one["what"]]
    station.host.ssh("kill", "-9", str(pid))
    wait(lambda: station.facts()["units"]["server"]["restarts"] == 1)
    station.host.reboot()
    station.serves(release, 20)


def test_what_somebody_put_in_the_way_of_a_boot_is_told(station: Station) -> None:
    release = station.apply("one")
    dropin = station.host.root / f"etc/systemd/system/{BOOT}.d/other.conf"
    dropin.parent.mkdir()
    dropin.write_text("[Service]\nExecStart=\nExecStart=/bin/true\n")
    assert f"systemctl revert {BOOT}" in station.facts(rehash=release["tree"])["lost"]
    assert f"systemctl revert {BOOT}" in station.agent("survive", {"by": "tester@here"}).ok["note"]
    dropin.unlink()
    (station.host.root / f"etc/systemd/system/{SERVER}").symlink_to("/dev/null")
    assert f"systemctl unmask {SERVER}" in station.facts(rehash=release["tree"])["lost"]
    station.systemctl("unmask", SERVER)
    assert station.facts(rehash=release["tree"])["lost"] == ""


def test_an_agent_that_only_what_runs_names_is_missed(station: Station) -> None:
    """A newer kdeploy was used since, which changed nothing but the unit that is enabled."""
    release = station.apply("one")
    old = station.layout.root / "agent" / station.there.rpartition("/")[2]
    station.there = station.push(b"a newer agent")
    unit = station.host.root / "etc/systemd/system" / BOOT
    unit.write_text(unit.read_text().replace(old.name, station.there.rpartition("/")[2]))
    old.unlink()
    assert f"{old.name} has nothing" in station.facts(rehash=release["tree"])["lost"]
    assert any(old.name in one["what"] for one in station.agent("verify").ok["drifts"])
    assert station.agent("survive", {"by": "tester@here"}).ok == {"note": ""}
    station.host.ssh("kill", "-9", str(station.facts()["units"]["server"]["pid"]))
    wait(lambda: station.facts()["units"]["server"]["restarts"] == 1 and station.answers(station.public))
    station.serves(release)


def test_a_root_that_was_moved_takes_its_units_over(station: Station) -> None:
    release, moved = station.apply("one"), "/srv/moved"
    station.host.sh(f"mv '{ROOT.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}' {moved}")
    station.there, station.root = station.there.replace(ROOT, moved), moved
    station.layout = Layout(station.host.root / moved[1:], SERVICE)
    told = station.agent("verify").ok["drifts"]
    assert any("after `kdeploy stop`" in one["fix"] and one["what"].endswith(BOOT) for one in told), told
    assert station.agent("stop", {"by": "tester@here"}).ok["ran"]
    assert station.answers(station.private) is None
    station.serves(station.apply("one"))
    assert not station.agent("verify").ok["drifts"]
    station.host.reboot()
    station.serves(release, 20)


def test_without_its_last_words_the_host_goes_back_all_the_same(station: Station) -> None:
    before = station.apply("one")
    assert station.receive("two").ok
    program = station.host.root / "usr/bin/journalctl"
    program.rename(program.with_name("journalctl.real"))
    for name, text in (("missing", None), ("hangs", "#!/bin/sh\nsleep 600\n")):
        if text is not None:
            program.write_text(text)
            program.chmod(0o755)
        began = time.monotonic()
        answer, order = begin(station, station.release("two", STANDIN="die", CASE=name))
        assert (answer.ok["state"], answer.ok["note"]) == ("ROLLED_BACK", f"{before['id']} serves again")
        assert time.monotonic() - began < 60 and "its last words could not be had" in answer.ok["reason"]
        kept = json.loads((station.layout.evidence(order["release"]["id"]) / "rejected.json").read_text())
        assert "its last words could not be had" in kept["log"][0]
        station.serves(before)


def test_an_agent_that_was_emptied_is_no_boot_that_went_well(station: Station) -> None:
    station.apply("one")
    (station.layout.root / "agent" / station.there.rpartition("/")[2]).write_bytes(b"")
    station.host.reboot()
    end = time.monotonic() + 20
    while station.systemctl("is-failed", BOOT) != "failed":
        assert time.monotonic() < end
        time.sleep(0.2)


def test_names_that_are_taken_are_left_alone(station: Station) -> None:
    release = station.apply("one")
    assert station.receive("two").ok
    stranger = "[Service]\nExecStart=/bin/sleep 1000\n"
    (station.host.root / "etc/systemd/system" / SERVER).write_text(stranger)
    station.systemctl("daemon-reload")
    answer, _ = begin(station, station.release("two"))
    assert answer.ok["state"] == "ROLLED_BACK" and answer.ok["note"] == "nothing was stopped"
    assert f"{SERVER} already, which is not of this service" in answer.ok["reason"]
    assert station.answers(station.public) is not None
    (station.host.root / "etc/systemd/system" / SERVER).unlink()
    station.systemctl("daemon-reload")
    station.serves(release)


def test_the_router_is_kept_by_systemd_too(station: Station) -> None:
    station.kind = "router"
    first = station.apply("one")
    station.serves(first)
    assert "systemd" in station.host.ssh("cat", "/proc/1/comm").stdout.decode()
    assert station.show(FRONT, "Restart", "ActiveState") == ["always", "active"]
    station.kind = "socket"
    second = station.apply("two")
    station.serves(second)
    assert station.show(SOCKET, "ActiveState") == ["active"]
    station.host.reboot()
    station.serves(second, 20)


def test_a_log_is_followed(station: Station) -> None:
    station.apply("one")
    told = station.said("server")
    assert any("stand-in server" in line for line in told)
    assert any("socket" in line.lower() or "front" in line for line in station.said("front"))
    follower = station.start("logs", {"unit": "server", "lines": 1, "follow": True})
    assert follower.stdout is not None and follower.stdout.readline()
    station.host.ssh("kill", "-9", str(station.facts()["units"]["server"]["pid"]))
    lines = iter(follower.stdout.readline, b"")
    assert any(b"kdeploy: starting release" in line for line in lines)
    follower.kill()
    follower.communicate()
    wait(lambda: not any(one.command[:1] == ["journalctl"] for one in station.host.processes()))


def test_without_root_it_is_our_supervisor(bed: Bed, trees: dict[str, Tree]) -> None:
    with bed.host("guest") as host:
        made = Station(host, trees)
        host.ssh(f"chown -R guest: '{ROOT.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}' /srv")
        made.user = "guest"
        assert made.agent("facts").ok["keeper"] == "supervisor"
        assert made.receive("one").ok
        answer, _ = begin(made, made.release("one"))
        assert answer.ok["state"] == "ROLLED_BACK" and "needs systemd, and root's rights" in answer.ok["reason"]
        made.kind = "router"
        _, order = begin(made, made.release("one"))
        answer = made.decide(order)
        assert answer.ok["state"] == "CONFIRMED"
        assert any("does not come back by itself" in one.get("text", "") for one in answer.events)
        made.serves(order["release"])
