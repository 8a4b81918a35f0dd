"""Trees for hosts without git: a gzipped tar of plain files, unpacked so that nothing in it can reach anywhere else."""

from __future__ import annotations

import os
import stat
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Callable, Set

from kdeploy_agent.errors import AgentError

MOST_FILES = 200_000
MOST_BYTES = 8 * 1024**3  # of all files together: a small archive can be made that never ends

_SEND_AGAIN = "the archive is damaged or cut short: send it again, whole"


def unpack(source: IO[bytes], folder: Path, need: Callable[[int, int], None]) -> None:
    """Write every file of the archive below the empty `folder`.

    `need` is told bytes and files before they are written, and raises when there is no room. Raises `integrity` for
    whatever is no plain file with a plain name, comes twice, is too much, or when the archive is damaged.
    """
    seen: Set[str] = set()
    size = promised = 0
    try:
        with tarfile.open(fileobj=source, mode="r|gz") as archive:
            for member in archive:
                name = _checked(member)
                if name in seen:
                    raise AgentError("integrity", f"{name} is in the archive twice", _SEND_AGAIN)
                seen.add(name)
                size += member.size
                if len(seen) > MOST_FILES or size > MOST_BYTES:
                    raise AgentError("integrity", f"the archive holds more than {MOST_FILES} files or 8 GB", "")
                if size > promised:
                    promised = size + (64 << 20)
                    need(promised - size + member.size, 1000)
                content = archive.extractfile(member)
                assert content is not None
                _write(folder / name, content, member.size, 0o755 if member.mode & stat.S_IXUSR else 0o644)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as fault:
        if isinstance(fault, OSError) and fault.errno is not None:  # the disk's; gzip's own have no number
            raise
        raise AgentError("integrity", f"the archive cannot be read: {fault}", _SEND_AGAIN) from fault


def _checked(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    plain = not path.is_absolute() and path.parts and not {"..", "."} & set(path.parts)
    if not plain or str(path) != member.name or "\0" in member.name or "\\" in member.name:
        raise AgentError("integrity", f"the archive holds {member.name!r}, which is no plain path below it", "")
    if not member.isreg() or member.issparse():
        raise AgentError("integrity", f"the archive holds {member.name!r}, which is no plain file", "")
    return member.name


def _write(path: Path, content: IO[bytes], size: int, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(handle, "wb") as file:
        left = size
        while left:
            block = content.read(min(left, 1 << 20))
            if not block:
                raise AgentError("integrity", f"{path.name} is cut short in the archive", _SEND_AGAIN)
            file.write(block)
            left -= len(block)
        os.fchmod(file.fileno(), mode)
