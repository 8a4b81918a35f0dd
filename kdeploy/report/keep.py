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


def write(path: Path, text: str, *, private: bool = True) -> Path:
    """Write a file whole or not at all; gives its absolute path. Raises PreflightError when it cannot be written.

    What is `private` only its owner can read: a page shows what a server was asked and said.
    """
    path = path.absolute()
    made: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        made = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        made.chmod(0o600 if private else 0o666 & ~_umask())
        made.replace(path)
    except OSError as fault:
        if made is not None:
            with contextlib.suppress(OSError):
                made.unlink()
        raise PreflightError(
            f"{path} cannot be written: {fault.strerror}", hint="make room there, or name another file"
        ) from fault
    return path


def _umask() -> int:
    """The mask of this process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _plain(name: str) -> str:
    """A name as that of a file or folder: a URL's host and port, an address with colons."""
    shown = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return shown[:100] or "unknown"
