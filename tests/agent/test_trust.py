"""What lies on a host may have been edited: ids are derived anew from what they name."""

from __future__ import annotations

import json
from typing import Any


def test_a_release_under_a_foreign_id_is_refused(rig: Any) -> None:
    assert rig.receive("one").ok
    release = rig.release("one")
    answer = rig.agent("begin", rig.order({**release, "launch": {**release["launch"], "env": {"MORE": "1"}}}))
    assert answer.error["kind"] == "integrity" and release["id"] in answer.error["message"]
    assert not rig.layout.journal.exists()


def inject(rig: Any, release: dict[str, Any]) -> None:
    path = rig.layout.release(release["id"]) / "release.json"
    edited = json.loads(path.read_bytes())
    edited["launch"]["env"]["INJECTED"] = "1"
    path.write_text(json.dumps(edited))


def test_nothing_is_stopped_for_whom_there_is_no_way_back(rig: Any) -> None:
    before = rig.apply("one")
    inject(rig, before)
    assert rig.receive("two").ok
    answer = rig.agent("begin", rig.order(rig.release("two", STANDIN="die")))
    assert (answer.ok["state"], answer.ok["note"]) == ("ROLLED_BACK", "nothing was stopped")
    assert "is not what was declared" in answer.ok["reason"]
    assert rig.answers(rig.public)["version"] == before["version"]


def test_the_way_back_does_not_start_an_edited_release(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"))
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    inject(rig, before)  # after it was looked at
    answer = rig.decide(order, accept=False)
    assert answer.ok["state"] == "NEEDS_OPERATOR"
    assert "is not what was declared" in answer.ok["reason"]
    rig.stopped()


def test_an_edited_document_is_replaced_by_the_declared_one(rig: Any) -> None:
    release = rig.apply("one")
    path = rig.layout.release(release["id"]) / "release.json"
    path.write_text("{}")
    rig.serves(rig.apply("one"))
    assert json.loads(path.read_bytes()) == release


def test_what_a_server_was_started_with_is_not_shown(rig: Any) -> None:
    assert rig.receive("one").ok
    answer = rig.agent("begin", rig.order(rig.release("one", STANDIN="die", STANDIN_SAYS="api_key='hunter2'")))
    assert answer.ok["state"] == "ROLLED_BACK" and "api_key=(withheld)" in answer.ok["reason"]
    home = rig.layout.home
    assert home.stat().st_mode & 0o777 == 0o700
    (rejected,) = home.glob("releases/*/evidence/rejected.json")
    kept = [rig.layout.journal, *home.glob("transactions/*/*"), *home.glob("releases/*/release.json"), rejected]
    assert len(kept) >= 6
    for path in [*kept, rig.units.path("server", "log")]:
        assert path.stat().st_mode & 0o077 == 0, path
        if path in kept and path.name not in ("order.json", "release.json"):  # these say what was declared
            assert "hunter2" not in path.read_text(), path


def test_what_somebody_else_left_stops_no_command(rig: Any) -> None:
    release = rig.apply("one")
    with rig.layout.journal.open("ab") as journal:
        for line in ('{"at": "noon"}', '{"at": 1, "txn": [], "state": "OPEN", "phase": "done"}', "[]", "null"):
            journal.write(line.encode() + b"\n")
        journal.write(b'{"at": 1, "txn": "x", "state": "CONFIRMED", "phase": "done", "release": 7}\n')
        journal.write(b'{"at": 1, "txn": "y", "state": "HELLO", "phase": "done"}\n')
    for name, text in (("foreign", "{}"), ("list", "[1]"), ("broken", '{"id": '), ("empty", "")):
        (rig.layout.releases / name).mkdir()
        (rig.layout.releases / name / "release.json").write_text(text)
    (rig.layout.releases / "folder" / "release.json").mkdir(parents=True)
    facts = rig.facts(rehash=release["tree"])
    assert facts["rehash"]["ok"] and facts["transaction"]["state"] == "CONFIRMED"
    assert facts["known_goods"] == [release["id"]]
    assert len(rig.agent("history").ok["transactions"]) == 1
    rig.serves(rig.apply("two"))
