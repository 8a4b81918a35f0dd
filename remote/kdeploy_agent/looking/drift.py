"""What a host serves, compared with what its live release declares: files, links, processes, ports, environment.

Reads only. A drift says what it is about, what was expected there, what was found, and what puts it right.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set

from kdeploy_agent.asking import client, logs
from kdeploy_agent.change import evidence
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, locking, manifests, processes, secrets
from kdeploy_agent.ground.journal import Journal
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted, units
from kdeploy_agent.keeping.keeper import of as keeper_of
from kdeploy_agent.keeping.units import MARK, Spec, Units
from kdeploy_agent.looking.difference import Drift, shown, told
from kdeploy_agent.trees import runtimes, serving

_SHOWN = 20  # files of a tree, named one by one
_ASKED_WITHIN_S = 10.0

APPLY = "kdeploy apply the profile"
_RESTART = "kdeploy apply the profile (or `kdeploy stop`, then apply: the processes are started anew)"
_ANEW = "kdeploy stop, then apply the profile: it is asked and confirmed anew"
_OURS = {MARK, "KDEPLOY_SERVICE", "KDEPLOY_RELEASE", "SPT_NOENV"}
_SET_BY_OTHERS = {"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}


def verify(call: Call) -> Dict[str, Any]:
    """Verb: every `drift` of what is live, and `checked`, how many things were compared; `release` is the live one.

    Of a service that was `stopped` on purpose the files are compared, and that nothing runs.

    Raises `locked` while somebody changes the service: what is half-way is not drift.
    """
    layout = call.layout
    held = locking.holder(layout.lock)
    if held is not None:
        raise locking.locked(held)
    look = Look(layout, keeper_of(layout))
    drifts = []
    for drift in look.all():
        drifts.append(drift._asdict())
        call.emit("drift", **drift._asdict())
    return {"release": layout.live(), "drifts": drifts, "checked": look.checked, "stopped": look.stopped}


class Look:
    """One look at a service; `checked` counts the things compared."""

    def __init__(self, layout: Layout, keeper: Units) -> None:
        self.layout = layout
        self.units = keeper
        self.checked = 0
        self.stopped = Journal(layout.journal).stopped()

    def all(self) -> Iterator[Drift]:
        """Every drift there is, files first."""
        live = self.layout.live()
        yield from self._links(live)
        if live is None:
            return
        try:
            release = serving.read_release(self.layout, live)
        except AgentError as fault:
            yield Drift("release.json", f"what release {live} was made of", fault.message, APPLY)
            return
        if adopted.is_adopted(release):
            yield from self._adopted(release)
            return
        yield from self._tree(release)
        yield from self._runtime(release)
        yield from self._secrets(release)
        if self.layout.good() == live:
            plan = "whole" if evidence.plan(self.layout, live).whole else "gone or damaged"
            yield from self._same("evidence/plan.json: what it is asked after a reboot", "whole", plan, _ANEW)
        server, front = serving.server(self.layout, release), serving.front(self.layout, release)
        if self.stopped:
            yield from self._silence()
            return
        yield from self._unit(release, server)
        if front is not None:
            yield from self._unit(release, front)
        yield from self._ports(release, front)
        yield from self._answers(release)
        for one in self._count(self.units.drift()):
            yield Drift(one["what"], one["expected"], one["found"], one["fix"])

    def _silence(self) -> Iterator[Drift]:
        """What was stopped on purpose stays stopped."""
        for name in units.NAMES:
            found = "running" if self.units.status(name).alive else "stopped"
            yield from self._same(name, "stopped", found, "kdeploy stop, or kdeploy start")

    def _adopted(self, release: Dict[str, Any]) -> Iterator[Drift]:
        """An adopted server: does it run with what it was found with, and are its files as they were?"""
        about, fix = release["adopted"], "start it again as it was, or `kdeploy adopt` it as it is now"
        try:
            kept = adopted.recorded(self.layout, release)
        except AgentError as fault:
            yield Drift("adopted server", "how it was started", fault.message, fault.hint)
            return
        status = self.units.status("server")
        if self.stopped:
            yield from self._silence()
        else:
            start = "kdeploy start"
            yield from self._same("adopted server", "running", "running" if status.alive else "not running", start)
        if status.alive:
            what = f"adopted server: process {status.pid}"
            argv = processes.argv(status.pid)
            same = argv[1:] == kept["argv"][1:]
            now = "as it was found" if same else "another"
            yield from self._same(f"{what}: command line", "as it was found", now, fix)
            yield from self._same(f"{what}: working folder", kept["cwd"], processes.cwd(status.pid), fix)
            found = processes.environ(status.pid)
            for name in sorted({*kept["env"], *found} - _OURS - _SET_BY_OTHERS):
                self.checked += 1
                if kept["env"].get(name) != found.get(name):
                    how = "another value" if name in found else "not set"
                    yield Drift(f"{what}: environment {name}", "as it was found", how, fix)
            ails = adopted.ails(release)
            yield from self._same(f"{what}: answers", "as it was found", ails or "as it was found", fix)
        wrong, count = adopted.changed_files(self.layout, release)
        self.checked += count
        for line in wrong[:_SHOWN]:
            name, _, how = line.rpartition(": ")
            yield Drift(f"{about['package']}: {name}", "as it was found", how, fix)
        if len(wrong) > _SHOWN:
            yield Drift(about["package"], "as it was found", f"{len(wrong) - _SHOWN} more files that are not", fix)

    def _count(self, found: List[Any]) -> List[Any]:
        self.checked += 1
        return found

    def _same(self, what: str, expected: Any, found: Any, fix: str) -> Iterator[Drift]:
        self.checked += 1
        if expected != found:
            yield Drift(what, shown(expected), shown(found), fix)

    def _links(self, live: Optional[str]) -> Iterator[Drift]:
        last = Journal(self.layout.journal).last()
        self.checked += 1
        if live is not None and not self.layout.journal.exists():
            found = "gone: what was confirmed here before cannot be told any more"
            yield Drift("journal.jsonl", "a line for every change", found, "kdeploy stop, then apply the profile")
        if last is not None and not last.finished:
            at = f"{last.txn} was cut off at {last.state}"
            yield Drift("last change", "one that has ended", at, "kdeploy unlock --yes heals the host; so does apply")
        elif last is not None and last.state == "NEEDS_OPERATOR":
            yield Drift("last change", "a host that serves", f"{last.txn}: {last.reason}", "kdeploy logs; then apply")
        if live is None:
            yield Drift("current", "a release", "nothing was deployed", APPLY)
            return
        yield from self._same("known-good", live, self.layout.good() or "nothing", APPLY)

    def _tree(self, release: Dict[str, Any]) -> Iterator[Drift]:
        tree = self.layout.tree(release["tree"])
        what, fix = (
            f"tree {tree.name[:12]}",
            "kdeploy apply the profile: the tree is placed anew and the server restarted",
        )
        try:
            wrong, count, _ = manifests.compare(tree, release["manifest"])
        except AgentError as fault:
            self.checked += 1
            yield Drift(what, "the files of its manifest", fault.message, fix)
            return
        self.checked += count
        for line in wrong[:_SHOWN]:
            name, _, how = line.rpartition(": ")
            yield Drift(f"{what}: {name}", "as in the manifest", how, fix)
        if len(wrong) > _SHOWN:
            yield Drift(what, f"{count} files of the manifest", f"{len(wrong) - _SHOWN} more that are not", fix)

    def _runtime(self, release: Dict[str, Any]) -> Iterator[Drift]:
        python = serving.python_of(self.layout, release)
        yield from self._same("runtime", True, python.exists(), f"kdeploy apply makes {python} anew, if a lock made it")
        kept = files.read_json(runtimes.remembered_at(self.layout, release["id"]))
        if not isinstance(kept, dict) or not python.exists():
            return
        home = python.parent.parent
        yield from self._same(
            f"runtime {home}",
            "the packages it had when the release was confirmed",
            "the packages it had when the release was confirmed"
            if runtimes.fingerprint(home) == kept.get("runtime")
            else "files of site-packages were added, removed or written since",
            "if that was meant: kdeploy apply the profile again after `kdeploy stop`; else make the runtime anew",
        )

    def _secrets(self, release: Dict[str, Any]) -> Iterator[Drift]:
        for name in secrets.names_of(release):
            self.checked += 1
            try:
                secrets.load(self.layout, [name])
            except AgentError:
                yield Drift(f"secret {name}", "a value on this host", "none", APPLY)

    def _unit(self, release: Dict[str, Any], spec: Spec) -> Iterator[Drift]:
        """The unit's stored spec and its process, against what the release says they are."""
        name = spec.name
        status = self.units.status(name)
        kept = Spec.read(self.units.path(name, "json"))
        self.checked += 1
        asleep = bool(spec.listen)  # systemd starts it at the first connection
        if kept is None or not (status.alive or asleep):
            yield Drift(name, f"running, of release {release['id']}", status.note or "it does not run", APPLY)
            return
        yield from self._same(f"{name}: release", release["id"], status.release, _RESTART)
        for key, value in dataclasses.asdict(dataclasses.replace(spec, gpu_mib=kept.gpu_mib)).items():
            if key != "env":
                yield from self._same(f"{name}: stored {key}", value, getattr(kept, key), _RESTART)
        yield from self._environment(f"{name}: stored environment", dict(spec.env), dict(kept.env))
        if status.alive and status.pid:
            yield from self._process(spec, status.pid)
        if spec.tree:
            yield from self._paths(spec)

    def _process(self, spec: Spec, pid: int) -> Iterator[Drift]:
        what = f"{spec.name}: process {pid}"
        argv = processes.argv(pid)
        if argv and not argv[0].startswith("sglang::"):  # setproctitle writes its title over the command line
            yield from self._same(f"{what}: command line", list(spec.argv), argv, _RESTART)
        if argv and not spec.listen:
            yield from self._same(f"{what}: working folder", spec.cwd, processes.cwd(pid), _RESTART)
            self.checked += 1
            if processes.program(pid).endswith(" (deleted)"):
                yield Drift(f"{what}: program", spec.argv[0], "replaced since it was started", _RESTART)
        try:
            given = secrets.load(self.layout, spec.secrets)
        except AgentError:
            given = {}
        found = processes.environ(pid)
        for name, value in given.items():
            self.checked += 1
            if found.get(name) != value:
                how = "another" if name in found else "none"
                yield Drift(f"{what}: secret {name}", "the value this host keeps", how, _RESTART)
        plain = {name: value for name, value in found.items() if name not in spec.secrets}
        if not spec.listen:
            yield from self._environment(f"{what}: environment", dict(spec.env), plain)

    def _environment(self, what: str, expected: Dict[str, str], found: Dict[str, str]) -> Iterator[Drift]:
        self.checked += len(expected)
        for name in sorted({*expected, *found}):
            if expected.get(name) == found.get(name) or (name in _SET_BY_OTHERS and name not in expected):
                continue
            hidden = logs.SECRET.search(name.lower()) is not None
            values = [told(one.get(name), hidden) for one in (expected, found)]
            another = "another (withheld)" if values[0] == values[1] else values[1]
            yield Drift(f"{what} {name}", values[0], another, _RESTART)

    def _paths(self, spec: Spec) -> Iterator[Drift]:
        """Every process of the server imports from the release's tree first."""
        keeper = self.units.supervisor(spec.name)
        for pid in sorted(self.units.members(spec.name) - {keeper}):
            if processes.identity(pid) is None:
                continue
            environ = processes.environ(pid)
            first = environ.get("PYTHONPATH", "").split(os.pathsep)[0] if MARK in environ else ""
            found = str(Path(first).resolve()) if first else "unknown"
            name = f"{spec.name}: process {pid} ({secrets.cut(processes.command(pid), 40)}): first on its path"
            yield from self._same(name, str(Path(spec.tree).resolve()), found, _RESTART)

    def _ports(self, release: Dict[str, Any], front: Optional[Spec]) -> Iterator[Drift]:
        for what, port in serving.ports(release).items():
            if what == "metrics":  # nothing that serves clients
                continue
            self.checked += 1
            owner = "server" if what == "private" else "front"
            members: Set[int] = self.units.members(owner)
            held = processes.holders(port)
            strangers = [one for one in held if one.pid not in members and not self.units.owns(one.pid, port)]
            if not held:
                yield Drift(f"{what} port {port}", f"held by the {owner}", "nobody listens", APPLY)
            elif strangers:
                yield Drift(f"{what} port {port}", f"held by the {owner}", units.name_holders(strangers), APPLY)

    def _answers(self, release: Dict[str, Any]) -> Iterator[Drift]:
        reply = client.request(serving.server_url(release), "/server_info", _ASKED_WITHIN_S)
        said = reply.body.get("version") if isinstance(reply.body, dict) else None
        yield from self._same("/server_info: version", release["version"], said or reply.error or "none", _RESTART)
        if release["launch"]["front"]["kind"] != "none":
            url = serving.public_url(release)
            reply = client.request(url, "/v1/models", _ASKED_WITHIN_S)
            yield from self._same(f"{url}/v1/models", "200", str(reply.error or reply.status), _RESTART)
