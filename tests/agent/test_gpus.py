"""GPUs by what nvidia-smi says: real answers, answers that are none, and the rules over them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import gpus
from kdeploy_agent.ground.gpus import App, Gpu
from kdeploy_agent.looking import machine

HERE = Path(__file__).resolve().parent
FIELDS = [*gpus._NEEDED, *gpus._TOLD_BY_SOME]
B300 = {"gpus": 8, "gpu": "B300", "compute_capability": "10.3", "nvlink": True}


def read(name: str) -> str:
    return (HERE / "data" / name).read_text()


def b300(index: int, **changes: Any) -> Gpu:
    values = {
        "index": index, "uuid": f"GPU-{index}", "name": "NVIDIA B300 SXM6 AC", "used_mib": 0, "total_mib": 275040,
        "capability": "10.3", "driver": "580.159.04", "mig": "Disabled", "fabric_state": "Completed",
        "fabric_status": "Success", "uncorrected": 0, "remap_failed": "No", "recovery": "None", "ails": "",
    }  # fmt: skip
    return Gpu(**{**values, **changes})


EIGHT = [b300(index) for index in range(8)]


def test_one_gpu_as_a_real_driver_tells_it() -> None:
    (gpu,) = gpus.read_gpus(FIELDS, read("h200-alone.csv"))
    assert (gpu.name, gpu.capability, gpu.arch, gpu.total_mib, gpu.used_mib) == (
        "NVIDIA H200",
        "9.0",
        "sm_90",
        143771,
        0,
    )
    assert (gpu.fabric_state, gpu.fabric_status, gpu.mig, gpu.uncorrected) == ("", "", "Disabled", 0)
    assert (gpu.recovery, gpu.ails) == ("None", "")


def test_two_joined_gpus_and_a_process() -> None:
    pair = gpus.read_gpus(FIELDS, read("h200-pair.csv"))
    assert [(gpu.index, gpu.fabric_state, gpu.fabric_status) for gpu in pair] == [
        (0, "Completed", "Success"),
        (1, "Completed", "Success"),
    ]
    assert gpus.read_apps(read("h200-apps.csv")) == [App(450, pair[0].uuid, 1542, "python3")]


@pytest.mark.parametrize("nothing", ["N/A", "[N/A]", "[Not Supported]", "[Insufficient Permissions]"])
def test_what_is_not_told_is_not_made_up(nothing: str) -> None:
    row = ["3", "GPU-x", "NVIDIA Thing", *[nothing] * (len(FIELDS) - 3)]
    (gpu,) = gpus.read_gpus(FIELDS, ", ".join(row))
    assert (gpu.used_mib, gpu.capability, gpu.arch, gpu.mig, gpu.uncorrected, gpu.ails) == (None, "", "", "", None, "")
    assert not next(iter(machine.health([gpu])))["hint"]
    assert gpus.read_apps(f"12, GPU-x, {nothing}, a, b") == [App(12, "GPU-x", None, "a, b")]


@pytest.mark.parametrize("broken", ["ERR!", "[Unknown Error]", "[GPU requires reset]"])
def test_a_gpu_that_does_not_answer(broken: str) -> None:
    row = ["3", "GPU-x", "NVIDIA Thing", broken, *["1"] * (len(FIELDS) - 4)]
    told = list(machine.health(gpus.read_gpus(FIELDS, ", ".join(row))))
    assert not told[0]["ok"] and broken in told[0]["detail"] and "reboot" in told[0]["hint"]


def test_a_line_that_is_none_is_an_error() -> None:
    with pytest.raises(AgentError, match="Unable to determine the device handle"):
        gpus.read_gpus(FIELDS, "Unable to determine the device handle for GPU0: 0000:03:00.0: Unknown Error\n")


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Puts the stand-in for nvidia-smi in front, which says what the test wants it to."""
    shutil.copy(HERE / "standin_bin" / "nvidia-smi", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def say(**words: Any) -> None:
        (tmp_path / "gpus.json").write_text(json.dumps(words))

    return say


ROW = {
    "index": 0, "uuid": "GPU-0", "name": "NVIDIA A100", "memory.used": 3, "memory.total": 40960,
    "driver_version": "470.1",
}  # fmt: skip


def test_fields_an_older_driver_does_not_know(smi: Callable[..., None]) -> None:
    smi(gpus=[ROW])
    (gpu,) = gpus.query()
    assert (gpu.name, gpu.driver, gpu.used_mib, gpu.capability, gpu.fabric_state) == ("NVIDIA A100", "470.1", 3, "", "")
    assert "nosuch.field" in (gpus._UNKNOWN_FIELD.search(read("unknown-field.txt")) or [""])[0]


def test_no_gpu_is_no_error(smi: Callable[..., None]) -> None:
    smi(gpus=[])
    assert gpus.query() == [] and gpus.apps() == []


def test_a_driver_that_does_not_answer(smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    smi(fails="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    with pytest.raises(AgentError, match="couldn't communicate") as told:
        gpus.query()
    assert "dmesg" in told.value.hint
    smi(hangs=60)
    monkeypatch.setattr(gpus, "ANSWERS_WITHIN_S", 0.5)
    began = time.monotonic()
    with pytest.raises(AgentError, match="did not answer"):
        gpus.apps()
    assert time.monotonic() - began < 5


def bad(findings: Any) -> list[str]:
    return [one["detail"] for one in findings if not one["ok"]]


def test_the_machine_that_was_declared() -> None:
    told = list(machine.as_declared(B300, EIGHT))
    assert [one["check"] for one in told] == ["gpus", "gpu name", "compute capability"] and not bad(told)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (EIGHT[:7], ["7 GPUs, the profile says 8"]),
        ([b300(index, name="NVIDIA B200") for index in range(8)], ["NVIDIA B200; the profile says B300"]),
        ([b300(index, capability="10.0") for index in range(8)], ["10.0; the profile says 10.3"]),
        ([], ["0 GPUs, the profile says 8", "no GPU; the profile says B300"]),
    ],
)
def test_another_machine(found: list[Gpu], says: list[str]) -> None:
    told = list(machine.as_declared(B300, found))
    assert bad(told) == says and all(one["hint"] for one in told if not one["ok"])


def test_a_driver_that_does_not_tell_the_capability_is_a_doubt() -> None:
    told = list(machine.as_declared(B300, [b300(index, capability="") for index in range(8)]))
    assert told[-1]["ok"] and told[-1]["warn"]


def test_patch_sets_and_their_architectures() -> None:
    assert not bad(machine.fits_sets({"a/1": ["sm_103", "sm_120"]}, EIGHT))
    told = bad(machine.fits_sets({"a/1": ["sm_103"], "b/1": ["sm_100", "sm_120"]}, EIGHT))
    assert told == ["b/1 is made for sm_100, sm_120; here: sm_103"]
    assert not list(machine.fits_sets({}, EIGHT))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"uncorrected": 2}, "2 memory errors"),
        ({"remap_failed": "Yes"}, "could not be replaced"),
        ({"recovery": "Drain and Reset"}, "asks for: Drain and Reset"),
    ],
)
def test_health(change: dict[str, Any], says: str) -> None:
    told = [one for one in machine.health([*EIGHT[:7], b300(7, **change)]) if not one["ok"]]
    assert len(told) == 1 and says in told[0]["detail"] and "GPU 7" in told[0]["detail"] and told[0]["hint"]
    assert not bad(machine.health(EIGHT))


