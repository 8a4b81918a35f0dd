"""Trees arrive as git bundles, or as an archive where there is no git, and are placed whole, verified and read-only."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, TypeVar

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, manifests
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.locking import try_lock, wait_for
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted
from kdeploy_agent.trees import placing
from kdeploy_agent.trees.git import git, run

_T = TypeVar("_T")

_REFS = "refs/kdeploy/"
# A tree's own .gitattributes must not change a byte on the way to disk; this file outranks it.
_ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding\n"


def receive(call: Call) -> Dict[str, Any]:
    """Verb: take a bundle (may be empty) and place its commit as trees/<tree>; gives `files, bytes`.

    With `form` `tar` the payload is a gzipped tar of the tree's files instead: that needs no git and leaves no store.
    Safe to repeat after any interruption. Raises `integrity` when files are not what they should be, `lacking` when the
    bundle is damaged or builds on what is not here: a whole one may be taken. `preflight` when the disk is too full.
    """
    layout, commit, manifest = call.layout, call.text("commit"), call.text("manifest")
    tree = layout.tree(call.text("tree"))
    by_tar = call.request.get("form") == "tar"
    files.make_private(layout.home)
    with wait_for(layout.home / "store.lock"):
        placing.need(layout.home, 0, 0, "what is sent")
        bundle = layout.home / "incoming.bundle"
        try:
            with bundle.open("wb") as file:
                shutil.copyfileobj(call.payload, file, 1 << 20)
            if tree.exists():
                try:
                    count, size = manifests.verify(tree, manifest)
                except AgentError as fault:
                    call.emit(
                        "note", text=f"trees/{tree.name} is not what was placed: {fault.message}; placing it anew"
                    )
                else:
                    if not by_tar:
                        _stored(call, commit, bundle, lambda: None)
                    return {"files": count, "bytes": size}
            if by_tar:
                count, size = placing.place_archive(layout, tree, bundle, manifest)
            else:
                count, size = _stored(call, commit, bundle, lambda: placing.place(layout, tree, commit, manifest))
        finally:
            files.wipe(bundle)
    return {"files": count, "bytes": size}


def _stored(call: Call, commit: str, bundle: Path, then: Callable[[], _T]) -> _T:
    """Take a bundle into the store, then do `then` with it. A store that fails and is damaged makes way for a new one.

    What it claimed to have the bundle may lack: then the error says to send everything, and facts claim nothing more.
    """
    store = call.layout.store
    for again in (False, True):
        try:
            _open_store(call.layout)
            _keep(call.layout, commit, bundle)
            return then()
        except AgentError as fault:
            if again or fault.kind not in ("integrity", "lacking") or _whole(call.layout):
                raise
            call.emit("note", text=f"{store.name} is damaged ({fault.message}); beginning a new one")
        damaged = store.with_name(store.name + ".damaged")
        files.discard(damaged)
        if store.exists():
            store.replace(damaged)
    raise AssertionError("the second time returns or raises")


def _whole(layout: Layout) -> bool:
    """Whether every object of what the store claims is there and is what its name says; takes its time."""
    try:
        git(layout, "fsck", "--full", "--no-dangling", "--no-progress")
    except AgentError:
        return False
    return True


def ensure(layout: Layout, release: Dict[str, Any], note: Callable[[str], None], waits_s: float = float("inf")) -> None:
    """Verify the tree of `release`, and place it anew from the store when it is not what was declared any more.

    Raises `integrity` when that cannot be done either, or somebody else is at the store for longer than `waits_s`.
    """
    if adopted.is_adopted(release):  # its files are not ours to put right
        wrong, _ = adopted.changed_files(layout, release)
        if wrong:
            note(f"{len(wrong)} files of {release['adopted']['package']} changed since it was adopted: {wrong[0]}")
        return
    tree = layout.tree(release["tree"])
    try:
        manifests.verify(tree, release["manifest"])
    except AgentError as fault:
        if not shutil.which("git") or not (layout.store / "HEAD").is_file():
            hint = "apply its profile again: without git a host cannot place a tree anew from its own store"
            raise AgentError("integrity", fault.message, hint) from fault
        note(f"{fault.message}; placing it anew")
        lock = try_lock(layout.home / "store.lock", waits_s)
        if lock is None:
            raise AgentError("integrity", f"{fault.message}; the store is in use", "try again") from fault
        with lock:
            placing.place(layout, tree, release["commit"], release["manifest"])


def pristine(layout: Layout, commit: str, manifest: str) -> Path:
    """The folder of the tree of `commit`, which came here as the ancestor of another; placed from the store if need be.

    No release needs it, so it may be pruned at any time: the caller holds the store's lock. Raises `preflight` without
    git or the commit, `integrity` when its files are not those of `manifest`.
    """
    if not shutil.which("git") or not (layout.store / "HEAD").is_file():
        raise AgentError("preflight", f"the tree of {commit} cannot be placed here: git or its store is not here")
    try:
        tree = layout.tree(git(layout, "rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}").strip())
    except AgentError as fault:
        raise AgentError("preflight", f"the commit {commit} is not on this host", "apply again: it is sent") from fault
    if tree.is_dir():
        try:
            manifests.verify(tree, manifest)
            return tree
        except AgentError:
            pass
    placing.place(layout, tree, commit, manifest)
    return tree


def commits(layout: Layout) -> List[str]:
    """Commits whose objects are in the store, so that a bundle may leave them out."""
    if not layout.store.is_dir() or not shutil.which("git"):
        return []
    try:
        return git(layout, "for-each-ref", "--format=%(objectname)", _REFS).split()
    except AgentError:  # so damaged that git does not know it: what comes next is sent whole
        return []


def forget(layout: Layout, commit: str) -> None:
    """Let go of a commit that is in the store: git may drop its objects some day."""
    git(layout, "update-ref", "-d", _REFS + commit)


def _open_store(layout: Layout) -> None:
    if not shutil.which("git"):
        raise AgentError("preflight", "git is not installed on this host", "install git (apt install git)")
    if not (layout.store / "HEAD").is_file():
        init = ["git", "init", "--quiet", "--bare", "--template=", str(layout.store)]
        try:
            run([*init, "--object-format=sha1"])  # a machine's default may be another
        except AgentError:  # git older than 2.28 knows no other
            run(init)
    files.write(layout.store / "info" / "attributes", _ATTRIBUTES.encode())


def _keep(layout: Layout, commit: str, bundle: Path) -> None:
    # A ref keeps the objects from being collected, and is what `commits` tells the operator.
    if len(commit) not in (40, 64) or set(commit) - set("0123456789abcdef"):
        raise AgentError("usage", f"{commit!r} is not a commit id")
    if bundle.stat().st_size:
        git(layout, "bundle", "unbundle", str(bundle))
    git(layout, "cat-file", "-e", f"{commit}^{{commit}}")
    git(layout, "update-ref", _REFS + commit, commit)
