"""The profile: the YAML that declares a deployment. Also the hosts file and the lock it is read against."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kdeploy import document
from kdeploy.document import Document, Loc, Model
from kdeploy.errors import Location, ProfileError, UsageError

NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int | float, Field(gt=0, le=86_400)]
Scalar = str | int | float | bool | None


class Runtime(Model):
    """The Python the engine runs in: a virtual environment that is there, or one made from a lock file."""

    python: Annotated[str, Field(pattern=r"^3\.\d+$")] = Field(
        default="3.11", description="Python version, which also selects the engine's wheel"
    )
    venv: str | None = Field(default=None, description="absolute path of a virtual environment on the host")
    lock: str | None = Field(default=None, description="requirements file, every line pinned with ==")
    with_deps: list[str] = Field(
        default=["torch"], description="pins that bring their own dependencies, which differ between builds"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Runtime:
        if (self.venv is None) == (self.lock is None):
            raise ValueError("give either 'venv' (a path on the host) or 'lock' (a requirements file)")
        if self.venv is not None and not self.venv.startswith("/"):
            raise ValueError(f"'venv' must be an absolute path on the host, not {self.venv!r}")
        return self


class Serve(Model):
    """How the engine is launched, and where clients find it."""

    host: str = Field(default="127.0.0.1", description="address of the public port")
    port: Port = Field(description="the public port: closed until the gate has passed")
    private_port: Port = Field(description="loopback port of the server itself")
    front: Literal["router", "none"] = Field(default="router", description="what owns the public port")
    metrics_port: Port | None = Field(default=None, description="loopback port of the router's metrics")
    args: dict[str, Scalar | list[str | int | float]] = Field(
        description="SGLang's own flags without the leading dashes; true is a bare flag, false or null leaves it out"
    )
    env: dict[str, str] = Field(default={}, description="environment of the server")

    @model_validator(mode="after")
    def _distinct(self) -> Serve:
        ports = [self.port, self.private_port, *([self.metrics_port] if self.metrics_port else [])]
        if len(set(ports)) != len(ports):
            raise ValueError(f"port, private-port and metrics-port must differ, got {ports}")
        if self.front == "router" and self.metrics_port is None:
            raise ValueError("front 'router' needs a 'metrics-port'")
        for taken in ("host", "port"):
            if taken in self.args:
                raise ValueError(f"'args.{taken}' is set by kdeploy: use 'serve.{taken}' and 'serve.private-port'")
        if "model-path" not in self.args:
            raise ValueError("'args.model-path' is required")
        return self


class Gate(Model):
    """What a candidate must pass, and how long each part may take."""

    prompts: str | None = Field(default=None, description="prompts file (JSON); the built-in set when not given")
    full: bool = Field(default=False, description="ask every prompt, not only those marked quick")
    company: Annotated[int, Field(ge=2, le=64)] = Field(
        default=4, description="how many different prompts are put into one batch"
    )
    agreement: Annotated[int | float, Field(ge=0, le=1)] = Field(
        default=1.0, description="least share of leading tokens that company and repetition must leave as they were"
    )
    min_accept_length: Annotated[int | float, Field(ge=1)] | None = Field(
        default=None, description="least mean accept length of speculative decoding, tokens a step"
    )
    request_s: Seconds = Field(default=60, description="no single answer may take longer, seconds")
    start_s: Seconds = Field(default=900, description="from launch to the first answer, seconds")
    probe_s: Seconds = Field(default=300, description="for all probes together, seconds")
    decide_s: Seconds = Field(default=120, description="how long the host waits for the verdict before it goes back")
    soak_s: Annotated[int | float, Field(ge=0, le=86_400)] = Field(
        default=10, description="watched after opening, before known-good, seconds"
    )


class ProfileFile(Model):
    """A deployment: engine + patch sets + launch configuration + hosts + gate."""

    extends: str | None = Field(default=None, description="another profile whose keys this one overrides")
    summary: str = Field(default="", description="one line for people")
    service: Annotated[str, Field(pattern=NAME)] = Field(description="name of the deployment on its hosts")
    engine: Annotated[str, Field(pattern=r"^sglang==[0-9][0-9A-Za-z.]*$")] = Field(
        description="the upstream release, pinned in kdeploy.lock: sglang==VERSION"
    )
    patchsets: list[Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")]] = Field(
        description="NAME/VERSION, applied in this order"
    )
    hosts: Annotated[list[str], Field(min_length=1)] = Field(description="names from hosts.yaml")
    runtime: Runtime
    prove: Runtime | None = Field(default=None, description="where proofs run here; the runtime when it is a lock")
    serve: Serve
    gate: Gate = Gate()


class SSH(Model):
    """How a host is reached by SSH."""

    address: str = Field(description="host name or address; ssh_config aliases work")
    port: Port = 22
    user: str | None = None


class HostEntry(Model):
    """One host: this machine, or one reached by SSH."""

    local: bool = Field(default=False, description="this machine")
    ssh: SSH | None = None
    root: str | None = Field(default=None, description="kdeploy's folder there; /opt/kdeploy, or in the home folder")

    @model_validator(mode="after")
    def _one_way(self) -> HostEntry:
        if self.local == (self.ssh is not None):
            raise ValueError("give either 'local: true' or 'ssh: {address: …}'")
        return self


class HostsFile(Model):
    """profiles/hosts.yaml: every host by name."""

    hosts: dict[str, HostEntry]


@dataclass(frozen=True)
class Profile:
    """A profile as written, resolved against its project; `document` knows where each value stands."""

    name: str
    path: Path
    project: Path
    file: ProfileFile
    hosts: Mapping[str, HostEntry]
    document: Document

    @property
    def engine_version(self) -> str:
        """The SGLang version, `0.5.11`."""
        return self.file.engine.removeprefix("sglang==")

    @property
    def prover(self) -> Runtime | None:
        """The runtime proofs run in on this machine, or None when the profile names none that can be made here."""
        return self.file.prove or (self.file.runtime if self.file.runtime.lock else None)

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
    if not path.exists() and not path.suffix and path.with_suffix(".yaml").exists():
        path = path.with_suffix(".yaml")
    merged = _with_bases(path.absolute(), ())
    file = document.check(merged, ProfileFile, ProfileError)
    project = find_project(path.absolute().parent)
    hosts_path = project / "profiles" / "hosts.yaml"
    hosts_file, _ = document.load(hosts_path, HostsFile, ProfileError)
    chosen: dict[str, HostEntry] = {}
    for index, name in enumerate(file.hosts):
        where = merged.where(("hosts", index))
        if name in chosen:
            raise ProfileError(f"host '{name}' is named twice", where=where)
        if name not in hosts_file.hosts:
            raise ProfileError(f"unknown host '{name}'", where=where, hint=_nearest(name, hosts_file.hosts, hosts_path))
        chosen[name] = hosts_file.hosts[name]
    _refuse_local_paths(file, merged, chosen)
    return Profile(path.stem, path.absolute(), project, file, chosen, merged)


def _with_bases(path: Path, seen: tuple[Path, ...], where: Location | None = None) -> Document:
    if path in seen:
        chain = " -> ".join(item.name for item in (*seen[seen.index(path) :], path))
        raise ProfileError(f"'extends' goes in a circle: {chain}", where=where)
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
    if not isinstance(base, str):
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


def _nearest(name: str, known: Mapping[str, object], path: Path) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else f"{path} knows: {', '.join(sorted(known)) or 'no host'}"
