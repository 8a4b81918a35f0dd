"""The verbs that change what is served: they start a transaction or answer it, and otherwise only watch.

Cutting a watching connection changes nothing on the host.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from kdeploy_agent.asking.logs import mask
from kdeploy_agent.change import runner, way_back
from kdeploy_agent.change.switch import POLL_S, Switch
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, locking, secrets
from kdeploy_agent.ground.follow import Follow
from kdeploy_agent.ground.journal import DONE, Journal, Transaction
from kdeploy_agent.ground.journal import parse as parse_line
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.order import Order
from kdeploy_agent.ground.protocol import Call, listening
from kdeploy_agent.keeping import adopted
from kdeploy_agent.keeping.keeper import of as keeper_of
from kdeploy_agent.keeping.units import NAMES, show, tail
from kdeploy_agent.trees import serving

_LOOK_S = 0.1  # between looks at who holds the lock, which is taken for an instant for that
_HEALERS = 2  # that one watcher starts: a third would end like the two before


def begin(call: Call) -> Dict[str, Any]:
    """Verb: start a transaction, or watch one that has begun; returns at PROBED with the transcript, or at its end."""
    layout, order = call.layout, _order(call)
    if _find(layout, order.txn) is None:
        held = locking.holder(layout.lock)
        if held is None or held["txn"] != order.txn:
            _launch(call, order)
    return _watch(call, order.txn, lambda at: at.state == "PROBED" and at.phase == DONE)


def decide(call: Call) -> Dict[str, Any]:
    """Verb: the operator's verdict on a probed candidate, of which the first stands; returns at the end."""
    layout, txn = call.layout, call.text("txn")
    accept = call.request.get("accept")
    if not isinstance(accept, bool):
        raise AgentError("usage", "the request needs 'accept' as true or false")
    at = _find(layout, txn)
    if at is None and (locking.holder(layout.lock) or {}).get("txn") != txn:
        raise AgentError("usage", f"there is no transaction {txn} on this host")
    verdict = {
        "accept": accept,
        "reasons": call.texts("reasons"),
        "evidence": call.mapping("evidence"),
        "txn": txn,
        "at": round(time.time(), 3),
    }
    if at is None or not at.finished:
        files.write_once(layout.transaction(txn) / "decision.json", files.canonical(verdict))
    return _watch(call, txn, lambda _: False)


def recover(call: Call) -> Dict[str, Any]:
    """Verb: have a transaction healed whose processes are gone, and watch; gives where the last transaction stands."""
    healing = runner.launch_healer(call.layout, str(call.request.get("by") or "recover"))
    if healing is not None:
        return {"healed": True, **_watch(call, healing, lambda _: False)}
    last = Journal(call.layout.journal).last()
    return {"healed": False, **(_told(last) if last else {"state": None})}


def stop(call: Call) -> Dict[str, Any]:
    """Verb: stop front and server, and say whether any `ran`; the links stay: the next begin knows what was live.

    A transaction that was cut off is ended first; nothing is started for that.
    """
    by = call.text("by")
    with locking.take(call.layout.lock, by, "stop"):
        runner.end_stopped(call.layout)
        journal, keeper = Journal(call.layout.journal), keeper_of(call.layout)
        ran = any(keeper.status(name).alive or keeper.members(name) for name in NAMES)
        journal.append(verb="stop", by=by, phase="intent")
        Switch(call.layout, keeper, lambda text: call.emit("note", text=text)).shut()
        journal.append(verb="stop", by=by, phase="done")
    return {"stopped": True, "ran": ran}


def survive(call: Call) -> Dict[str, Any]:
    """Verb: see to it that what serves comes back after a reboot, without touching it; `note` says why it will not."""
    with locking.take(call.layout.lock, call.text("by"), "survive"):
        return {"note": way_back.survive(keeper_of(call.layout))}


def logs(call: Call) -> Dict[str, Any]:
    """Verb: the last `lines` of a unit's log (`server`, `front`), or of the last transaction's own (`runner`)."""
    unit, lines = call.text("unit"), int(call.number("lines", 100))
    wanted = listening if call.request.get("follow") else None

    def emit(line: str) -> None:
        call.emit("line", text=mask(line))

    if unit == "runner":
        last = Journal(call.layout.journal).last()
        path = call.layout.transaction(last.txn) / "runner.log" if last else call.layout.transactions / "none"
        return {"path": show(path, lines, emit, wanted), "empty": "no change ended badly: its process said nothing"}
    if unit not in NAMES:
        raise AgentError("usage", f"there is no unit {unit!r}", "units: server, front, runner")
    live = serving.find_release(call.layout, call.layout.live() or "")
    empty = ""
    if live is not None and adopted.is_adopted(live):
        empty = "what an adopted server says goes where it went before: kdeploy sees it once it has started it itself"
    return {"path": keeper_of(call.layout).show(unit, lines, emit, wanted), "empty": empty}


