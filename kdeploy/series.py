"""Patch sets applied in order, in memory: what every anchor says, and the bytes that result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kdeploy.anchors import State
from kdeploy.errors import Location
from kdeploy.patchset import PatchSet
from kdeploy.trees import FolderTree, MemoryTree, Tree

__all__ = [
    "AnchorReport", "Change", "FolderTree", "MemoryTree", "PatchReport", "SeriesReport", "Tree", "check",
    "compile_errors",
]  # fmt: skip


@dataclass(frozen=True)
class AnchorReport:
    """What one edit (or one hunk of a diff) found: `line` and `text` of the place, and the state that follows."""

    ref: str
    patch: str
    edit: int
    file: str
    line: int | None
    text: str
    state: State
    hint: int | None
    details: tuple[str, ...]
    where: Location
    action: str


@dataclass(frozen=True)
class Change:
    """One file before and after a patch; None where the file is not there."""

    path: str
    before: bytes | None
    after: bytes | None
    executable_before: bool = False
    executable_after: bool = False

    @cached_property
    def _lines(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def added(self) -> int:
        """Lines that the patch adds."""
        return self._lines[0]

    @property
    def removed(self) -> int:
        """Lines that the patch removes."""
        return self._lines[1]


@dataclass(frozen=True)
class PatchReport:
    """One patch: the worst state of its edits, and its changes when all of them let it through."""

    ref: str
    name: str
    reason: str
    origin: str
    state: State
    details: tuple[str, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class SeriesReport:
    """All patches of all sets in sequence; `changes` is empty unless every patch is let through."""

    anchors: tuple[AnchorReport, ...]
    patches: tuple[PatchReport, ...]
    changes: Mapping[str, tuple[bytes | None, bool]]

    @property
    def ok(self) -> bool:
        """True when every patch is applicable or moved."""
        return all(patch.state.passes for patch in self.patches)

    def require(self) -> None:
        """Raise AnchorError with set, patch, file, line and nearest text unless every patch is let through."""
        raise NotImplementedError


@dataclass(frozen=True)
class CompileError:
    """A Python file that does not compile after patching."""

    path: str
    line: int
    text: str
    message: str


def check(tree: Tree, sets: Sequence[PatchSet], engine_version: str) -> SeriesReport:
    """Go through all patches of `sets` in sequence on `tree`, each edit on the result of the former ones.

    Goes on after a failure, so that everything is reported at once; writes nothing.
    """
    raise NotImplementedError


def compile_errors(changes: Mapping[str, tuple[bytes | None, bool]]) -> tuple[CompileError, ...]:
    """The Python files among `changes` (as in SeriesReport) that do not compile."""
    raise NotImplementedError
