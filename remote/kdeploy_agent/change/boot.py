"""After a reboot: the host serves again what was proven, never what was only tried, and nothing when it was stopped."""

from __future__ import annotations

import time

from kdeploy_agent.change import runner, way_back
from kdeploy_agent.change.switch import Switch
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, locking, secrets
from kdeploy_agent.ground.journal import Journal
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping.keeper import of as keeper_of
from kdeploy_agent.trees import serving, store

TRIES, PAUSE_S = 3, 5.0  # a disk, a network or a driver may come later than we


def boot(layout: Layout) -> int:
    """Command `boot`, of the unit that is enabled: heal an open transaction, else serve what `current` says.

    Gives an exit status: 0 when it serves, or is to stay stopped. What it does is in the journal, and told on stdout.
    """
    secrets.hide(layout)
    with locking.wait_for(layout.lock) as lock:
        lock.name("the host itself", "boot")
        journal = Journal(layout.journal)
        healed = runner.heal(layout)
        if healed is not None:
            _say(f"transaction {healed.txn} was cut off; it is {healed.state} now")
        if journal.stopped():
            _say("the service was stopped before; it stays stopped")
            return 0
        # Without a journal nothing says how far a change came: only what was confirmed is proven.
        live = layout.live() if layout.journal.exists() else None
        wanted = way_back.releases(layout, {"id": ""}, live, layout.good())
        if not wanted:
            _say("nothing was serving before")
        for release in wanted:
            if release != wanted[0]:
                _say(f"{release}, which was confirmed here before, is served instead")
            for number in range(TRIES):
                time.sleep(PAUSE_S if number else 0)
                if _serve(layout, journal, release):
                    return 0
        if len(wanted) > 1:  # the next boot begins with what served last
            files.point(layout.current, layout.release(wanted[0]))
        return 1 if wanted else 0


def _serve(layout: Layout, journal: Journal, release: str) -> bool:
    keeper = keeper_of(layout)
    switch = Switch(layout, keeper, _say)
    try:
        document = serving.read_release(layout, release)
        if switch.serves(document):
            _say(f"{release} serves")
            return True
        journal.append(verb="boot", release=release, phase="intent")
        store.ensure(layout, document, _say)
        switch.close()
        files.point(layout.current, layout.release(release))
        switch.serve(document)
    except Exception as fault:  # whatever it is, there may be another release
        if keeper.going_down():
            raise  # it goes on when the host is back
        reason = secrets.mask(layout, way_back.reason(fault))
        journal.append(verb="boot", release=release, phase="failed", reason=reason)
        _say(f"{release} does not serve: {reason}")
        _close(switch)
        return False
    journal.append(verb="boot", release=release, phase="done")
    _say(f"{release} serves again")
    return True


def _close(switch: Switch) -> None:
    """What did not pass is not left half open."""
    try:
        switch.shut()
    except AgentError as fault:
        _say(fault.message)


def _say(text: str) -> None:
    print(f"kdeploy: {text}", flush=True)
