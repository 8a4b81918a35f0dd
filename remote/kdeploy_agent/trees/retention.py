"""What is kept: live, known-good, the last confirmed releases, and what the newest rejected ones left as evidence.

Age does not come from the clock of files but from the journal. Trees and caches go with the last release that needs
them; a runtime goes only by hand.
"""

from __future__ import annotations

import re
from typing import Callable, List, Set

from kdeploy_agent.ground import files, secrets
from kdeploy_agent.ground.journal import Journal
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.locking import try_lock
from kdeploy_agent.trees import serving, store

CONFIRMED_KEPT = 3
EVIDENCE_KEPT = 10
ORDERS_KEPT = 20

_TREE = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def prune(layout: Layout, note: Callable[[str], None]) -> None:
    """Remove releases, trees, caches and orders that nothing needs any more."""
    journal = Journal(layout.journal)
    transactions = list(journal.transactions().values())
    links = [one for one in (layout.live(), layout.good()) if one]
    startable = {*links, *journal.confirmed()[:CONFIRMED_KEPT]}
    newest: List[str] = list(dict.fromkeys(one.release for one in reversed(transactions)))
    for folder in _folders(layout, "releases"):
        if folder not in startable and folder not in newest[:EVIDENCE_KEPT]:
            if folder.startswith(secrets.RECORDED):
                secrets.forget_recorded(layout, folder)
            files.wipe(layout.releases / folder)
            note(f"release {folder} removed")
    needed: Set[str] = set()
    commits: Set[str] = set()
    asked: Set[str] = set()
    for release in startable:
        document = serving.find_release(layout, release)
        if document:
            needed.add(document["tree"])
            commits.add(document["commit"])
            asked.update(secrets.names_of(document))
    for name in secrets.forget(layout, asked):
        note(f"secret {name} removed: no release that is kept asks for it")
    receiving = try_lock(layout.home / "store.lock", 0)
    if receiving is None:
        note("somebody is sending a tree; unused trees stay until next time")
        return
    with receiving:
        _prune_trees(layout, needed, commits, note)
    kept = {one.txn for one in transactions[-ORDERS_KEPT:]}
    for txn in _folders(layout, "transactions"):
        if txn not in kept:
            files.wipe(layout.transactions / txn)


def _prune_trees(layout: Layout, needed: Set[str], commits: Set[str], note: Callable[[str], None]) -> None:
    for tree in _folders(layout, "trees"):
        name = tree.partition(".")[0]
        if _TREE.fullmatch(name) and tree not in needed:  # what else lies there is not ours
            files.discard(layout.trees / tree)
            note(f"tree {tree} removed")
    for cache in _folders(layout, "caches"):
        if cache not in needed:
            files.discard(layout.caches / cache)
    for aside in (*layout.home.glob(f"*{files.ASIDE}"), *layout.caches.glob(f"*/*{files.ASIDE}")):
        files.discard(aside)
    for commit in set(store.commits(layout)) - commits:
        store.forget(layout, commit)


def _folders(layout: Layout, name: str) -> List[str]:
    folder = layout.home / name
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
