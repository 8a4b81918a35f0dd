"""`adopt`: what a host was found serving becomes its release zero, so that there is a way back before the first apply.

Stops nothing and changes nothing about the server: it is looked at, asked a few questions, and written down.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from kdeploy_agent import adopted, ancestry, files, locking, processes, secrets, systemctl
from kdeploy_agent.ancestry import Keeper
from kdeploy_agent.client import generate, read_answers, request
from kdeploy_agent.errors import AgentError
from kdeploy_agent.journal import DONE, INTENT, Journal
from kdeploy_agent.layout import Layout
from kdeploy_agent.order import Order
from kdeploy_agent.protocol import Call
from kdeploy_agent.units import MARK, name_holders

_IMPORTS_WITHIN_S = 120.0
_ANSWERS_WITHIN_S = 60.0
_SECRET_FLAG = re.compile(r"^--(?:[a-z0-9-]+-)?(?:key|token|secret|password|credentials?)(=|$)")

# Run by the server's own Python, with its environment and in its folder: what `import sglang` finds there.
_IMPORT = """
import json, sys
start = sys.argv[1]
if start: sys.path[0] = start
try:
    import sglang
    told = {"file": sglang.__file__, "version": str(getattr(sglang, "__version__", "")), "prefix": sys.prefix}
except BaseException as fault:
    told = {"error": "%s: %s" % (type(fault).__name__, fault), "prefix": sys.prefix}
print("\\nkdeploy-adopt " + json.dumps(told))
"""


def adopt(call: Call) -> Dict[str, Any]:
    """Verb: record the server that runs now as a release that can be gone back to; gives its document, and `notes`.

    It is the one that listens on one of `ports` (the profile's, the public one first), else what `pid`, `unit` (of
    systemd, or a container) or `port` names. Raises `preflight` when there is none, or it is another user's.
    """
    layout, txn, by = call.layout, call.text("txn"), call.text("by")
    files.make_private(layout.home)
    with locking.take(layout.lock, by, "adopt", txn):
        last = Journal(layout.journal).last()
        if last is not None and not last.finished:
            raise AgentError("preflight", f"{last.txn} was cut off at {last.state}", "kdeploy unlock --yes heals that")
        seen = _Found(layout, *_find(call))
        document = seen.document(call)
        _write_down(layout, document, seen, _brief(call, document), call)
        _confirm(layout, document, txn, by, call)
    return {"release": document, "notes": seen.notes}


class _Found:
    """The server, as it was found."""

    def __init__(self, layout: Layout, pid: int, port: int) -> None:
        self.layout, self.pid, self.port = layout, ancestry.leader(pid), port
        self.notes: List[str] = []
        self.uid, self.gid = ancestry.user(self.pid)
        if os.geteuid() not in (0, self.uid):
            raise _another_user(f"process {self.pid} ({processes.command(self.pid)})", ancestry.user_name(self.uid))
        self.keeper: Keeper = ancestry.keeper_of(self.pid)
        self.argv, self.env, self.cwd = processes.argv(self.pid), processes.environ(self.pid), processes.cwd(self.pid)
        if not self.argv or not self.cwd:
            raise _another_user(f"process {self.pid}", ancestry.user_name(self.uid))
        self.package, self.version, self.prefix = self._import()
        self.listing = adopted.listing(self._outside(self.package)) if self.package else b""

    @property
    def address(self) -> str:
        """Where this host reaches it."""
        found = processes.addresses(self.port)
        return "127.0.0.1" if not found or "any" in found or "127.0.0.1" in found else found[0]

    @property
    def process(self) -> bytes:
        """What it was started with, as it is kept."""
        argv = [self._program(), *self.argv[1:]]
        # ASCII: an environment may hold bytes that are no text, which become text and back this way
        return json.dumps({"argv": argv, "env": self.env, "cwd": self.cwd}, sort_keys=True, indent=1).encode("ascii")

    def document(self, call: Call) -> Dict[str, Any]:
        """The release's document, in which no value of its environment stands."""
        manifest = hashlib.sha256(self.listing).hexdigest()
        front = {"kind": "none", "host": self.address, "port": self.port, "metrics_port": None}
        launch = {
            "runtime": {"venv": self.prefix},
            "module": "",
            "args": _shown(self.argv[1:]),
            "env": {},
            "port": self.port,
            "front": front,
            "secrets": [],
        }
        about = {
            "keeper": self.keeper.kind,
            "name": self.keeper.name,
            "group": self.keeper.group,
            "uid": self.uid,
            "gid": self.gid,
            "user": ancestry.user_name(self.uid),
            "cwd": self.cwd,
            "variables": sorted(self.env),
            "package": str(self.package or ""),
            "process": hashlib.sha256(self.process).hexdigest(),
        }
        document = {
            "kind": adopted.KIND,
            "service": self.layout.service,
            "profile": str(call.request.get("profile") or ""),
            "engine": f"sglang=={self.version}" if self.version else "unknown",
            "patchsets": [],
            "tree": manifest,
            "commit": "",
            "manifest": manifest,
            "version": self.version,
            "launch": launch,
            "adopted": about,
        }
        about["ready"] = adopted.readiness(adopted.url(document))
        if not about["ready"]:
            self.notes.append("it does not answer HTTP: that it listens will have to do as a sign that it is ready")
        return {"id": adopted.identify(document), **document}

    def _program(self) -> str:
        """The program its first word means, as a path."""
        first = self.argv[0]
        if "/" in first:
            return str(Path(self.cwd, first))
        for folder in self.env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(os.pathsep):
            if os.access(str(Path(folder, first)), os.X_OK):
                return str(Path(folder, first))
        return processes.program(self.pid)

    def _import(self) -> Tuple[Optional[Path], str, str]:
        """The sglang package it imports with the version that says, and its Python's prefix."""
        words = [_IMPORT, self._start()]
        if self.keeper.kind == "docker":
            argv = ["docker", "exec", "--workdir", self.cwd, self.keeper.name, self.argv[0], "-c", *words]
            done = _run(argv, None, "/", None)
        else:
            argv = [self._program(), "-c", *words]
            done = _run(argv, self.env, self.cwd, (self.uid, self.gid))
        lines = done.splitlines() if isinstance(done, str) else []
        told = next((json.loads(one.partition(" ")[2]) for one in lines if one.startswith("kdeploy-adopt ")), None)
        if told is None or "file" not in told:
            why = told["error"] if told else done or "its program is no Python"
            self.notes.append(f"no sglang package was found for it ({why[-200:]}): its files are not watched")
            return None, "", told["prefix"] if told else ""
        return Path(told["file"]).parent, told["version"], told["prefix"]

    def _start(self) -> str:
        """What Python put first on its path for a script; empty for -m and -c, which put the working folder there."""
        script = next((word for word in self.argv[1:] if not word.startswith("-")), "")
        by_module = any(word in ("-m", "-c") for word in self.argv[1 : self.argv.index(script)]) if script else True
        return "" if by_module else str(Path(self.cwd, script).parent)

    def _outside(self, package: Path) -> Path:
        """The package as this host sees it: a container has a root of its own."""
        return Path(f"/proc/{self.pid}/root{package}") if self.keeper.kind == "docker" else package


