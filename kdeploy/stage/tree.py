"""From a profile to a staged tree: check every anchor, compute every byte, then write once."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kdeploy import places, release
from kdeploy.errors import ConflictError, Location
from kdeploy.patching import series
from kdeploy.patching.patchset import PatchSet
from kdeploy.release import Tree
from kdeploy.stage import stream
from kdeploy.stage.base import Base
from kdeploy.stage.cache import written
from kdeploy.stage.stream import MANIFEST, VERSION_FILE, Commit

if TYPE_CHECKING:
    from kdeploy.stage.store import Store

_FORMAT = 2  # of the cached results below


@dataclass(frozen=True)
class Stage:
    """A staged tree, with the commits it is made of."""

    base: Base
    sets: tuple[PatchSet, ...]
    tree: Tree
    base_commit: str


def check(base: Base, sets: Sequence[PatchSet], engine_version: str) -> series.SeriesReport:
    """Check every anchor of every patch in sequence; writes nothing."""
    return series.check(base, sets, engine_version)


@written()
def stage(base: Base, sets: Sequence[PatchSet], engine_version: str) -> Stage:
    """The staged tree of `base` with `sets`, from the cache when the same inputs were staged before.

    Raises AnchorError when a patch does not apply, ConflictError when the result does not compile.
    """
    cached = places.cache() / "stages" / f"{_key(base, sets)}.json"
    if (found := _read(cached)) is not None:
        return Stage(base, tuple(sets), *found)
    report = check(base, sets, engine_version)
    report.require()
    require_compiles(report)
    staged = Stage(base, tuple(sets), *_write(base, sets, report, engine_version))
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=cached.parent, suffix=".tmp", delete=False) as scratch:
        json.dump({"tree": asdict(staged.tree), "base_commit": staged.base_commit}, scratch)
    Path(scratch.name).replace(cached)
    return staged


def require_compiles(report: series.SeriesReport) -> None:
    """Raise ConflictError when a patched Python file does not compile any more."""
    faults = series.compile_errors(report.changes)
    if faults:
        first = faults[0]
        raise ConflictError(
            f"{first.path} does not compile after patching: {first.message}",
            where=Location(first.path, first.line),
            hint="the anchors are right but the text put there is not Python; nothing was written",
            details=tuple(f"{fault.path}:{fault.line}: {fault.text}" for fault in faults),
        )


@written()
def open_store(stage: Stage) -> Store:
    """The store, with `stage` in it: staged anew when the cache was deleted in the meantime."""
    from kdeploy.stage.store import Store

    store = Store()
    if not store.has(stage.tree.commit):
        (places.cache() / "stages" / f"{_key(stage.base, stage.sets)}.json").unlink(missing_ok=True)
        report = check(stage.base, stage.sets, _engine_version(stage))
        report.require()
        _write(stage.base, stage.sets, report, _engine_version(stage))
    return store


@written()
def check_out(stage: Stage) -> Path:
    """The folder of the staged tree: a git work tree, one commit a patch."""
    from kdeploy.stage.store import locked

    store = open_store(stage)
    with locked():
        return store.check_out(stage.tree.commit)


@written()
def check_out_both(stage: Stage) -> tuple[Path, Path]:
    """The folders of the pristine tree and of the staged one, side by side for the proofs."""
    from kdeploy.stage.store import locked

    store = open_store(stage)
    with locked():
        return store.check_out(stage.base_commit), store.check_out(stage.tree.commit)


@written()
def diff(stage: Stage) -> str:
    """What the patches change, as `git diff` against the base; the stamp is left out."""
    store = open_store(stage)
    patched = store.resolve(f"{stage.tree.commit}^")
    assert patched is not None
    return store.diff(stage.base_commit, patched)


@written()
def bundle(stage: Stage, have: Sequence[str]) -> bytes:
    """The git bundle that takes a host that has the commits `have` to this stage; empty when it lacks nothing."""
    return open_store(stage).bundle(stage.tree.commit, _ref(stage.base, stage.sets), have)


@written()
def archive(stage: Stage) -> bytes:
    """The staged tree as a gzipped tar, for a host without git; the same bytes each time."""
    return open_store(stage).archive(stage.tree.commit)


def base_manifest(stage: Stage) -> str:
    """The sha256 of the base commit's own manifest: what a pristine tree on a host is compared with."""
    return stream.sha256(stream.manifest(stage.base.digests))


