"""The gate against broken engines: the real SGLang server, broken one way at a time, and what the gate says to each.

A fault is a file in tests/faults: what is changed, and which checks must say no. Some of them say why, and some of the
faults show nowhere else, which is asked for as well. Changes that break nothing must pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kdeploy.verdict.judge import CHECKS
from tests.faults.fault import Fault, all_faults
from tests.faults.rig import Rig, shown

FAULTS = [fault for fault in all_faults() if not fault.benign]
BENIGN = [fault for fault in all_faults() if fault.benign]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("rig"))
    yield made
    made.close()


def _must_pass(rig: Rig, profile: str) -> None:
    """All benign changes at once on the server of a profile; what it shows is known-good from then on."""
    if profile not in rig.bases:
        (told,) = rig.ask(profile, [rig.with_set(fault) for fault in BENIGN])
        assert told.verdict.accepted, shown(told.verdict)
        assert told.seconds < 60


def test_each_kind_of_fault_is_there_and_names_checks_that_exist() -> None:
    assert len(FAULTS) >= 18
    assert len(BENIGN) >= 4
    for fault in FAULTS:
        assert fault.says_no <= set(CHECKS), fault.name


@pytest.mark.server
@pytest.mark.parametrize("profile", ["local", "local-dflash"])
def test_what_breaks_nothing_passes(rig: Rig, profile: str) -> None:
    _must_pass(rig, profile)


@pytest.mark.server
@pytest.mark.parametrize("fault", sorted(FAULTS, key=lambda one: one.profile), ids=lambda one: one.name)
def test_what_is_broken_is_rejected_for_the_right_reason(rig: Rig, fault: Fault) -> None:
    _must_pass(rig, fault.profile)
    (told,) = rig.ask(fault.profile, [rig.with_set(fault)])
    print(f"{told.seconds:.1f} s\n{shown(told.verdict)}")
    failed = {check.name: check for check in told.verdict.failed}
    assert fault.says_no <= set(failed), f"said no: {shown(told.verdict)}"
    if fault.only:
        assert set(failed) == fault.says_no, shown(told.verdict)
    texts = [text for name in fault.says_no for text in (failed[name].detail, *failed[name].evidence)]
    assert any(re.search(fault.says, text) for text in texts), texts
    assert told.healthy == fault.health, "faults behind a green /health are what this is about"
