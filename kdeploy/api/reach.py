"""The way from a profile to its hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kdeploy import places, profile
from kdeploy.errors import KdeployError
from kdeploy.host import Host
from kdeploy.profile import HostEntry, Profile
from kdeploy.transport import Transport
from kdeploy.transport.local import LocalTransport

_begun: dict[tuple[Path, str], Host] = {}
"""Hosts that are being connected to, by profile and name."""


def hurry(path: Path) -> None:
    """Start to connect to the first host of a profile while what works with it is still being imported.

    Whoever asks for the profile's hosts is given that one. Why the profile cannot be read is theirs to tell.
    """
    with contextlib.suppress(KdeployError):
        read = profile.load(path)
        name, entry = next(iter(read.hosts.items()))
        host = _host(read, name, entry)
        host.approach()
        _begun[read.path, name] = host


def hosts_of(read: Profile) -> Iterator[Host]:
    """The hosts of a profile, one after the other, each closed when the next is asked for.

    None is connected to before it is asked something.
    """
    for name, entry in read.hosts.items():
        with _host(read, name, entry) as host:
            yield host


@contextlib.contextmanager
def approached(read: Profile) -> Iterator[tuple[Host, ...]]:
    """All hosts of a profile; the first is being connected to while there is other work to do."""
    hosts = tuple(_host(read, name, entry) for name, entry in read.hosts.items())
    hosts[0].approach()
    with contextlib.ExitStack() as stack:
        for host in hosts:
            stack.enter_context(host)
        yield hosts


def _host(read: Profile, name: str, entry: HostEntry) -> Host:
    if (begun := _begun.pop((read.path, name), None)) is not None:
        return begun
    root = entry.root or (str(places.host_root()) if entry.local else "")
    return Host(_way_to(read, name, entry), root, read.file.service)


def _way_to(read: Profile, name: str, entry: HostEntry) -> Transport:
    if entry.ssh is None:
        return LocalTransport(name)
    from kdeploy.transport.settings import Way
    from kdeploy.transport.ssh import SSHTransport  # fabric takes 0.2 s to import

    ssh, where = entry.ssh, read.hosts_document.where(("hosts", name))
    key = str(Path(where.path).parent / Path(ssh.key).expanduser()) if ssh.key else None
    way = Way(ssh.address, ssh.port, ssh.user, key, ssh.jump)
    return SSHTransport(name, way, entry.python, entry.sudo, where)
