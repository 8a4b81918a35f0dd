"""Probing what serves already: with everything a change would see, and without changing anything."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .conftest import free_port

SEEN = ("processes", "port", "log", "restarts")


def asked(rig: Any, **changes: Any) -> Any:
    probes = rig.order(rig.release("one"))["probes"]
    return rig.agent("probe", {"probes": {**probes, "request-s": 1.0}, "release": None, "url": None, "within_s": 20,
                               **changes})  # fmt: skip


def kept(folder: Path) -> dict[str, str]:
    """Every file below that is not a log, by its content."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_what_serves_is_asked_and_looked_at(rig: Any) -> None:
    release = rig.apply("one")
    before = kept(rig.layout.home)
    answer = asked(rig)
    told = answer.ok["transcript"]
    assert answer.ok["release"] == release["id"]
    assert told["protocol"] == 2 and told["first"] is None
    assert told["alone"][0]["text"] == f" Hello from {release['version']}"
    assert told["port"]["number"] == rig.private and told["port"]["ours"] is True
    assert {one["tree"] for one in told["processes"]} == {str(rig.layout.tree(release["tree"]).resolve())}
    assert told["restarts"] == 0 and told["log"]["lines"] > 0
    assert [one["text"] for one in answer.events if one["event"] == "note"]
    assert kept(rig.layout.home) == before
    rig.serves(release)


def test_the_release_may_be_named(rig: Any) -> None:
    first, second = rig.apply("one"), rig.apply("two")
    assert asked(rig, release=second["id"]).ok["release"] == second["id"]
    refused = asked(rig, release=first["id"]).error
    assert (
        refused["kind"] == "preflight"
        and f"{second['id']} serves on this host, not {first['id']}" in refused["message"]
    )


def test_nothing_to_ask(rig: Any) -> None:
    assert asked(rig).error["kind"] == "preflight"
    rig.apply("one")
    assert rig.agent("stop", {"by": "me"}).ok["ran"]
    refused = asked(rig).error
    assert refused["kind"] == "preflight" and "nothing serves on this host" in refused["message"]


def test_a_server_that_hangs_is_told_by_the_transcript(rig: Any) -> None:
    rig.apply("one")
    pid = rig.facts()["units"]["server"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    told = asked(rig).ok["transcript"]
    os.kill(pid, signal.SIGCONT)
    assert told["server_info"]["error"] == "hang: no complete answer within 1.0 s"
    assert told["alone"][0]["error"] == "not asked: the server had stopped answering"
    assert told["port"]["ours"] is True


def test_not_while_a_change_runs(rig: Any) -> None:
    rig.apply("one")
    order = rig.order(rig.release("one", STANDIN_N="again"))
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    refused = asked(rig).error
    assert refused["kind"] == "locked" and "tester@here" in refused["message"]
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    assert asked(rig).ok["release"] == order["release"]["id"]


def test_any_server_is_asked_by_its_url(rig: Any) -> None:
    release = rig.apply("one")
    told = asked(rig, url=f"http://127.0.0.1:{rig.public}").ok
    assert told["release"] is None
    assert told["transcript"]["alone"][0]["text"] == f" Hello from {release['version']}"
    assert [told["transcript"][key] for key in SEEN] == [None] * 4
    assert told["transcript"]["base_url"] == f"http://127.0.0.1:{rig.public}"


@pytest.mark.parametrize(
    ("url", "kind"),
    [("http://127.0.0.1:%d", "preflight"), ("127.0.0.1:%d", "usage"), ("ftp://h:%d", "usage"), ("", "usage"),
     ("http://", "usage"), ("http://h:0", "usage"), ("http://h:99999", "usage"), (7, "usage")],
)  # fmt: skip
def test_a_url_that_nobody_answers_at(rig: Any, url: Any, kind: str) -> None:
    port = free_port()
    error = asked(rig, url=url.replace("%d", str(port)) if isinstance(url, str) else url).error
    assert error["kind"] == kind, error


def test_what_is_confirmed_keeps_what_was_seen(rig: Any) -> None:
    release = rig.apply("one")
    kept = rig.agent("evidence", {"release": release["id"]}).ok
    first = kept["transcript"]["first"]
    assert first["healthy_s"] is not None and 0 < first["healthy_s"] <= first["answered_s"] < 15
    assert kept["transcript"]["protocol"] == 2 and kept["verdict"]["accept"] is True
    assert asked(rig).ok and rig.agent("evidence", {"release": release["id"]}).ok == kept


def test_it_ends_when_nobody_listens(rig: Any) -> None:
    rig.apply("one")
    probes = rig.order(rig.release("one"))["probes"]
    groups = [{"name": f"g{n}", "how": "batch", "asks": probes["alone"]} for n in range(5000)]
    child = rig.start("probe", {"probes": {**probes, "together": groups}, "within_s": 60})
    assert child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=20) != 0  # long before it has asked them all
    child.stderr.close()


def test_a_day_on_which_it_was_rejected_is_not_what_it_is_measured_by(rig: Any) -> None:
    release = rig.apply("one")
    first = rig.agent("evidence", {"release": release["id"]}).ok
    assert first["confirmed"] == first["transcript"]
    assert rig.agent("stop", {"by": "me"}).ok["ran"]
    again = rig.order(release)
    assert rig.agent("begin", again).ok["state"] == "PROBED"
    assert rig.decide(again, accept=False).ok["state"] == "ROLLED_BACK"
    told = rig.agent("evidence", {"release": release["id"]}).ok
    assert told["verdict"]["accept"] is False and told["transcript"] != first["transcript"]
    assert told["confirmed"] == first["transcript"]
