"""The agent's bytecode: used when it is whole and of this agent, made anew by nobody, and never needed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kdeploy import agent

LOOK = """
import sys
sys.path.insert(0, sys.argv[1])
from kdeploy_agent import compiled
compiled.use()
import pkgutil
from kdeploy_agent.looking import facts
assert b"def " in pkgutil.get_data("kdeploy_agent.looking", "inside.py")
assert facts.__file__ == sys.argv[1] + "/kdeploy_agent/looking/facts.py"
print(type(facts.__loader__).__name__)
"""


@pytest.fixture
def pushed(tmp_path: Path) -> Path:
    path = tmp_path / agent.name()
    path.write_bytes(agent.archive())
    assert subprocess.run([sys.executable, path, "compile"], cwd="/").returncode == 0
    return path


def loader(archive: Path) -> str:
    done = subprocess.run([sys.executable, "-c", LOOK, archive], capture_output=True, cwd="/", check=True)
    return done.stdout.decode().strip()


def facts(archive: Path) -> dict[str, object]:
    asked = json.dumps({"protocol": 1, "service": "s", "root": str(archive.parent)})
    done = subprocess.run([sys.executable, archive, "facts"], input=asked.encode(), capture_output=True, cwd="/")
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])["result"]
    return told


def kept(archive: Path) -> Path:
    return next(archive.parent.glob("*.code"))


def test_what_was_pushed_is_compiled_once(pushed: Path) -> None:
    assert loader(pushed) == "_Loader"
    assert facts(pushed)["root"] == str(pushed.parent)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: bytes(32) + data[32:],
    ],
)
def test_what_is_damaged_is_passed_over(pushed: Path, damage: Callable[[bytes], bytes]) -> None:
    kept(pushed).write_bytes(damage(kept(pushed).read_bytes()))
    assert loader(pushed) == "zipimporter"
    assert facts(pushed)["root"] == str(pushed.parent)


def test_it_is_of_this_very_agent(pushed: Path) -> None:
    """Another zip file under the same name runs what is in it."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(pushed.read_bytes())) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"Reads only.", b"Reads, only."))
    pushed.write_bytes(made.getvalue())
    assert loader(pushed) == "zipimporter"


def test_without_it_nothing_is_missed(pushed: Path) -> None:
    kept(pushed).unlink()
    assert loader(pushed) == "zipimporter" and facts(pushed)["root"] == str(pushed.parent)
