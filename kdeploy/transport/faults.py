"""Why a host cannot be reached, in words that say what to do."""

from __future__ import annotations

import errno
import os
import shlex
import socket
from typing import Protocol

import paramiko

from kdeploy.errors import UnreachableError
from kdeploy.transport.known_hosts import Finding
from kdeploy.transport.settings import CONFIG, Settings


class Tried(Protocol):
    """The keys that were tried."""

    def told(self) -> tuple[str, ...]:
        """What was tried, a line each."""
        ...


def timeout(at: Settings, seconds: float) -> UnreachableError:
    """Connecting took too long."""
    return UnreachableError(
        f"{at.place} did not let us in within {seconds:.0f} s",
        hint="is the host up, and is this the right address? a firewall that drops looks the same",
    )


def explain(fault: Exception, at: Settings, keys: Tried) -> UnreachableError:
    """What a fault of paramiko or of a socket means."""
    place = at.place
    if isinstance(fault, socket.gaierror):
        return UnreachableError(
            f"the name {at.host} is not known: {fault.strerror}",
            hint=f"correct `address:` in hosts.yaml, or give {at.alias} a HostName in ssh_config",
        )
    if isinstance(fault, paramiko.AuthenticationException):
        return UnreachableError(
            f"{place} lets none of our keys in",
            hint=f"try: {ssh(at)}; `key:` in hosts.yaml names the right one",
            details=keys.told(),
        )
    if isinstance(fault, paramiko.ChannelException):
        return UnreachableError(
            f"{place} cannot be reached through the host before it: {fault.text}", hint="is it up, seen from there?"
        )
    if isinstance(fault, TimeoutError):
        return UnreachableError(f"{place} does not answer", hint="is the host up, and is this the right address?")
    if isinstance(fault, paramiko.ssh_exception.NoValidConnectionsError | OSError):
        return _socket_fault(fault, place)
    if isinstance(fault, EOFError):
        return UnreachableError(f"{place} hung up at once", hint=f"try: {ssh(at)}")
    if "banner" in str(fault).lower() or "protocol version" in str(fault).lower():
        return UnreachableError(f"what answers at {place} is no SSH server", hint="is this the right port?")
    if str(fault) == "No existing session" or not str(fault):
        return UnreachableError(f"{place} hung up", hint=f"try: {ssh(at)}", details=keys.told())
    return UnreachableError(f"{place}: {fault}", hint=f"try: {ssh(at)}", details=keys.told())


def _socket_fault(fault: OSError, place: str) -> UnreachableError:
    numbers = {fault.errno}
    if isinstance(fault, paramiko.ssh_exception.NoValidConnectionsError):
        numbers = {one.errno for one in fault.errors.values()}
    if errno.ECONNREFUSED in numbers:
        return UnreachableError(f"{place} refuses connections", hint="is sshd running there, and at this port?")
    reason = ", ".join(os.strerror(number) for number in numbers if number) or str(fault)
    return UnreachableError(f"{place} cannot be reached: {reason}", hint="is this the right address? is a VPN down?")


def host_key(at: Settings, name: str, finding: Finding, kind: str, fingerprint: str) -> UnreachableError:
    """A host key that is not the known one."""
    entry = finding.entry
    shown = f"{kind.removeprefix('ssh-')} key {fingerprint}"
    if finding.verdict == "changed" and entry is not None:
        return UnreachableError(
            f"the key of {at.place} has changed: it shows the {shown}",
            hint=f"was the host installed anew? ask who runs it, then: ssh-keygen -f {shlex.quote(entry.path)} "
            f"-R {shlex.quote(name)}",
            details=(f"another is known: {entry.path}:{entry.line} ({entry.kind})", "somebody may be in between"),
        )
    if finding.verdict == "revoked" and entry is not None:
        return UnreachableError(
            f"the key of {at.place} is revoked: {shown}",
            hint=f"{entry.path}:{entry.line} says so; ask who runs the host",
        )
    return UnreachableError(
        f"the key of {at.place} is not known: it shows the {shown}",
        hint=f"compare that with what the host's owner says, then: {ssh(at)} (and answer yes)",
        details=(f"looked for {name} in {', '.join(at.known_hosts) or 'no file'}",),
    )


def ssh(at: Settings) -> str:
    """The command that does what we tried, for people."""
    config = os.environ.get(CONFIG)
    port = [] if at.port == 22 else ["-p", str(at.port)]
    jump = ["-J", ",".join(_hop(way.user, way.address, way.port) for way in at.jumps)] if at.jumps else []
    address = f"{at.user}@{at.alias}" if at.user else at.alias
    return f"`{shlex.join(['ssh', *(['-F', config] if config else []), *port, *jump, address])}`"


def _hop(user: str | None, address: str, port: int | None) -> str:
    return f"{f'{user}@' if user else ''}{address}{f':{port}' if port else ''}"
