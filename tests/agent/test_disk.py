"""A disk that is full: what that means depends on the verb, and the way back has room of its own."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from kdeploy_agent import __main__ as door


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        ("receive", "preflight"),
        ("precheck", "preflight"),
        ("begin", "fault"),
        ("decide", "fault"),
        ("recover", "fault"),
    ],
)
def test_a_full_disk_is_a_preflight_only_before_anything_is_stopped(verb: str, kind: str) -> None:
    assert door._explain(OSError(errno.ENOSPC, "No space left on device"), verb)["kind"] == kind


def test_the_way_back_begins_with_making_room(rig: Any) -> None:
    before = rig.apply("one")
    assert rig.layout.reserve.stat().st_blocks * 512 >= 8 * 1024 * 1024
    assert rig.receive("two").ok
    rig.launch(rig.order(rig.release("two")), False, KDEPLOY_CRASH_AT="ROLLING_BACK:intent", KDEPLOY_CRASH_GUARDIAN="1")
    rig.wait_until_abandoned()
    assert rig.journal()[-1] == "ROLLING_BACK:intent" and not rig.layout.reserve.exists()
    assert rig.agent("recover").ok["state"] == "ROLLED_BACK"
    rig.serves(before)


@pytest.mark.parametrize(
    ("verb", "kind"), [("begin", "preflight"), ("stop", "preflight"), ("receive", "preflight"), ("decide", "fault")]
)
def test_a_disk_that_cannot_be_written_is_said_in_a_sentence(verb: str, kind: str) -> None:
    told = door._explain(OSError(errno.EROFS, "Read-only file system", "/opt/kdeploy/x/lock"), verb)
    assert told["kind"] == kind and "/opt/kdeploy/x/lock" in told["message"] and "Traceback" not in told["hint"]
