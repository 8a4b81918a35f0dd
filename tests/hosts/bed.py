"""Real hosts for tests: Debian with systemd and sshd in containers, each on its own loopback address.

They share this machine's network, so a port exists once per address; processes, files and systemd are their own. What
cannot be had here: a clock of their own, and a loss of what was written but not synced (the kernel goes on living).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .image import CGROUPS
from .machine import free_address, free_port, keygen, mount, mounts, remove_cgroup, unmount_below

SSH_PORT = 2222
AT_ONCE = 2

_PREFIX = "kdeploy-hosts-"


@dataclass(frozen=True)
class Process:
    """A process of a host: its pid out here, its command line, the unit it belongs to."""

    pid: int
    command: list[str]
    unit: str


@dataclass
class Host:
    """One machine: boots, is reached by SSH, loses its power, boots again; its files stay until it is closed."""

    name: str
    address: str
    folder: Path
    home: Path
    binds: Sequence[str] = ()
    _nspawn: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        """Its file system, as seen from here."""
        return self.folder / "root"

    @property
    def kdeploy(self) -> Path:
        """Its /opt/kdeploy, as seen from here."""
        small = self.folder / "small"
        return small if small.exists() else self.root / "opt/kdeploy"

    @property
    def cgroup(self) -> Path:
        """What holds every process of it, systemd-nspawn included."""
        return CGROUPS / f"{self.folder.parent.name}-{self.name}"

    @property
    def running(self) -> bool:
        """Whether its power is on."""
        return self._nspawn is not None and self._nspawn.poll() is None

    def boot(self, seconds: float = 60) -> Host:
        """Switch it on and wait until its sshd answers."""
        assert not self.running, f"{self.name} runs already"
        self.cgroup.mkdir(exist_ok=True)
        log = (self.folder / "console.log").open("ab")
        self._nspawn = subprocess.Popen(
            # The shell goes into a cgroup of its own first: two nspawns in one would share their units' cgroups.
            ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.cgroup),
             "systemd-nspawn", "-q", "-D", str(self.root), "--boot", "--register=no", "--keep-unit",
             "--machine", self.name, "--hostname", self.name, "--resolv-conf=off", "--timezone=off",
             "--link-journal=no", "--console=pipe", *self.binds],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        log.close()
        end = time.monotonic() + seconds
        while not self._greets():
            assert self.running and time.monotonic() < end, f"{self.name} does not boot: {self.console()[-2000:]}"
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """A power cut: every process is gone at once."""
        if (self.cgroup / "cgroup.kill").exists():
            (self.cgroup / "cgroup.kill").write_text("1")
        self._gone()

    def poweroff(self, seconds: float = 90) -> None:
        """As `poweroff` would: systemd stops every unit."""
        assert self._nspawn is not None
        self._nspawn.terminate()
        self._nspawn.wait(seconds)
        self._gone()

    def reboot(self) -> Host:
        """An orderly reboot."""
        self.poweroff()
        return self.boot()

    def close(self) -> None:
        """Cut the power and take the file system away."""
        self.kill()
        unmount_below(self.folder)
        shutil.rmtree(self.folder)

    def ssh(
        self, *argv: str, user: str = "root", stdin: bytes = b"", timeout: float = 60
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command line there by OpenSSH; words are joined by spaces, as ssh does."""
        command = ["ssh", "-F", str(self.home / ".ssh/config"), "-l", user, self.name, *argv]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=timeout)

    def sh(self, script: str, timeout: float = 60) -> str:
        """Run a shell script there as root; gives what it prints, and insists on exit 0."""
        done = self.ssh("/bin/sh -eu", stdin=script.encode(), timeout=timeout)
        assert done.returncode == 0, f"{self.name}: {script}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        return done.stdout.decode()

    def console(self) -> str:
        """What was said on its console."""
        return (self.folder / "console.log").read_text(errors="replace")

    def processes(self) -> list[Process]:
        """Every process of it but systemd-nspawn."""
        found = []
        for folder, _, _ in os.walk(self.cgroup / "payload"):  # which bears with folders that go meanwhile
            with contextlib.suppress(OSError):
                for pid in map(int, Path(folder, "cgroup.procs").read_text().split()):
                    with contextlib.suppress(OSError):
                        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
                        found.append(Process(pid, words, Path(folder).name))
        return found

    def also_at(self, port: int) -> None:
        """Let the operator know its host key for another port of its address: a wire's."""
        key = (self.folder / "known_host").read_text().split(" ", 1)[1].splitlines()[0]
        for path in (self.folder / "known_host", self.home / ".ssh/known_hosts"):
            with path.open("a") as known:
                known.write(f"[{self.address}]:{port} {key}\n")

    def free_port(self) -> int:
        """A port that nobody uses on any address, below those that the kernel gives out."""
        return free_port()

    def _greets(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, SSH_PORT), 1) as link:
            link.settimeout(5)
            return link.recv(4) == b"SSH-"
        return False

    def _gone(self) -> None:
        if self._nspawn is not None:
            self._nspawn.wait(30)
            self._nspawn = None
        remove_cgroup(self.cgroup)


