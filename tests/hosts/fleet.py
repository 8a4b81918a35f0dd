"""An operator with a project whose engine is a stand-in, and one host on which it is deployed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kdeploy.errors import ExitCode
from tests import making
from tests.conftest import REPOSITORY

from .bed import SSH_PORT, Host

SERVICE = "small"
STANDIN = Path(__file__).parent / "standin"

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def engine() -> dict[str, bytes]:
    """The files of the stand-in engine's wheel."""
    return {
        "sglang/__init__.py": b"from sglang._version import __version__\n",
        "sglang/srt/__init__.py": b"",
        "sglang/srt/server_args.py": (REPOSITORY / "tests/agent/standin/sglang/srt/server_args.py").read_bytes(),
        "sglang/launch_server.py": (STANDIN / "launch_server.py").read_bytes(),
        "sglang/words.py": (STANDIN / "words.py").read_bytes(),
        "sglang/prompts.json": (REPOSITORY / "models/pocket/prompts.json").read_bytes(),
    }


@dataclass
class Operator:
    """Somebody at a machine of their own who runs kdeploy against `host`."""

    folder: Path
    host: Host

    def __post_init__(self) -> None:
        self.project = making.small_project(self.folder, engine())
        self.public, self.private = self.host.free_port(), self.host.free_port()
        (self.project / "prompts.json").write_bytes((REPOSITORY / "models/pocket/prompts.json").read_bytes())
        self.reach("direct", SSH_PORT)
        self.release("one")
        furnish(self.host)

    @property
    def environment(self) -> dict[str, str]:
        """What the command finds: a home with the keys, and folders of its own."""
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("KDEPLOY_", "PIP_", "SSH_"))}
        return {
            **keep,
            "HOME": str(self.host.home),
            "KDEPLOY_SSH_CONFIG": str(self.host.home / ".ssh/config"),  # OpenSSH asks passwd(5), not $HOME, for it
            "PYTHONPATH": str(REPOSITORY),
            "KDEPLOY_CACHE": str(self.folder / "cache"),
            "KDEPLOY_STATE": str(self.folder / "state"),
            "PIP_FIND_LINKS": str(self.folder / "wheels"),
            "PIP_NO_INDEX": "1",
            "COLUMNS": "200",
        }

    def reach(self, name: str, port: int) -> None:
        """Write the host into hosts.yaml as `name`, reached at `port`; the rest comes from ssh_config."""
        path = self.project / "profiles/hosts.yaml"
        hosts = yaml.safe_load(path.read_text())
        ssh = {"address": self.host.name, "port": port}
        hosts["hosts"][name] = {"ssh": ssh, "root": "/opt/kdeploy"}
        path.write_text(yaml.safe_dump(hosts))

    def release(self, name: str) -> None:
        """Write a patch set of one line, and the profile that deploys it, both called `name`."""
        edit = {"file": "sglang/__init__.py", "anchor": "from sglang", "insert-before": f"PATCH = '{name}'\n"}
        making.patch_set(self.project, name, [edit])
        self.profile(name, [f"{name}/1.0.0"])

    def profile(
        self,
        name: str,
        patchsets: Sequence[str],
        host: str = "direct",
        env: Mapping[str, str] | None = None,
        **gate: Any,
    ) -> str:
        """Write a profile of the stand-in; gives its path."""
        text = {
            "service": SERVICE,
            "engine": "sglang==0.0.1",
            "patchsets": list(patchsets),
            "hosts": [host],
            "runtime": {"venv": "/srv/engine"},
            "serve": {
                "host": self.host.address,
                "port": self.public,
                "private-port": self.private,
                "front": "socket",
                "args": {"model-path": "/srv/model", "served-model-name": "pocket"},
                "env": dict(env or {}),
            },
            "gate": {
                "prompts": "../prompts.json", "request-s": 5, "start-s": 10, "probe-s": 20, "decide-s": 4,
                "soak-s": 0.3, "speed": 0.01, **gate,  # a stand-in is as fast as the machine is free
            },
        }  # fmt: skip
        (self.project / f"profiles/{name}.yaml").write_text(yaml.safe_dump(text, sort_keys=False))
        return f"profiles/{name}.yaml"

    def start(self, *arguments: str, clock: float = 0) -> subprocess.Popen[str]:
        """Start the command; `clock` is how many seconds its clock is ahead."""
        module = ["tests.hosts.shifted", str(clock)] if clock else ["kdeploy"]
        return subprocess.Popen(
            [sys.executable, "-m", *module, *arguments], cwd=self.project, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, code: ExitCode = ExitCode.OK, timeout: float = 120, clock: float = 0) -> str:
        """Run the command to its end; gives what it says, and insists on the exit code."""
        child = self.start(*arguments, clock=clock)
        try:
            told, _ = child.communicate(timeout=timeout)
        finally:
            child.kill()
        assert child.returncode == code, f"kdeploy {' '.join(arguments)}: exit {child.returncode}, not {code}\n{told}"
        return told

    def status(self) -> dict[str, Any]:
        """What `kdeploy status` says of the host."""
        (one,) = json.loads(self.run("status", "profiles/one.yaml", "--json"))["result"]
        assert isinstance(one, dict)
        return one


def furnish(host: Host) -> None:
    """Give the host what the stand-in needs: a virtual environment, and a model to look at."""
    venv, model = host.root / "srv/engine", host.root / "srv/model"
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    if not (venv / "bin/python").is_symlink():
        (venv / "bin/python").symlink_to("/usr/bin/python3")
    shutil.copytree(REPOSITORY / "models/pocket/target", model)


def version_at(address: str, port: int) -> str | None:
    """The version that a client is served by; None when nobody answers."""
    try:
        with _OPENER.open(f"http://{address}:{port}/server_info", timeout=5) as answer:
            version = json.load(answer)["version"]
    except (OSError, ValueError):
        return None
    assert isinstance(version, str)
    return version


class Home:
    """The service's folder on the host, as seen from here."""

    def __init__(self, host: Host, service: str = SERVICE) -> None:
        self.path = host.kdeploy / service

    def live(self) -> str | None:
        return self._link("current")

    def good(self) -> str | None:
        return self._link("known-good")

    def version(self, release: str) -> str:
        """What the server of a release says it is."""
        version = json.loads((self.path / "releases" / release / "release.json").read_text())["version"]
        assert isinstance(version, str)
        return version

    def journal(self) -> list[dict[str, Any]]:
        """Every whole line about a state, oldest first."""
        try:
            lines = (self.path / "journal.jsonl").read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [line for line in map(json.loads, lines) if "state" in line]

    def states(self) -> list[str]:
        """`STATE:phase` of every line."""
        return [f"{line['state']}:{line['phase']}" for line in self.journal()]

    def trees(self) -> set[str]:
        """Names of the trees that are placed."""
        return {one.name for one in self.path.glob("trees/*")}

    def wait_for(self, state: str, seen: int, seconds: float = 30) -> None:
        """Wait until `STATE:phase` is written after the first `seen` lines."""
        end = time.monotonic() + seconds
        while state not in self.states()[seen:]:
            assert time.monotonic() < end, f"{state} did not come: {self.states()[seen:]}"
            time.sleep(0.002)

    def _link(self, name: str) -> str | None:
        link = self.path / name
        return link.readlink().name if link.is_symlink() else None
