"""What a server needs of the operating system: disk, shared memory, file handles, a clock that is right."""

from __future__ import annotations

import os
import re
import resource
import time
from pathlib import Path
from typing import Iterator, List

from kdeploy_agent.ground import bounded, files
from kdeploy_agent.looking.finding import Finding, doubt, judged, well, wrong

FREE_BYTES = 2 * 1024**3  # what caches and logs of a first start come to
FREE_INODES = 20_000  # Triton, inductor and flashinfer keep one folder a kernel
_SHARED_BYTES = 1024**3
_HANDLES = 65_535  # what SGLang asks for (0.5.11, srt/utils/common.py, set_ulimit)
_SKEW_S = 60.0
_STARTED = time.time()  # when this agent came up: no request to it was written before


def disk(home: Path) -> Iterator[Finding]:
    """Room and inodes below `home` for a first start, and that it may be written to at all."""
    folder = next(path for path in (home, *home.parents) if path.exists())
    space = files.free_space(home)
    if space.f_flag & os.ST_RDONLY:
        yield wrong("disk", f"{folder} is on a file system that is mounted read-only", "see `dmesg`; then remount it")
        return
    if not os.access(str(folder), os.W_OK | os.X_OK):
        yield wrong("disk", f"{folder} may not be written to", "`sudo: true` or another `root:` in hosts.yaml")
        return
    free = space.f_bavail * space.f_frsize
    yield judged("disk", free >= FREE_BYTES, f"{free / 1024**3:.1f} GB free", f"{FREE_BYTES >> 30} GB are needed")
    if space.f_files:  # some file systems count none and say 0
        yield judged(
            "inodes",
            space.f_favail >= FREE_INODES,
            f"{space.f_favail} free",
            f"{FREE_INODES} are needed: `du --inodes -d1 {folder} | sort -n` shows what holds them",
        )


def shared_memory(processes: int, place: str = "/dev/shm") -> Iterator[Finding]:
    """/dev/shm where several `processes` share one model: NCCL and SGLang pass data through it."""
    if processes < 2:
        return
    try:
        space = os.statvfs(place)
    except OSError as fault:
        yield wrong("shared memory", f"{place}: {fault.strerror}", "mount a tmpfs there")
        return
    free = space.f_bavail * space.f_frsize
    yield judged(
        "shared memory",
        free >= _SHARED_BYTES,
        f"{free / 1024**3:.1f} GB free in {place}",
        "1 GB is needed for NCCL: a container has 64 MB unless it gets --shm-size or --ipc=host; "
        "else `mount -o remount,size=16G /dev/shm`",
    )


def limits(processes: int) -> Iterator[Finding]:
    """File handles and locked memory, as what is started from here inherits them."""
    _, handles = resource.getrlimit(resource.RLIMIT_NOFILE)
    if handles != resource.RLIM_INFINITY and handles < _HANDLES:
        yield doubt(
            "open files",
            f"at most {handles}, SGLang asks for {_HANDLES}",
            "raise the hard limit (nofile) in /etc/security/limits.d",
        )
    else:
        yield well("open files", "no limit" if handles == resource.RLIM_INFINITY else f"up to {handles}")
    _, locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if processes > 1 and os.geteuid() != 0 and locked != resource.RLIM_INFINITY:
        yield doubt(
            "locked memory",
            f"at most {locked >> 20} MB",
            "NCCL over InfiniBand needs more: memlock unlimited in /etc/security/limits.d",
        )


def clock(asked: float) -> Iterator[Finding]:
    """This host's clock against the operator's, who wrote the request when theirs said `asked`.

    The request may have waited here behind others, but it was not written before this agent came up: so the host's
    clock is wrong only when no moment in between would explain the difference.
    """
    ahead, behind = _STARTED - asked, asked - time.time()
    if ahead > _SKEW_S or behind > _SKEW_S:
        told = f"{ahead:.0f} s ahead of" if ahead > behind else f"{behind:.0f} s behind"
        yield doubt("clock", f"this host is {told} the operator", "`timedatectl set-ntp true` on whichever is wrong")
    else:
        yield well("clock", "as the operator's")


_XID = re.compile(r"NVRM: Xid \([^)]*\): \d+.*")


def kernel_log() -> Iterator[Finding]:
    """GPU faults (Xid) that the kernel has noted since it was booted, where we may read its log."""
    try:
        done = bounded.run(["dmesg"], 10, {"PATH": os.defpath + ":/usr/sbin:/sbin"})
    except OSError:
        return
    lines = xids(done.out) if done is not None else []
    if lines:
        yield doubt(
            "kernel log",
            f"{len(lines)} GPU faults since boot, the last: {lines[-1][:160]}",
            "NVIDIA's list of Xid errors says what each means; 48, 74, 79, 95, 119 and 120 want a reset or a reboot",
        )


def xids(log: str) -> List[str]:
    """The GPU faults in a kernel log, oldest first."""
    return _XID.findall(log)
