"""What a host says about itself and one service. Reads only."""

from __future__ import annotations

import dataclasses
import platform
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

from kdeploy_agent.asking import client
from kdeploy_agent.change import evidence as evidence_of
from kdeploy_agent.change import unlocking
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, locking, manifests, secrets, systemctl
from kdeploy_agent.ground.journal import Journal, Transaction
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted
from kdeploy_agent.keeping.keeper import of as keeper_of
from kdeploy_agent.trees import serving, store

_ANSWERS_WITHIN_S = 2.0
_KEPT = ("transcript", "verdict", "confirmed")  # of how a release was judged


def facts(call: Call) -> Dict[str, Any]:
    """Verb: the host, its disk and runtimes, and the state of the service.

    `rehash` (a tree) checks its files too, by `manifest` or by what the releases here say, and whether what serves
    answers; `answers` asks for that alone. `documents` (`current`, `previous` or the beginning of a known-good's id)
    adds what `evidence` says of these releases, but for transcript and verdict.
    """
    layout = call.layout
    space = files.free_space(layout.root)
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "now": round(time.time(), 3),
        "git": _git_version(),
        "systemd": Path("/run/systemd/system").is_dir(),
        "keeper": "systemd" if systemctl.keeps_units() else "supervisor",
        "root": str(layout.root),
        "disk": {"bytes": space.f_bavail * space.f_frsize, "inodes": space.f_favail},
        "runtimes": sorted(marker.parent.name for marker in layout.runtimes.glob("*/.complete")),
        "service": _service(layout, call.request),
        "documents": {name: _document(layout, name) for name in _named(layout, call.request.get("documents"))},
    }


def history(call: Call) -> Dict[str, Any]:
    """Verb: every transaction the journal knows, and every stop and boot, the newest first."""
    journal = Journal(call.layout.journal)
    folded = sorted([*journal.transactions().values(), *journal.deeds()], key=lambda one: one.started, reverse=True)
    return {"transactions": [{**dataclasses.asdict(one), "out_s": one.out_s} for one in folded]}


def evidence(call: Call) -> Dict[str, Any]:
    """Verb: a release's document with what the gate saw of it last and said about it, and saw when it confirmed it."""
    release = call.text("release")
    folder = call.layout.evidence(release)
    found = _document(call.layout, release)
    if found["release"] is None:
        raise AgentError("usage", f"there is no release {release} on this host")
    return {**found, **{name: files.read_json(folder / f"{name}.json") for name in _KEPT}}


def _document(layout: Layout, release: str) -> Dict[str, Any]:
    """A release's document and the plan it was confirmed with; each may be null."""
    plan = files.read_json(layout.evidence(release) / "plan.json") if evidence_of.plan(layout, release).whole else None
    return {"release": files.read_json(layout.release(release) / "release.json"), "plan": plan}


def _named(layout: Layout, word: Any) -> List[str]:
    """The releases that `word` means: a caller that chooses among them needs no second question."""
    live = layout.live()
    if word == "current":
        return [live] if live else []
    if not isinstance(word, str) or not word:
        return []
    good = good_releases(layout)
    if word == "previous":
        passed = {live, *Journal(layout.journal).left()}
        return [release for release in good if release not in passed][:1]
    return [release for release in good if release.startswith(word)][:2]


def good_releases(layout: Layout) -> List[str]:
    """Every release that was once confirmed and could be started again, the newest first."""
    stored: Optional[Set[str]] = None
    found = []
    for release in Journal(layout.journal).confirmed():
        document = serving.find_release(layout, release)
        if document is not None and not present(layout, document):
            stored = set(store.commits(layout)) if stored is None else stored
            if document["commit"] not in stored:
                continue
        if document is not None:
            found.append(release)
    return found


def present(layout: Layout, document: Dict[str, Any]) -> bool:
    """Whether what a release is started from is here: its tree, or how an adopted server was started."""
    if adopted.is_adopted(document):
        return (layout.release(document["id"]) / "process.json").is_file()
    return layout.tree(document["tree"]).is_dir()


