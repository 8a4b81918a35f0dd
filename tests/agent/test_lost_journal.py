"""A host whose journal was removed: what was confirmed comes back after a reboot, and verify says what is missing."""

from __future__ import annotations

import subprocess
import sys

from kdeploy_agent.keeping import unit_files

from .conftest import Rig, environment


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
