"""A release: a staged tree and a launch configuration, and the id derived from both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SERVER_MODULE = "sglang.launch_server"


@dataclass(frozen=True)
class Tree:
    """A staged tree: `tree` is the git tree id of base + patches; the stamp (version, manifest) is derived from it."""

    tree: str
    commit: str
    """The stamped commit, which travels to hosts."""
    manifest: str
    """sha256 of the tree's `manifest.sha256`, which names every other file's."""
    version: str
    """What `sglang.__version__` says: `0.5.11+kd.<first 12 of tree>`."""


def stamped_version(engine_version: str, tree: str) -> str:
    """The version a tree calls itself: PEP 440 local version, so that the server itself says what it runs."""
    return f"{engine_version}+kd.{tree[:12]}"


@dataclass(frozen=True)
class Front:
    """What owns the public port: `socket` (systemd's), `router` (SGLang's), or `none` (the server's own port)."""

    kind: str
    host: str
    port: int
    metrics_port: int | None

    def url(self, private_port: int, named: str | None = None) -> str:
        """Where clients reach it; without a front that is the server's own port.

        Where it listens at every address the URL has the one by which the host is `named`, if that is told.
        """
        if self.kind == "none":
            return f"http://127.0.0.1:{private_port}"
        host = named if named and self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True)
class Launch:
    """How a tree is served. `runtime` is `{"venv": PATH}` or `{"key": KEY}` of one made from a lock.

    Of `secrets` a release knows the names alone: their values may change without making it another one.
    """

    runtime: Mapping[str, str]
    module: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    front: Front
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Release:
    """What a host is asked to serve; everything here is part of the id but names for people."""

    id: str
    service: str
    profile: str
    engine: str
    patchsets: tuple[Mapping[str, str], ...]
    tree: str
    commit: str
    manifest: str
    version: str
    launch: Launch
    adopted: Mapping[str, Any] | None = None
    """Of a server that a host was found with: who keeps it, and a digest of what it was started with."""

    def as_document(self) -> dict[str, Any]:
        """The release as JSON values: what the agent stores as release.json."""
        document = json.loads(json.dumps(asdict(self)))
        assert isinstance(document, dict)
        if self.adopted is None:
            del document["adopted"]
        else:
            document["kind"] = "adopted"
        return document


def make(
    *, service: str, profile: str, engine: str, patchsets: Sequence[tuple[str, str]], tree: Tree, launch: Launch
) -> Release:
    """The release of `tree` under `launch`; `patchsets` are (ref, digest).

    The id is 12 hex digits of sha256 over tree, manifest and launch: the same declaration gives the same id on every
    machine, and any change to code or flags gives another.
    """
    return Release(
        id=_identity(tree.tree, tree.manifest, launch),
        service=service,
        profile=profile,
        engine=engine,
        patchsets=tuple({"ref": ref, "digest": digest} for ref, digest in patchsets),
        tree=tree.tree,
        commit=tree.commit,
        manifest=tree.manifest,
        version=tree.version,
        launch=launch,
    )


def identify(release: Release) -> str:
    """The id that a release's own content gives; another one than its `id` when somebody edited it."""
    if release.adopted is not None:
        values = {"manifest": release.manifest, "tree": release.tree, "launch": asdict(release.launch)}
        identity = json.dumps({**values, "adopted": release.adopted}, sort_keys=True)
        return f"adopted-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return _identity(release.tree, release.manifest, release.launch)


def _identity(tree: str, manifest: str, launch: Launch) -> str:
    identity = json.dumps({"manifest": manifest, "tree": tree, "launch": asdict(launch)}, sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def server_args(
    args: Mapping[str, str | int | float | bool | list[str | int | float] | None], port: int
) -> tuple[str, ...]:
    """SGLang's command line from a profile's `serve.args`, bound to loopback at `port`.

    `True` is a bare flag, `False` and `None` leave the flag out, a list gives several values.
    """
    argv: list[str] = []
    for key, value in args.items():
        if value is None or value is False:
            continue
        argv.append(f"--{key}")
        if value is True:
            continue
        argv.extend(str(item) for item in (value if isinstance(value, list) else [value]))
    return (*argv, "--host", "127.0.0.1", "--port", str(port))


def flags(argv: Sequence[str]) -> dict[str, str | bool | list[str]]:
    """What `server_args` was made from, read back from a release's command line: flag (without dashes) to value."""
    found: dict[str, list[str]] = {}
    for word in argv:
        if word.startswith("--"):
            found[word.removeprefix("--")] = []
        elif found:
            found[next(reversed(found))].append(word)
    return {key: True if not values else values[0] if len(values) == 1 else values for key, values in found.items()}


def read(document: Mapping[str, Any]) -> Release:
    """A release from its JSON values, the inverse of `as_document`; raises KeyError or TypeError for anything else."""
    launch = document["launch"]
    values = {key: value for key, value in document.items() if key != "kind"}
    return Release(
        **{
            **values,
            "patchsets": tuple(document["patchsets"]),
            "launch": Launch(
                **{
                    **launch,
                    "args": tuple(launch["args"]),
                    "front": Front(**launch["front"]),
                    "secrets": tuple(launch.get("secrets", ())),
                }
            ),
        }
    )


def runtime_key(lock: str, python: str, with_deps: Sequence[str]) -> str:
    """Key of a virtual environment: 12 hex digits over everything that decides what is in it."""
    parts = json.dumps([lock, python, list(with_deps)])
    return hashlib.sha256(parts.encode()).hexdigest()[:12]