def _write(base: Base, sets: Sequence[PatchSet], report: series.SeriesReport, engine_version: str) -> tuple[Tree, str]:
    from kdeploy.stage.store import Store, locked

    with locked():
        store = Store()
        base_commit = _base_commit(store, base)
        ref = _ref(base, sets)
        patches = [Commit(_message(patch), {c.path: _entry(c) for c in patch.changes}) for patch in report.patches]
        patched = store.write(ref, base_commit, patches) if patches else base_commit
        tree_id = store.tree_of(patched)
        version = release.stamped_version(engine_version, tree_id)
        stamp = _stamp(base, report, engine_version, version)
        commit = store.write(ref, patched, [Commit(f"stamp {version}", stamp)])
    return Tree(tree_id, commit, stream.sha256(stamp[MANIFEST][0]), version), base_commit


def _base_commit(store: Store, base: Base) -> str:
    ref = f"refs/bases/{_FORMAT}/{base.sha256}"
    commit = store.resolve(ref)
    if commit is None:
        files = {path: (base.read(path) or b"", base.executable(path)) for path in base.digests}
        # The base has its manifest too, so that a stage's travels as a delta to a host that has the base.
        files[MANIFEST] = (stream.manifest(base.digests), False)
        commit = store.write(ref, None, [Commit(f"{base.engine}\n\nwheel sha256 {base.sha256}", files)])
    return commit


def _stamp(
    base: Base, report: series.SeriesReport, engine_version: str, version: str
) -> Mapping[str, tuple[bytes, bool]]:
    """The version file that names the tree, and the manifest of every other file's sha256."""
    content, _ = report.changes.get(VERSION_FILE, (base.read(VERSION_FILE), False))
    stamped = stream.stamp(content, engine_version, version) if content is not None else None
    if stamped is None:
        raise ConflictError(
            f"{VERSION_FILE} does not say version {engine_version} where it should, so the tree cannot be stamped",
            hint="a patch must not change the version; an engine that states it elsewhere is not supported",
        )
    digests = dict(base.digests)
    for path, (content, _) in report.changes.items():
        if content is None:
            digests.pop(path, None)
        else:
            digests[path] = stream.sha256(content)
    digests[VERSION_FILE] = stream.sha256(stamped)
    if MANIFEST in digests:
        raise ConflictError(f"the tree already holds a {MANIFEST}, a name kdeploy needs")
    return {VERSION_FILE: (stamped, False), MANIFEST: (stream.manifest(digests), False)}


def _entry(change: series.Change) -> tuple[bytes, bool] | None:
    return None if change.after is None else (change.after, change.executable_after)


def _message(patch: series.PatchReport) -> str:
    return f"{patch.ref}: {patch.name}\n\n{patch.reason.strip()}\n\nOrigin: {patch.origin}"


def _engine_version(stage: Stage) -> str:
    return stage.tree.version.partition("+")[0]


def _key(base: Base, sets: Sequence[PatchSet]) -> str:
    parts = [_FORMAT, base.sha256, *((one.ref, one.digest) for one in sets)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _ref(base: Base, sets: Sequence[PatchSet]) -> str:
    return f"refs/stages/{_key(base, sets)}"


def _read(cached: Path) -> tuple[Tree, str] | None:
    try:
        values = json.loads(cached.read_text())
        return Tree(**values["tree"]), values["base_commit"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
