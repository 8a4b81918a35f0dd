"""What the bed asks of this machine: addresses and ports, keys, mounts, control groups."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import time
from pathlib import Path


def free_address(taken: set[str], port: int) -> str:
    """A loopback address at whose `port` nobody listens, and that is not among `taken`."""
    while True:
        address = f"127.{random.randint(64, 254)}.{random.randint(0, 254)}.{random.randint(1, 254)}"
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((address, port))
            if address not in taken:
                return address


def free_port() -> int:
    """A port that nobody uses on any address, below those that the kernel gives out."""
    while True:
        port = random.randint(20000, 32000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("0.0.0.0", port))
            return port


def keygen(path: Path) -> None:
    """Make a key pair without a passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)


def mount(kind: str, target: Path, options: str) -> None:
    """Mount a file system that needs no device."""
    subprocess.run(["mount", "-t", kind, "-o", options, kind, str(target)], check=True)


def mounts() -> list[str]:
    """Every mount point, in the order in which they were mounted."""
    return [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]


def unmount_below(folder: Path) -> None:
    """Unmount all that is mounted in a folder, the last first."""
    for target in reversed([one for one in mounts() if Path(one).is_relative_to(folder)]):
        subprocess.run(["umount", target], check=False)
        subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)


def remove_cgroup(cgroup: Path, seconds: float = 20) -> None:
    """Remove a control group whose processes end, and all below it."""
    end = time.monotonic() + seconds
    while cgroup.exists():
        for inner in sorted((one for one in cgroup.rglob("*") if one.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                inner.rmdir()
        with contextlib.suppress(OSError):
            cgroup.rmdir()
            return
        assert time.monotonic() < end, f"processes stay in {cgroup}"
        time.sleep(0.02)
