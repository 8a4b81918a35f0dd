"""The root file system that all test hosts share: Debian with systemd and sshd, made once by debootstrap and kept.

Made from nothing it takes about two minutes and 330 MB; after that a host is an overlay over it and boots in a second.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")

SUITE = "bookworm"
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "python3-venv", "git", "sudo", "iproute2", "procps",
    "rsync",
)  # fmt: skip
FINISH = """
set -eu
useradd --create-home --shell /bin/bash deploy
echo 'deploy ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/deploy
useradd --create-home --shell /bin/bash guest
rm -f /etc/ssh/ssh_host_* /etc/hostname /etc/resolv.conf
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    getty@.service console-getty.service systemd-networkd-wait-online.service; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done
mkdir -p /var/log/journal
apt-get clean
rm -rf /var/lib/apt/lists/*
"""

TOOLS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}


class CannotRun(Exception):
    """This machine cannot make such hosts; the message says why."""


def prepare() -> None:
    """Install what is missing and see that there is a cgroup2 tree; raises CannotRun."""
    if sys.platform != "linux":
        raise CannotRun("hosts in containers need Linux")
    if os.geteuid() != 0:
        raise CannotRun("hosts in containers need root")
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        if shutil.which("apt-get") is None:
            raise CannotRun(f"{', '.join(missing)} must be installed, and there is no apt-get")
        _run("apt-get", "-o", "DPkg::Lock::Timeout=300", "update", "-q")
        _run(
            "apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-q", "-y", "--no-install-recommends",
            "debian-archive-keyring", *missing,
        )  # fmt: skip
    if not (CGROUPS / "cgroup.controllers").exists():
        if any(CGROUPS.iterdir()):
            raise CannotRun(f"{CGROUPS} is not a cgroup2 tree")
        done = subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(CGROUPS)], capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotRun(f"no cgroup2: {done.stderr.strip()}")


def root_file_system(cache: Path) -> Path:
    """The folder of the shared root file system, read-only by convention; made when `cache` has not got it."""
    recipe = repr((SUITE, PACKAGES, FINISH))
    folder = cache / "test-hosts" / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test sessions at once make one
        if not folder.exists():
            for other in folder.parent.glob("*.new"):
                shutil.rmtree(other)
            fresh = folder.with_suffix(".new")
            _run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(fresh))
            _run("chroot", str(fresh), "/bin/sh", "-c", FINISH)
            fresh.rename(folder)
    return folder


def _run(*argv: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotRun(f"{' '.join(argv)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
