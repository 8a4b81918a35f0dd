"""How a host is reached: hosts.yaml first, then ssh_config(5) as ssh itself understands it (Include, Match and all)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kdeploy.errors import UnreachableError

CONFIG = "KDEPLOY_SSH_CONFIG"
"""Variable that names another ssh_config file, as `ssh -F` does."""

CONNECT_S = 20.0
"""How long connecting may take, all hops together, seconds; ssh_config's ConnectTimeout overrides."""

_MAX_HOPS = 8
_HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:\s@\[\]]+)(?::(?P<port>\d+))?/?")


@dataclass(frozen=True)
class Way:
    """What hosts.yaml says of the way to a host; what is None comes from ssh_config."""

    address: str
    port: int | None = None
    user: str | None = None
    key: str | None = None
    jump: str | None = None


@dataclass(frozen=True)
class Settings:
    """All that is needed to reach one host, or one on the way to it."""

    alias: str
    host: str
    port: int
    user: str
    keys: tuple[str, ...]
    """Private key files to try, in order; some may not be there."""
    only_keys: bool
    """Of the agent's keys only those that are among `keys`."""
    agent: str | None
    """The agent's socket; None when there is none."""
    known_hosts: tuple[str, ...]
    host_key_alias: str | None
    jumps: tuple[Way, ...]
    """Hosts to go through, the nearest first."""
    proxy_command: str | None
    connect_s: float
    """How long connecting may take, seconds."""

    @property
    def place(self) -> str:
        """`user@host:port`, for people."""
        return f"{self.user}@{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def settle(way: Way) -> Settings:
    """The settings of a host: asks `ssh -G`, which connects nowhere. Raises UnreachableError when ssh refuses that."""
    said = _ask_ssh(arguments(way), way.address)
    return read(way, said, os.environ)


def arguments(way: Way) -> list[str]:
    """The command that tells what ssh_config says of a host. The address is never taken for an option."""
    config = os.environ.get(CONFIG)
    port = ["-p", str(way.port)] if way.port else []
    user = ["-l", way.user] if way.user else []
    return ["ssh", "-G", *(["-F", config] if config else []), *port, *user, "--", way.address]


def read(way: Way, said: str, environ: Mapping[str, str]) -> Settings:
    """The settings in what `ssh -G` said. Pure."""
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name.lower(), []).append(value.strip())

    def one(name: str) -> str | None:
        value = found.get(name, [""])[0]
        return None if value in ("", "none") else value

    host, port, user = one("hostname") or way.address, int(one("port") or 22), one("user") or ""
    tokens = {"%": "%", "h": host, "n": way.address, "p": str(port), "r": user, "d": str(Path.home()), "u": user}

    def expand(text: str) -> str:
        return re.sub(r"%([%hnprdu])|^~(?=/)", lambda match: tokens[match[1] or "d"], text)

    jump = way.jump or one("proxyjump")
    command = None if jump else one("proxycommand")
    return Settings(
        alias=way.address,
        host=host,
        port=port,
        user=user,
        keys=tuple(expand(key) for key in ([way.key] if way.key else found.get("identityfile", []))),
        only_keys=way.key is not None or one("identitiesonly") == "yes",
        agent=_agent(one("identityagent"), found, environ, expand),
        known_hosts=tuple(
            expand(path)
            for name in ("userknownhostsfile", "globalknownhostsfile")
            for path in shlex.split(one(name) or "")
        ),
        host_key_alias=one("hostkeyalias"),
        jumps=hops(jump) if jump else (),
        proxy_command=expand(command) if command else None,
        connect_s=float(one("connecttimeout") or 0) or CONNECT_S,
    )


def hops(jump: str) -> tuple[Way, ...]:
    """The hosts in `USER@HOST:PORT,…`, the nearest first. Raises UnreachableError for what is none."""
    found = []
    for text in jump.split(","):
        match = _HOP.fullmatch(text.strip())
        if match is None:
            raise UnreachableError(f"'{text}' is not a host to go through", hint="write USER@HOST:PORT")
        port = match["port"]
        found.append(Way(match["host"].strip("[]"), int(port) if port else None, match["user"]))
    if len(found) > _MAX_HOPS:
        raise UnreachableError(f"{len(found)} hosts to go through are too many: {jump}")
    return tuple(found)


def _agent(
    named: str | None, found: Mapping[str, Sequence[str]], environ: Mapping[str, str], expand: Callable[[str], str]
) -> str | None:
    if named is None:
        return None if "none" in found.get("identityagent", ()) else environ.get("SSH_AUTH_SOCK")
    if named.startswith("$"):
        return environ.get(named.strip("${}"))
    return environ.get(named) if named == "SSH_AUTH_SOCK" else expand(named)


def _ask_ssh(argv: Sequence[str], address: str) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    except FileNotFoundError as fault:
        raise UnreachableError(
            "ssh is not installed on this machine", hint="install OpenSSH's client (apt install openssh-client)"
        ) from fault
    except subprocess.TimeoutExpired as fault:
        raise UnreachableError(f"`{shlex.join(argv)}` does not end: a Match of ssh_config hangs?") from fault
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UnreachableError(f"ssh refuses its own settings for {address}: {said}", hint="correct ssh_config")
    return done.stdout.decode("utf-8", "replace")
