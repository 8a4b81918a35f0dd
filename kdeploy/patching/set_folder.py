"""The folder of a patch set: all that is in it, and that nothing in it would be ignored."""

from __future__ import annotations

import difflib
import hashlib
import os
from pathlib import Path

from kdeploy.document import Document
from kdeploy.errors import Location, PatchSetError
from kdeploy.patching.manifest import PatchSetFile

_TOP = ("patchset.yaml", "patches", "files", "proofs")


def contents(folder: Path) -> dict[str, Path]:
    """Every file of the set by its relative path, in order; a symlink, a pipe or a device anywhere is an error."""
    found: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in [*folders, *names]:
            path = Path(parent, name)
            if path.is_symlink():
                message = "a patch set holds files only, and this is a symlink"
                raise PatchSetError(message, where=Location(str(path), 1))
            if not path.is_dir() and not path.is_file():
                raise PatchSetError("a patch set holds regular files only", where=Location(str(path), 1))
        found.update({Path(parent, name).relative_to(folder).as_posix(): Path(parent, name) for name in names})
    return dict(sorted(found.items()))


def digest(contents: dict[str, Path]) -> str:
    """The sha256 over every path, mode and byte."""
    total = hashlib.sha256()
    for path, file in contents.items():
        content = file.read_bytes()
        mode = "100755" if file.stat().st_mode & 0o100 else "100644"
        total.update(f"{path}\0{mode}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return total.hexdigest()


def check_names(folder: Path, file: PatchSetFile, read: Document) -> None:
    """Raise PatchSetError unless the folders are called like the set and its version, a PEP 440 one."""
    from packaging.version import InvalidVersion, Version

    try:
        Version(file.version)
    except InvalidVersion as fault:
        where = read.where(("version",))
        raise PatchSetError(f"'{file.version}' is not a version", where=where, hint="like 1.0.0 (PEP 440)") from fault
    there = folder.resolve()
    for key, value, name in (("version", file.version, there.name), ("name", file.name, there.parent.name)):
        if value != name:
            message = f"the {key} is '{value}', but the folder is called '{name}'"
            raise PatchSetError(message, where=read.where((key,)), hint="make them equal")


def check_series(folder: Path, file: PatchSetFile, read: Document, contents: dict[str, Path]) -> None:
    """Raise PatchSetError unless the series lists exactly the patches that are there."""
    listed = file.series
    there = [path.removeprefix("patches/") for path in contents if path.startswith("patches/")]
    names = [name.removesuffix(".yaml") for name in there if name.endswith(".yaml")]
    for index, name in enumerate(listed):
        where = read.where(("series", index))
        if name in listed[:index]:
            raise PatchSetError(f"the patch '{name}' is listed twice", where=where)
        if name not in names:
            near = difflib.get_close_matches(name, [other for other in names if other not in listed], n=1)
            hint = f"did you mean '{near[0]}'?" if near else None
            raise PatchSetError(f"patches/{name}.yaml does not exist", where=where, hint=hint)
    for name in there:
        if name.removesuffix(".yaml") not in listed or not name.endswith(".yaml"):
            message = f"the series does not list this file, so it would be ignored: {folder.name}/patches/{name}"
            where = Location(str(folder / "patches" / name), 1)
            raise PatchSetError(message, where=where, hint="list it in patchset.yaml, or delete it")


def check_files(folder: Path, contents: dict[str, Path], used: set[str]) -> None:
    """Raise PatchSetError for a file that no edit uses, or that is no part of a patch set."""
    for path in contents:
        top = path.split("/")[0]
        if top == "files" and path not in used:
            message, hint = f"no edit uses '{path}', so it would be ignored", "use it in an edit, or delete it"
        elif top not in _TOP and not (top == path and path.endswith(".md")):
            message, hint = f"'{path}' is no part of a patch set", f"known here: {', '.join(_TOP)}, and *.md"
        else:
            continue
        raise PatchSetError(message, where=Location(str(folder / path), 1), hint=hint)
