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
    """The release a rollback goes to: the newest known-good that is not live, or the one `to` names (a prefix will do).

    Raises NoKnownGoodError when there is none.
    """
    others = [release for release in known.known_goods if release != known.current]
    if to is None:
        if not others:
            raise NoKnownGoodError(
                f"{host.name}: there is no known-good release of {host.service} but the live one",
                hint="`kdeploy history` shows what was tried",
            )
        return others[0]
    fitting = [release for release in known.known_goods if release.startswith(to)]
    if len(fitting) != 1:
        what = "more than one known-good release starts" if fitting else "no known-good release starts"
        raise NoKnownGoodError(
            f"{host.name}: {what} with '{to}'",
            hint=f"known-good here: {', '.join(known.known_goods) or 'none'}",
        )
    return fitting[0]


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
