"""Where kdeploy keeps things on the operator's machine, by the XDG base directory specification."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """Staged trees, wheels, proof results: can be deleted at any time. `$KDEPLOY_CACHE` overrides."""
    return _xdg("KDEPLOY_CACHE", "XDG_CACHE_HOME", ".cache")


def state() -> Path:
    """The ledger and the logs of our own faults. `$KDEPLOY_STATE` overrides."""
    return _xdg("KDEPLOY_STATE", "XDG_STATE_HOME", ".local/state")


def host_root() -> Path:
    """kdeploy's folder on this machine as a host: `$KDEPLOY_ROOT`, /opt/kdeploy for root, else in the home folder."""
    if given := os.environ.get("KDEPLOY_ROOT"):
        return Path(given).absolute()
    return Path("/opt/kdeploy") if os.geteuid() == 0 else Path.home() / ".local/share/kdeploy"


def _xdg(own: str, variable: str, default: str) -> Path:
    if given := os.environ.get(own):
        return Path(given).absolute()
    base = os.environ.get(variable)
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / default) / "kdeploy"
