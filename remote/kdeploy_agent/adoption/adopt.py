"""`adopt`: what a host was found serving becomes its release zero, so that there is a way back before the first apply.

Stops nothing and changes nothing about the server: it is looked at, asked a few questions, and written down.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

from kdeploy_agent.adoption.found import Found, another_user
from kdeploy_agent.asking.answers import generate, read_answers
from kdeploy_agent.asking.client import request
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, locking, processes, systemctl
from kdeploy_agent.ground.journal import DONE, INTENT, Journal
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.order import Order
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted, ancestry
from kdeploy_agent.keeping.units import MARK, name_holders

_ANSWERS_WITHIN_S = 60.0


def adopt(call: Call) -> Dict[str, Any]:
    """Verb: record the server that runs now as a release that can be gone back to; gives its document, and `notes`.

    It is the one that listens on one of `ports` (the profile's, the public one first), else what `pid`, `unit` (of
    systemd, or a container) or `port` names. Raises `preflight` when there is none, or it is another user's.
    """
    layout, txn, by = call.layout, call.text("txn"), call.text("by")
    files.make_private(layout.home)
    with locking.take(layout.lock, by, "adopt", txn):
        last = Journal(layout.journal).last()
        if last is not None and not last.finished:
            raise AgentError("preflight", f"{last.txn} was cut off at {last.state}", "kdeploy unlock --yes heals that")
        seen = Found(layout, *_find(call))
        document = seen.document(call)
        _write_down(layout, document, seen, _brief(call, document), call)
        _confirm(layout, document, txn, by, call)
    return {"release": document, "notes": seen.notes}


def _find(call: Call) -> Tuple[int, int]:
    """The process that is meant, and the port at which it serves."""
    named = call.request.get("pid"), call.request.get("unit"), call.request.get("port")
    ports = [int(port) for port in call.request.get("ports") or []]
    if named[0] is not None:
        return _with_port(int(call.number("pid")), ports)
    if named[1] is not None:
        return _with_port(_main_of(call.text("unit")), ports)
    if named[2] is not None:
        ports = [int(call.number("port"))]
    found = [(one.pid, port) for port in ports for one in processes.holders(port)]
    if not found:
        where = " or ".join(map(str, ports))
        raise AgentError(
            "preflight",
            f"nothing listens on port {where}: there is nothing to adopt",
            "name what serves: --port N, --unit NAME or --pid N",
        )
    if any(pid == 0 for pid, _ in found):
        raise another_user(f"port {found[0][1]}", "another user")
    for pid, _ in found:
        _refuse_our_own(pid)
    leaders = {ancestry.leader(pid) for pid, _ in found}
    if len(leaders) > 1:
        holders = [one for port in ports for one in processes.holders(port)]
        raise AgentError(
            "preflight",
            f"more than one server listens there: {name_holders(holders)}",
            "say which is meant with --port N or --pid N; the other must be stopped before the first apply",
        )
    return found[0]


def _with_port(pid: int, ports: List[int]) -> Tuple[int, int]:
    if processes.identity(pid) is None:
        raise AgentError("preflight", f"there is no process {pid}", "--port N names a server by its port")
    _refuse_our_own(pid)
    family = ancestry.group_of(ancestry.leader(pid))
    listening = [port for port in processes.listened(family) if port]
    wanted = [port for port in ports if port in listening] or listening
    if not wanted:
        raise AgentError(
            "preflight", f"process {pid} ({processes.command(pid)}) listens on no port", "is it the server?"
        )
    return pid, wanted[0]


def _refuse_our_own(pid: int) -> None:
    environ = processes.environ(pid)
    if MARK in environ:
        served = f"release {environ.get('KDEPLOY_RELEASE')} of service {environ.get('KDEPLOY_SERVICE')}"
        raise AgentError("preflight", f"process {pid} is kdeploy's own: {served}", "there is nothing to adopt")


def _main_of(name: str) -> int:
    """The main process of a unit of systemd, or of a container of that name."""
    unit = name if name.endswith(".service") else f"{name}.service"
    with_systemd = Path("/run/systemd/system").is_dir()
    pid = int(systemctl.show(unit).get("MainPID") or 0) if with_systemd else 0
    if not pid:
        try:
            told = ancestry.docker("inspect", "--format", "{{.State.Pid}}", name).stdout.decode().strip()
        except AgentError:
            told = ""
        pid = int(told) if told.isdigit() else 0
    if not pid:
        raise AgentError("preflight", f"neither a unit nor a container {name} runs here", "see: systemctl list-units")
    return pid


def _brief(call: Call, document: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The operator's few questions with the answers of today; those that it answers twice alike are held to that."""
    asks = call.request.get("brief") or []
    if not asks:
        return []
    rounds = []
    for _ in range(2):
        reply = request(adopted.url(document), "/generate", _ANSWERS_WITHIN_S, generate(asks))
        rounds.append(read_answers(asks, reply, 0.0))
    told = []
    for ask, first, second in zip(asks, *rounds):
        if first["error"] or second["error"] or not first["text"].strip():
            continue
        told.append({**ask, "answer": first["text"] if first["text"] == second["text"] else None})
    return told


def _write_down(layout: Layout, document: Dict[str, Any], seen: Found, brief: List[Dict[str, Any]], call: Call) -> None:
    folder = layout.release(document["id"])
    files.make_private(folder)
    files.write(folder / "process.json", seen.process)
    files.write(folder / "package.sha256", seen.listing)
    found = {"pid": seen.pid, "identity": processes.identity(seen.pid)}
    files.write(folder / "seen.json", files.canonical(found))
    plan = {"probes": {"brief": brief}, "start_s": call.number("start_s", 900)}
    files.write(layout.evidence(document["id"]) / "plan.json", files.ordered(plan))
    files.write(folder / "release.json", files.canonical(document))
    if not brief:
        seen.notes.append(
            "it answered no question the same way twice: going back, it is asked whether it is ready only"
        )


def _confirm(layout: Layout, document: Dict[str, Any], txn: str, by: str, call: Call) -> None:
    """Write the change down as any other: whoever heals, rolls back or prunes finds it like one."""
    order = Order(txn, by, "adopt", document, {}, call.number("start_s", 900), 0.0, 0.0, 0.0)
    order.write(layout)
    journal = Journal(layout.journal)
    before = {"previous": layout.live(), "known_good": layout.good()}
    said = {"goal": "adopt", "by": by, "release": document["id"], **before}
    journal.append(txn=txn, state="PREPARED", phase=INTENT, **said)
    journal.append(txn=txn, state="PREPARED", phase=DONE)
    journal.append(txn=txn, state="CONFIRMED", phase=INTENT)
    files.point(layout.current, layout.release(document["id"]))
    files.point(layout.known_good, layout.release(document["id"]))
    journal.append(txn=txn, state="CONFIRMED", phase=DONE)
