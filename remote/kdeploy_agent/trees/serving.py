"""How a release becomes units: the server on its private port, and the front that lets clients in."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pwd
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, secrets
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import adopted, draining
from kdeploy_agent.keeping.units import MARK, Spec
from kdeploy_agent.trees import caches

LOOPBACK = "127.0.0.1"

_KEYS = {"id", "tree", "commit", "manifest", "version", "launch"}
_SERVER_GRACE_S = 30.0
_FRONT_GRACE_S = 35.0  # the router finishes what it has for up to 30 s
_SOCKET_ROOM = 95  # bytes: SGLang puts ZeroMQ sockets below TMPDIR, and a socket's path ends at 107


def release_id(document: Dict[str, Any]) -> str:
    """The id that belongs to a release's document, by the operator's rule (kdeploy/release.py, `make`)."""
    if adopted.is_adopted(document):
        return adopted.identify(document)
    identity = json.dumps({key: document[key] for key in ("manifest", "tree", "launch")}, sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def check_id(document: Dict[str, Any]) -> None:
    """Raise `integrity` when a release's document is not the one that its id was derived from."""
    found = release_id(document)
    if found != document["id"]:
        raise AgentError(
            "integrity",
            f"release {document['id']} is not what was declared: tree, manifest and launch have the id {found}",
            "somebody edited it; apply the declaration again",
        )


def read_release(layout: Layout, release: str) -> Dict[str, Any]:
    """The stored document of a release; raises `integrity` when it is not here, or not what its id says."""
    document = files.read_json(layout.release(release) / "release.json")
    if not isinstance(document, dict) or not set(document) >= _KEYS or document["id"] != release:
        raise AgentError("integrity", f"release {release} is not on this host, or its release.json is damaged")
    check_id(document)
    return document


def find_release(layout: Layout, release: str) -> Optional[Dict[str, Any]]:
    """The same; None when there is none that is what its id says."""
    try:
        return read_release(layout, release)
    except AgentError:
        return None


def python_of(layout: Layout, release: Dict[str, Any]) -> Path:
    """The Python of the release's virtual environment."""
    runtime = release["launch"]["runtime"]
    venv = Path(runtime["venv"]) if "venv" in runtime else layout.runtime(runtime["key"])
    return venv / "bin" / "python"


def server_url(release: Dict[str, Any]) -> str:
    """Where the server itself answers; only this host can reach it."""
    if adopted.is_adopted(release):
        return adopted.url(release)
    return f"http://{LOOPBACK}:{release['launch']['port']}"


def public_url(release: Dict[str, Any]) -> str:
    """Where clients reach the release, as this host sees it."""
    front = release["launch"]["front"]
    if front["kind"] == "none":
        return server_url(release)
    host = front.get("host") or LOOPBACK
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{front['port']}"


def ports(release: Dict[str, Any]) -> Dict[str, int]:
    """Every port the release listens on, by what it is for."""
    front = release["launch"]["front"]
    found = {"private": release["launch"]["port"]}
    if front["kind"] != "none":
        found["public"] = front["port"]
    if front["kind"] == "router" and front.get("metrics_port"):
        found["metrics"] = front["metrics_port"]
    return found


def server(layout: Layout, release: Dict[str, Any]) -> Spec:
    """The unit of the release's server."""
    if adopted.is_adopted(release):
        return adopted.spec(layout, release, scratch(layout, "server"))
    launch = release["launch"]
    argv = (str(python_of(layout, release)), "-m", launch["module"], *launch["args"])
    grace_s = float(launch.get("grace_s", _SERVER_GRACE_S))
    spec = _spec(layout, release, "server", argv, (launch["port"],), grace_s)
    return dataclasses.replace(
        spec, tree=str(layout.tree(release["tree"])), manifest=release["manifest"], secrets=secrets.names_of(release)
    )


def front(layout: Layout, release: Dict[str, Any]) -> Optional[Spec]:
    """The unit of the release's front: the port that systemd opens, or SGLang's router; None without a front."""
    wanted = release["launch"]["front"]
    if wanted["kind"] == "none":
        return None
    if wanted["kind"] == "socket":
        return _socket(layout, release)
    argv = [str(python_of(layout, release)), "-m", "sglang_router.launch_router"]
    argv += ["--host", wanted.get("host") or LOOPBACK, "--port", str(wanted["port"])]
    argv += ["--worker-urls", server_url(release), "--policy", "round_robin", "--log-level", "warn"]
    # The router always opens a metrics port, on all addresses unless told otherwise. Its defaults notice a server
    # that came back only after minutes. (sglang-router 0.3.2)
    argv += ["--prometheus-host", LOOPBACK, "--prometheus-port", str(wanted.get("metrics_port") or 29000)]
    argv += ["--shutdown-grace-period-secs", "30", "--health-check-interval-secs", "1"]
    argv += ["--health-failure-threshold", "1", "--health-success-threshold", "1"]
    held = tuple(number for what, number in ports(release).items() if what != "private")
    return _spec(layout, release, "front", tuple(argv), held, _FRONT_GRACE_S)