@dataclass
class Bed:
    """All hosts of a test session, and the operator's `~/.ssh` that knows them."""

    image: Path
    folder: Path
    hosts: dict[str, Host] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(AT_ONCE))

    @classmethod
    def make(cls, image: Path) -> Bed:
        """A new bed; takes away what a session that was killed outright has left behind."""
        sweep()
        bed = cls(image, Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")))
        (bed.home / ".ssh").mkdir(parents=True, mode=0o700)
        keygen(bed.home / ".ssh/id_ed25519")
        bed._introduce()
        return bed

    @property
    def home(self) -> Path:
        """The operator's home folder: its `.ssh` has a key, a config and the known hosts."""
        return self.folder / "home"

    @contextlib.contextmanager
    def host(self, name: str, *, binds: Sequence[str] = (), size: str = "4g", small: str = "") -> Iterator[Host]:
        """A booted host that is closed afterwards. Waits while `AT_ONCE` others are there.

        `binds` are options of systemd-nspawn (`--bind-ro=/a:/b`), `size` bounds its disk; with `small`, /opt/kdeploy
        is a file system of that size, to be reached from here as `host.folder / "small"`.
        """
        with self._room:
            host = self._new(name, binds, small)
            try:
                self._make(host, size, small)
                yield host.boot()
            finally:
                del self.hosts[name]
                host.close()

    def close(self) -> None:
        """End every host; insists that nothing is left."""
        for host in list(self.hosts.values()):
            host.close()
        left = [line for line in mounts() if str(self.folder) in line]
        left += [str(cgroup) for cgroup in CGROUPS.glob(f"{self.folder.name}-*")]
        assert not left, f"left behind: {left}"
        shutil.rmtree(self.folder)

    def _new(self, name: str, binds: Sequence[str], small: str) -> Host:
        if small:
            binds = [*binds, f"--bind={self.folder}/{name}/small:/opt/kdeploy"]
        with self._lock:
            assert name not in self.hosts
            address = free_address({host.address for host in self.hosts.values()}, SSH_PORT)
            self.hosts[name] = Host(name, address, self.folder / name, self.home, binds)
            return self.hosts[name]

    def _make(self, host: Host, size: str, small: str) -> None:
        disk = host.folder / "disk"
        host.root.mkdir(parents=True)
        disk.mkdir()
        mount("tmpfs", disk, f"size={size}")  # an overlay cannot have its upper layer on another overlay
        for layer in ("upper", "work"):
            (disk / layer).mkdir()
        layers = f"lowerdir={self.image},upperdir={disk}/upper,workdir={disk}/work"
        mount("overlay", host.root, layers)
        if small:
            (host.folder / "small").mkdir()
            mount("tmpfs", host.folder / "small", f"size={small},mode=755")
        self._furnish(host)

    def _furnish(self, host: Host) -> None:
        etc = host.root / "etc"
        (etc / "machine-id").write_text(uuid.uuid4().hex + "\n")
        (etc / "hostname").write_text(f"{host.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {host.name}\n")
        (etc / "ssh/sshd_config.d/bed.conf").write_text(
            f"Port {SSH_PORT}\nListenAddress {host.address}\nPermitRootLogin prohibit-password\n"
            "HostKey /etc/ssh/ssh_host_ed25519_key\nMaxStartups 100\nUseDNS no\n"
        )
        keygen(etc / "ssh/ssh_host_ed25519_key")
        public = (etc / "ssh/ssh_host_ed25519_key.pub").read_text()
        ours = (self.home / ".ssh/id_ed25519.pub").read_text()
        for user, home in (("root", "root"), ("deploy", "home/deploy"), ("guest", "home/guest")):
            folder = host.root / home / ".ssh"
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / "authorized_keys").write_text(ours)
            subprocess.run(["chroot", str(host.root), "chown", "-R", f"{user}:", f"/{home}/.ssh"], check=True)
        (host.folder / "known_host").write_text(f"[{host.address}]:{SSH_PORT} {public}")
        with self._lock:
            self._introduce()

    def _introduce(self) -> None:
        """Write the operator's known_hosts and config for the hosts that there are."""
        ssh, known, config = self.home / ".ssh", "", ""
        for host in self.hosts.values():
            line = host.folder / "known_host"
            known += line.read_text() if line.exists() else ""
            config += (
                f"Host {host.name}\n  HostName {host.address}\n  Port {SSH_PORT}\n  User root\n"
                f"  IdentityFile {ssh}/id_ed25519\n  IdentitiesOnly yes\n  BatchMode yes\n"
                f"  UserKnownHostsFile {ssh}/known_hosts\n  StrictHostKeyChecking yes\n\n"
            )
        for name, text in (("known_hosts", known), ("config", config)):
            (ssh / f"{name}.new").write_text(text)
            (ssh / f"{name}.new").replace(ssh / name)


def sweep() -> None:
    """Take away the beds of test sessions that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if Path(f"/proc/{folder.name[len(_PREFIX) :].partition('-')[0]}").exists():
            continue
        for cgroup in CGROUPS.glob(f"{folder.name}-*"):
            (cgroup / "cgroup.kill").write_text("1")
            remove_cgroup(cgroup)
        unmount_below(folder)
        shutil.rmtree(folder)
