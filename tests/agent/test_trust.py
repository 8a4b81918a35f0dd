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


def test_the_way_back_does_not_start_an_edited_release(rig: Any) -> None:
    before = rig.apply("one")
    path = rig.layout.release(before["id"]) / "release.json"
    edited = json.loads(path.read_bytes())
    edited["launch"]["env"]["INJECTED"] = "1"
    path.write_text(json.dumps(edited))
    assert rig.receive("two").ok
    answer = rig.agent("begin", rig.order(rig.release("two", STANDIN="die")))
    assert answer.ok["state"] == "NEEDS_OPERATOR"
    assert "is not what was declared" in answer.ok["reason"]
    rig.stopped()


def test_an_edited_document_is_replaced_by_the_declared_one(rig: Any) -> None:
    release = rig.apply("one")
    path = rig.layout.release(release["id"]) / "release.json"
    path.write_text("{}")
    rig.serves(rig.apply("one"))
    assert json.loads(path.read_bytes()) == release
