"""The agent on a real host, spoken to over OpenSSH as kdeploy does, with the stand-in engine of tests/agent."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import shutil
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

from tests.agent.conftest import REMOTE, STANDIN, Layout, Rig, Tree

from . import fleet
from .bed import Host

ROOT = "/opt/kd %n $HOME é 'q'"  # each of these means something to somebody: the shell, systemd, git
SERVICE = "a.b_c-d"
VENV = "/srv/engine"


class Station(Rig):
    """A rig whose host is a machine of its own."""

    user = "root"

    def __init__(self, host: Host, trees: dict[str, Tree], front: str = "socket") -> None:
        self.host, self.trees, self.venv, self.kind, self.root = host, trees, Path(VENV), front, ROOT
        self.layout = Layout(host.root / ROOT[1:], SERVICE)
        self.private, self.public, self.metrics = (host.free_port() for _ in range(3))
        fleet.furnish(host)
        site = host.root / f"{VENV[1:]}/lib/python3.11/site-packages"
        shutil.copytree(STANDIN / "sglang_router", site / "sglang_router", dirs_exist_ok=True)
        self.there = self.push()

    def push(self, comment: bytes = b"") -> str:
        """Put the agent on the host as kdeploy does: by its content."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as zipped:
            zipped.comment = comment
            zipped.writestr("__main__.py", "from kdeploy_agent.__main__ import main\n\nmain()\n")
            for path in sorted(REMOTE.rglob("*.py")):
                zipped.write(path, path.relative_to(REMOTE))
        name = f"agent/agent-{hashlib.sha256(packed.getvalue()).hexdigest()}.pyz"
        (self.layout.root / "agent").mkdir(parents=True, exist_ok=True)
        (self.layout.root / name).write_bytes(packed.getvalue())
        return f"{self.root}/{name}"

    def start(
        self, verb: str, request: dict[str, Any] | None = None, payload: bytes = b"", **env: str
    ) -> subprocess.Popen[bytes]:
        line = {"protocol": 1, "root": self.root, "service": SERVICE, **(request or {})}
        asked = self.host.folder / "request"
        asked.write_bytes(json.dumps(line).encode() + b"\n" + payload)
        given = [f"{key}={value}" for key, value in env.items()]
        words = map(shlex.quote, ["env", *given, "python3", self.there, verb])
        command = ["ssh", "-F", str(self.host.home / ".ssh/config"), "-l", self.user, self.host.name, *words]
        with asked.open("rb") as stdin:
            return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def launch(self, order: dict[str, Any], accept: bool | None = None, **env: str) -> None:
        verdict = {"accept": accept, "reasons": ["said no"], "evidence": {}}
        if accept is not None:
            folder = self.layout.transaction(order["txn"])
            folder.mkdir(parents=True)
            (folder / "decision.json").write_text(json.dumps(verdict))
        child = self.start("begin", order, **env)
        end = time.monotonic() + 20
        while order["txn"] not in self.seen():
            assert time.monotonic() < end and child.poll() in (None, 0), child.communicate()
            time.sleep(0.02)
        child.kill()  # nobody watches
        child.communicate()

    def release(self, name: str, front: str = "", **env: str) -> dict[str, Any]:
        return super().release(name, front or self.kind, **env)

    def seen(self) -> str:
        """The journal as it is."""
        return self.layout.journal.read_text() if self.layout.journal.exists() else ""

    def apply(self, name: str, front: str = "", **env: str) -> dict[str, Any]:
        return super().apply(name, front or self.kind, **env)

    def systemctl(self, *words: str) -> str:
        """What systemctl says there."""
        return self.host.ssh("systemctl", *map(shlex.quote, words)).stdout.decode().strip()

    def show(self, unit: str, *properties: str) -> list[str]:
        """Properties of a unit there."""
        return [self.systemctl("show", "--value", f"--property={one}", unit) for one in properties]

    def serves(self, release: dict[str, Any], seconds: float = 0) -> None:
        """Assert that clients are served by this release, and that links and units say so."""
        end = time.monotonic() + seconds
        while (answer := self.answers(self.public)) is None and time.monotonic() < end:
            time.sleep(0.1)
        assert answer is not None and answer["version"] == release["version"], (answer, self.journal())
        end = time.monotonic() + 10
        while (facts := self.facts())["lock"] is not None:
            assert time.monotonic() < end
        assert (self.layout.live(), self.layout.good()) == (release["id"], release["id"])
        for name in ("server", "front"):
            assert facts["units"][name]["alive"] and facts["units"][name]["release"] == release["id"], facts["units"]

    def stopped(self) -> None:
        facts = self.facts()
        assert not any(one["alive"] for one in facts["units"].values())
        assert self.answers(self.public) is None and self.answers(self.private) is None

    def said(self, unit: str, lines: int = 50) -> list[str]:
        """The unit's log."""
        return [event["text"] for event in self.agent("logs", {"unit": unit, "lines": lines}).events]
