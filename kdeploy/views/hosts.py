"""What the verbs about hosts have found or done, as people see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kdeploy import render
from kdeploy.api.adopt import Adopted
from kdeploy.api.doctor import Examined
from kdeploy.api.drift import Verified as Compared
from kdeploy.api.hosts import Applied, Planned
from kdeploy.api.service import History, Status, Stopped
from kdeploy.api.unlock import Unlocked
from kdeploy.plan import Facts
from kdeploy.render import when
from kdeploy.verdict.judge import Verdict


def show_plan(planned: Planned) -> None:
    """The release, its patches with files and line counts, and the steps on each host."""
    release = planned.release
    render.lines(
        [
            f"release {release.id}  {release.service}  {release.version}",
            f"engine  {release.engine}",
            f"serves  {release.launch.front.url(release.launch.port)}/v1",
        ]
    )
    for one in planned.report.patches:
        for change in one.changes:
            render.lines([f"patch   {one.ref} {one.name}  {change.path} +{change.added} -{change.removed}"])
    for host, steps in planned.plans.items():
        if not steps.steps:
            render.lines([f"{host}: nothing to do: {steps.reason}"])
            continue
        render.lines([f"{host}: {steps.reason}", *(f"  differs: {line}" for line in planned.changes[host])])
        if tried := planned.tried[host]:
            render.lines([f"  tried before: it {_short(tried, 160)}"])
        render.lines(f"  {number}. {step.kind:9} {step.text}" for number, step in enumerate(steps.steps, 1))
        for finding in planned.refused.get(host, ()):
            fix = f" -> {finding.hint}" if finding.hint else ""
            render.lines([f"  apply would stop here: {finding.check}: {finding.detail}{fix}"])
    if planned.diff is not None:
        render.lines(["", *planned.diff.split("\n")])


def show_examined(examined: Sequence[Examined]) -> None:
    """One line a finding: how it is, what was seen, and what mends it."""
    for one in examined:
        rows = []
        for finding in one.findings:
            state = "NOT ok" if not finding.ok else "warn" if finding.warn else "ok"
            rows.append((finding.check, state, f"{finding.detail}{f' -> {finding.hint}' if finding.hint else ''}"))
        render.table(rows, head=(one.host, "", ""))


def show_applied(applied: Applied) -> None:
    """What is live now, host by host."""
    for outcome in applied.outcomes:
        if outcome.verdict is None:  # nothing was started
            render.lines([f"{outcome.host}: {'' if outcome.changed else 'nothing to do: '}{outcome.reason}"])
            continue
        render.lines(
            [
                f"{outcome.host}: {outcome.release} is live and known-good after {outcome.seconds:.1f} s",
                f"  version   {applied.release.version}",
                f"  patches   {', '.join(one['ref'] for one in applied.release.patchsets) or 'none'}",
                f"  gate      {_checks(outcome.verdict)}",
                f"  clients   {outcome.clients}{_out(outcome.out_s)}",
                *([f"  page      {applied.pages[outcome.host]}"] if outcome.host in applied.pages else []),
            ]
        )


def _out(seconds: float | None) -> str:
    return "" if seconds is None else f", without answers for {seconds:.1f} s"


def _checks(verdict: Verdict) -> str:
    """How many checks passed; of one alone, what it was: an adopted release is only asked what it was asked before."""
    if len(verdict.checks) == 1:
        return f"{verdict.checks[0].name}: {verdict.checks[0].detail}"
    return f"{len(verdict.checks)} checks passed"


def show_status(found: Sequence[Status]) -> None:
    """One block a host: what is live, since when, and what to do."""
    for one in found:
        known = one.facts
        live = one.release or {}
        good = "known-good" if known.current and known.current == known.known_good else "not confirmed"
        render.lines([f"{one.host}  {one.service}  {one.root}/{one.service}"])
        if known.current:
            patches = ", ".join(each["ref"] for each in live.get("patchsets", ())) or "none"
            came = [live.get("profile"), live.get("engine"), "adopted" if live.get("adopted") else None]
            render.lines(
                [
                    f"  live       {known.current} ({good})  {live.get('version') or ''}".rstrip(),
                    *([] if live.get("adopted") else [f"  patches    {patches}"]),
                    f"  profile    {', '.join(filter(None, came)) or '?'}",
                    f"  clients    {one.clients or '?'}",
                ]
            )
        render.lines([f"  server     {_unit(known, 'server')}", f"  front      {_front(known, live)}"])
        back = known.ways_back
        none = "none but itself: a change that fails goes back to it" if known.known_good else "none yet"
        render.lines([f"  way back   {', '.join(back) or none}"])
        if known.transaction and known.transaction.state != "CONFIRMED":
            last = known.transaction
            render.lines([f"  last       {last.goal} of {last.release}: {last.state} {_short(last.reason)}".rstrip()])
        if one.advice:
            render.lines([f"  to do      {one.advice}"])


def _unit(known: Facts, name: Literal["server", "front"]) -> str:
    """What server or front does, or why it does not run."""
    unit = known.server if name == "server" else known.front
    if not unit.alive:
        if known.starting:
            return f"starting: {known.starting}"
        if known.stopped:
            return f"stopped by {known.stopped.get('by') or 'somebody'} at {when(known.stopped.get('at'))}"
        return "not running; nobody stopped it: it crashed, or the host went down" if known.current else "not running"
    again = f", started again {unit.restarts}x" if unit.restarts else ""
    answer = known.answers.get(name)
    if answer is None:
        says = ""
    elif answer["ok"]:
        says = ", answers"
    else:
        says = f", starting: {known.starting}" if known.starting else f", does NOT answer: {answer['detail']}"
    return f"{unit.release}, pid {unit.pid} since {when(unit.since)}{again}{says}"


def _front(known: Facts, live: Mapping[str, Any]) -> str:
    kind = ((live.get("launch") or {}).get("front") or {}).get("kind")
    return "none" if kind == "none" and not known.front.alive else _unit(known, "front")


def show_stopped(found: Sequence[Stopped]) -> None:
    """One line a host: what was stopped there."""
    render.lines(f"{one.service} on {one.host}: {'stopped' if one.ran else 'was stopped already'}" for one in found)


def show_adopted(found: Sequence[Adopted]) -> None:
    """What was written down of each host's server, and what that does not cover."""
    for one in found:
        about, launch = one.release["adopted"], one.release["launch"]
        kept = f"{about['keeper']} {about['name']}".strip()
        render.lines(
            [
                f"{one.host}: {one.release['id']} is the way back now",
                f"  serves    port {launch['port']}, {one.release['version'] or 'version unknown'}, kept by {kept}",
                f"  runs      as {about['user']} in {about['cwd']}, {len(about['variables'])} variables kept",
                f"  package   {about['package'] or 'unknown: its files are not watched'}",
                *(f"  note      {note}" for note in one.notes),
            ]
        )


