"""A real sshd of a test's own: on a loopback address, with its own keys, and a home folder that is nobody else's."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ADDRESS = "127.0.0.20"
_FOUND = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair; gives the private half's path."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)], check=True, timeout=30
    )
    return path


def free_port() -> int:
    """A port of our address, below the range from which the kernel gives out its own."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind((ADDRESS, port))
            return port


@dataclass
class Sshd:
    """One server, and what a client needs to reach it: keys, known_hosts and an ssh_config."""

    folder: Path
    options: list[str] = field(default_factory=list)
    port: int = 0
    _child: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        assert _FOUND, "these tests need OpenSSH's server: apt install openssh-server"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        self.home = self.folder / "home"
        (self.home / "bin").mkdir(parents=True)
        self.host_key = keygen(self.folder / "host_key")
        self.key = keygen(self.folder / "key")
        self.known = self.folder / "known_hosts"
        self.config = self.folder / "ssh_config"
        shutil.copy(f"{self.key}.pub", self.folder / "authorized_keys")
        self.trust()

    @property
    def public(self) -> str:
        """Type and text of the host's key."""
        return " ".join(Path(f"{self.host_key}.pub").read_text().split()[:2])

    def trust(self, name: str | None = None, key: str | None = None) -> None:
        """Write the known_hosts file anew: `name` (this host at its port) has `key` (its own)."""
        self.known.write_text(f"{name or f'[{ADDRESS}]:{self.port}'} {key or self.public}\n")

    def configure(self, *blocks: str) -> None:
        """Write the client's ssh_config: these blocks, then what holds for all."""
        common = f"Host *\n  UserKnownHostsFile {self.known}\n  GlobalKnownHostsFile none\n  IdentityAgent none\n"
        self.config.write_text("\n".join([*blocks, common]))

    @contextlib.contextmanager
    def runs(self) -> Iterator[Sshd]:
        """The server while it runs."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        path = f"{self.home}/bin:{os.environ['PATH']}"
        lines = [
            f"Port {self.port}",
            f"ListenAddress {ADDRESS}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            f"PidFile {self.folder}/pid",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "PrintMotd no",
            *self.options,
        ]
        if not any(option.startswith("SetEnv") for option in self.options):
            lines.append(f"SetEnv HOME={self.home} PATH={path} LANG=C LC_ALL=C")
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        with (self.folder / "log").open("ab") as log:
            self._child = subprocess.Popen([str(_FOUND), "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
        try:
            self._wait()
            yield self
        finally:
            self._child.terminate()
            self._child.wait()

    def program(self, name: str, text: str) -> None:
        """Put a program before all others on the host."""
        path = self.home / "bin" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def _wait(self) -> None:
        end = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection((ADDRESS, self.port), 1):
                return
            if time.monotonic() > end or (self._child and self._child.poll() is not None):
                pytest.fail(f"sshd does not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.02)
