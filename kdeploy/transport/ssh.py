"""A host reached by SSH: one connection by fabric, through as many others as it takes; every command a channel of it.

Host keys are strict, passwords are never asked for, everything has a deadline.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
import time
from collections.abc import Sequence

import fabric
import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST

from kdeploy.errors import Location, UnreachableError
from kdeploy.transport import Channel, ConnectionLost, Exit, Late, faults
from kdeploy.transport.connection import connection, shut
from kdeploy.transport.keys import Keys
from kdeploy.transport.settings import Settings, Way, settle

SILENCE_S = 30.0
"""A working agent says something every 5 s."""

_KEEPALIVE_S = 15
_OPENS_WITHIN_S = 20.0
_ENDS_WITHIN_S = 5.0
_DIES_WITHIN_S = 1.0
_BLOCK = 1 << 15
_STDERR_KEPT = 1 << 16
_MAX_DEPTH = 8

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # it logs what it raises as well


def command(argv: Sequence[str], sudo: bool) -> str:
    """The one line a login shell gets: every word quoted, so that it means itself. sudo never asks."""
    return shlex.join(["sudo", "-n", "--", *argv] if sudo else argv)


class SSHTransport:
    """The way to one host by SSH. Connects when something is opened, and again after `close`."""

    def __init__(
        self, host: str, way: Way, python: str = "python3", sudo: bool = False, where: Location | None = None
    ) -> None:
        """Takes the host's name, the way there, its Python, whether by sudo, and where hosts.yaml says all that."""
        self._host = host
        self._way = way
        self._address = way.address
        self._python = python
        self._sudo = sudo
        self._where = where
        self._route: list[fabric.Connection] = []
        self._work: _Connecting | None = None

    @property
    def host(self) -> str:
        """The host's name, for people."""
        return self._host

    @property
    def address(self) -> str:
        """The host's address as ssh_config has it; as hosts.yaml has it before anything was opened."""
        return self._address

    @property
    def python(self) -> str:
        """The host's own Python that runs the agent."""
        return self._python

    @property
    def silence_s(self) -> float:
        """How long a working agent may say nothing, seconds."""
        return SILENCE_S

    def approach(self) -> None:
        """See Transport.approach."""
        with contextlib.suppress(UnreachableError):  # `open` finds it out again
            self._work = self._work or self._start()

    def open(self, argv: Sequence[str]) -> Channel:
        """See Transport.open."""
        if not (self._route and self._route[-1].is_connected):
            self._connect()
        try:
            opened = self._route[-1].transport.open_session(timeout=_OPENS_WITHIN_S)
        except (paramiko.SSHException, OSError, EOFError) as fault:
            raise ConnectionLost(
                f"{self._host}: no command can be started there: {fault}", where=self._where
            ) from fault
        _execute(opened, command(argv, self._sudo))
        return _SSHChannel(opened, self._host)

    def close(self) -> None:
        """See Transport.close."""
        work, self._work = self._work, None
        if work is not None:
            work.abandon()
        route, self._route = self._route, []
        for one in reversed(route):
            shut(one)

    def _start(self) -> _Connecting:
        try:
            target = settle(self._way)
            self._address = target.host
            work = _Connecting(_route(target))
        except UnreachableError as fault:
            raise self._told(fault) from fault
        work.start()
        return work

    def _connect(self) -> None:
        work, self._work = self._work, None
        self.close()
        work = work or self._start()
        work.join(work.within_s)
        if work.is_alive():
            work.abandon()
            raise self._told(faults.timeout(work.at, work.within_s))
        if work.fault is not None:
            raise self._told(work.fault) from work.fault
        self._route = work.made

    def _told(self, fault: UnreachableError) -> UnreachableError:
        """The fault as this host's, with the line of hosts.yaml."""
        return UnreachableError(
            f"{self._host}: {fault.message}", where=self._where, hint=fault.hint, details=fault.details
        )


