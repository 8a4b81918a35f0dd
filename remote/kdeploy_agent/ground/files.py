"""Files that are whole or not there: written beside, synced, renamed. Links that are replaced, never edited."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any, Optional

ASIDE = ".aside"  # what such a name ends with is a leftover: retention removes it


def canonical(document: Any) -> bytes:
    """The one JSON text of a document: sorted keys, one trailing newline, so that equal means equal bytes."""
    return (json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode("utf-8")


def ordered(document: Any) -> bytes:
    """The JSON text of a document whose order means something: a grammar asks for a schema's properties in turn."""
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8")


def read_json(path: Path) -> Any:
    """The JSON document at `path`; None when there is none that is whole."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return None


def write(path: Path, data: bytes) -> None:
    """Put `data` at `path`, for its owner only.

    A reader, and a machine that loses power, see the old or the new, never half.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    handle = os.open(str(beside), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:  # half a file on a full disk would keep it full
        beside.unlink()
        raise
    sync_folder(path.parent)


def private(path: str, flags: int) -> int:
    """An `opener`: what it creates is for its owner only. Logs and journals repeat what servers were started with."""
    return os.open(path, flags, 0o600)


def make_private(folder: Path) -> None:
    """Make a folder that nobody but its owner can look into."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def reserve(path: Path, size: int) -> None:
    """Occupy `size` bytes of the disk at `path`, so that removing it makes room when nothing else does."""
    with path.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def write_once(path: Path, data: bytes) -> bool:
    """Like `write`, but the first one stands: False, and nothing changed, when `path` is there already."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.once")
    write(beside, data)
    try:
        os.link(str(beside), str(path))
    except FileExistsError:
        return False
    finally:
        beside.unlink()
        sync_folder(path.parent)
    return True


def sync(path: Path) -> None:
    """Make a file that somebody else wrote, and its name, survive a power failure."""
    handle = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make names created, renamed or removed in the folder survive a power failure."""
    handle = os.open(str(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_filesystem(path: Path) -> None:
    """Flush the filesystem `path` is on: one call instead of an fsync for each of thousands of files."""
    handle = os.open(str(path), os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
            os.sync()
    finally:
        os.close(handle)


def point(link: Path, folder: Path) -> None:
    """Make `link` a relative link to `folder` by renaming a new link over it (`ln -sfn` would not be atomic)."""
    beside = link.with_name(f"{link.name}.new")
    remove_link(beside)
    beside.symlink_to(os.path.relpath(str(folder), str(link.parent)))
    beside.replace(link)
    sync_folder(link.parent)


def remove_link(link: Path) -> None:
    """Take a link away; nothing happens when it is not there."""
    if link.is_symlink():
        link.unlink()
        sync_folder(link.parent)


def target_of(link: Path) -> Optional[str]:
    """Name of the folder a link points to; None when there is no link."""
    try:
        return Path(os.readlink(str(link))).name  # noqa: PTH115 - Path.readlink came with Python 3.9
    except OSError:
        return None


def protect(folder: Path) -> None:
    """Take the right to write from every file and folder below and including `folder`."""
    with os.scandir(str(folder)) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            protect(Path(entry.path))
        else:
            mode = entry.stat(follow_symlinks=False).st_mode
            os.chmod(entry.path, 0o555 if mode & stat.S_IXUSR else 0o444)  # noqa: PTH101 - of thousands of files
    folder.chmod(0o555)


def wipe(path: Path) -> None:
    """Remove a folder or file whatever its permissions; nothing happens when it is not there."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    if not path.is_dir():
        return
    for parent, _, _ in os.walk(str(path)):  # a read-only folder does not let go of its entries
        Path(parent).chmod(0o755)
    shutil.rmtree(str(path))


def put_aside(path: Path) -> Optional[Path]:
    """Rename what is at `path`, whatever it is and whoever writes into it, so that the name is free; gives where it is.

    None when there was nothing.
    """
    aside = path.with_name(f"{path.name}.{time.time_ns():x}{ASIDE}")
    try:
        path.replace(aside)
    except FileNotFoundError:
        return None
    return aside


def discard(path: Path) -> None:
    """Remove a leftover as far as that can be done. Its name is free at once, though others still write into it."""
    with contextlib.suppress(OSError):
        aside = path if path.suffix == ASIDE else put_aside(path)
        if aside is not None:
            wipe(aside)


def free_space(path: Path) -> "os.statvfs_result":
    """Space of the filesystem that `path` is or would be on."""
    while not path.exists():
        path = path.parent
    return os.statvfs(str(path))
