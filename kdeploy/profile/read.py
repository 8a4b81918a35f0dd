"""Reading a profile: everything it extends, the hosts it names, and where each value stands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy import document
from kdeploy.document import Document, Loc
from kdeploy.errors import Location, ProfileError, UsageError
from kdeploy.profile.model import HostEntry, HostsFile, ProfileFile, Runtime
from kdeploy.profile.values import Scalar

MAX_EXTENDS = 20
"""How many profiles may extend each other in a row."""


@dataclass(frozen=True)
class Profile:
    """A profile as written, resolved against its project; `document` knows where each value stands."""

    name: str
    path: Path
    project: Path
    file: ProfileFile
    hosts: Mapping[str, HostEntry]
    document: Document
    hosts_document: Document
    """profiles/hosts.yaml."""

    @property
    def engine_version(self) -> str:
        """The SGLang version, `0.5.11`."""
        return self.file.engine.removeprefix("sglang==")

    @property
    def proves_on_hosts(self) -> bool:
        """Whether proofs run on the hosts, in the engine's own runtime, and not on this machine."""
        return self.file.prove == "host"

    @property
    def prover(self) -> Runtime | None:
        """The runtime proofs run in on this machine, or None when the profile names none that can be made here."""
        if isinstance(self.file.prove, Runtime):
            return self.file.prove
        return self.file.runtime if self.file.runtime.lock and not self.proves_on_hosts else None

    def where(self, *loc: str | int) -> Location:
        """The place of a value, for errors found later."""
        return self.document.where(loc)

    def beside(self, value: str, *loc: str | int) -> Path:
        """A path the profile names on this machine: a relative one is beside the file that `loc` is written in."""
        return (Path(self.where(*loc).path).parent / value).resolve()

    @property
    def args(self) -> Mapping[str, Scalar | list[str | int | float]]:
        """The launch arguments, with paths on this machine (`./x`, `../x`) made absolute."""
        return {
            key: str(self.beside(value, "serve", "args", key))
            if isinstance(value, str) and is_local_path(value)
            else value
            for key, value in self.file.serve.args.items()
        }


