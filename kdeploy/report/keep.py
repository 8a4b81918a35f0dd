"""Keeps pages on the operator's machine: the newest of each release and verb, by service and host."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

from kdeploy import places
from kdeploy.errors import PreflightError
from kdeploy.report.page import About


def place(about: About) -> Path:
    """Where the page of a release is kept: `reports/SERVICE/HOST/RELEASE-VERB.html` in kdeploy's state folder.

    A release has one page a verb, so that asking a server every minute fills no disk.
    """
    parts = [_plain(one) for one in (about.service, about.host, f"{about.release}-{about.asked_for}")]
    return places.state() / "reports" / parts[0] / parts[1] / f"{parts[2]}.html"


def keep(about: About, text: str) -> Path:
    """Keep a page in its place; gives that. Raises PreflightError when it cannot be written."""
    return write(place(about), text)


def write(path: Path, text: str) -> Path:
    """Write a page whole or not at all; gives its absolute path. Raises PreflightError when it cannot be written."""
    path = path.absolute()
    made: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        made = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        made.chmod(0o600)  # it shows what a server was asked and said
        made.replace(path)
    except OSError as fault:
        if made is not None:
            with contextlib.suppress(OSError):
                made.unlink()
        raise PreflightError(
            f"the page {path} cannot be written: {fault.strerror}", hint="make room, or name another file: --html FILE"
        ) from fault
    return path


def _plain(name: str) -> str:
    """A name as that of a file or folder: a URL's host and port, an address with colons."""
    shown = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return shown[:100] or "unknown"