def test_mig() -> None:
    parted = [b300(0, mig="Enabled")]
    assert bad(machine.whole(parted, all_of_it=True)) == ["MIG is on on GPU 0: a server sees one part of it"]
    assert next(iter(machine.whole(parted, all_of_it=False)))["warn"]
    assert not list(machine.whole(EIGHT, all_of_it=True))


@pytest.mark.parametrize(
    ("change", "declared", "ok", "warn"),
    [
        ({}, True, True, False),
        ({"fabric_state": "In Progress", "fabric_status": ""}, False, False, False),
        ({"fabric_state": "Not Started"}, True, False, False),
        ({"fabric_status": "Insufficient Resources"}, True, False, False),
        ({"fabric_state": "", "fabric_status": ""}, True, True, True),
    ],
)
def test_the_fabric(change: dict[str, Any], declared: bool, ok: bool, warn: bool) -> None:
    (told,) = machine.fabric([b300(0, **change)], declared)
    assert (told["ok"], told["warn"]) == (ok, warn)
    assert ok or ("fabricmanager" in told["hint"] and "802" in told["hint"])
    assert not list(machine.fabric([b300(0, fabric_state="", fabric_status="")], declared=False))


def test_strangers() -> None:
    me = App(os.getpid(), "GPU-0", 70_000, "python3")
    (told,) = machine.strangers(EIGHT, [me], set(), whole_machine=True)
    assert not told["ok"] and f"process {os.getpid()} holds 70,000 MiB on GPU 0: " in told["detail"]
    assert "pytest" in told["detail"] and "kdeploy adopt" in told["hint"]
    (told,) = machine.strangers(EIGHT, [me], set(), whole_machine=False)
    assert told["ok"] and told["warn"]
    (told,) = machine.strangers(EIGHT, [me], {os.getpid()}, whole_machine=True)
    assert told["ok"] and not told["warn"] and told["detail"] == "only ours"
    (told,) = machine.strangers(EIGHT, [App(2**22 + 7, "GPU-1", 9000, "sglang::scheduler")], set(), True)
    assert not told["ok"] and "sglang::scheduler (of another container)" in told["detail"]
    with subprocess.Popen(["sh", "-c", "sleep 30;\ntrue"], start_new_session=True) as child:
        (told,) = machine.strangers(EIGHT, [App(child.pid, "GPU-0", 9, "sh")], set(), True)
        os.killpg(child.pid, signal.SIGKILL)
    assert told["warn"] and told["detail"] == f"process {child.pid} holds 9 MiB on GPU 0: sh -c sleep 30; true"
    (told,) = machine.strangers(EIGHT, [App(os.getpid(), "GPU-elsewhere", 9000, "x")], set(), True)
    assert told["detail"] == "nobody's"
    (told,) = machine.strangers([b300(0, used_mib=30_000)], [], set(), True)
    assert told["warn"] and "of no process seen from here" in told["detail"]


def release(*args: str, **env: str) -> dict[str, Any]:
    return {"launch": {"args": list(args), "env": env}}


def test_which_gpus_a_release_uses() -> None:
    assert machine.needs_gpus(release()) and not machine.needs_gpus(release("--device", "cpu"))
    assert not machine.needs_gpus(release(CUDA_VISIBLE_DEVICES=""))
    assert [gpu.index for gpu in machine.usable(release(CUDA_VISIBLE_DEVICES="1, GPU-3"), EIGHT)] == [1, 3]
    assert machine.usable(release(), EIGHT) == EIGHT
    assert [machine.together(release(*args)) for args in ((), ("--tp", "8"), ("--tp-size=4",))] == [1, 8, 4]
