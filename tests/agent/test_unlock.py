"""Who is changing a host is said, and ended when somebody means it; what serves is left alone."""

from __future__ import annotations

import json
import os
import signal

from kdeploy_agent.change import unlocking
from kdeploy_agent.ground import locking

from .conftest import Rig, processes


def test_nothing_to_do(rig: Rig) -> None:
    assert rig.agent("unlock", {"by": "me"}).ok["held"] is None
    release = rig.apply("one")
    told = rig.agent("unlock", {"by": "me", "yes": True}).ok
    assert (told["held"], told["ended"], told["healed"]) == (None, [], False)
    rig.serves(release)


def test_a_change_is_named_and_ended(rig: Rig) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"), decide_s=600)
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    refused = rig.agent("unlock", {"by": "me"}).error
    assert refused is not None and refused["kind"] == "locked"
    assert "tester@here is changing this service: apply since" in refused["message"]
    assert "--yes" in refused["hint"]
    assert f"transaction {order['txn']}: apply of {order['release']['id']}, PROBED" in refused["details"][0]
    assert "goes back by itself at" in refused["details"][1]
    assert rig.facts()["lock"]["txn"] == order["txn"]  # asking ended nothing
    servers = rig.units.members("server")
    told = rig.agent("unlock", {"by": "me", "yes": True}).ok
    assert told["held"]["by"] == "tester@here" and len(told["ended"]) == 2
    assert not set(told["ended"]) & servers
    assert told["healed"] and told["state"] == "ROLLED_BACK"
    assert told["reason"] == "ended by unlock of me at PROBED (done)"
    rig.serves(before)
    rig.serves(rig.apply("two"))


def test_a_damaged_lock_file_is_no_obstacle(rig: Rig) -> None:
    """The lock is the kernel's; the file only says whose it is."""
    before = rig.apply("one")
    assert rig.receive("two").ok
    assert rig.agent("begin", rig.order(rig.release("two"), decide_s=600)).ok["state"] == "PROBED"
    rig.layout.lock.write_bytes(b"\xff\x00 no JSON")
    refused = rig.agent("unlock", {"by": "me"}).error
    assert refused is not None and "somebody is changing this service" in refused["message"]
    assert rig.agent("unlock", {"by": "me", "yes": True}).ok["state"] == "ROLLED_BACK"
    rig.serves(before)
    rig.layout.lock.write_text(json.dumps({"pid": os.getpid(), "by": "nobody holds it"}))
    assert rig.agent("unlock", {"by": "me", "yes": True}).ok["held"] is None


def test_a_change_whose_processes_are_gone(rig: Rig) -> None:
    before = rig.apply("one")
    assert rig.receive("two").ok
    rig.launch(rig.order(rig.release("two"), decide_s=600))
    rig.wait_for("PROBED:done")
    for pid in unlocking.holders(rig.layout):
        os.kill(pid, signal.SIGKILL)
    rig.wait_until_abandoned()
    refused = rig.agent("unlock", {"by": "me"}).error
    assert refused is not None and refused["kind"] == "locked" and "was cut off at PROBED" in refused["message"]
    told = rig.agent("unlock", {"by": "me", "yes": True}).ok
    assert told["held"] is None and told["healed"] and told["state"] == "ROLLED_BACK"
    rig.serves(before)


def test_only_who_holds_the_lock_is_found(rig: Rig) -> None:
    assert unlocking.holders(rig.layout) == []
    lock = locking.take(rig.layout.lock, "we", "hold")
    looking = os.open(str(rig.layout.lock), os.O_RDWR)  # as one who waits for it
    child = os.fork()
    if child == 0:
        os.close(lock.handle)
        signal.pause()
        os._exit(0)
    try:
        assert unlocking.holders(rig.layout) == []  # ourselves excluded; the child only has it open
        assert processes.identity(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(looking)
        lock.release()


def test_removing_the_lock_frees_nothing(rig: Rig) -> None:
    """It let a second change heal the first one away, which was well and watched."""
    before = rig.apply("one")
    assert rig.receive("two").ok
    order = rig.order(rig.release("two"), soak_s=600)
    rig.launch(order, accept=True)
    rig.wait_for("OPEN:done")
    held = rig.facts()["lock"]
    rig.layout.lock.unlink()
    assert rig.facts()["lock"] == held and held["txn"] == order["txn"]
    for number in range(2):  # the first one has made a file
        refused = rig.agent("begin", rig.order(rig.release("two", MORE=str(number)))).error
        assert refused is not None and refused["kind"] == "locked" and "tester@here" in refused["message"]
    assert rig.agent("recover").ok["healed"] is False
    assert rig.journal()[-1] == "OPEN:done"
    told = rig.agent("unlock", {"by": "me", "yes": True}).ok
    assert told["ended"] and told["state"] == "ROLLED_BACK"
    rig.serves(before)
    rig.apply("two")
