"""The story of a host reached by SSH: a real Debian with systemd and sshd, and on it the real SGLang server on CPU."""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdeploy import profile
from kdeploy.api import stages
from kdeploy.errors import ExitCode
from tests import making
from tests.conftest import MACHINE_ROOT, REPOSITORY
from tests.test_line import BENIGN, GARBLE, World

from .bed import Bed, Host
from .fleet import Home

pytestmark = pytest.mark.server

PROFILE = "profiles/box.yaml"


class Box(World):
    """The world of test_line.py, with a host that is not this machine."""

    def __init__(self, folder: Path, host: Host) -> None:
        super().__init__(folder)
        self.host = host
        self.environment["KDEPLOY_SSH_CONFIG"] = str(host.home / ".ssh/config")
        self.home_there = Home(host, "local")
        self.public = host.free_port()
        hosts = {"hosts": {"box": {"ssh": {"address": host.name}, "root": "/opt/kdeploy"}}}
        (self.project / "profiles/hosts.yaml").write_text(yaml.safe_dump(hosts))
        serve = {
            "host": host.address, "port": self.public, "private-port": host.free_port(), "front": "socket",
            "args": {"model-path": "/srv/models/pocket/target"},
        }  # fmt: skip
        keys = {"hosts": ["box"], "serve": serve}
        making.profile(self.project, "box", "local.yaml", ["cpu/1.0.0", "ddtree/0.1.0"], **keys)
        benign = making.patch_set(self.project, "benign", BENIGN, engine="==0.5.11")
        garble = making.patch_set(self.project, "garble", GARBLE, engine="==0.5.11")
        making.profile(self.project, "benign", "box.yaml", ["cpu/1.0.0", benign])
        making.profile(self.project, "garble", "box.yaml", ["cpu/1.0.0", garble])

    def says(self) -> str:
        """What a client hears: the pocket model goes on with its first text."""
        body = {"model": "pocket", "prompt": "The sea does not", "max_tokens": 12, "temperature": 0}
        url = f"http://{self.host.address}:{self.public}/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = json.load(answer)["choices"][0]["text"]
        assert isinstance(text, str)
        return text

    def closed(self) -> bool:
        """Whether the public port refuses clients."""
        with socket.socket() as probe:
            return probe.connect_ex((self.host.address, self.public)) != 0

    @property
    def status(self) -> Any:
        (one,) = self.json("status", PROFILE)
        return one

    def server(self) -> int:
        """The pid, out here, of the process that systemd started as the server."""
        main = self.host.sh("systemctl show -P MainPID kdeploy-local-server.service").strip()
        (pid,) = [one.pid for one in self.host.processes() if _inner_pid(one.pid) == main]
        return pid


def _inner_pid(pid: int) -> str:
    """The pid that a process has in its host; nothing when it is gone meanwhile."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]


@pytest.fixture(scope="module")
def box(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("box")
    local = profile.load(REPOSITORY / "profiles/local.yaml")
    stages.local_runtime(
        local, local.file.runtime, lambda text: print(text, file=sys.stderr)
    )  # made when it is missing
    runtimes, models = MACHINE_ROOT / "runtimes", REPOSITORY / "models"
    shared = [
        f"--bind-ro={runtimes}:/opt/kdeploy/runtimes",
        f"--bind-ro={models}:/srv/models",
        f"--bind-ro={sys.base_prefix}",
    ]
    with bed.host("box", binds=shared) as host:
        yield Box(folder, host)


def test_apply_from_nothing(box: Box) -> None:
    assert box.closed()
    result = box.json("apply", PROFILE)
    assert box.says().startswith(" hurry. It comes up")
    facts = box.status["facts"]
    assert facts["current"] == facts["known_good"] == result["release"]["id"]
    units = {one.unit for one in box.host.processes() if any("sglang" in word for word in one.command)}
    assert units == {"kdeploy-local-server.service"}


def test_apply_again_changes_nothing(box: Box) -> None:
    pid = box.server()
    told = box.run("apply", PROFILE)
    assert "nothing to do" in told
    box.host.ssh("systemctl", "disable", "kdeploy-local.service")
    assert "box: what serves comes back after a reboot again" in box.run("apply", PROFILE)
    assert "nothing to do" in box.run("apply", PROFILE)  # it comes back again, and was not restarted for that
    assert box.server() == pid


def test_status_history_logs(box: Box) -> None:
    assert box.status["advice"] is None
    (told,) = box.json("history", PROFILE)
    assert [one["state"] for one in told["transactions"]] == ["CONFIRMED"]
    assert "fired up and ready" in box.run("logs", PROFILE, "-n", "400")
    assert "fired up and ready" in box.host.sh("journalctl -u kdeploy-local-server.service --no-pager")


def test_garble_is_rejected_and_the_host_goes_back(box: Box) -> None:
    before = box.home_there.live()
    told = box.run("apply", "profiles/garble.yaml", code=ExitCode.GATE)
    assert "answers.exact" in told
    assert "!!!!" in told
    assert f"{before} serves again" in told
    assert box.home_there.live() == before
    assert box.says().startswith(" hurry")


def test_it_serves_again_after_a_reboot(box: Box) -> None:
    before = box.home_there.live()
    box.host.reboot()
    end = time.monotonic() + 240
    while box.closed():
        assert time.monotonic() < end, box.host.sh("systemctl status 'kdeploy-*' --no-pager || true")
        time.sleep(0.2)
    assert box.says().startswith(" hurry")
    assert box.home_there.live() == before
    assert box.status["advice"] is None
    assert "nothing to do" in box.run("apply", PROFILE)


def test_another_release_and_back(box: Box) -> None:
    first = box.home_there.live()
    box.run("apply", "profiles/benign.yaml")
    assert box.home_there.live() != first
    assert "a benign change" in box.run("logs", PROFILE, "-n", "4000")
    box.run("rollback", "profiles/benign.yaml")
    assert box.home_there.live() == box.home_there.good() == first
    assert box.says().startswith(" hurry")


def test_stop(box: Box) -> None:
    box.run("stop", PROFILE)
    assert box.closed()
    left = [one for one in box.host.processes() if any("sglang" in word or "kdeploy" in word for word in one.command)]
    assert not left
    box.host.reboot()
    box.host.sh("systemctl is-system-running --wait || true")
    assert box.closed(), "what the operator has stopped stays stopped"
