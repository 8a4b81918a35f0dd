"""One connection of fabric, made strict: fabric takes any host key by itself."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import fabric
import paramiko

from kdeploy.transport import faults, known_hosts
from kdeploy.transport.keys import Keys
from kdeploy.transport.settings import Settings

_DIES_WITHIN_S = 5.0


def connection(settings: Settings, keys: Keys, gateway: fabric.Connection | None) -> fabric.Connection:
    """A connection, not open yet, that takes no other host key than a known one. `gateway` is the hop before."""
    entries = known_hosts.read(settings.known_hosts)
    names = known_hosts.names_of(settings.host, settings.port, settings.host_key_alias)

    def make(sock: Any, disabled_algorithms: Any = None) -> paramiko.Transport:
        transport = paramiko.Transport(sock, disabled_algorithms=disabled_algorithms)
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = transport.get_security_options()
        known = known_hosts.kinds(entries, names)
        options.key_types = sorted(options.key_types, key=lambda kind: not _signs(kind, known))
        return transport

    made = fabric.Connection(
        settings.host,
        user=settings.user,
        port=settings.port,
        gateway=gateway or settings.proxy_command or False,
        config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()),
        connect_timeout=int(settings.connect_s) or 1,
        connect_kwargs={
            "auth_strategy": keys,
            "transport_factory": make,
            "banner_timeout": settings.connect_s,
            "auth_timeout": settings.connect_s,
            "channel_timeout": settings.connect_s,
        },
    )
    # fabric's own choice takes any key. With no keys loaded into it, paramiko asks the policy about every one.
    made.client.set_missing_host_key_policy(_Strict(settings, entries, names))
    return made


def _signs(kind: str, known: Sequence[str]) -> bool:
    """Whether a key of a type we know makes signatures of this kind: an ssh-rsa key makes three."""
    return kind in known or ("ssh-rsa" in known and kind.startswith("rsa-sha2"))


class _Strict(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Lets a key through that the known_hosts files have for this host, and no other."""

    def __init__(self, settings: Settings, entries: Sequence[known_hosts.Entry], names: Sequence[str]) -> None:
        self._settings = settings
        self._entries = entries
        self._names = names

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        """Called with the key a host has proved to hold."""
        kind, text = key.get_name(), key.get_base64()
        finding = known_hosts.judge(self._entries, self._names, kind, text)
        if finding.verdict != "known":
            raise faults.host_key(self._settings, self._names[0], finding, kind, known_hosts.fingerprint(text))


def shut(connection: fabric.Connection) -> None:
    """Close a connection in whatever state it is, with the ProxyCommand it may run through."""
    transport = connection.client.get_transport()
    with contextlib.suppress(Exception):  # it may be broken in any way
        connection.client.close()
    if transport is not None and isinstance(transport.sock, paramiko.ProxyCommand):  # it leaves its process behind
        transport.join(_DIES_WITHIN_S)  # paramiko's thread ends the process once more
        child = transport.sock.process
        child.kill()
        child.communicate()
