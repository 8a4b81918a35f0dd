"""The verbs that touch no host: declare, verify-anchors, stage, proofs on this machine, freeze, schema."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kdeploy import document, lock, places, profile, release
from kdeploy.errors import PatchSetError, ProfileError, UsageError
from kdeploy.host import Host
from kdeploy.lock import Lock
from kdeploy.patching import patchset, series
from kdeploy.patching.patchset import PatchSet
from kdeploy.profile import Profile, Runtime
from kdeploy.progress import Note
from kdeploy.stage import base as bases
from kdeploy.stage import prove as proving
from kdeploy.stage import tree as staging
from kdeploy.stage.base import Base
from kdeploy.stage.prove import Proven
from kdeploy.stage.tree import Stage
from kdeploy.transport.local import LocalTransport


@dataclass(frozen=True)
class Declared:
    """What a profile declares, found and checked: the lock, the base, the patch sets in order."""

    profile: Profile
    lock: Lock
    base: Base
    sets: tuple[PatchSet, ...]


def declare(path: Path, note: Note) -> Declared:
    """Read a profile, its lock and patch sets, and have its base at hand.

    Raises ProfileError, PatchSetError, or UnreachableError when the base has to be fetched and cannot be.
    """
    read = profile.load(path)
    pins = lock.load(read.project)
    sets = tuple(_find(read, index, ref) for index, ref in enumerate(read.file.patchsets))
    for one in sets:
        pins.check_digest(one.ref, one.digest)
    patchset.resolve(sets, read.engine_version)
    python = read.file.runtime.python
    wheel = pins.wheel(read.file.engine, python, read.where("engine"))
    return Declared(read, pins, bases.fetch(read.file.engine, wheel, python, note), sets)


def _find(read: Profile, index: int, ref: str) -> PatchSet:
    try:
        return patchset.find(read.project / "patchsets", ref)
    except PatchSetError as fault:
        if fault.where is not None:
            raise
        raise PatchSetError(fault.message, where=read.where("patchsets", index), hint=fault.hint) from fault


# --- verify-anchors, stage, prove: no host is touched


@dataclass(frozen=True)
class Verified:
    """What every anchor of some patch sets says about one engine."""

    engine: str
    refs: tuple[str, ...]
    report: series.SeriesReport


def verify_anchors(target: str | None, project: Path | None, note: Note) -> tuple[Verified, ...]:
    """Check the anchors of a profile (a path), a patch set (`ddtree/0.1.0`), or of all patch sets of the project.

    A patch set alone is checked behind those it requires, on every pinned engine in its range.
    """
    if target is not None and _is_profile(target):
        declared = declare(Path(target), note)
        report = staging.check(declared.base, declared.sets, declared.profile.engine_version)
        return (Verified(declared.profile.file.engine, tuple(one.ref for one in declared.sets), report),)
    home = project or profile.find_project(Path.cwd())
    pins = lock.load(home)
    folder = home / "patchsets"
    refs = [target] if target else patchset.all_refs(folder)
    results = []
    for ref in refs:
        sets = patchset.with_required(folder, patchset.find(folder, ref))
        for one in sets:
            pins.check_digest(one.ref, one.digest)
        versions = [version for version in pins.versions() if _in_range(sets, version)]
        if not versions:
            raise PatchSetError(
                f"{lock.FILE} pins no engine in the range of {ref} ({sets[-1].engine})",
                hint=f"it pins SGLang {', '.join(pins.versions())}",
            )
        for version in versions:
            engine = f"sglang=={version}"
            python = pins.any_python(engine)
            base = bases.fetch(engine, pins.wheel(engine, python), python, note)
            results.append(Verified(engine, tuple(one.ref for one in sets), staging.check(base, sets, version)))
    return tuple(results)


def _is_profile(target: str) -> bool:
    return target.endswith((".yaml", ".yml")) or document.is_file(Path(target))


def _in_range(sets: Sequence[PatchSet], version: str) -> bool:
    try:
        patchset.resolve(sets, version)
    except PatchSetError:
        return False
    return True


@dataclass(frozen=True)
class Staged:
    """A staged tree and where to look at it."""

    declared: Declared
    stage: Stage
    folder: Path | None


def stage(path: Path, note: Note, *, check_out: bool = True) -> Staged:
    """Stage a profile's tree. With `check_out`, its folder is a git work tree with one commit a patch.

    Raises AnchorError, or ConflictError when the result does not compile or is not the tree in the lock.
    """
    declared = declare(path, note)
    staged = staging.stage(declared.base, declared.sets, declared.profile.engine_version)
    refs = [one.ref for one in declared.sets]
    python = declared.profile.file.runtime.python
    declared.lock.check_tree(declared.profile.file.engine, refs, python, staged.tree.tree)
    return Staged(declared, staged, staging.check_out(staged) if check_out else None)


def where_proofs_run(staged: Staged) -> Literal["here", "on the host"] | None:
    """Where the proofs of a staged profile run; None when there are none. Raises ProfileError when it does not say."""
    read = staged.declared.profile
    if not any(one.proofs for one in staged.declared.sets):
        return None
    if read.proves_on_hosts:
        return "on the host"
    if read.prover is None:
        raise ProfileError(
            "its patch sets have proofs, but the profile does not say where to run them",
            where=read.where("runtime"),
            hint="add 'prove: {lock: PATH}', a requirements file with torch and what the proofs need; "
            "'prove: host' runs them on each host, in the engine's own runtime",
        )
    return "here"


def run_proofs(staged: Staged, note: Note, again: bool = False) -> tuple[Proven, ...]:
    """Run the proofs of a staged profile, unless they were run for this tree and runtime before.

    None of those that are to run on the hosts.
    """
    read, prover = staged.declared.profile, _prover(staged)
    if prover is None:
        return ()

    def ground() -> proving.Ground:
        pristine, patched = staging.check_out_both(staged.stage)
        return proving.Ground(pristine, patched, local_runtime(read, prover, note))

    return proving.prove(staged.declared.sets, _proofs_key(staged, prover), ground, note, again=again)


def proofs_remembered(staged: Staged) -> bool:
    """Whether no proof is left to be run on this machine."""
    prover = _prover(staged)
    return prover is None or proving.remembered(staged.declared.sets, _proofs_key(staged, prover))


def _prover(staged: Staged) -> Runtime | None:
    return staged.declared.profile.prover if where_proofs_run(staged) == "here" else None


def _proofs_key(staged: Staged, prover: Runtime) -> str:
    return f"{staged.stage.tree.commit} {runtime_id(staged.declared.profile, prover)}"


def local_runtime(read: Profile, runtime: Runtime, note: Note) -> Path:
    """The Python of a runtime on this machine, made through the same agent a host uses."""
    if runtime.venv is not None:
        return Path(runtime.venv) / "bin/python"
    lines = lock_text(read, runtime) or ""
    with Host(LocalTransport("localhost"), str(places.host_root()), read.file.service) as host:
        return host.make_runtime(runtime_id(read, runtime), runtime.python, lines, runtime.with_deps, note)


def lock_text(read: Profile, runtime: Runtime) -> str | None:
    """The text of a runtime's lock file; None when it is a virtual environment that is there.

    Raises ProfileError when it cannot be read, does not pin every line, or does not pin what is to bring dependencies.
    """
    if runtime.lock is None:
        return None
    section = "prove" if runtime is read.file.prove else "runtime"
    path = read.beside(runtime.lock, section, "lock")
    try:
        if path.is_fifo():
            raise OSError(0, "it is a pipe")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise ProfileError(
            f"the lock file {path} cannot be read: {reason}", where=read.where(section, "lock")
        ) from fault
    pins = lock.requirements(text, str(path))
    for index, name in enumerate(runtime.with_deps):
        if lock.normal_name(name) not in pins:
            raise ProfileError(
                f"'with-deps' names {name}, which {path.name} does not pin",
                where=read.where(section, "with-deps", index),
                hint=f"add '{name}==VERSION' to {path}, or leave it out of 'with-deps' ([] for none)",
            )
    return text


def demands(read: Profile, sets: Sequence[PatchSet]) -> Mapping[str, Any]:
    """What a host must be for a profile with these patch sets: its `machine`, and by set what it is made for."""
    machine = read.file.machine
    asked: dict[str, Any] = {} if machine is None else {"machine": machine.model_dump()}
    archs = {one.ref: list(one.arch) for one in sets if one.arch}
    return {**asked, "archs": archs} if archs else asked


def runtime_id(read: Profile, runtime: Runtime) -> str:
    """What names a runtime: the key of the one made from a lock, else a hash of its path."""
    text = lock_text(read, runtime)
    if text is None:
        return hashlib.sha256(str(runtime.venv).encode()).hexdigest()[:12]
    return release.runtime_key(text, runtime.python, runtime.with_deps)


@dataclass(frozen=True)
class Frozen:
    """What `freeze` wrote to the lock: digests by patch set, trees by engine + patch sets."""

    path: Path
    digests: dict[str, str]
    trees: dict[str, str]


def freeze(target: str, project: Path | None, note: Note) -> Frozen:
    """Record in kdeploy.lock the digest of a patch set, or those of a profile and the tree they result in.

    From then on a frozen patch set that changes is an error. Recording again what has changed is how one says that the
    change was meant.
    """
    digests: dict[str, str] = {}
    trees: dict[str, str] = {}
    if _is_profile(target):
        read = profile.load(Path(target))
        pins = lock.load(read.project)
        sets = tuple(_find(read, index, ref) for index, ref in enumerate(read.file.patchsets))
        patchset.resolve(sets, read.engine_version)
        python = read.file.runtime.python
        base = bases.fetch(read.file.engine, pins.wheel(read.file.engine, python, read.where("engine")), python, note)
        staged = staging.stage(base, sets, read.engine_version)
        trees[lock.tree_key(read.file.engine, [one.ref for one in sets], python)] = staged.tree.tree
    else:
        home = project or profile.find_project(Path.cwd())
        pins = lock.load(home)
        sets = (patchset.find(home / "patchsets", target),)
    digests = {one.ref: one.digest for one in sets}
    text = lock.frozen(pins, digests, trees)
    scratch = pins.path.with_suffix(".tmp")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(pins.path)
    except OSError as fault:
        raise ProfileError(f"{pins.path} cannot be written: {fault.strerror}") from fault
    return Frozen(pins.path, digests, trees)


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of every kind of file a person writes, by name, from the models that read them."""
    return {
        "profile": profile.ProfileFile.model_json_schema(by_alias=True),
        "hosts": profile.HostsFile.model_json_schema(by_alias=True),
        "lock": lock.LockFile.model_json_schema(by_alias=True),
        **patchset.schemas(),
    }


def schema(name: str) -> dict[str, Any]:
    """One of `schemas()`; raises UsageError for a name that is not one."""
    known = schemas()
    if name not in known:
        raise UsageError(f"no schema is called '{name}'", hint=f"there are: {', '.join(known)}")
    return known[name]