def find_project(start: Path) -> Path:
    """The nearest folder at or above `start` that holds `patchsets/` and `profiles/`.

    Raises UsageError when there is none.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "patchsets").is_dir() and (folder / "profiles").is_dir():
            return folder
    raise UsageError(
        f"no kdeploy project at or above {start}",
        hint="a project is a folder with patchsets/ and profiles/; run inside one, or name a profile in one",
    )


def load(path: Path) -> Profile:
    """Read the profile at `path`, everything it extends, and the hosts it names.

    Raises ProfileError with file:line:column for whatever is not right.
    """
    if not path.suffix and not document.is_file(path) and document.is_file(path.with_suffix(".yaml")):
        path = path.with_suffix(".yaml")
    merged = _with_bases(path.absolute(), ())
    file = document.check(merged, ProfileFile, ProfileError)
    project = find_project(path.absolute().parent)
    hosts_path = project / "profiles" / "hosts.yaml"
    hosts_file, hosts_document = document.load(hosts_path, HostsFile, ProfileError)
    chosen: dict[str, HostEntry] = {}
    for index, name in enumerate(file.hosts):
        where = merged.where(("hosts", index))
        if name in chosen:
            raise ProfileError(f"host '{name}' is named twice", where=where)
        if name not in hosts_file.hosts:
            raise ProfileError(f"unknown host '{name}'", where=where, hint=_nearest(name, hosts_file.hosts, hosts_path))
        chosen[name] = hosts_file.hosts[name]
    _refuse_local_paths(file, merged, chosen)
    _refuse_open_secrets(file, merged)
    return Profile(path.stem, path.absolute(), project, file, chosen, merged, hosts_document)


def _with_bases(path: Path, seen: tuple[Path, ...], where: Location | None = None) -> Document:
    if path in seen:
        chain = " -> ".join(item.name for item in (*seen[seen.index(path) :], path))
        raise ProfileError(f"'extends' goes in a circle: {chain}", where=where)
    if len(seen) > MAX_EXTENDS:
        raise ProfileError(f"more than {MAX_EXTENDS} profiles extend each other in a row", where=where)
    try:
        own = document.read(path, ProfileError)
    except ProfileError as fault:
        if where is None or fault.where is not None:
            raise
        raise ProfileError(f"'extends': {fault.message}", where=where, hint=fault.hint) from fault
    if not isinstance(own.values, dict):
        document.check(own, ProfileFile, ProfileError)  # raises: not a mapping
    base = own.values.get("extends")
    if base is None:
        return own
    if not isinstance(base, str) or not base or "\0" in base:
        raise ProfileError("'extends' must be the path of another profile", where=own.where(("extends",)))
    below = (path.parent / base).resolve()
    return merge(_with_bases(below, (*seen, path), own.where(("extends",))), own)


def merge(base: Document, over: Document) -> Document:
    """`base` with the keys of `over` on top: mappings merge key by key, all else is replaced, null takes a key away."""
    marks: dict[Loc, Location] = {}
    values = _merge(base, over, (), marks)
    return Document(over.path, values, marks)


def _merge(base: Document, over: Document, loc: Loc, marks: dict[Loc, Location]) -> Any:
    below, above = _at(base.values, loc), _at(over.values, loc)
    if not (isinstance(below, dict) and isinstance(above, dict)):
        source = over if above is not _ABSENT else base
        marks.update({at: place for at, place in source.marks.items() if at[: len(loc)] == loc})
        return above if above is not _ABSENT else below
    marks[loc] = over.where(loc)
    merged = {}
    for key in (*below, *(key for key in above if key not in below)):
        if key in above and above[key] is None and key in below:
            continue
        merged[key] = _merge(base, over, (*loc, key), marks)
    return merged


_ABSENT = object()


def _at(values: Any, loc: Loc) -> Any:
    for part in loc:
        if not (isinstance(values, dict) and part in values):
            return _ABSENT
        values = values[part]
    return values


def is_local_path(value: str) -> bool:
    """Whether an argument is written as a path beside the profile (`./x`, `../x`)."""
    return re.match(r"\.\.?/", value) is not None


def _refuse_local_paths(file: ProfileFile, merged: Document, hosts: Mapping[str, HostEntry]) -> None:
    remote = [name for name, entry in hosts.items() if not entry.local]
    for key, value in file.serve.args.items():
        if remote and isinstance(value, str) and is_local_path(value):
            raise ProfileError(
                f"'serve.args.{key}' is a path on this machine, but {remote[0]} is another one",
                where=merged.where(("serve", "args", key)),
                hint="give the absolute path the model has on the host",
            )


def _refuse_open_secrets(file: ProfileFile, merged: Document) -> None:
    """A value in `serve.env` is written into release.json, plans and --json."""
    for name in file.serve.env:
        if _SECRET_WORDS & set(name.upper().split("_")):
            raise ProfileError(
                f"'{name}' looks like a secret, and 'serve.env' is shown and kept",
                where=merged.where(("serve", "env", name)),
                hint=f"write it under 'serve.secrets': {name}: {{env: {name}}}, or {{file: PATH}}",
            )
        if name in _SET_BY_US or name.startswith("KDEPLOY_"):
            raise ProfileError(
                f"'{name}' is set by kdeploy itself: what serves is exactly what was declared",
                where=merged.where(("serve", "env", name)),
                hint="take it out: modules come from the engine, its patch sets and the runtime, caches go by tree",
            )
        if name in _LOADS_MORE:
            raise ProfileError(
                f"'{name}' would load code that no patch set declares, and no digest covers",
                where=merged.where(("serve", "env", name)),
                hint="put that code into a patch set, or into the runtime",
            )
    for name in file.serve.secrets:
        if name in file.serve.env or name in _OURS or name in _LOADS_MORE:
            whose = "'serve.env' as well" if name in file.serve.env else "the environment that kdeploy itself sets"
            raise ProfileError(
                f"'{name}' is in {whose}: it has one value", where=merged.where(("serve", "secrets", name))
            )


_SECRET_WORDS = {"TOKEN", "KEY", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"}
_SET_BY_US = {
    "PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "TMPDIR", "SPT_NOENV",
    "PYTHONPYCACHEPREFIX", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
    "FLASHINFER_WORKSPACE_BASE", "SGLANG_DG_CACHE_DIR", "DG_JIT_CACHE_DIR", "TVM_FFI_CACHE_DIR", "SGLANG_CACHE_DIR",
    "CUDA_CACHE_PATH", "XDG_CACHE_HOME",
}  # fmt: skip
"""What the agent sets over whatever is declared (remote/kdeploy_agent/trees/serving.py; a test holds them together)."""

_LOADS_MORE = {"PYTHONHOME", "PYTHONSTARTUP", "LD_PRELOAD", "LD_AUDIT"}
_OURS = {*_SET_BY_US, "PATH", "HOME", "KDEPLOY_UNIT", "KDEPLOY_RELEASE", "KDEPLOY_SERVICE"}


def _nearest(name: str, known: Mapping[str, object], path: Path) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else f"{path} knows: {', '.join(sorted(known)) or 'no host'}"
