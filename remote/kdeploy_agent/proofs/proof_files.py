"""The files of patch sets as they travel to a host: a zip whose names stay inside, whose size is bounded."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

from kdeploy_agent.errors import AgentError

LIMIT_BYTES = 16 << 20
_LIMIT_FILES = 2000


def unpack(payload: bytes, folder: Path) -> str:
    """Write a zip's files below `folder`; gives the zip's sha256. Raises `usage` when it is none or does not fit."""
    if len(payload) > LIMIT_BYTES:
        raise AgentError("usage", f"the proofs' files are more than {LIMIT_BYTES >> 20} MB")
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as zipped:
            entries = zipped.infolist()
            if len(entries) > _LIMIT_FILES or sum(entry.file_size for entry in entries) > LIMIT_BYTES:
                raise AgentError(
                    "usage", f"the proofs' files are more than {_LIMIT_FILES}, or {LIMIT_BYTES >> 20} MB unpacked"
                )
            for entry in entries:
                check_name(entry.filename)
                target = folder / entry.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:  # a name twice is refused
                    file.write(zipped.read(entry))
    except (zipfile.BadZipFile, ValueError, EOFError, FileExistsError, NotADirectoryError) as fault:
        raise AgentError("usage", f"the proofs' files are no zip that can be unpacked: {fault}") from fault
    return hashlib.sha256(payload).hexdigest()


def check_name(name: str) -> None:
    """Raise `usage` for a path that would leave its folder."""
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise AgentError("usage", f"{name!r} is not the path of a file inside a patch set")
