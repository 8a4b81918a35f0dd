"""Where everything of a service lives on a host; ARCHITECTURE.md draws the picture."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files

_SERVICE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,126}")
_HEX = re.compile(r"[0-9a-f]{8,64}")
_TAKEN = ("agent", "runtimes")


@dataclass(frozen=True)
class Layout:
    """The paths of one service below the root; makes nothing by itself."""

    root: Path
    service: str

    def __post_init__(self) -> None:
        if not _SERVICE.fullmatch(self.service) or self.service in _TAKEN:
            raise AgentError("usage", f"{self.service!r} cannot be a service's name")
        if not self.root.is_absolute():
            raise AgentError("usage", f"the root must be an absolute path, not {str(self.root)!r}")

    @property
    def home(self) -> Path:
        """The service's folder."""
        return self.root / self.service

    @property
    def store(self) -> Path:
        """The bare git repository that receives bundles."""
        return self.home / "store.git"

    @property
    def trees(self) -> Path:
        """Checked out, verified, read-only trees by tree id."""
        return self.home / "trees"

    @property
    def releases(self) -> Path:
        """One folder a release."""
        return self.home / "releases"

    @property
    def current(self) -> Path:
        """Link to the release that serves."""
        return self.home / "current"

    @property
    def known_good(self) -> Path:
        """Link to the release that was confirmed last."""
        return self.home / "known-good"

    @property
    def journal(self) -> Path:
        """One line before and after every effect."""
        return self.home / "journal.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the process that changes the service."""
        return self.home / "lock"

    @property
    def reserve(self) -> Path:
        """Room on the disk that is kept for the way back."""
        return self.home / "reserve"

    @property
    def units(self) -> Path:
        """Specs, pid files and logs of supervised processes."""
        return self.home / "units"

    @property
    def caches(self) -> Path:
        """Kernel and bytecode caches by tree id."""
        return self.home / "caches"

    @property
    def transactions(self) -> Path:
        """What a transaction was asked, and the operator's answer, by transaction id."""
        return self.home / "transactions"

    @property
    def secrets(self) -> Path:
        """Values that servers are started with and nobody else is told; a file each, for their owner only."""
        return self.home / "secrets"

    @property
    def empty(self) -> Path:
        """The working folder of servers: nothing in it can shadow a module of the release."""
        return self.home / "empty"

    @property
    def runtimes(self) -> Path:
        """Virtual environments by key, shared by all services of the root."""
        return self.root / "runtimes"

    def tree(self, tree: str) -> Path:
        """The folder of a tree, by its hexadecimal id."""
        return self.trees / _checked(_HEX, tree, "tree id")

    def cache(self, tree: str) -> Path:
        """The caches of a tree."""
        return self.caches / _checked(_HEX, tree, "tree id")

    def release(self, release: str) -> Path:
        """The folder of a release."""
        return self.releases / _checked(_NAME, release, "release id")

    def evidence(self, release: str) -> Path:
        """What the gate saw of a release."""
        return self.release(release) / "evidence"

    def runtime(self, key: str) -> Path:
        """The virtual environment made from the lock with this key."""
        return self.runtimes / _checked(_NAME, key, "runtime key")

    def transaction(self, txn: str) -> Path:
        """The folder of a transaction."""
        return self.transactions / _checked(_NAME, txn, "transaction id")

    def ended(self, txn: str) -> Path:
        """Says who ended a transaction by `unlock`."""
        return self.transaction(txn) / "ended.json"

    def live(self) -> Optional[str]:
        """Id of the release that `current` points to, if any."""
        return files.target_of(self.current)

    def good(self) -> Optional[str]:
        """Id of the release that `known-good` points to, if any."""
        return files.target_of(self.known_good)


def _checked(shape: re.Pattern[str], value: str, what: str) -> str:
    # Ids come from a request and become paths: nothing but a plain name may pass.
    if not isinstance(value, str) or not shape.fullmatch(value):
        raise AgentError("usage", f"{value!r} is not a {what}")
    return value
