"""A secret is in the server's environment and in one file; nowhere else on the host, and in no word that leaves it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.asking import answers, client, logs, ready, streaming
from kdeploy_agent.change.transaction import Run
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, secrets
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.order import Order
from kdeploy_agent.looking import difference

from .conftest import REMOTE, Rig, processes, seal

VALUE = "hf_Zk3\"n\\xq8'Vt ümlaut"
assert REMOTE.is_dir()


def asking(rig: Rig, name: str, *names: str, **env: str) -> dict[str, Any]:
    """The release of a tree that asks for secrets."""
    return seal(rig.release(name, **env), secrets=list(names))


def change(rig: Rig, release: dict[str, Any], **values: str) -> Any:
    order = rig.order(release)
    begun = rig.agent("begin", {**order, "secrets": values})
    if begun.result is None or begun.ok["state"] != "PROBED":
        return begun
    return rig.decide(order)


def server_environment(rig: Rig) -> dict[str, str]:
    return processes.environ(rig.facts()["units"]["server"]["pid"])


def found_in(folder: Path, value: str, but: Path) -> list[Path]:
    """Every file below that holds the value in one of the ways programs write it down."""
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and but not in path.parents:
            data = path.read_bytes()
            if any(form.encode() in data for form in forms):
                found.append(path)
    return found


def test_a_value_is_given_to_the_server_and_kept_nowhere_else(rig: Rig) -> None:
    assert rig.receive("one").ok and rig.receive("two").ok
    release = asking(rig, "one", "HF_TOKEN")
    order = rig.order(release)
    begun = rig.agent("begin", {**order, "secrets": {"HF_TOKEN": VALUE}})
    assert begun.ok["state"] == "PROBED", begun.ok
    told = [begun, rig.decide(order)]
    assert server_environment(rig)["HF_TOKEN"] == VALUE
    folder = rig.layout.secrets
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "HF_TOKEN").read_bytes() == VALUE.encode()
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.rglob("*"))
    # A second release fails, the first is started again from what lies here; then every verb is asked.
    told.append(change(rig, asking(rig, "two", "HF_TOKEN", STANDIN="die"), HF_TOKEN=VALUE))
    assert told[-1].ok["state"] == "ROLLED_BACK"
    assert server_environment(rig)["HF_TOKEN"] == VALUE
    for verb in ("facts", "history", "recover"):
        told.append(rig.agent(verb, {"rehash": release["tree"]}))
    for unit in ("server", "front", "runner"):
        told.append(rig.agent("logs", {"unit": unit}))
    told.append(rig.agent("evidence", {"release": release["id"]}))
    told.append(rig.agent("precheck", {"release": release}))
    assert all(VALUE not in json.dumps([one.events, one.result], ensure_ascii=False) for one in told)
    assert all("hf_Zk3" not in repr(one) for one in told)
    assert found_in(rig.layout.root, VALUE, folder) == []
    commands = [(Path("/proc") / str(pid) / "cmdline") for pid in rig.units.members("server")]
    assert len(commands) >= 2
    assert not any(b"hf_Zk3" in path.read_bytes() for path in commands)


def test_what_a_server_says_of_it_is_masked(rig: Rig) -> None:
    assert rig.receive("one").ok and rig.receive("two").ok
    assert change(rig, asking(rig, "one", "STANDIN_SAYS"), STANDIN_SAYS=VALUE).ok["state"] == "CONFIRMED"
    said = rig.agent("logs", {"unit": "server"})
    assert secrets.HIDDEN in [one["text"] for one in said.events]
    evidence = rig.agent("evidence", {"release": rig.layout.live()})
    rejected = change(rig, asking(rig, "two", "STANDIN_SAYS", STANDIN="die"), STANDIN_SAYS=VALUE + "2")
    assert rejected.ok["state"] == "ROLLED_BACK" and secrets.HIDDEN in rejected.ok["reason"]
    after = rig.agent("logs", {"unit": "server", "lines": 1000})  # the log holds the rejected value, too
    for one in (said, evidence, rejected, after):
        assert "hf_Zk3" not in repr(one)
    found = found_in(rig.layout.root, VALUE, rig.layout.secrets)
    assert found == [rig.units.path("server", "log")]  # as it came, for its owner only


def test_a_rejected_change_takes_its_values_back(rig: Rig) -> None:
    """The server before it would else be started with a value that was never proven."""
    assert rig.receive("one").ok
    first = asking(rig, "one", "STANDIN", "OTHER")
    assert change(rig, first, STANDIN="benign-one", OTHER="kept-as-it-is").ok["state"] == "CONFIRMED"
    order = rig.order(first, start_s=4)
    begun = rig.agent("begin", {**order, "secrets": {"STANDIN": "unhealthy"}})
    assert begun.ok["state"] == "ROLLED_BACK", begun.ok
    assert server_environment(rig)["STANDIN"] == "benign-one"
    rig.serves(first)
    assert rig.receive("two").ok  # a name that was not here before goes again
    other = asking(rig, "two", "NEW_ONE", STANDIN="die")
    assert change(rig, other, NEW_ONE="never-proven").ok["state"] == "ROLLED_BACK"
    assert sorted(rig.facts()["secrets"]["values"]) == ["OTHER", "STANDIN"]


def test_a_killed_change_takes_its_values_back(rig: Rig) -> None:
    assert rig.receive("one").ok
    first = asking(rig, "one", "STANDIN")
    assert change(rig, first, STANDIN="benign-one").ok["state"] == "CONFIRMED"
    order = {**rig.order(first), "secrets": {"STANDIN": "benign-two"}}
    answer = rig.agent("begin", order, KDEPLOY_CRASH_AT="CANDIDATE:done", KDEPLOY_CRASH_GUARDIAN="1")
    assert answer.ok["state"] == "ROLLED_BACK"
    assert server_environment(rig)["STANDIN"] == "benign-one"
    order = {**rig.order(first), "secrets": {"STANDIN": "benign-two"}}
    assert rig.agent("begin", order, KDEPLOY_CRASH_AT="PREPARED:intent").ok["state"] == "ROLLED_BACK"
    assert secrets.load(rig.layout, ["STANDIN"]) == {"STANDIN": "benign-one"}


def test_a_value_that_nothing_asks_for_goes(rig: Rig) -> None:
    assert rig.receive("one").ok
    for number in range(5):  # of confirmed releases the last three are kept
        release = asking(rig, "one", f"NAME_{number}", NUMBER=str(number))
        assert change(rig, release, **{f"NAME_{number}": "some-value"}).ok["state"] == "CONFIRMED"
    assert sorted(rig.facts()["secrets"]["values"]) == ["NAME_2", "NAME_3", "NAME_4"]


def test_a_value_that_is_missing_stops_nothing(rig: Rig) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    answer = rig.agent("begin", rig.order(asking(rig, "two", "HF_TOKEN", "OTHER_TOKEN")))
    assert answer.error["kind"] == "preflight"
    assert "HF_TOKEN, OTHER_TOKEN" in answer.error["message"] and "serve.secrets" in answer.error["hint"]
    rig.serves(before)
    # Half of them is not enough, and leaves nothing behind.
    order = {**rig.order(asking(rig, "two", "HF_TOKEN", "OTHER_TOKEN")), "secrets": {"HF_TOKEN": VALUE}}
    assert rig.agent("begin", order).error["kind"] == "preflight"
    assert rig.facts()["secrets"]["values"] == {}
    order = {**rig.order(asking(rig, "two")), "secrets": {"HF_TOKEN": VALUE}}
    assert rig.agent("begin", order).error["kind"] == "usage"
    order = {**rig.order(asking(rig, "two", "HF_TOKEN")), "secrets": {"HF_TOKEN": ""}}
    assert rig.agent("begin", order).error["kind"] == "usage"


def test_a_rollback_uses_what_is_on_the_host(rig: Rig) -> None:
    assert rig.receive("one").ok and rig.receive("two").ok
    first = asking(rig, "one", "HF_TOKEN")
    assert change(rig, first, HF_TOKEN=VALUE).ok["state"] == "CONFIRMED"
    assert change(rig, asking(rig, "two")).ok["state"] == "CONFIRMED"
    assert "HF_TOKEN" in rig.facts()["secrets"]["values"]  # known-good still asks for it
    order = rig.order(first, goal="rollback")
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    assert server_environment(rig)["HF_TOKEN"] == VALUE
    (rig.layout.secrets / "HF_TOKEN").unlink()
    again = rig.agent("begin", rig.order(first, goal="rollback"))
    assert again.error["kind"] == "preflight" and "HF_TOKEN" in again.error["message"]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root", "local")


def test_digests_tell_a_change_and_no_value(layout: Layout) -> None:
    assert secrets.digests(layout) == {"salt": "", "values": {}}
    secrets.replace(layout, "t1", {"A": VALUE, "B": VALUE})
    first = secrets.digests(layout)
    assert len(first["salt"]) == 32 and sorted(first["values"]) == ["A", "B"]
    secrets.replace(layout, "t2", {"A": VALUE + "x"})
    second = secrets.digests(layout)
    assert second["salt"] == first["salt"]
    assert second["values"]["A"] != first["values"]["A"] and second["values"]["B"] == first["values"]["B"]
    other = Layout(layout.root, "other")
    secrets.replace(other, "t1", {"A": VALUE})
    assert secrets.digests(other)["values"]["A"] != first["values"]["A"]  # another salt


def test_masking_knows_how_programs_write_things_down(layout: Layout) -> None:
    assert secrets.mask(layout, VALUE) == VALUE
    secrets.replace(layout, "t1", {"A": VALUE, "LINES": "-----BEGIN-----\nsecond line of it\n", "SHORT": "abc"})
    for form in (VALUE, json.dumps(VALUE), repr(VALUE), f"x{VALUE}y", "the second line of it"):
        masked = secrets.mask(layout, form)
        assert "hf_Zk3" not in masked and "second line" not in masked and secrets.HIDDEN in masked
    assert secrets.mask_all(layout, {"a": [VALUE, 1, None, {VALUE: True}]}) == {"a": ["***", 1, None, {"***": True}]}
    assert secrets.mask(layout, "abcabc") == "abcabc"
    secrets.replace(layout, "t2", {"A": "another-value"})
    assert secrets.mask(layout, f"{VALUE} another-value") == "*** ***"  # logs hold what was, too


def test_taking_back_may_be_repeated(layout: Layout) -> None:
    secrets.replace(layout, "t1", {"A": "first-value"})
    secrets.take_back(layout, "another")
    secrets.replace(layout, "t2", {"A": "second-value", "B": "new-here"})
    for _ in range(2):
        secrets.take_back(layout, "t2")
        assert secrets.load(layout, ["A"]) == {"A": "first-value"}
        with pytest.raises(AgentError, match="B"):
            secrets.load(layout, ["A", "B"])
    assert secrets.mask(layout, "second-value") == "***"
    files.write(layout.secrets / "A", b"\xff")
    with pytest.raises(AgentError):
        secrets.load(layout, ["A"])


def test_what_was_replaced_or_forgotten_is_masked_on(layout: Layout) -> None:
    """A log holds what servers said with the values they had."""
    for number in range(14):
        secrets.replace(layout, f"t{number}", {"A": f"value-{number:02}-of-a", "B": "value-of-b"})
    secrets.take_back(layout, "t13")
    log = " ".join(f"value-{number:02}-of-a" for number in range(14)) + " value-of-b"
    assert secrets.mask(layout, log).count("***") == 10 + 1
    assert secrets.mask(layout, "value-13-of-a value-12-of-a") == "*** ***"
    assert secrets.forget(layout, ["A"]) == ["B"]
    assert secrets.mask(layout, "value-of-b") == "***"
    kept = [path for path in layout.secrets.rglob("*") if path.is_file()]
    assert kept and all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert (layout.secrets / ".earlier").stat().st_mode & 0o777 == 0o700
    with pytest.raises(AgentError, match="B"):
        secrets.load(layout, ["B"])


def test_what_an_adopted_release_had_is_masked_on(layout: Layout) -> None:
    process = {"env": {"API_KEY": VALUE, "LANG": "C.UTF-8"}}
    files.write(layout.release("adopted-1f") / "process.json", files.canonical(process))
    assert secrets.mask(layout, f"{VALUE} C.UTF-8") == "*** C.UTF-8"
    secrets.forget_recorded(layout, "adopted-1f")
    files.wipe(layout.release("adopted-1f"))
    assert secrets.mask(layout, f"{VALUE} C.UTF-8") == "*** C.UTF-8"


def test_logs_mask_what_was_a_secret_once(rig: Rig) -> None:
    assert rig.receive("one").ok
    for number in range(4):  # rotated twice, then removed; of confirmed releases the last three are kept
        names = ["STANDIN_SAYS"] if number < 3 else []
        values = {"STANDIN_SAYS": f"{VALUE}-{number}"} if number < 3 else {}
        assert change(rig, asking(rig, "one", *names, NUMBER=str(number)), **values).ok["state"] == "CONFIRMED"
    for number in range(4, 7):
        assert change(rig, asking(rig, "one", NUMBER=str(number))).ok["state"] == "CONFIRMED"
    assert rig.facts()["secrets"]["values"] == {}
    log = rig.units.path("server", "log").read_text()
    assert all(f"{VALUE}-{number}" in log for number in range(3))
    said = rig.agent("logs", {"unit": "server", "lines": 1000})
    assert len([one for one in said.events if one["text"] == secrets.HIDDEN]) == 3
    assert "hf_Zk3" not in repr(said)


@pytest.mark.parametrize("most", range(3, 20))
def test_a_text_is_masked_before_it_is_cut(layout: Layout, most: int) -> None:
    secrets.hide(layout)
    secrets.replace(layout, "t1", {"A": VALUE})
    said = secrets.cut(f"ab {VALUE} and more", most)
    assert said == "ab *** and more"[:most] and len(said) <= most
    assert secrets.cut("short", most) == "short"[:most]


def test_no_evidence_holds_half_a_secret(layout: Layout) -> None:
    """Whatever is cut on its way into a transcript, a note or an error."""
    secrets.hide(layout)
    secrets.replace(layout, "t1", {"A": VALUE})

    def around(most: int) -> str:
        return "x" * (most - 10) + VALUE + "y" * 20

    asked = {"name": "n", "kind": "k", "text": "t", "max_tokens": 1, "answer": "another"}
    meta = {"finish_reason": {"type": "stop"}, "completion_tokens": 1}
    row = {"text": around(answers.KEPT), "output_ids": [1], "meta_info": meta}
    found = [
        logs.scan_log([around(logs.LINE).encode()], ["x"]),
        ready.differs(asked, {"text": around(200)}),
        answers.read_answers([asked], client.Reply(200, row, 0.0, None), 0.0),
        client.read_whole(Response(around(300).encode())),
        client.read_whole(Response(around(2000).encode())),
        streaming._events(Response(b"data: " + json.dumps({"error": around(300)}).encode()), lambda _: True),
        difference.shown(around(300)),
    ]
    for said in found:
        assert "hf_" not in repr(secrets.mask_all(layout, said)), said


class Response(io.BytesIO):
    """A response of a server that says no."""

    status, length = 401, 0


def test_a_note_and_a_command_line_are_masked_before_they_are_cut(rig: Rig) -> None:
    assert rig.receive("one").ok
    release = asking(rig, "one", "HF_TOKEN", STANDIN="die")
    secrets.replace(rig.layout, "t0", {"HF_TOKEN": VALUE})
    order = rig.order(release)
    rig.layout.transaction(order["txn"]).mkdir(parents=True)
    run = Run(rig.layout, Order(**order), rig.units)
    rig.layout.journal.parent.mkdir(parents=True, exist_ok=True)
    run._write("DRAINED", "done", goal="apply", by="me", release=release["id"])
    run.back("x" * 175 + VALUE)
    assert "hf_" not in (rig.layout.transaction(order["txn"]) / "notes.jsonl").read_text()
    argv = [sys.executable, "-c", "import time; time.sleep(30)", "x" * 190, VALUE]
    room = 195 - len(" ".join([*argv[:3], ""]))
    argv[3] = "x" * room
    with subprocess.Popen(argv) as child:
        try:
            end = time.monotonic() + 10
            while "sleep" not in processes.command(child.pid) and time.monotonic() < end:
                time.sleep(0.01)
            assert len(processes.command(child.pid)) >= 199 and "hf_" not in processes.command(child.pid)
        finally:
            child.kill()
