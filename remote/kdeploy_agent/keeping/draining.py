"""Closing the public port of a front `socket` without cutting off who is being answered.

systemd-socket-proxyd holds the listening socket as well as systemd does, and ends at once when it is told to. So the
socket itself is made deaf: a packet filter on it drops what new clients send, while connections that were accepted go
on. When the last of those has ended, or the grace has, port and proxy go together.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from pathlib import Path
from typing import Callable, Optional

from kdeploy_agent.ground import processes, systemctl
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping.unit_files import Names
from kdeploy_agent.keeping.units import Spec

CONNECTIONS = 100_000  # systemd-socket-proxyd's own limit is 256 and it hangs up on the next

_PLACES = ("/usr/lib/systemd/systemd-socket-proxyd", "/lib/systemd/systemd-socket-proxyd")
_LISTENING = 3  # the first handle that systemd passes
_SO_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K, 0: of no packet anything is kept


def proxy() -> Optional[str]:
    """Where systemd-socket-proxyd is on this host."""
    return next((place for place in _PLACES if Path(place).exists()), None)


def drain(layout: Layout, spec: Spec, unit: Callable[[], str]) -> None:
    """Let no new client in and wait for those inside, for at most the unit's grace.

    `unit` writes the unit that is handed the socket, and gives its name. An idle client need not be waited for long:
    SGLang hangs up on one after 5 s (uvicorn's keep-alive).
    """
    port = spec.ports[0]
    if not processes.connections(port) or systemctl.show(Names(layout.service).socket)["ActiveState"] != "active":
        return
    complaint = systemctl.start(unit())
    if complaint:  # then new clients come in until the grace is over; nobody is harmed
        print(f"kdeploy: port {port} is not made deaf: {complaint}", flush=True)
    end = time.monotonic() + spec.grace_s
    while processes.connections(port) and time.monotonic() < end:
        time.sleep(0.1)


def deafen() -> int:
    """Command `deafen`, in a unit that has the listening socket: drop what new clients send; gives an exit status."""
    code = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    program = struct.pack("HP", len(_DROP_ALL) // 8, ctypes.addressof(code))
    with socket.socket(fileno=_LISTENING) as listening:
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    return 0
