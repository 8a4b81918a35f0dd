"""A host whose records are gone or damaged: what was confirmed comes back, and verify says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kdeploy_agent.ground.journal import Journal
from kdeploy_agent.keeping import unit_files

from .conftest import Rig, environment, parse


def boot(rig: Rig) -> str:
    """What the enabled unit's command says, in a host whose processes are gone."""
    rig.close()
    argv = [sys.executable, "-m", "kdeploy_agent", "boot", str(rig.layout.root), "local"]
    return subprocess.run(argv, env=environment(), check=True, capture_output=True, timeout=60).stdout.decode()


def test_what_was_confirmed_comes_back_without_a_journal(rig: Rig) -> None:
    older = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"))
    rig.launch(order, True, KDEPLOY_CRASH_AT="OPEN:done", KDEPLOY_CRASH_GUARDIAN="1")
    rig.wait_until_abandoned()
    assert rig.layout.live() == order["release"]["id"]  # which was never confirmed
    rig.layout.journal.unlink()
    assert f"{older['id']} serves again" in boot(rig)
    rig.serves(older)


def test_the_unit_does_not_depend_on_the_journal(rig: Rig) -> None:
    text = unit_files.boot(rig.layout, ["python3", "agent.pyz"], {})
    conditions = [line for line in text.splitlines() if line.startswith("ConditionPathExists=")]
    wanted = (rig.layout.journal, rig.layout.known_good)
    assert conditions == [f"ConditionPathExists=|{path}" for path in wanted]  # | means that one of them is enough


def test_verify_says_that_it_is_gone(rig: Rig) -> None:
    rig.apply("one")
    assert "journal.jsonl" not in [one["what"] for one in rig.agent("verify").ok["drifts"]]
    rig.layout.journal.unlink()
    assert "journal.jsonl" in [one["what"] for one in rig.agent("verify").ok["drifts"]]


@pytest.mark.parametrize("line", ["CANDIDATE:intent", "PROBED:done"])
def test_a_journal_that_is_cut_during_a_change_bars_no_way_back(rig: Rig, line: str) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    how = {"STANDIN": "unhealthy"} if line.startswith("CANDIDATE") else {}
    order = rig.order(rig.release("two", **how), start_s=4)
    watching = rig.start("begin", order)
    rig.wait_for(line)
    if line == "PROBED:done":  # the operator has the transcript, and judges
        assert parse(watching.communicate(timeout=30)[0]).ok["state"] == "PROBED"
    rig.layout.journal.write_text("")
    answer = parse(watching.communicate(timeout=60)[0]) if line != "PROBED:done" else rig.decide(order, accept=False)
    assert (answer.ok["state"], answer.ok["note"]) == ("ROLLED_BACK", f"{before['id']} serves again")
    assert (answer.ok["release"], answer.ok["previous"]) == (order["release"]["id"], before["id"])
    rig.serves(before)


@pytest.mark.parametrize("text", [None, "[1]", "{}", '{"probes": {"brief": [7]}, "start_s": 9}', '{"probes": 7}'])
def test_a_plan_that_is_gone_or_damaged_is_told_and_bars_no_start(rig: Rig, text: str | None) -> None:
    release = rig.apply("one")
    plan = rig.layout.evidence(release["id"]) / "plan.json"
    assert not [one for one in rig.agent("verify").ok["drifts"] if "plan.json" in one["what"]]
    plan.unlink() if text is None else plan.write_text(text)
    assert [one for one in rig.agent("verify").ok["drifts"] if "plan.json" in one["what"]]
    assert rig.agent("evidence", {"release": release["id"]}).ok["plan"] is None
    assert rig.receive("two").ok
    answer = rig.agent("begin", rig.order(rig.release("two", STANDIN="die")))
    assert (answer.ok["state"], answer.ok["note"]) == ("ROLLED_BACK", f"{release['id']} serves again")
    assert f"{release['id']} serves again" in boot(rig)
    rig.serves(release)


def test_an_older_release_is_served_when_the_live_one_cannot_be(rig: Rig) -> None:
    older, live = rig.apply("one"), rig.apply("two")
    (rig.layout.release(live["id"]) / "release.json").write_text("")
    said = boot(rig)
    assert f"{older['id']}, which was confirmed here before, is served instead" in said
    assert f"{older['id']} serves again" in said and rig.layout.live() == older["id"]
    served = rig.answers(rig.public)
    assert served is not None and served["version"] == older["version"]


def test_a_stop_that_was_cut_off_does_not_stand(rig: Rig) -> None:
    release = rig.apply("one")
    Journal(rig.layout.journal).append(verb="stop", by="carl", phase="intent")
    assert rig.facts()["stopped"] is None
    assert rig.receive("two").ok
    answer = rig.agent("begin", rig.order(rig.release("two", STANDIN="die")))
    assert answer.ok["note"] == f"{release['id']} serves again"
    assert f"{release['id']} serves again" in boot(rig)
    rig.serves(release)
