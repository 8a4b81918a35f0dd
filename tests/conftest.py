"""What all tests share: a home of their own, a project of their own, and the real wheel and runtime of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kdeploy import lock, places
from tests.scripted import engine  # noqa: F401 - a fixture

REPOSITORY = Path(__file__).resolve().parent.parent

# Where this machine keeps what is heavy, before any test moves the home away.
MACHINE_CACHE = places.cache()
MACHINE_ROOT = places.host_root()

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache, a state and a host root of this test's own; fetched wheels and runtimes are shared with the machine."""
    for variable, folder in (("KDEPLOY_CACHE", "cache"), ("KDEPLOY_STATE", "state"), ("KDEPLOY_ROOT", "root")):
        monkeypatch.setenv(variable, str(tmp_path / "home" / folder))
    (tmp_path / "home/cache").mkdir(parents=True)
    (tmp_path / "home/root").mkdir()
    (tmp_path / "home/cache/bases").symlink_to(_made(MACHINE_CACHE / "bases"))
    (tmp_path / "home/root/runtimes").symlink_to(_made(MACHINE_ROOT / "runtimes"))
    return tmp_path / "home"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of this project's declarations, to be changed at will."""
    folder = tmp_path / "project"
    for part in ("patchsets", "profiles", "locks"):
        shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / lock.FILE, folder)
    (folder / "models").symlink_to(REPOSITORY / "models")
    return folder


@pytest.fixture
def kdeploy(project: Path) -> Run:
    """Run the real command in `project`; gives its exit code and output."""

    def run(*arguments: str, timeout: float = 600, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kdeploy", *arguments],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,  # type: ignore[call-overload]
        )

    return run


@pytest.fixture
def runtime_python(project: Path, home: Path) -> Path:
    """The Python with torch, triton and all else of the runtime's lock; made on the first use (about 2 GB)."""
    from kdeploy import profile
    from kdeploy.api import stages

    read = profile.load(project / "profiles/local.yaml")
    return stages.local_runtime(read, read.file.runtime, lambda text: print(text, file=sys.stderr))
