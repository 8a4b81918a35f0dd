"""What is gone back to when a change is undone, and whether that could be done: looked at before anything stops."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from kdeploy_agent.change.switch import Failed
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import secrets
from kdeploy_agent.ground.journal import Journal
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import adopted
from kdeploy_agent.keeping.units import Units
from kdeploy_agent.trees import serving, store


def releases(layout: Layout, applied: Dict[str, Any], *before: Optional[str]) -> List[str]:
    """What may be gone back to from `applied`, the first that serves: `before`, then the newest other confirmed one.

    That one is better than none when the first are damaged. Nothing, when there was nothing before.
    """
    first = list(dict.fromkeys(one for one in before if one))
    known = (one for one in Journal(layout.journal).confirmed() if one not in first and one != applied["id"])
    others = (one for one in known if serving.find_release(layout, one) is not None)
    return first + [one for one in others if first][:1]


def check(layout: Layout, units: Units, applied: Dict[str, Any], note: Callable[[str], None]) -> None:
    """Raise `preflight` when something serves that could not be gone back to, nor anything else; tell what is not.

    A tree that is not what was declared is placed anew meanwhile.
    """
    for link in (layout.current, layout.known_good):
        if link.exists() and not link.is_symlink():
            hint = f"move it away: mv {link} {link}.aside"
            raise AgentError("preflight", f"{link} is to be a link to a release, and is something else", hint)
    if Journal(layout.journal).stopped():
        return
    problems: List[str] = []
    for release in releases(layout, applied, layout.live(), layout.good()):
        try:
            _check_startable(layout, release, applied, note)
        except (AgentError, OSError) as fault:
            problems.append(f"{release}: {reason(fault)}")
            continue
        for problem in problems:
            note(f"could not be gone back to: {problem}; {release} could")
        return
    if problems and units.status("server").alive:
        hint = "apply its profile again, which mends it; or `kdeploy stop` first: then nothing is gone back to"
        raise AgentError("preflight", f"what serves now could not be gone back to: {'; '.join(problems)}", hint)


def _check_startable(layout: Layout, release: str, applied: Dict[str, Any], note: Callable[[str], None]) -> None:
    """Raise when a release that was confirmed here could not be started again."""
    document = serving.read_release(layout, release)
    if adopted.is_adopted(document):
        adopted.recorded(layout, document)
        return
    if document["tree"] != applied["tree"]:  # which has just been compared
        store.ensure(layout, document, note)
    python = serving.python_of(layout, document)
    if not python.exists():
        raise AgentError("runtime", f"its runtime has no {python}")
    secrets.load(layout, secrets.names_of(document))


def survive(units: Units) -> str:
    """Have the service come back after a reboot; gives why it will not. Such a host serves all the same."""
    try:
        return units.survive()
    except (OSError, AgentError) as fault:
        return f"the service will not come back by itself after a reboot: {reason(fault)}"


def reason(fault: Exception) -> str:
    """What went wrong, as people read it."""
    if isinstance(fault, Failed):
        return str(fault)
    if isinstance(fault, AgentError):
        return f"{fault.message} ({fault.hint})" if fault.hint else fault.message
    return f"{type(fault).__name__}: {fault}"
