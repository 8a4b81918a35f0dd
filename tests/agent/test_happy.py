"""The straight line: receive, begin, decide, confirm; and what a host says afterwards."""

from __future__ import annotations

import json
from typing import Any

from kdeploy_agent.ground.journal import Journal


def test_first_apply_serves_and_says_so(rig: Any) -> None:
    assert rig.facts()["releases"] == []
    received = rig.receive("one").ok
    assert received["files"] > 8
    order = rig.order(rig.release("one"))
    begun = rig.agent("begin", order)
    assert begun.ok["state"] == "PROBED"
    assert begun.states == [
        "PREPARED:intent", "PREPARED:done", "DRAINED:intent", "DRAINED:done", "CANDIDATE:intent", "CANDIDATE:done",
        "PROBED:intent", "PROBED:done",
    ]  # fmt: skip
    transcript = begun.ok["transcript"]
    assert transcript["port"] == {"number": rig.private, "owner": transcript["port"]["owner"], "ours": True}
    assert {one["tree"] for one in transcript["processes"]} == {
        str(rig.layout.tree(order["release"]["tree"]).resolve())
    }
    assert transcript["restarts"] == 0 and transcript["log"]["lines"] > 0
    assert rig.answers(rig.public) is None  # clients wait until the gate has passed
    decided = rig.decide(order)
    assert decided.states[-1] == "CONFIRMED:done"
    rig.serves(order["release"])
    facts = rig.facts(rehash=order["release"]["tree"])
    assert facts["rehash"]["ok"] and facts["known_goods"] == [order["release"]["id"]]
    assert facts["transaction"]["state"] == "CONFIRMED" and facts["transaction"]["running"] is False
    assert facts["commits"] == [order["release"]["commit"]]
    evidence = rig.agent("evidence", {"release": order["release"]["id"]}).ok
    assert evidence["verdict"]["accept"] is True and evidence["transcript"] == transcript
    assert rig.agent("history").ok["transactions"][0]["txn"] == order["txn"]


def test_second_release_replaces_the_first_and_rollback_returns(rig: Any) -> None:
    first = rig.apply("one")
    second = rig.apply("two")
    rig.serves(second)
    assert rig.facts()["known_goods"] == [second["id"], first["id"]]
    order = rig.order(first, goal="rollback")
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    rig.serves(first)


def test_what_it_said_when_it_was_confirmed_is_what_it_is_to_say(rig: Any) -> None:
    """An answer that nobody knew before is known from then on: a boot and a way back ask for it."""
    assert rig.receive("one").ok
    release = rig.release("one")
    order = rig.order(release)
    order["probes"]["brief"][0]["answer"] = None
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    kept = json.loads((rig.layout.evidence(release["id"]) / "plan.json").read_text())
    assert kept["probes"]["brief"][0]["answer"] == f" Hello from {release['version']}"


def test_stops_are_told_in_the_history_and_by_whom(rig: Any) -> None:
    rig.apply("one")
    assert rig.facts()["stopped"] is None
    assert [rig.agent("stop", {"by": name}).ok["ran"] for name in ("me", "you")] == [True, False]
    assert rig.facts()["stopped"]["by"] == "you"
    told = rig.agent("history").ok["transactions"]
    assert [(one["goal"], one["state"], one["by"]) for one in told[:2]] == [
        ("stop", "STOPPED", n) for n in ("you", "me")
    ]
    journal = Journal(rig.layout.journal)
    journal.append(verb="boot", release="r", phase="intent")
    journal.append(verb="boot", release="r", phase="failed", reason="no GPU")
    first = rig.agent("history").ok["transactions"][0]
    assert (first["goal"], first["state"], first["reason"]) == ("boot", "FAILED", "no GPU")
    rig.serves(rig.apply("one"))
    assert rig.facts()["stopped"] is None


def test_what_is_told_in_passing_is_short(rig: Any) -> None:
    rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"))
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    answer = rig.agent("decide", {"txn": order["txn"], "accept": False, "reasons": ["x" * 500], "evidence": {}})
    (told,) = (one["text"] for one in answer.events if one["event"] == "note" and "going back" in one["text"])
    assert len(told) == 200 and told.endswith("…")
    assert "x" * 500 in answer.ok["reason"]