def _service(layout: Layout, request: Dict[str, Any]) -> Dict[str, Any]:
    keeper, journal = keeper_of(layout), Journal(layout.journal)
    rehash, declared = request.get("rehash"), request.get("manifest")
    held = locking.holder(layout.lock)
    last, stop = journal.last(), journal.stop()
    asked = bool(rehash) or request.get("answers") is True
    seen = {name: keeper.status(name) for name in ("server", "front")}
    return {
        "current": layout.live(),
        "known_good": layout.good(),
        "known_goods": good_releases(layout),
        "left": journal.left(),
        "releases": _names(layout.releases),
        "trees": [name for name in _names(layout.trees) if "." not in name],
        "commits": store.commits(layout),
        "transaction": _last(layout, last, held) if last else None,
        "stopped": {"by": str(stop.get("by") or ""), "at": stop["at"]} if stop else None,
        "lock": held,
        "secrets": secrets.digests(layout),
        "units": {name: dataclasses.asdict(status) for name, status in seen.items()},
        "rehash": _rehash(layout, rehash, declared) if rehash and _here(layout, rehash) else None,
        "answers": _answers(layout, seen["server"].release) if asked and seen["server"].alive else None,
        "lost": keeper.lost() if rehash and seen["server"].alive else "",
    }


def _answers(layout: Layout, release: str) -> Dict[str, Any]:
    """Whether the running server answers, and the front that should let clients in; null where there is none."""
    try:
        document = serving.read_release(layout, release)
    except AgentError as fault:
        return {"server": {"ok": False, "detail": fault.message}, "front": None}
    if adopted.is_adopted(document):
        ails = adopted.ails(document)
        return {"server": {"ok": not ails, "detail": ails}, "front": None}
    fronted = document["launch"]["front"]["kind"] != "none"
    return {
        "server": _ask(serving.server_url(document), "/model_info"),  # /health takes 1 s: it generates a token
        "front": _ask(serving.public_url(document), "/v1/models") if fronted else None,
    }


def _ask(url: str, path: str) -> Dict[str, Any]:
    reply = client.request(url, path, _ANSWERS_WITHIN_S)
    return {"ok": reply.error is None, "detail": f"{path} at {url}: {reply.error or 'answered'}"}


def _last(layout: Layout, last: Transaction, held: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    shown = {key: getattr(last, key) for key in ("txn", "state", "goal", "release", "previous", "reason")}
    running = bool(held and held["txn"] == last.txn and not last.finished)
    return {**shown, "running": running, "deadline": unlocking.deadline(layout, last) if running else ""}


def _here(layout: Layout, tree: str) -> bool:
    return layout.tree(tree).is_dir() or any(one["tree"] == tree for one in adopted.on(layout))


def _rehash(layout: Layout, tree: str, declared: Optional[str]) -> Dict[str, Any]:
    """Every file of a tree compared: with the manifest that was `declared`, else with what the releases here say."""
    for document in adopted.on(layout):
        if document["tree"] == tree:
            wrong, count = adopted.changed_files(layout, document)
            detail = f"{len(wrong)} files changed: {wrong[0]}" if wrong else f"{count} files are what they were"
            return {"ok": not wrong, "detail": detail}
    wanted = (
        {declared}
        if declared
        else {
            document["manifest"]
            for document in (serving.find_release(layout, name) for name in _names(layout.releases))
            if document and document["tree"] == tree
        }
    )
    if len(wanted) != 1:
        return {"ok": False, "detail": f"no release here says what tree {tree} must contain"}
    try:
        count, _ = manifests.verify(layout.tree(tree), wanted.pop())
    except AgentError as fault:
        return {"ok": False, "detail": fault.message}
    return {"ok": True, "detail": f"{count} files are what was declared"}


def _names(folder: Path) -> List[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _git_version() -> Optional[str]:
    if not shutil.which("git"):
        return None
    said = subprocess.run(["git", "--version"], stdout=subprocess.PIPE, check=False).stdout.decode().split()
    return said[2] if len(said) > 2 else None
