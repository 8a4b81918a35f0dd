"""Before anything is stopped: what would be gone back to is looked at, and what is damaged is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .conftest import Answer, Rig


def begin(rig: Rig, **env: str) -> Answer:
    assert rig.receive("two").ok
    return rig.agent("begin", rig.order(rig.release("two", **env)))


def test_what_serves_and_could_not_be_gone_back_to_is_not_stopped(rig: Rig) -> None:
    before = rig.apply("one")
    pid = rig.facts()["units"]["server"]["pid"]
    (rig.layout.release(before["id"]) / "release.json").write_text("{")
    answer = begin(rig)
    assert (answer.ok["state"], answer.ok["note"]) == ("ROLLED_BACK", "nothing was stopped")
    assert "could not be gone back to" in answer.ok["reason"] and "apply its profile again" in answer.ok["reason"]
    assert rig.facts()["units"]["server"]["pid"] == pid
    rig.serves(rig.apply("one"))  # which mends its document


def test_a_tree_that_cannot_be_placed_anew_is_no_way_back(rig: Rig) -> None:
    before = rig.apply("one")
    order = rig.order(rig.release("two"))
    shutil.rmtree(rig.layout.store)
    rig.layout.tree(before["tree"]).chmod(0o755)
    (rig.layout.tree(before["tree"]) / "sglang").rename(rig.layout.tree(before["tree"]) / "gone")
    assert rig.receive("two").ok
    answer = rig.agent("begin", order)
    assert answer.ok["note"] == "nothing was stopped" and "could not be gone back to" in answer.ok["reason"]


def test_another_confirmed_release_is_gone_back_to_when_the_live_one_is_damaged(rig: Rig) -> None:
    older, before = rig.apply("one"), rig.apply("three")
    (rig.layout.release(before["id"]) / "release.json").write_text("{")
    answer = begin(rig, STANDIN="die")
    assert answer.ok["state"] == "ROLLED_BACK" and f"{older['id']} serves again; {before['id']}: " in answer.ok["note"]
    served = rig.answers(rig.public)
    assert served is not None and served["version"] == older["version"]
    assert any("could not be gone back to" in one.get("text", "") for one in answer.events)


@pytest.mark.parametrize("link", ["current", "known-good"])
def test_a_folder_in_the_place_of_a_link_stops_nothing(rig: Rig, link: str) -> None:
    before = rig.apply("one")
    path: Path = rig.layout.home / link
    path.unlink()
    path.mkdir()
    answer = begin(rig)
    assert answer.ok["note"] == "nothing was stopped" and f"mv {path}" in answer.ok["reason"]
    served = rig.answers(rig.public)
    assert served is not None and served["version"] == before["version"]


def test_a_stopped_service_needs_no_way_back(rig: Rig) -> None:
    before = rig.apply("one")
    (rig.layout.release(before["id"]) / "release.json").write_text("{")
    assert rig.agent("stop", {"by": "t"}).ok
    rig.serves(rig.apply("two"))