def _find(call: Call) -> Tuple[int, int]:
    """The process that is meant, and the port at which it serves."""
    named = call.request.get("pid"), call.request.get("unit"), call.request.get("port")
    ports = [int(port) for port in call.request.get("ports") or []]
    if named[0] is not None:
        return _with_port(int(call.number("pid")), ports)
    if named[1] is not None:
        return _with_port(_main_of(call.text("unit")), ports)
    if named[2] is not None:
        ports = [int(call.number("port"))]
    found = [(one.pid, port) for port in ports for one in processes.holders(port)]
    if not found:
        where = " or ".join(map(str, ports))
        raise AgentError(
            "preflight",
            f"nothing listens on port {where}: there is nothing to adopt",
            "name what serves: --port N, --unit NAME or --pid N",
        )
    if any(pid == 0 for pid, _ in found):
        raise _another_user(f"port {found[0][1]}", "another user")
    for pid, _ in found:
        _refuse_our_own(pid)
    leaders = {ancestry.leader(pid) for pid, _ in found}
    if len(leaders) > 1:
        holders = [one for port in ports for one in processes.holders(port)]
        raise AgentError(
            "preflight",
            f"more than one server listens there: {name_holders(holders)}",
            "say which is meant with --port N or --pid N; the other must be stopped before the first apply",
        )
    return found[0]


def _with_port(pid: int, ports: List[int]) -> Tuple[int, int]:
    if processes.identity(pid) is None:
        raise AgentError("preflight", f"there is no process {pid}", "--port N names a server by its port")
    _refuse_our_own(pid)
    family = ancestry.group_of(ancestry.leader(pid))
    listening = [port for port in processes.listened(family) if port]
    wanted = [port for port in ports if port in listening] or listening
    if not wanted:
        raise AgentError(
            "preflight", f"process {pid} ({processes.command(pid)}) listens on no port", "is it the server?"
        )
    return pid, wanted[0]


