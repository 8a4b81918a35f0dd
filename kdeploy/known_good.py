"""The way back: which release a host can go to, what that release is, and the steps there."""

from __future__ import annotations

from typing import Any

from kdeploy import plan as planning
from kdeploy import release as releases
from kdeploy.errors import NoKnownGoodError, RemoteError
from kdeploy.host import Host
from kdeploy.plan import Facts, Plan
from kdeploy.release import Release


def choose(known: Facts, to: str | None, host: Host) -> str:
    """The release a rollback goes to: the first of the `ways_back`, or the one `to` names (a prefix will do).

    Raises NoKnownGoodError when there is none.
    """
    if to is None:
        if known.ways_back:
            return known.ways_back[0]
        left = [release for release in known.known_goods if release in known.left]
        but = f"the live one and {', '.join(left)}, which was rolled back from" if left else "the live one"
        raise NoKnownGoodError(
            f"{host.name}: there is no known-good release of {host.service} but {but}",
            hint=f"`kdeploy rollback --to {left[0]}` goes there all the same"
            if left
            else "`kdeploy history` shows what was tried",
        )
    fitting = [release for release in known.known_goods if release.startswith(to)]
    if len(fitting) != 1:
        what = "more than one known-good release starts" if fitting else "no known-good release starts"
        raise NoKnownGoodError(
            f"{host.name}: {what} with '{to}'",
            hint=f"known-good here: {', '.join(known.known_goods) or 'none'}",
        )
    return fitting[0]


def live(known: Facts, host: Host) -> str:
    """The live release, to be started again; raises NoKnownGoodError when it was never confirmed."""
    if known.current is None or known.current not in known.known_goods:
        raise NoKnownGoodError(f"{host.name}: there is nothing proven to be started", hint="kdeploy apply PROFILE")
    return known.current


def release_on(host: Host, release_id: str, known: Facts | None = None) -> tuple[Release, Any]:
    """The release `release_id` as the host has it, and the plan it was confirmed with.

    The host is not asked when `known` brought it. Raises RemoteError when its document is not the one that its id was
    made from.
    """
    result = (known.documents.get(release_id) if known else None) or host.call("evidence", {"release": release_id})
    try:
        found = releases.read(result["release"])
    except (KeyError, TypeError) as fault:
        raise RemoteError(f"{host.name}: {release_id} has no readable release.json there: {fault}") from fault
    if releases.identify(found) != release_id:
        raise RemoteError(
            f"{host.name}: release.json of {release_id} was changed after it was confirmed",
            hint="apply its profile again",
        )
    return found, result.get("plan")


def plan_back(known: Facts, release: Release) -> Plan:
    """The plan back to `release`: as forward without a push, since the host mends a damaged tree from its own store."""
    made = planning.make(known, release)
    return Plan(made.release, tuple(step for step in made.steps if step.kind != "push"), made.reason)