def _socket(layout: Layout, release: Dict[str, Any]) -> Spec:
    wanted = release["launch"]["front"]
    target = f"{LOOPBACK}:{release['launch']['port']}"
    argv = (draining.proxy() or "systemd-socket-proxyd", f"--connections-max={draining.CONNECTIONS}", target)
    spec = _spec(layout, release, "front", argv, (wanted["port"],), _FRONT_GRACE_S)
    host = wanted.get("host") or LOOPBACK
    with contextlib.suppress(OSError):  # systemd takes addresses only
        host = str(socket.getaddrinfo(host, wanted["port"], type=socket.SOCK_STREAM)[0][4][0])
    return dataclasses.replace(spec, listen=f"[{host}]:{wanted['port']}" if ":" in host else f"{host}:{wanted['port']}")


def environment(layout: Layout, release: Dict[str, Any], unit: str) -> Dict[str, str]:
    """All of a unit's environment: nothing of the caller's, the release's tree first on the path, caches by tree."""
    tree = layout.tree(release["tree"])
    user = pwd.getpwuid(os.getuid())
    given = {str(key): str(value) for key, value in release["launch"].get("env", {}).items()}
    paths = [str(python_of(layout, release).parent), "/usr/local/cuda/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    env = {
        "PATH": os.pathsep.join(paths),
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LANG": "C.UTF-8",
        # Models stay where they are: XDG_CACHE_HOME below would move Hugging Face's cache as well.
        "HF_HOME": f"{user.pw_dir}/.cache/huggingface",
        **given,
        "PYTHONPATH": os.pathsep.join([str(tree), *filter(None, [given.get("PYTHONPATH")])]),
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch(layout, unit)),
        # setproctitle writes long titles over the environment, and with it over our mark; this forbids it.
        "SPT_NOENV": "1",
        MARK: str(layout.units / unit),
        "KDEPLOY_SERVICE": layout.service,
        "KDEPLOY_RELEASE": release["id"],
    }
    env.update(caches.variables(layout, release["tree"]))
    if unit == "front":  # the router is not of the tree: with the tree on its path it imports the whole engine, 4 s
        del env["PYTHONPATH"]
    return env


def scratch(layout: Layout, unit: str) -> Path:
    """A unit's TMPDIR: beside its files where the path is short enough, else in the system's."""
    wanted = layout.units / f"{unit}.tmp"
    if len(os.fsencode(str(wanted))) <= _SOCKET_ROOM:
        return wanted
    short = hashlib.sha256(os.fsencode(str(wanted))).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"kdeploy-{os.getuid()}-{short}"


def _spec(
    layout: Layout, release: Dict[str, Any], unit: str, argv: "tuple[str, ...]", held: "tuple[int, ...]", grace_s: float
) -> Spec:
    return Spec(
        name=unit,
        release=release["id"],
        argv=argv,
        env=environment(layout, release, unit),
        cwd=str(layout.empty),
        scratch=str(scratch(layout, unit)),
        ports=held,
        grace_s=grace_s,
    )


def make_room(layout: Layout, release: Dict[str, Any]) -> str:
    """Make the folders a release's units need; gives what is wrong with its caches, or nothing.

    The working folder holds nothing that could shadow a module.
    """
    ails = "" if adopted.is_adopted(release) else caches.prepare(layout, release["tree"])
    layout.empty.mkdir(parents=True, exist_ok=True)
    for stray in layout.empty.iterdir():
        print(f"kdeploy: {stray} does not belong here, removed", file=sys.stderr)
        files.wipe(stray)
    return ails


def argument(args: List[str], *flags: str) -> Optional[str]:
    """The value of the last of `flags` on a command line, given as `--flag value` or `--flag=value`."""
    found = None
    for index, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name in flags:
            found = value if equals else (args[index + 1] if index + 1 < len(args) else None)
    return found