def _refuse_our_own(pid: int) -> None:
    environ = processes.environ(pid)
    if MARK in environ:
        served = f"release {environ.get('KDEPLOY_RELEASE')} of service {environ.get('KDEPLOY_SERVICE')}"
        raise AgentError("preflight", f"process {pid} is kdeploy's own: {served}", "there is nothing to adopt")


def _main_of(name: str) -> int:
    """The main process of a unit of systemd, or of a container of that name."""
    unit = name if name.endswith(".service") else f"{name}.service"
    with_systemd = Path("/run/systemd/system").is_dir()
    pid = int(systemctl.show(unit).get("MainPID") or 0) if with_systemd else 0
    if not pid:
        try:
            told = ancestry.docker("inspect", "--format", "{{.State.Pid}}", name).stdout.decode().strip()
        except AgentError:
            told = ""
        pid = int(told) if told.isdigit() else 0
    if not pid:
        raise AgentError("preflight", f"neither a unit nor a container {name} runs here", "see: systemctl list-units")
    return pid


def _another_user(what: str, name: str) -> AgentError:
    return AgentError(
        "preflight",
        f"{what} belongs to {name}, and only root may look at it",
        "connect as root, or as that user, or set 'sudo: true' in hosts.yaml",
    )


def _shown(words: List[str]) -> List[str]:
    """A command line without values that are secret."""
    told, hide = [], False
    for word in words:
        flag = _SECRET_FLAG.match(word)
        told.append(
            secrets.HIDDEN if hide else f"{word.partition('=')[0]}={secrets.HIDDEN}" if flag and flag[1] else word
        )
        hide = bool(flag) and not (flag and flag[1])
    return told


def _brief(call: Call, document: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The operator's few questions with the answers of today; those that it answers twice alike are held to that."""
    asks = call.request.get("brief") or []
    if not asks:
        return []
    rounds = []
    for _ in range(2):
        reply = request(adopted.url(document), "/generate", _ANSWERS_WITHIN_S, generate(asks))
        rounds.append(read_answers(asks, reply, 0.0))
    told = []
    for ask, first, second in zip(asks, *rounds):
        if first["error"] or second["error"] or not first["text"].strip():
            continue
        told.append({**ask, "answer": first["text"] if first["text"] == second["text"] else None})
    return told


def _write_down(
    layout: Layout, document: Dict[str, Any], seen: _Found, brief: List[Dict[str, Any]], call: Call
) -> None:
    folder = layout.release(document["id"])
    files.make_private(folder)
    files.write(folder / "process.json", seen.process)
    files.write(folder / "package.sha256", seen.listing)
    found = {"pid": seen.pid, "identity": processes.identity(seen.pid)}
    files.write(folder / "seen.json", files.canonical(found))
    plan = {"probes": {"brief": brief}, "start_s": call.number("start_s", 900)}
    files.write(layout.evidence(document["id"]) / "plan.json", files.ordered(plan))
    files.write(folder / "release.json", files.canonical(document))
    if not brief:
        seen.notes.append(
            "it answered no question the same way twice: going back, it is asked whether it is ready only"
        )


def _confirm(layout: Layout, document: Dict[str, Any], txn: str, by: str, call: Call) -> None:
    """Write the change down as any other: whoever heals, rolls back or prunes finds it like one."""
    order = Order(txn, by, "adopt", document, {}, call.number("start_s", 900), 0.0, 0.0, 0.0)
    order.write(layout)
    journal = Journal(layout.journal)
    before = {"previous": layout.live(), "known_good": layout.good()}
    said = {"goal": "adopt", "by": by, "release": document["id"], **before}
    journal.append(txn=txn, state="PREPARED", phase=INTENT, **said)
    journal.append(txn=txn, state="PREPARED", phase=DONE)
    journal.append(txn=txn, state="CONFIRMED", phase=INTENT)
    files.point(layout.current, layout.release(document["id"]))
    files.point(layout.known_good, layout.release(document["id"]))
    journal.append(txn=txn, state="CONFIRMED", phase=DONE)


def _run(argv: List[str], env: Optional[Dict[str, str]], cwd: str, user: Optional[Tuple[int, int]]) -> str:
    """What a command says on stdout; why it could not be run, when it could not."""
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_IMPORTS_WITHIN_S,
            check=False,
            preexec_fn=_become(user),
        )
    except (OSError, subprocess.SubprocessError) as fault:
        return str(fault)
    return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).decode("utf-8", "replace")


def _become(user: Optional[Tuple[int, int]]) -> Optional[Callable[[], None]]:
    if user is None or os.geteuid() != 0 or user[0] == 0:
        return None
    uid, gid = user

    def change() -> None:
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)

    return change
