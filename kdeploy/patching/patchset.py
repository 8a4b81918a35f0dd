"""Patch sets: named, versioned, ordered folders of patches, read strictly into frozen values.

    <root>/<name>/<version>/patchset.yaml     what the set is, and the order of its patches
    <root>/<name>/<version>/patches/*.yaml    one patch a file, all of them listed in the series
    <root>/<name>/<version>/files/            files that patches add, and diffs
    <root>/<name>/<version>/proofs/           programs that must fail before and pass after

Nothing in a set is ever ignored: a file that nobody lists is an error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdeploy import document
from kdeploy.document import Document
from kdeploy.errors import Location, PatchSetError
from kdeploy.patching import patch as patches
from kdeploy.patching import set_folder
from kdeploy.patching.manifest import NAME, PatchSetFile, ProofFile, schemas
from kdeploy.patching.patch import Patch, RetireWhen

__all__ = [
    "Patch",
    "PatchSet",
    "Proof",
    "RetireWhen",
    "all_refs",
    "find",
    "load",
    "resolve",
    "schemas",
    "with_required",
]

_OTHER_SET = re.compile(r"([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)\s*([<>=!~].*)?")


@dataclass(frozen=True)
class Proof:
    """A program that must exit 3 on the pristine tree and 0 on the patched one; `run` is a path inside the set."""

    name: str
    run: str
    needs: tuple[str, ...]
    timeout_s: float
    env: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PatchSet:
    """A patch set as it stands in its folder; the digest covers every path, mode and byte in it."""

    name: str
    version: str
    summary: str
    engine: str
    arch: tuple[str, ...]
    """GPU architectures it is made for, `sm_103`; none when it fits all."""
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]
    patches: tuple[Patch, ...]
    proofs: tuple[Proof, ...]
    digest: str
    folder: Path
    document: Document = field(repr=False, compare=False)

    @property
    def ref(self) -> str:
        """Name and version as a profile writes them: `ddtree/0.1.0`."""
        return f"{self.name}/{self.version}"


def load(folder: Path) -> PatchSet:
    """Read the patch set in `folder` (`.../<name>/<version>`).

    Raises PatchSetError with file:line:column at the first thing that is wrong.
    """
    if not folder.is_dir():
        raise PatchSetError(f"there is no patch set in {folder}")
    file, read = document.load(folder / "patchset.yaml", PatchSetFile, PatchSetError)
    set_folder.check_names(folder, file, read)
    patches.specifiers(file.engine, read.where(("engine",)))
    for key, others in (("requires", file.requires), ("conflicts", file.conflicts)):
        for index, other in enumerate(others):
            _other_set(other, read.where((key, index)))
    contents = set_folder.contents(folder)
    set_folder.check_series(folder, file, read, contents)
    found = tuple(patches.load(folder, name) for name in file.series)
    set_folder.check_files(folder, contents, {path for patch in found for path in patch.uses})
    return PatchSet(
        name=file.name,
        version=file.version,
        summary=file.summary.strip(),
        engine=file.engine,
        arch=tuple(file.arch or ()),
        requires=tuple(file.requires),
        conflicts=tuple(file.conflicts),
        patches=found,
        proofs=_proofs(folder, file.proofs, read),
        digest=set_folder.digest(contents),
        folder=folder,
        document=read,
    )


def find(root: Path, ref: str) -> PatchSet:
    """Load the set that `ref` means below `root` (the `patchsets` folder): `ddtree/0.1.0`, or the highest `ddtree`.

    Raises PatchSetError with the nearest name when there is none.
    """
    refs = all_refs(root)
    name, slash, _ = ref.partition("/")
    fitting = [known for known in refs if known == ref or (not slash and known.split("/")[0] == name)]
    if fitting:
        return load(root / fitting[-1])
    versions = [known for known in refs if known.split("/")[0] == name]
    names = versions or [*refs, *(known.split("/")[0] for known in refs)]
    near = difflib.get_close_matches(ref, names, n=1, cutoff=0.5) or versions[-1:]
    known = f"known: {', '.join(refs)}" if refs else f"there is no patch set in {root}"
    raise PatchSetError(f"there is no patch set '{ref}'", hint=f"did you mean '{near[0]}'?" if near else known)


def all_refs(root: Path) -> tuple[str, ...]:
    """Every set below `root` (the `patchsets` folder), by name and then by version; empty when there is no folder."""
    folders = [
        (item.parent.name, item.name) for item in root.glob("*/*") if item.is_dir() and item.name != "__pycache__"
    ]
    return tuple(f"{name}/{version}" for name, version in sorted(folders, key=lambda one: (one[0], _order(one[1]))))


def resolve(sets: Sequence[PatchSet], engine_version: str) -> tuple[PatchSet, ...]:
    """Check that `sets`, in this order, go together and fit the engine; gives them back.

    Raises PatchSetError: a set twice, an engine out of range, a required set not earlier, a conflict.
    """
    for index, one in enumerate(sets):
        for other in sets[:index]:
            if other.name == one.name:
                message = f"the patch set '{one.name}' is given twice: {other.ref} and {one.ref}"
                raise PatchSetError(message, where=one.document.where(("name",)), hint="keep one of them")
        if not _contains(one.engine, engine_version):
            message = f"{one.ref} is made for sglang {one.engine}, not for {engine_version}"
            hint = "choose another version of the set or of the engine, or port the set"
            raise PatchSetError(message, where=one.document.where(("engine",)), hint=hint)
        for number, text in enumerate(one.requires):
            _check_required(one, text, one.document.where(("requires", number)), sets, index)
        for number, text in enumerate(one.conflicts):
            name, wanted = _other_set(text, one.document.where(("conflicts", number)))
            for other in sets:
                if other is not one and other.name == name and _contains(wanted, other.version):
                    message = f"{one.ref} conflicts with {other.ref}"
                    raise PatchSetError(message, where=one.document.where(("conflicts", number)), hint="drop one")
    return tuple(sets)


def with_required(root: Path, one: PatchSet) -> tuple[PatchSet, ...]:
    """The sets that `one` requires, each at its highest fitting version below `root`, and then `one` itself.

    Raises PatchSetError when a required set is not there, or when sets require each other.
    """
    return _with_required(root, one, ())


def _with_required(root: Path, one: PatchSet, above: tuple[PatchSet, ...]) -> tuple[PatchSet, ...]:
    if one.name in [other.name for other in above]:
        ring = " > ".join([*(other.ref for other in above), one.ref])
        raise PatchSetError(f"patch sets require each other: {ring}", where=one.document.where(("requires",)))
    before: dict[str, PatchSet] = {}
    for index, text in enumerate(one.requires):
        where = one.document.where(("requires", index))
        name, wanted = _other_set(text, where)
        refs = [ref for ref in all_refs(root) if ref.split("/")[0] == name]
        fitting = [ref for ref in refs if _contains(wanted, ref.split("/")[1])]
        if not fitting:
            hint = f"there are: {', '.join(refs)}" if refs else f"there is no '{name}' in {root}"
            raise PatchSetError(f"{one.ref} requires '{text}', which does not exist", where=where, hint=hint)
        for other in _with_required(root, load(root / fitting[-1]), (*above, one)):
            before.setdefault(other.name, other)
    return (*before.values(), one)


def _check_required(one: PatchSet, text: str, where: Location, sets: Sequence[PatchSet], index: int) -> None:
    name, wanted = _other_set(text, where)
    position, other = next(((at, item) for at, item in enumerate(sets) if item.name == name), (-1, None))
    if other is None:
        hint = f"add '{name}' to the profile's patch sets, before '{one.name}'"
        raise PatchSetError(f"{one.ref} requires '{text}', which is not among the patch sets", where=where, hint=hint)
    if not _contains(wanted, other.version):
        raise PatchSetError(f"{one.ref} requires '{text}', and {other.ref} is given", where=where)
    if position > index:
        message = f"{one.ref} requires '{text}' earlier, and {other.ref} comes later"
        raise PatchSetError(message, where=where, hint=f"move '{name}' before '{one.name}' in the profile")


def _proofs(folder: Path, files: Sequence[ProofFile], read: Document) -> tuple[Proof, ...]:
    for index, file in enumerate(files):
        if file.name in [other.name for other in files[:index]]:
            where = read.where(("proofs", index, "name"))
            raise PatchSetError(f"two proofs are called '{file.name}'", where=where)
        patches.file_in_set(folder, file.run, "proofs", read.where(("proofs", index, "run")))
    return tuple(
        Proof(file.name, file.run, tuple(file.needs), float(file.timeout_s), tuple(sorted(file.env.items())))
        for file in files
    )


def _other_set(text: str, where: Location) -> tuple[str, str]:
    match = _OTHER_SET.fullmatch(text.strip())
    if match is None or not re.fullmatch(NAME, match[1]):
        raise PatchSetError(f"'{text}' does not name a patch set", where=where, hint="write it as cpu>=1.0.0")
    wanted = match[2] or ""
    patches.specifiers(wanted, where)
    return match[1], wanted


def _contains(wanted: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted).contains(version, prereleases=True)


def _order(version: str) -> tuple[int, Any]:
    """Versions in their own order; what is no version comes first, so that it is never taken for the highest."""
    from packaging.version import InvalidVersion, Version

    try:
        return 1, Version(version)
    except InvalidVersion:
        return 0, version