class _Connecting(threading.Thread):
    """Connects hop by hop, so that one deadline holds for all of it: name lookups cannot be interrupted."""

    def __init__(self, route: Sequence[Settings]) -> None:
        super().__init__(daemon=True)
        self._route = route
        self.at = route[-1]
        self.within_s = route[-1].connect_s
        self.made: list[fabric.Connection] = []
        self.fault: UnreachableError | None = None
        self._abandoned = False

    def abandon(self) -> None:
        """Whatever comes of it is not wanted any more."""
        self._abandoned = True
        if not self.is_alive():
            self._shut()

    def run(self) -> None:
        """Fill `made`, or `fault`."""
        for settings in self._route:
            self.at = settings
            keys = Keys(self.at)
            try:
                one = connection(self.at, keys, self.made[-1] if self.made else None)
                self.made.append(one)
                one.open()
                one.transport.set_keepalive(_KEEPALIVE_S)
            except UnreachableError as fault:
                self.fault = fault
            except Exception as fault:  # of paramiko, sockets, the key library: each means that we are not there
                self.fault = faults.explain(fault, self.at, keys)
            if self._abandoned or self.fault is not None:
                self._shut()
                return

    def _shut(self) -> None:
        for one in reversed(self.made):
            shut(one)


def _route(target: Settings, depth: int = 0) -> list[Settings]:
    """Everybody on the way to `target`, the nearest first, `target` last."""
    if depth > _MAX_DEPTH:
        raise UnreachableError(f"ProxyJump goes in a circle at {target.alias}", hint="correct ssh_config")
    found: list[Settings] = []
    for hop in target.jumps:
        settings = settle(hop)
        if (settings.host, settings.port) == (target.host, target.port):
            continue  # `Host *` with a ProxyJump names the jump itself as well
        found += [settings] if found else _route(settings, depth + 1)  # beyond the first, the one before is the way
    return [*found, target]


class _SSHChannel(Channel):
    def __init__(self, channel: paramiko.Channel, host: str) -> None:
        super().__init__()
        self._channel = channel
        self._host = host
        self._stderr = b""

    def send(self, data: bytes, timeout_s: float) -> None:
        """See Channel.send."""
        self._channel.settimeout(timeout_s)
        try:
            for at in range(0, len(data), _BLOCK):
                self._channel.sendall(data[at : at + _BLOCK])
        except TimeoutError:
            raise ConnectionLost(f"{self._host}: nothing was taken for {timeout_s:.0f} s") from None
        except (OSError, EOFError, paramiko.SSHException) as fault:
            self._insist(fault)

    def _receive(self, timeout_s: float) -> bytes:
        self._channel.settimeout(timeout_s)
        try:
            data = bytes(self._channel.recv(_BLOCK * 8))
        except TimeoutError:
            raise Late from None
        except (OSError, EOFError, paramiko.SSHException) as fault:
            self._insist(fault)
            data = b""
        self._drain()
        if not data:
            self._channel.status_event.wait(_ENDS_WITHIN_S)
            if not self._channel.eof_received:  # not the host's own word: is it the connection that ends?
                self._channel.transport.join(_DIES_WITHIN_S)
                self._insist(None)
        return data

    @property
    def _active(self) -> bool:
        return bool(self._channel.transport.is_active())

    def _insist(self, fault: Exception | None) -> None:
        """Tell a broken connection from a command that has ended."""
        if not self._active:
            why = self._channel.transport.get_exception() or fault
            raise ConnectionLost(f"{self._host}: the connection broke{f': {why}' if str(why or '') else ''}") from fault

    def _drain(self) -> None:
        while self._channel.recv_stderr_ready():
            self._stderr = (self._stderr + self._channel.recv_stderr(_BLOCK))[-_STDERR_KEPT:]

    def end(self) -> Exit:
        """See Channel.end."""
        ended = time.monotonic() + _ENDS_WITHIN_S
        while not self._channel.exit_status_ready() and self._active and time.monotonic() < ended:
            self._channel.status_event.wait(0.05)
        self._drain()
        status = self._channel.exit_status if self._channel.exit_status_ready() else -1
        return Exit(status if status >= 0 else None, self._stderr.decode("utf-8", "replace"))

    def close(self) -> None:
        """See Channel.close."""
        self._channel.close()


def _execute(channel: paramiko.Channel, line: str) -> None:
    """Ask for a command, and go on: paramiko's own way waits for the answer, without a deadline, one trip more.

    When the host refuses it closes the channel, which is seen at the first line.
    """
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(line)
    channel.transport._send_user_message(message)
