"""What serves may freeze or be edited while nobody deploys: facts say so, and nothing edited is started."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any

from .test_units import wait


def test_facts_say_whether_what_runs_answers(rig: Any) -> None:
    assert rig.facts(rehash="0" * 40)["answers"] is None
    release = rig.apply("one")
    assert rig.facts()["answers"] is None
    told = rig.facts(rehash=release["tree"])
    assert told["answers"]["server"]["ok"] and told["answers"]["front"]["ok"], told
    os.kill(told["units"]["server"]["pid"], signal.SIGSTOP)
    frozen = rig.facts(rehash=release["tree"])
    assert frozen["units"]["server"]["alive"]
    assert not frozen["answers"]["server"]["ok"] and "hang" in frozen["answers"]["server"]["detail"]
    os.kill(told["units"]["server"]["pid"], signal.SIGCONT)
    os.kill(told["units"]["front"]["pid"], signal.SIGSTOP)
    frozen = rig.facts(rehash=release["tree"])
    assert frozen["answers"]["server"]["ok"] and not frozen["answers"]["front"]["ok"]


def test_a_service_without_a_front_has_no_answer_of_one(rig: Any) -> None:
    release = rig.apply("one", "none")
    assert rig.facts(rehash=release["tree"])["answers"]["front"] is None


def edit(rig: Any, release: dict[str, Any]) -> None:
    """Change a file of a placed tree, as somebody with an editor and too many rights does."""
    module = rig.layout.tree(release["tree"]) / "sglang" / "patched.py"
    module.parent.chmod(0o755)
    module.chmod(0o644)
    module.write_text("PATCH = 'edited'\n")


def test_an_edited_tree_is_placed_anew_before_a_restart(rig: Any) -> None:
    release = rig.apply("one")
    edit(rig, release)
    pid = rig.facts()["units"]["server"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait(lambda: rig.units.status("server").alive and rig.units.status("server").pid != pid)
    assert rig.facts(rehash=release["tree"])["rehash"]["ok"]
    log = rig.units.path("server", "log").read_text()
    assert "is as declared again" in log and "sglang/patched.py: differs" in log
    wait(lambda: rig.answers(rig.private))
    rig.serves(release)


def test_an_edited_tree_that_cannot_be_placed_anew_is_not_restarted(rig: Any) -> None:
    release = rig.apply("one")
    edit(rig, release)
    shutil.rmtree(rig.layout.store)
    os.kill(rig.units.status("server").pid, signal.SIGKILL)
    wait(lambda: "not restarted" in rig.units.status("server").note)
    assert "sglang/patched.py: differs" in rig.units.status("server").note
    assert not rig.units.status("server").alive


def test_what_an_edited_tree_compiled_goes_with_it(rig: Any) -> None:
    release = rig.apply("one")
    edit(rig, release)
    stale = rig.layout.cache(release["tree"]) / "pycache" / "patched.pyc"
    stale.parent.mkdir(parents=True, exist_ok=True)
    stale.write_bytes(b"of the edited file")
    assert rig.receive("one").ok
    assert not stale.exists()
    assert rig.facts(rehash=release["tree"])["rehash"]["ok"]
