"""The bed is what it says: a whole Debian that boots, dies, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from .bed import Bed
from .image import CGROUPS


def test_a_host_is_a_machine(bed: Bed) -> None:
    with bed.host("one") as host, bed.host("two") as other:
        assert host.sh("hostname").strip() == "one"
        assert other.sh("hostname").strip() == "two"
        assert host.sh("cat /proc/1/comm; systemctl is-system-running --wait").split() == ["systemd", "running"]
        host.sh("systemd-run --quiet --unit=sleeper sleep 1000")
        assert ["/usr/bin/sleep", "1000"] in [one.command for one in host.processes()]
        assert not any(one.command[-1:] == ["1000"] for one in other.processes())
        assert other.sh("systemctl is-active sleeper || true").strip() == "inactive"
        assert host.ssh("sudo -n id -u", user="deploy").stdout == b"0\n"
        assert host.ssh("sudo -n id -u", user="guest").returncode != 0


def test_it_loses_its_power_and_keeps_its_files(bed: Bed) -> None:
    with bed.host("one") as host:
        host.sh("echo kept > /opt/file; systemd-run --quiet --unit=sleeper sleep 1000")
        host.kill()
        assert not host.running
        assert not host.processes()
        host.boot()
        assert host.sh("cat /opt/file; systemctl is-active sleeper || true").split() == ["kept", "inactive"]
        host.reboot()
        assert (host.root / "opt/file").read_text() == "kept\n"
        folder, cgroup = host.folder, host.cgroup
    assert not folder.exists()
    assert not cgroup.exists()
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert CGROUPS.exists()


def test_a_small_disk_is_full_soon(bed: Bed) -> None:
    with bed.host("one", small="1m") as host:
        done = host.ssh("dd if=/dev/zero of=/opt/kdeploy/big bs=1M count=2")
        assert b"No space left" in done.stderr
        assert (host.folder / "small/big").stat().st_size <= 1 << 20
