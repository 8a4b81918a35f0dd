"""After a reboot: the host serves again what was proven, never what was only tried, and nothing when it was stopped."""

from __future__ import annotations

import sys
import time

from kdeploy_agent import files, locking, runner, secrets, serving, store, units
from kdeploy_agent.errors import AgentError
from kdeploy_agent.journal import Journal
from kdeploy_agent.layout import Layout
from kdeploy_agent.switch import Failed, Switch


def boot(layout: Layout) -> int:
    """Command `boot`, of the unit that is enabled: heal an open transaction, else serve what `current` says.

    Gives an exit status: 0 when it serves, or is to stay stopped. What it does is in the journal, and told on stdout.
    """
    with locking.wait_for(layout.lock) as lock:
        lock.name("the host itself", "boot")
        journal = Journal(layout.journal)
        healed = runner.heal(layout)
        if healed is not None:
            _say(f"transaction {healed.txn} was cut off; it is {healed.state} now")
            if healed.state == "NEEDS_OPERATOR":
                _say(healed.reason)
                return 1
        if journal.stopped():
            _say("the service was stopped before; it stays stopped")
            return 0
        release = layout.live() or layout.good()
        if release is None:
            _say("nothing was serving before")
            return 0
        return _serve(layout, journal, release)


def _serve(layout: Layout, journal: Journal, release: str) -> int:
    keeper = units.of(layout)
    switch = Switch(layout, keeper, _say)
    try:
        document = serving.read_release(layout, release)
        if switch.serves(document):
            _say(f"{release} serves")
            return 0
        journal.append(verb="boot", release=release, phase="intent")
        store.ensure(layout, document, _say)
        switch.close()
        files.point(layout.current, layout.release(release))
        switch.serve(document)
    except (AgentError, Failed, OSError) as fault:
        if keeper.going_down():
            return 1
        reason = secrets.mask(layout, fault.message if isinstance(fault, AgentError) else str(fault))
        journal.append(verb="boot", release=release, phase="failed", reason=reason)
        _say(f"{release} does not serve: {reason}")
        _close(switch)
        return 1
    journal.append(verb="boot", release=release, phase="done")
    _say(f"{release} serves again")
    return 0


def _close(switch: Switch) -> None:
    """What did not pass is not left half open."""
    try:
        switch.close()
    except AgentError as fault:
        _say(fault.message)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} kdeploy: {text}", flush=True)
    sys.stdout.flush()