def _order(call: Call) -> Order:
    release = call.mapping("release")
    missing = {"id", "tree", "commit", "manifest", "version", "launch"} - set(release)
    if missing:
        raise AgentError("usage", f"the release lacks {', '.join(sorted(missing))}")
    goal = call.text("goal")
    if goal not in ("apply", "rollback"):
        raise AgentError("usage", f"the goal is apply or rollback, not {goal!r}")
    call.layout.release(release["id"])  # refuses what is no plain name
    serving.check_id(release)
    return Order(
        txn=call.text("txn"),
        by=call.text("by"),
        goal=goal,
        release=release,
        probes=call.mapping("probes"),
        start_s=call.number("start_s"),
        probe_s=call.number("probe_s"),
        decide_s=call.number("decide_s"),
        soak_s=call.number("soak_s"),
    )


def _launch(call: Call, order: Order) -> None:
    layout = call.layout
    files.make_private(layout.home)
    lock = locking.take(layout.lock, order.by, order.goal, order.txn)
    try:
        if order.goal == "rollback" and order.release["id"] not in Journal(layout.journal).confirmed():
            raise AgentError(
                "no-known-good",
                f"release {order.release['id']} was never confirmed on this host",
                "roll back to one of known_goods, or apply it",
            )
        _keep_secrets(call, order)
    except BaseException:
        lock.release()
        raise
    runner.launch(layout, order, lock)


def _keep_secrets(call: Call, order: Order) -> None:
    """Keep the values that came with the request, apart from the order; each that the release needs must be here."""
    needed, sent = secrets.names_of(order.release), call.mapping("secrets")
    if set(sent) - set(needed):
        raise AgentError("usage", f"secrets that the release does not ask for: {', '.join(set(sent) - set(needed))}")
    secrets.replace(call.layout, order.txn, sent)
    try:
        secrets.load(call.layout, needed)
    except AgentError:
        secrets.take_back(call.layout, order.txn)
        raise


def _watch(call: Call, txn: str, enough: Callable[[Transaction], bool]) -> Dict[str, Any]:
    """Stream a transaction's states and notes until `enough`, or its end; has it healed when its processes are gone."""
    layout = call.layout
    states, notes = Follow(layout.journal), Follow(layout.transaction(txn) / "notes.jsonl")
    alone = healers = 0
    at, seen, looks_at = None, -1, 0.0
    while True:
        if not listening():  # what was begun goes on without
            raise BrokenPipeError
        size = _size(layout.journal)
        if size != seen:  # looked up first: whoever sees the end has been told every line up to it
            at, seen = _find(layout, txn), size
        for raw in notes.lines():
            note = parse_line(raw)
            if note and "note" in note:
                call.emit("note", txn=txn, text=note["note"], at=note["at"])
        for raw in states.lines():
            line = parse_line(raw)
            if line and line.get("txn") == txn:
                call.emit("state", **line)
        if at is not None and at.finished and not _still_held(layout, txn):
            return _told(at, layout)
        if at is not None and not at.finished and enough(at):
            return _told(at, layout)
        if time.monotonic() >= looks_at:
            alone = alone + 1 if locking.holder(layout.lock) is None else 0
            looks_at = time.monotonic() + _LOOK_S
        if alone >= 3:
            healers, alone = healers + 1, 0
            if at is None or healers > _HEALERS:
                said = " | ".join(tail(layout.transaction(txn) / "runner.log", 3))
                what = "ended before it began; nothing was stopped" if at is None else "could not be healed"
                raise AgentError("fault", f"transaction {txn} {what}: {said}", "see 'logs' of unit runner")
            runner.launch_healer(layout, "the watching operator")
        time.sleep(POLL_S)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _still_held(layout: Layout, txn: str) -> bool:
    """Whether the runner of a finished transaction still tidies up: who comes next would find the host locked."""
    held = locking.holder(layout.lock)
    return held is not None and held["txn"] == txn


def _find(layout: Layout, txn: str) -> Optional[Transaction]:
    return Journal(layout.journal).transactions().get(txn)


def _told(at: Transaction, layout: Optional[Layout] = None) -> Dict[str, Any]:
    shown = ("txn", "state", "release", "previous", "reason", "note", "out_s")
    told: Dict[str, Any] = {key: getattr(at, key) for key in shown}
    if layout is not None and at.state == "PROBED":
        told["transcript"] = files.read_json(layout.evidence(at.release) / "transcript.json")
        told["until"] = at.until
    return told
