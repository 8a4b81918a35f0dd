"""The gate against broken engines: the real SGLang server, broken one way at a time, and what the gate says to each.

A fault is a file in tests/faults: what is changed, and which checks must say no. Faults that show in one check and
nowhere else share a server with others of that kind, each with a check of its own: the gate must name them all and
nothing besides. Changes that break nothing must pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kdeploy.verdict.judge import CHECKS
from tests.faults.fault import Fault, all_faults
from tests.faults.rig import Rig, Told, shown

FAULTS = sorted((fault for fault in all_faults() if not fault.benign), key=lambda one: one.profile)
BENIGN = [fault for fault in all_faults() if fault.benign]


def shared(faults: list[Fault]) -> list[list[Fault]]:
    """The faults by the server they are tried on."""
    servers: list[list[Fault]] = []
    for fault in faults:
        for others in servers:
            alike = all(one.only and one.profile == fault.profile for one in (*others, fault))
            if alike and not any(one.says_no & fault.says_no for one in others):
                others.append(fault)
                break
        else:
            servers.append([fault])
    return servers


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("rig"))
    yield made
    made.close()


def must_pass(rig: Rig, profile: str) -> None:
    """All benign changes at once on the server of a profile; what it shows is known-good from then on."""
    if profile not in rig.bases:
        (told,) = rig.ask(profile, [rig.with_set(fault) for fault in BENIGN])
        assert told.verdict.accepted, shown(told.verdict)
        assert told.healthy


def must_say_no(fault: Fault, told: Told) -> None:
    """Every check that is named says no, one of them for the reason that is named, and /health is as it is told."""
    failed = {check.name: check for check in told.verdict.failed}
    assert fault.says_no <= set(failed), f"{fault.name}, where it says no:\n{shown(told.verdict)}"
    texts = [text for name in fault.says_no for text in (failed[name].detail, *failed[name].evidence)]
    assert any(re.search(fault.says, text) for text in texts), (fault.name, texts)
    assert told.healthy == fault.health, "faults behind a green /health are what this is about"


def test_there_are_faults_enough_and_they_name_checks_that_exist() -> None:
    assert len(FAULTS) >= 18
    assert len(BENIGN) >= 4
    for fault in FAULTS:
        assert fault.says_no <= set(CHECKS), fault.name
    assert sorted(one.name for faults in shared(FAULTS) for one in faults) == sorted(one.name for one in FAULTS)


@pytest.mark.server
@pytest.mark.parametrize("profile", ["local", "local-dflash"])
def test_what_breaks_nothing_passes(rig: Rig, profile: str) -> None:
    must_pass(rig, profile)


@pytest.mark.server
@pytest.mark.parametrize("faults", shared(FAULTS), ids=lambda faults: "+".join(one.name for one in faults))
def test_what_is_broken_is_rejected_for_the_right_reason(rig: Rig, faults: list[Fault]) -> None:
    must_pass(rig, faults[0].profile)
    (told,) = rig.ask(faults[0].profile, [rig.with_set(fault) for fault in faults])
    print(f"{told.seconds:.1f} s\n{shown(told.verdict)}")
    for fault in faults:
        must_say_no(fault, told)
    if faults[0].only:  # a machine may be busy for a while: how fast it is tells nothing of these
        expected = {name for fault in faults for name in fault.says_no}
        assert {check.name for check in told.verdict.failed} - {"speed"} == expected - {"speed"}, shown(told.verdict)
