"""What serves may freeze or be edited while nobody deploys: facts say so, and a supervisor starts nothing edited."""

from __future__ import annotations

import os
import signal
from typing import Any


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
