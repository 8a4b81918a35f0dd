"""A host in a folder with the real engine on it: stages a tree as kdeploy does, starts and asks it as the agent does.

What takes time and says nothing is left out: the proofs, the front, the graceful end. One server at a time.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdeploy import lock
from kdeploy.api import hosts, stages
from kdeploy.api.stages import Staged
from kdeploy.gating import Trial
from kdeploy.stage import tree as staging
from kdeploy.verdict import transcript as transcripts
from kdeploy.verdict.figures import Known, figures
from kdeploy.verdict.judge import Verdict
from tests import making
from tests.conftest import MACHINE_CACHE, MACHINE_ROOT, REPOSITORY
from tests.faults.fault import Fault

sys.path.insert(0, str(REPOSITORY / "remote"))

from kdeploy_agent.asking import client, probe
from kdeploy_agent.asking.ready import First
from kdeploy_agent.change import inspection
from kdeploy_agent.change.switch import Switch
from kdeploy_agent.ground import files, processes
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping.supervised import Supervised
from kdeploy_agent.keeping.units import MARK
from kdeploy_agent.trees import serving, store

PORTS = {"port": 22300, "private-port": 22310, "metrics-port": 22320}
GATE = {"request-s": 8, "start-s": 300, "probe-s": 150, "speed": 0.25}
"""Seconds; an answer of the pocket model takes a tenth of one. A hang costs two requests, then nothing is asked.

Tests run on machines that do other things as well, so a quarter of known-good's speed is enough here.
"""

SET = "cpu/1.1.0"
"""Under both profiles, so that all trees have all files but those of a fault in common."""


@dataclass(frozen=True)
class Told:
    """What a server was asked and said, and what the gate says to that."""

    verdict: Verdict
    transcript: Mapping[str, Any]
    seconds: float
    """From the first question to the last answer."""
    healthy: bool
    """Whether /health was good after all that, asked on its own."""

    @property
    def known(self) -> Known:
        """The figures by which others are judged."""
        return figures(transcripts.read(self.transcript), "the first one")


class Rig:
    """One service on one host. Trees are linked to the first one, and so is their bytecode: a start takes half."""

    def __init__(self, folder: Path) -> None:
        self._project, self._home = folder / "project", folder / "home"
        for part in ("patchsets", "profiles", "locks"):
            shutil.copytree(REPOSITORY / part, self._project / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / lock.FILE, self._project)
        (self._project / "models").symlink_to(REPOSITORY / "models")
        for name, there in (("cache/bases", MACHINE_CACHE / "bases"), ("root/runtimes", MACHINE_ROOT / "runtimes")):
            there.mkdir(parents=True, exist_ok=True)
            (self._home / name).parent.mkdir(parents=True)
            (self._home / name).symlink_to(there)
        self._layout = Layout(self._home / "root", "faults")
        self._units = Supervised(self._layout)
        self._switch = Switch(self._layout, self._units, self._note)
        self._first: str | None = None
        self._known: dict[str, Known] = {}

    def with_set(self, fault: Fault) -> str:
        """Write the patch set of a fault; gives its ref."""
        if (self._project / "patchsets" / fault.name).exists():
            return f"{fault.name}/1.0.0"
        return making.patch_set(self._project, fault.name, list(fault.edits), engine="==0.5.11")

    def ask(self, base: str, refs: Sequence[str], *, rounds: int = 1) -> list[Told]:
        """Serve the profile `base` with `refs` on top and run its gate `rounds` times.

        What a profile's server showed at first is known-good: all else is judged beside it.
        """
        trial, told = self._trial(base, refs), []
        with self._served(trial) as first:
            for _ in range(rounds):
                told.append(self._asked(trial, first, self._known.get(base)))
                self._known.setdefault(base, told[0].known)
        return told

    @property
    def bases(self) -> frozenset[str]:
        """The profiles of which a release was asked."""
        return frozenset(self._known)

    def words(self, lines: int) -> str:
        """The last lines of the server's log."""
        return "\n".join(self._units.words("server", lines))

    def close(self) -> None:
        """End what was started."""
        for name in ("server", "front"):
            processes.kill_all(MARK, self._units.mark(name), time.monotonic() + 10)

    def _trial(self, base: str, refs: Sequence[str]) -> Trial:
        name = f"{base}-{'-'.join(ref.partition('/')[0] for ref in refs) or 'clean'}"[:80]
        keys: dict[str, Any] = {"service": "faults", "serve": PORTS, "gate": GATE}
        path = making.profile(self._project, name, f"{base}.yaml", [SET, *refs], **keys)
        with self._at_home():
            staged = stages.stage(path, self._note, check_out=False)
            read = staged.declared.profile
            stages.local_runtime(read, read.file.runtime, self._note)
            self._place(staged)
        made = hosts.make_release(staged)
        document = made.as_document()
        files.write(self._layout.release(made.id) / "release.json", files.canonical(document))
        if self._first is None:  # trees that come later are linked to the live one
            self._first = made.tree
            files.point(self._layout.current, self._layout.release(made.id))
        else:
            self._warm(made.tree)
        return Trial(made, read.file.gate, hosts.prompts_of(read))

    def _place(self, staged: Staged) -> None:
        tree = staged.stage.tree
        request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}
        packed = staging.bundle(staged.stage, ())
        store.receive(Call(self._layout, request, io.BytesIO(packed)))

    def _warm(self, tree: str) -> None:
        """Give a tree the bytecode of the first one, but for files that are not the very same (linked) ones."""
        assert self._first is not None
        old, new = self._layout.tree(self._first), self._layout.tree(tree)
        source, target = (self._layout.cache(one) / "pycache" for one in (self._first, tree))
        below = source / str(old).lstrip("/")
        for parent, _, names in os.walk(source):
            inside = Path(parent).is_relative_to(below)
            place = Path(str(new).lstrip("/")) / Path(parent).relative_to(below) if inside else None
            folder = target / (place or Path(parent).relative_to(source))
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                file = Path(parent).relative_to(below) / f"{name.partition('.')[0]}.py" if inside else None
                if file is None or os.path.samefile(old / file, new / file):  # noqa: PTH121 - thousands of them
                    with suppress(FileExistsError):  # it was served before
                        os.link(Path(parent, name), folder / name)

    @contextmanager
    def _served(self, trial: Trial) -> Iterator[First]:
        document = trial.release.as_document()
        try:
            yield self._switch.start(document, trial.gate.start_s)
        finally:
            self.close()  # it need not end well: nobody else is served
            self._units.tidy("server")

    def _asked(self, trial: Trial, first: First, known: Known | None) -> Told:
        document, plan = trial.release.as_document(), trial.probes()
        began = time.monotonic()
        told = probe.run(serving.server_url(document), plan, began + trial.gate.probe_s, self._note)
        seconds = time.monotonic() - began
        told["first"] = first.told()
        told.update(inspection.inspect(self._units, document, plan))
        healthy = client.request(serving.server_url(document), "/health", 25.0).status == 200
        return Told(trial.judge(told, known), told, seconds, healthy)

    @contextmanager
    def _at_home(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KDEPLOY_CACHE", str(self._home / "cache"))
            patch.setenv("KDEPLOY_STATE", str(self._home / "state"))
            patch.setenv("KDEPLOY_ROOT", str(self._home / "root"))
            yield

    @staticmethod
    def _note(text: str) -> None:
        print(text)


def shown(verdict: Verdict) -> str:
    """What says no, a line each."""
    return yaml.safe_dump({check.name: check.detail for check in verdict.failed}, width=200)
