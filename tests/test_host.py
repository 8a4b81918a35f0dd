"""The agent on this machine: installed by content, spoken to line by line, its errors by kind."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kdeploy import host as hosts
from kdeploy.errors import RemoteError, UsageError
from kdeploy.host import Host
from kdeploy.plan import Facts
from kdeploy.transport.local import LocalTransport


@pytest.fixture
def here(home: Path) -> Host:
    return Host(LocalTransport("here"), str(home / "root"), "test")


def test_archive_is_the_same_twice() -> None:
    first = hosts.archive()
    hosts.archive.cache_clear()
    assert hosts.archive() == first
    names = zipfile.ZipFile(io.BytesIO(first[1])).namelist()
    assert "__main__.py" in names
    assert "kdeploy_agent/probe.py" in names


def test_facts_of_an_empty_host_install_the_agent_and_write_nothing_else(here: Host, home: Path) -> None:
    facts = Facts.read(here.call("facts", {"rehash": None}))
    assert facts.current is None
    assert facts.transaction is None
    assert not facts.server.alive
    made = {str(path.relative_to(home / "root")) for path in (home / "root").rglob("*") if path.is_file()}
    assert {name for name in made if not name.startswith("runtimes/")} == {f"agent/agent-{hosts.archive()[0]}.pyz"}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteError, match="cannot be written"):
        Host(LocalTransport("here"), str(tmp_path / "file/root"), "test").call("facts")


def test_what_the_agent_refuses(here: Host) -> None:
    with pytest.raises(UsageError, match="unknown verb"):
        here.call("dance")


def test_what_is_not_the_protocol(here: Host, home: Path) -> None:
    here.call("facts")
    (agent,) = (home / "root/agent").iterdir()
    agent.write_text("print('Welcome to this machine!')\n")
    with pytest.raises(RemoteError, match="not a line of the agent's protocol"):
        here.call("facts")
    agent.write_text("raise SystemExit('the disk ate me')\n")
    with pytest.raises(RemoteError, match="ended without an answer") as caught:
        here.call("facts")
    assert caught.value.details == ("the disk ate me",)


def test_a_command_that_hangs_is_ended(here: Host, home: Path) -> None:
    here.call("facts")
    (agent,) = (home / "root/agent").iterdir()
    marker = home / "pid"
    agent.write_text(f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    with pytest.raises(RemoteError, match="no answer within 1 s"):
        here.call("facts", timeout_s=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_wheel_carries_the_agent(tmp_path: Path) -> None:
    """A built wheel, unpacked elsewhere, finds the agent that travels in it."""
    repository = Path(__file__).resolve().parent.parent
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=repository, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(tmp_path / done.stdout.strip().splitlines()[-1]) as zipped:
        zipped.extractall(tmp_path / "site")
    code = "from kdeploy import host; print(host.__file__, host.archive()[0])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, digest = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert digest == hosts.archive()[0]
