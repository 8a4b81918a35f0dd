"""Which torch, driver, assembler, Python and clock go together: the rules, case by case."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.looking import abi, cuda, system

# What torch 2.11.0+cu130 said of itself on an H200, and the newest architectures of its Triton's two assemblers.
TORCH_130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


def verdict(findings: Any) -> list[str]:
    return ["no" if not one["ok"] else "doubt" if one["warn"] else "yes" for one in findings]


@pytest.mark.parametrize(
    ("torch", "driver", "says"),
    [
        ("13.0", 13000, "yes"), ("12.8", 13000, "yes"), ("12.9", 12080, "doubt"), ("13.0", 12090, "no"),
        ("12.8", 12080, "yes"),
    ],
)  # fmt: skip
def test_torch_against_the_driver(torch: str, driver: int, says: str) -> None:
    (told,) = cuda.against_driver(torch, driver)
    assert verdict([told]) == [says] and (says == "yes" or told["hint"])


@pytest.mark.parametrize(
    ("archs", "capability", "says"),
    [
        (TORCH_130, "9.0", "yes"),
        (TORCH_130, "10.3", "yes"),  # by sm_100: the same major, an earlier minor
        (TORCH_130, "12.0", "yes"),
        (TORCH_130, "8.9", "yes"),
        (TORCH_130, "7.0", "no"),
        (["sm_90", "compute_90"], "10.3", "doubt"),  # from PTX, at first use
        (["sm_90"], "10.3", "no"),
        (["sm_90a"], "9.0", "yes"),
        (["sm_100a"], "10.3", "no"),  # exactly there, nowhere else
        (["sm_100f"], "10.3", "yes"),
        (["sm_103"], "10.0", "no"),  # never backwards
        ([], "9.0", "no"),
    ],
)
def test_torch_knows_the_device(archs: list[str], capability: str, says: str) -> None:
    (told,) = cuda.knows(archs, capability)
    assert verdict([told]) == [says], told
    assert says == "yes" or told["hint"]


OLD = {"path": "/old/ptxas", "archs": ["sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120", "sm_120a"]}
NEW = {"path": "/new/ptxas-blackwell", "archs": ["sm_90", "sm_90a", "sm_103", "sm_103a", "sm_121a"]}


@pytest.mark.parametrize(
    ("tools", "capability", "says"),
    [
        ({"ptxas": OLD}, "10.3", "no"),
        ({"ptxas": OLD, "ptxas-blackwell": NEW}, "10.3", "yes"),
        ({"ptxas": OLD, "ptxas-blackwell": NEW}, "9.0", "yes"),
        ({"ptxas": OLD, "ptxas-blackwell": NEW}, "12.0", "no"),
        ({"ptxas": {"path": "/p", "archs": ["sm_89"]}}, "8.9", "yes"),  # no suffix before 9.0
        ({}, "10.3", "doubt"),
    ],
)
def test_an_assembler_that_knows_the_arch(tools: dict[str, Any], capability: str, says: str) -> None:
    (told,) = cuda.assembles(tools, capability)
    assert verdict([told]) == [says]
    if says == "no":
        assert "asked for sm_1" in told["detail"] and "TRITON_PTXAS_" in told["hint"]


@pytest.mark.parametrize(
    ("status", "word"), [(802, "fabricmanager"), (803, "reboot"), (100, "CUDA_VISIBLE"), (7, "cuda.h")]
)
def test_what_cuinit_says(status: int, word: str) -> None:
    (told,) = cuda._devices({"init": status, "devices": 0}, 8)
    assert not told["ok"] and f"CUDA error {status}" in told["detail"] and word in told["hint"]


def test_fewer_devices_than_the_model_is_spread_over() -> None:
    assert verdict(cuda._devices({"init": 0, "devices": 4}, 8)) == ["no"]
    assert verdict(cuda._devices({"init": 0, "devices": 8}, 8)) == ["yes"]


def test_torch_without_cuda_and_a_driver_that_is_not_there() -> None:
    answer: dict[str, Any] = {"torch": {"version": "2.13.0+cpu", "cuda": None, "archs": []}, "driver": {"ok": True}}
    assert verdict(cuda.fits(answer, [], 1)) == ["no"]
    answer["torch"]["cuda"] = "13.0"
    answer["driver"] = {"ok": False, "error": "OSError: libcuda.so.1"}
    (told,) = cuda.fits(answer, [], 1)
    assert not told["ok"] and "libcuda.so.1" in told["detail"]


PYTHON = {"version": [3, 11, 7], "implementation": "cpython", "machine": "x86_64", "libc": ["glibc", "2.36"]}


@pytest.mark.parametrize(
    ("tag", "changes", "word"),
    [
        ("cp311-cp311-manylinux_2_34_x86_64", {}, None),
        ("cp312-cp312-manylinux_2_34_x86_64", {}, "Python 3.11"),
        ("cp311-cp311-manylinux_2_38_x86_64", {}, "glibc 2.36"),
        ("cp311-cp311-manylinux_2_34_aarch64", {}, "x86_64"),
        ("cp310-abi3-manylinux2014_x86_64", {}, None),
        ("cp312-abi3-manylinux2014_x86_64", {}, "3.11"),
        ("py3-none-any", {}, None),
        ("cp311-cp311-manylinux_2_34_x86_64", {"libc": ["", ""]}, None),  # not told: not judged
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", {}, None),
    ],
)
def test_a_python_and_the_wheel_of_a_tree(tag: str, changes: dict[str, Any], word: str | None) -> None:
    why = abi.obstacle(tag, {**PYTHON, **changes})
    assert (why is None) if word is None else (word in (why or ""))


def test_the_tags_of_a_tree(tmp_path: Path) -> None:
    assert not list(abi.fits(tmp_path, PYTHON))
    (tmp_path / "sglang-0.5.11.dist-info").mkdir()
    wheel = tmp_path / "sglang-0.5.11.dist-info" / "WHEEL"
    wheel.write_text("Wheel-Version: 1.0\nTag: cp312-cp312-linux_x86_64\n")
    (told,) = abi.fits(tmp_path, PYTHON)
    assert not told["ok"] and '"3.11"' in told["hint"] and "3.12" in told["hint"]
    wheel.write_text(wheel.read_text() + "Tag: cp311-cp311-linux_x86_64\n")
    assert verdict(abi.fits(tmp_path, PYTHON)) == ["yes"]


def test_a_clock_that_is_wrong_and_a_request_that_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(system, "_STARTED", now)
    assert verdict(system.clock(now)) == ["yes"]
    assert verdict(system.clock(now - 3600)) == ["doubt"]  # the host is ahead
    (told,) = system.clock(now + 3600)
    assert told["warn"] and "behind the operator" in told["detail"]
    monkeypatch.setattr(system, "_STARTED", now - 3600)  # it waited here for an hour, behind a runtime being made
    assert verdict(system.clock(now - 3590)) == ["yes"]


def test_shared_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(system.shared_memory(1))
    assert verdict(system.shared_memory(8, str(tmp_path / "none"))) == ["no"]
    real = os.statvfs

    def small(path: Any) -> Any:
        found = real(path)
        values = {name: getattr(found, name) for name in ("f_frsize", "f_flag", "f_files")}
        return type("Space", (), {**values, "f_bavail": (64 << 20) // found.f_frsize, "f_favail": 5})()

    monkeypatch.setattr(os, "statvfs", small)
    (told,) = system.shared_memory(8)
    assert not told["ok"] and "--shm-size" in told["hint"]
    told = {one["check"]: one for one in system.disk(tmp_path / "not" / "yet")}
    assert not told["disk"]["ok"] and not told["inodes"]["ok"] and "5 free" in told["inodes"]["detail"]


def test_faults_in_the_kernel_log() -> None:
    log = (
        "[1.0] usb 1-1: new device\n"
        "[2.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n"
        "[3.0] NVRM: loading\n"
    )
    assert system.xids(log) == ["NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."]
