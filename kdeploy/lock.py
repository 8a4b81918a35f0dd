"""What a project pins. kdeploy.lock: the engine's wheels by sha256, frozen patch sets and their trees by digest.
A runtime's lock file: its packages by version."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from kdeploy import document
from kdeploy.document import Document, Model
from kdeploy.errors import ConflictError, Location, PatchSetError, ProfileError

FILE = "kdeploy.lock"

_HEAD = "# What this project pins. Engines by hand (pip download, sha256sum); the rest by `kdeploy freeze`.\n"

_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*==\s*([A-Za-z0-9.+!_-]+)")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Wheel(Model):
    """One wheel of the engine: SGLang's wheels hold a compiled module, so there is one for each Python."""

    file: str = Field(description="file name on PyPI")
    sha256: Sha256
    size: Annotated[int, Field(gt=0)] = Field(description="bytes")
    platform: str = Field(description="pip's platform tag, such as manylinux_2_34_x86_64")


class LockFile(Model):
    """The whole lock."""

    engines: dict[str, dict[str, Wheel]] = Field(description="sglang==VERSION: Python version: wheel")
    patchsets: dict[str, Sha256] = Field(default={}, description="NAME/VERSION of a frozen patch set: its digest")
    trees: dict[str, str] = Field(default={}, description="engine + patch sets: the git tree they result in")


@dataclass(frozen=True)
class Lock:
    """The lock of a project; `document` knows where each entry stands."""

    path: Path
    file: LockFile
    document: Document

    def wheel(self, engine: str, python: str, where: Location | None = None) -> Wheel:
        """The pinned wheel of `engine` (`sglang==0.5.11`) for a Python version (`3.11`).

        Raises ProfileError at `where` when the lock does not have it.
        """
        wheels = self.file.engines.get(engine)
        if wheels is None:
            raise ProfileError(
                f"{engine} is not in {FILE}",
                where=where,
                hint=f"it has {', '.join(sorted(self.file.engines)) or 'no engine'}; add the wheel's sha256 and size",
            )
        if python not in wheels:
            raise ProfileError(
                f"{FILE} has no wheel of {engine} for Python {python}",
                where=where,
                hint=f"it has wheels for Python {', '.join(sorted(wheels))}",
            )
        return wheels[python]

    def any_python(self, engine: str) -> str:
        """A Python version that has a wheel of `engine`: ours if it has one, else the newest. Their sources are one."""
        wheels = self.file.engines[engine]
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return own if own in wheels else max(wheels, key=lambda text: [int(part) for part in text.split(".")])

    def versions(self) -> tuple[str, ...]:
        """SGLang versions the lock pins."""
        return tuple(name.removeprefix("sglang==") for name in self.file.engines)

    def check_digest(self, ref: str, digest: str) -> None:
        """Raise PatchSetError when the patch set `ref` is frozen and is not any more what was frozen."""
        frozen = self.file.patchsets.get(ref)
        if frozen is not None and frozen != digest:
            raise PatchSetError(
                f"patch set {ref} is frozen and has changed: {FILE} says {frozen[:12]}…, the folder is {digest[:12]}…",
                where=self.document.where(("patchsets", ref)),
                hint="put it back (git diff), or make a new version of it; `kdeploy freeze` records a new one",
            )

    def check_tree(self, engine: str, refs: Sequence[str], python: str, tree: str) -> None:
        """Raise ConflictError when engine + patch sets are known to result in another tree than `tree`."""
        key = tree_key(engine, refs, python)
        known = self.file.trees.get(key)
        if known is not None and known != tree:
            raise ConflictError(
                f"{key} gave tree {tree[:12]}, but {FILE} says {known[:12]}",
                where=self.document.where(("trees", key)),
                hint="the base or a patch set is not what it was when this was frozen",
            )


def tree_key(engine: str, refs: Sequence[str], python: str) -> str:
    """How the lock names a resulting tree: `sglang==0.5.11 py3.11 + cpu/1.0.0 + ddtree/0.1.0`."""
    return " + ".join([f"{engine} py{python}", *refs])


def load(project: Path) -> Lock:
    """Read the lock of `project`; raises ProfileError when it is missing or not valid."""
    path = project / FILE
    file, read = document.load(path, LockFile, ProfileError)
    return Lock(path, file, read)


def frozen(lock: Lock, digests: Mapping[str, str], trees: Mapping[str, str]) -> str:
    """The text of the lock with `digests` and `trees` added, sorted so that a diff shows only what changed."""
    values = lock.file.model_dump(by_alias=True)
    values["patchsets"] = dict(sorted({**values["patchsets"], **digests}.items()))
    values["trees"] = dict(sorted({**values["trees"], **trees}.items()))
    return _HEAD + yaml.safe_dump(values, sort_keys=False, width=120)


def requirements(text: str, path: str) -> Mapping[str, str]:
    """The packages that a runtime's lock file pins: version by name, names in PEP 503's normal form.

    `path` names the file in errors. Raises ProfileError at the first line that is not blank, a comment or
    `name==version`: what another file, a range, a URL or an option brings in, the lock does not decide.
    """
    pins: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        wanted = re.sub(r"(^|\s)#.*", "", line).strip()
        if not wanted:
            continue
        pin = _PIN.fullmatch(wanted)
        where = Location(path, number)
        if pin is None:
            hint = "a lock has blank lines, comments and 'name==version', nothing else"
            raise ProfileError(f"'{wanted}' pins nothing", where=where, hint=hint)
        if (name := normal_name(pin[1])) in pins:
            raise ProfileError(f"'{pin[1]}' is pinned twice", where=where, hint="keep one of the two lines")
        pins[name] = pin[2]
    return pins


def normal_name(name: str) -> str:
    """A package's name in the form in which equal names are equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
