"""kdeploy as it is compared by peers.py: the whole command, with a server behind a port of systemd's."""

from __future__ import annotations

import filecmp
import hashlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from benchmarks.ways import RELEASE, Peer, cpu_seconds
from kdeploy import lock, places
from tests import making
from tests.hosts.fleet import SERVICE, Home, engine, furnish

REPOSITORY = Path(__file__).resolve().parent.parent
ENGINE = "sglang==0.5.11"
LINE = {
    "file": "sglang/srt/layers/sampler.py",
    "anchor": "import torch.distributed as dist",
    "insert-before": "# one line\n",
}

START, SERVE = ("CANDIDATE", "PROBED"), ("DRAINED", "OPEN")
"""States in which the server itself is waited for: its launch and its answers; its stop and its public port."""


_TORCH = """__version__ = "2.9.1"


class version: cuda = None


class _C: pass
"""


class Kdeploy(Peer):
    """The whole command, as a user runs it."""

    name = "kdeploy"

    def write(self) -> None:
        """A project whose trees are SGLang's with a stand-in for its server, and the host behind the wire."""
        host, project = self.field.host, self.folder / "project"
        self.home, self._seen = Home(host), 0
        self.spans: dict[str, list[dict[str, float]]] = {}
        (project / "profiles").mkdir(parents=True)
        shutil.copy(REPOSITORY / lock.FILE, project)
        wheel = yaml.safe_load((REPOSITORY / lock.FILE).read_text())["engines"][ENGINE]["3.11"]
        base = places.cache() / "bases" / wheel["sha256"][:16]
        making.patch_set(project, "standin", list(_replaced(project, base)), engine="==0.5.11")
        making.patch_set(project, "one-line", [LINE], engine="==0.5.11")
        self.environment = {
            "KDEPLOY_CACHE": str(self.folder / "cache"),
            "KDEPLOY_STATE": str(self.folder / "state"),
            "KDEPLOY_SSH_CONFIG": str(self.field.config),
            "PYTHONPATH": str(REPOSITORY),
        }
        (self.folder / "cache").mkdir()
        (self.folder / "cache/bases").symlink_to(places.cache() / "bases")
        hosts = {"hosts": {"wired": {"ssh": {"address": "wired"}, "root": "/opt/kdeploy"}}}
        (project / "profiles/hosts.yaml").write_text(yaml.safe_dump(hosts))
        shutil.copy(REPOSITORY / "models/pocket/prompts.json", project)
        for name, sets in (("r1", ["standin/1.0.0"]), ("r2", ["standin/1.0.0", "one-line/1.0.0"])):
            text = {
                "service": SERVICE, "engine": ENGINE, "patchsets": sets, "hosts": ["wired"],
                "runtime": {"venv": "/srv/engine"},
                "serve": {
                    "host": host.address, "port": 20580, "private-port": 20581, "front": "socket",
                    "args": {"model-path": "/srv/model", "served-model-name": "pocket"},
                },
                "gate": {"prompts": "../prompts.json", "soak-s": 0},
            }  # fmt: skip
            (project / f"profiles/{name}.yaml").write_text(yaml.safe_dump(text))
            told = json.loads(self.kdeploy("stage", f"profiles/{name}.yaml", "--json"))  # once, before it is measured
            self.field.trees[name] = _copied(Path(told["result"]["folder"]), self.field.folder / name, self.field.trees)
        furnish(host)
        site = host.root / "srv/engine/lib/python3.11/site-packages"  # doctor wants to see a torch that imports
        site.mkdir(parents=True)
        (site / "torch.py").write_text(_TORCH)

    def kdeploy(self, *arguments: str) -> str:
        """Run the command."""
        return self.call(sys.executable, "-m", "kdeploy", *arguments, env=self.environment, cwd=self.folder / "project")

    def empty(self) -> None:
        """See Peer.empty."""
        if self.home.path.exists():
            self.kdeploy("stop", "profiles/r1.yaml")
        self.field.host.sh("rm -rf /opt/kdeploy")

    def run(self, work: str) -> None:
        """See Peer.run."""
        self._seen = len(self.home.journal()) if work != "first" else 0
        self._cpu = self._units()
        began = time.time()
        told = self.kdeploy("rollback" if work == "rollback" else "apply", f"profiles/{RELEASE[work]}.yaml")
        assert ("nothing to do" in told) == (work == "unchanged"), told
        self.spans.setdefault(work, []).append(self._spans(began, time.time()))

    def placed(self, work: str) -> float | None:
        """See Peer.placed: a tree gets its name when it is whole, and that is its folder's last change."""
        return self.live().stat().st_ctime if work in ("first", "one-line") else None

    def serving(self) -> tuple[float, float, float]:
        """See Peer.serving."""
        at = {(line["state"], line["phase"]): line["at"] for line in self.home.journal()[self._seen :]}

        def span(*states: str) -> float:
            return sum(at[state, "done"] - at[state, "intent"] for state in states if (state, "done") in at)

        return span(*START), span(*SERVE), self._units()

    def _spans(self, began: float, ended: float) -> dict[str, float]:
        """Seconds of each part of a change, as the host's journal tells them; `-` is between two of its states."""
        spans, before, at = {}, "before", began
        for line in self.home.journal()[self._seen :]:
            if "state" in line:
                part = before if line["phase"] == "intent" else line["state"]
                spans[part] = line["at"] - at
                before, at = f"{line['state']}-", line["at"]
        return {**spans, "after" if spans else before: ended - at}

    def breakdown(self) -> str:
        """Medians of those, a line for each kind of work; in brackets what is no part of `wall`."""
        lines = []
        for work, runs in self.spans.items():
            parts = [(part, statistics.median(run.get(part, 0.0) for run in runs)) for part in runs[0]]
            told = [
                f"({part} {s:.2f})" if part in (*START, *SERVE) else f"{part} {s:.2f}"
                for part, s in parts
                if s >= 0.005
            ]
            lines.append(f"kdeploy {work:10} {'  '.join(told)}")
        self.spans.clear()
        return "\n".join(lines)

    def live(self) -> Path:
        """See Peer.live."""
        release = json.loads((self.home.path / "releases" / str(self.home.live()) / "release.json").read_text())
        return self.home.path / "trees" / release["tree"]

    def _units(self) -> float:
        """CPU seconds of the server and its front, which began in this run."""
        folders = self.field.host.cgroup.glob(f"payload/system.slice/kdeploy-{SERVICE}-*.service")
        return sum(cpu_seconds(folder) for folder in folders) if self.home.journal()[self._seen :] else 0.0


def _copied(staged: Path, tree: Path, others: Mapping[str, Path]) -> Path:
    """A staged tree for those who trust times: a file that is in another one as it is here has the same time."""
    shutil.copytree(staged, tree, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    for other in others.values():
        for path in (one for one in tree.rglob("*") if one.is_file()):
            twin = other / path.relative_to(tree)
            if twin.exists() and filecmp.cmp(path, twin, shallow=False):
                shutil.copystat(twin, path)
    return tree


def _replaced(project: Path, base: Path) -> Iterator[dict[str, str]]:
    """Edits that put the stand-in's files in the place of SGLang's."""
    folder = project / "patchsets/standin/1.0.0/files"
    for path, content in engine().items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if (base / path).exists():
            yield {"file": path, "delete-file": hashlib.sha256((base / path).read_bytes()).hexdigest()}
        yield {"file": path, "add-file": f"files/{path}"}
