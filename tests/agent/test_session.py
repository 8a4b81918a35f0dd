"""Many requests over one run of the agent: in order, ahead or not, and nothing for who is gone."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import REMOTE, Tree


class Talk:
    """A session, spoken to by hand."""

    def __init__(self, root: str, **settings: float) -> None:
        changes = "".join(f"session.{name} = {value}; " for name, value in settings.items())
        code = f"import sys; from kdeploy_agent import __main__, session; {changes}sys.exit(__main__._run(['session']))"
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REMOTE), "LC_ALL": "C"}
        self.child = subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.root = root
        assert self.hear() == {"event": "hello"}

    def say(self, verb: str, payload: bytes = b"", claimed: int | None = None, **request: Any) -> None:
        """Send one request; `claimed` is another size of the payload than it has."""
        line = {"protocol": 1, "root": self.root, "service": "local", "verb": verb, **request}
        if payload or claimed:
            line["payload"] = len(payload) if claimed is None else claimed
        self.write(json.dumps(line).encode() + b"\n" + payload)

    def write(self, data: bytes) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(data)

    def hear(self, seconds: float = 20) -> Any:
        """The next line that says something: an event's name, or an answer; None at the end."""
        assert self.child.stdout is not None
        while True:
            assert select.select([self.child.stdout], [], [], seconds)[0], "nothing was said"
            line = self.child.stdout.readline()
            if not line:
                return None
            if line.strip():
                said = json.loads(line)
                return {"event": said["event"]} if said.get("event") == "hello" else said

    def hear_answer(self) -> Any:
        """The next line that is no event."""
        while "event" in (said := self.hear()):
            pass
        return said

    def close(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()
        self.child.kill()
        self.child.wait()


@pytest.fixture
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    made = Talk(str(tmp_path_factory.mktemp("talk")), BEAT_S=0.2, SILENCE_S=0.5)
    yield made
    made.close()


@pytest.fixture
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """One whose beats leave a busy machine the time to answer them."""
    made = Talk(str(tmp_path_factory.mktemp("talk")), BEAT_S=0.6, SILENCE_S=3)
    yield made
    made.close()


def tree_request(tree: Tree) -> dict[str, str]:
    return {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}


def test_requests_are_answered_in_order(patient: Talk, trees: dict[str, Tree]) -> None:
    patient.say("history")
    patient.say("receive", trees["one"].bundle, **tree_request(trees["one"]))
    patient.say("facts")
    assert patient.hear_answer() == {"result": {"transactions": []}}
    assert patient.hear_answer()["result"]["files"] > 3
    assert trees["one"].tree in patient.hear_answer()["result"]["service"]["trees"]


def test_after_an_error_nothing_is_done(talk: Talk, trees: dict[str, Tree]) -> None:
    talk.say("receive", b"garbage\n", **tree_request(trees["one"]))
    talk.say("receive", trees["two"].bundle, **tree_request(trees["two"]))
    assert talk.hear_answer()["error"]["kind"] == "lacking"
    assert talk.hear() is None
    assert talk.child.wait(10) == 1


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"protocol": 1, "service": "local", "verb": "dance"}\n'])
def test_what_is_no_request(talk: Talk, line: bytes) -> None:
    talk.write(line)
    assert talk.hear_answer()["error"]["kind"] == "usage"
    assert talk.hear() is None


def test_a_payload_that_stops_half_way_lets_go_of_the_store(talk: Talk, trees: dict[str, Tree]) -> None:
    """A dead connection is not told: the next push must not wait for it."""
    one = trees["one"]
    talk.say("receive", one.bundle[:100], claimed=len(one.bundle), **tree_request(one))
    error = talk.hear_answer()["error"]
    assert "cut in the middle" in error["message"]
    other = Talk(talk.root)
    try:
        other.say("receive", one.bundle, **tree_request(one))
        assert other.hear_answer()["result"]["files"] > 3
    finally:
        other.close()


def test_beats_tell_that_it_works(talk: Talk) -> None:
    talk.say("logs", unit="server", follow=True)
    assert [talk.hear()["event"] for _ in range(3)] == ["beat"] * 3


@pytest.mark.parametrize("listens", [True, False])
def test_nothing_is_begun_for_who_does_not_answer(patient: Talk, trees: dict[str, Tree], listens: bool) -> None:
    """What was sent ahead of a dead line would stop a server for nobody: beats without an answer show it."""
    two = trees["two"]
    patient.say("receive", two.bundle[:10], claimed=len(two.bundle), **tree_request(two))
    began = time.monotonic()
    beats = 0
    for part in range(10, len(two.bundle), len(two.bundle) // 6):  # slow, but not too slow
        time.sleep(0.6)
        patient.write(two.bundle[part : part + len(two.bundle) // 6])
    patient.say("history")
    while "event" in (said := patient.hear()):
        beats += 1
        if listens:
            patient.write(b"\n")
    assert said["result"]["files"] > 3
    assert beats >= 4, time.monotonic() - began
    if listens:
        assert patient.hear() == {"result": {"transactions": []}}
    else:
        assert patient.hear() is None
        assert patient.child.wait(10) == 1


def test_a_watcher_ends_when_nobody_listens(talk: Talk) -> None:
    talk.say("logs", unit="server", follow=True)
    talk.hear()
    assert talk.child.stdout is not None
    talk.child.stdout.close()
    assert talk.child.wait(10) in (0, 1, 120)


def test_its_own_end_is_quiet(talk: Talk) -> None:
    assert talk.child.stdin is not None
    talk.child.stdin.close()
    assert talk.hear() is None
    assert talk.child.wait(10) == 0
