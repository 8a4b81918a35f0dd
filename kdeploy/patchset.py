"""Patch sets: named, versioned, ordered folders of patches, read strictly into frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy.edits import Edit
from kdeploy.errors import Location


@dataclass(frozen=True)
class RetireWhen:
    """When a patch has done its work: every condition given is true on the pristine base."""

    engine: str | None = None
    file: str | None = None
    contains: str | None = None


@dataclass(frozen=True)
class Patch:
    """Edits with one reason, in the order in which they are made."""

    name: str
    reason: str
    origin: str
    retire_when: RetireWhen | None
    edits: tuple[Edit, ...]
    where: Location


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
    """A patch set as it stands in its folder; the digest covers every byte and mode in it."""

    name: str
    version: str
    summary: str
    engine: str
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]
    patches: tuple[Patch, ...]
    proofs: tuple[Proof, ...]
    digest: str
    folder: Path

    @property
    def ref(self) -> str:
        """Name and version as a profile writes them: `ddtree/0.1.0`."""
        return f"{self.name}/{self.version}"


def load(folder: Path) -> PatchSet:
    """Read the patch set in `folder` (`.../patchsets/<name>/<version>`); PatchSetError with its place when wrong."""
    raise NotImplementedError


def find(root: Path, ref: str) -> PatchSet:
    """Load the set that `ref` means ("ddtree/0.1.0", or "ddtree" for its highest version) below `root`, the
    `patchsets` folder; PatchSetError with the nearest name when there is none."""
    raise NotImplementedError


def all_refs(root: Path) -> tuple[str, ...]:
    """Every set below `root` (the `patchsets` folder), by name and then by version."""
    raise NotImplementedError


def resolve(sets: Sequence[PatchSet], engine_version: str) -> tuple[PatchSet, ...]:
    """Check that `sets`, in this order, go together and fit the engine; gives them back, or raises PatchSetError."""
    raise NotImplementedError


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schemas of `patchset.yaml` ("patchset") and of `patches/*.yaml` ("patch")."""
    raise NotImplementedError