def show_unlocked(found: Sequence[Unlocked]) -> None:
    """Whose change was ended on each host, and where that left it."""
    for one in found:
        if one.held is None and not one.healed:
            render.lines([f"{one.host}: nobody is changing {one.service}; there is nothing to do"])
            continue
        who = f"{one.held.get('verb') or 'a change'} of {one.held.get('by') or 'somebody'}" if one.held else "a change"
        left = f"the change ended {one.state}" if one.state else "nothing was left half-done"
        render.lines([f"{one.host}: {who} was ended ({len(one.ended)} processes); {left}"])


def show_drift(found: Sequence[Compared]) -> None:
    """One line a drift: what, expected, found, and what puts it right."""
    for one in found:
        head = f"{one.host}  {one.service}  {one.release or 'nothing is live'}"
        if not one.drifts:
            how = "stopped on purpose, and else as declared" if one.stopped else "as declared"
            render.lines([f"{head}: {how} ({one.checked} things compared)"])
        else:
            count = f"{len(one.drifts)} {'thing is' if len(one.drifts) == 1 else 'things are'} not as declared"
            render.lines([f"{head}: {count} ({one.checked} compared)"])
        for drift in one.drifts:
            said = f"expected {drift.expected}, found {drift.found}"
            if drift.what == "release":
                said = f"the profile declares {drift.expected}; live is {drift.found}"
            differs = f"; differs: {', '.join(drift.differs)}" if drift.differs else ""
            render.lines([f"  {' '.join(f'{drift.what}: {said}{differs}; fix: {drift.fix}'.split())}"])
        render.lines(f"  note: {note}" for note in one.notes)


def _short(reason: str, most: int = 100) -> str:
    """The first line of a reason; all of it is in --json and in the evidence."""
    first, _, rest = reason.partition("\n")
    return f"{first[:most]}…" if rest or len(first) > most else first


def show_history(found: Sequence[History]) -> None:
    """One line a change, newest first."""
    for history in found:
        rows = [
            [
                history.host,
                when(one["started"]),
                one["goal"],
                one["release"] or "-",
                one["state"],
                one["by"],
                "" if one.get("out_s") is None else f"{one['out_s']:.1f}",
                _short(one["reason"]),
            ]
            for one in history.transactions
        ]
        render.table(rows, head=("host", "when", "goal", "release", "ended", "by", "out s", "reason"))
