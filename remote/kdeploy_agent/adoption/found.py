"""A server as it was found on a host: who keeps it, what it was started with, and whose files it imports."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from kdeploy_agent.adoption import startable
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import processes, secrets
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted, ancestry
from kdeploy_agent.keeping.ancestry import Keeper

_IMPORTS_WITHIN_S = 120.0
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


class Interpreter(NamedTuple):
    """A Python of the server's: its program, its words, and what it runs with."""

    program: str
    argv: List[str]
    env: Dict[str, str]
    cwd: str


class Found:
    """The server, as it was found. Raises `preflight` when it could not be started again as it is."""

    def __init__(self, layout: Layout, pid: int, port: int) -> None:
        self.layout, self.pid, self.port = layout, ancestry.leader(pid), port
        self.uid, self.gid = ancestry.user(self.pid)
        if os.geteuid() not in (0, self.uid):
            raise another_user(f"process {self.pid} ({processes.command(self.pid)})", ancestry.user_name(self.uid))
        self.keeper: Keeper
        self.keeper, self.notes = startable.keeper(ancestry.keeper_of(self.pid))
        self.argv, self.env, self.cwd = processes.argv(self.pid), processes.environ(self.pid), processes.cwd(self.pid)
        if not self.argv or not self.cwd:
            raise another_user(f"process {self.pid}", ancestry.user_name(self.uid))
        if self.keeper.kind != "docker":  # a container has files of its own, and keeps them
            startable.check(self.pid, self._program(), self.argv, self.cwd)
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
            "args": shown(self.argv[1:]),
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
        return _program(self.pid, self.argv, self.env, self.cwd)

    def _python(self) -> Optional[Interpreter]:
        """The Python that serves: its first process, or the one of its processes that listens."""
        family = ancestry.group_of(self.pid)
        for pid in (self.pid, *sorted(one.pid for one in processes.holders(self.port) if one.pid in family)):
            argv, env, cwd = processes.argv(pid), processes.environ(pid), processes.cwd(pid)
            if argv and startable.is_python(processes.program(pid)):
                program = argv[0] if self.keeper.kind == "docker" else _program(pid, argv, env, cwd)
                return Interpreter(program, argv, env, cwd)
        return None

    def _import(self) -> Tuple[Optional[Path], str, str]:
        """The sglang package it imports with the version that says, and its Python's prefix."""
        python = self._python()
        if python is None:
            return self._no_package("its program is no Python", "")
        words = ["-c", _IMPORT, _start(python)]
        if self.keeper.kind == "docker":
            argv = ["docker", "exec", "--workdir", python.cwd, self.keeper.name, python.program, *words]
            lines = _run(argv, None, "/", None)
        else:
            lines = _run([python.program, *words], python.env, python.cwd, (self.uid, self.gid))
        told = next((json.loads(one.partition(" ")[2]) for one in lines if one.startswith("kdeploy-adopt ")), None)
        if told is None:
            return self._no_package(f"{python.program} did not say what it imports", "")
        if "file" not in told:
            return self._no_package(" ".join(str(told["error"]).split())[-200:], told["prefix"])
        return Path(told["file"]).parent, told["version"], told["prefix"]

    def _no_package(self, why: str, prefix: str) -> Tuple[None, str, str]:
        self.notes.append(f"no sglang package was found for it ({why}): its files are not watched")
        return None, "", prefix

    def _outside(self, package: Path) -> Path:
        """The package as this host sees it: a container has a root of its own."""
        return Path(f"/proc/{self.pid}/root{package}") if self.keeper.kind == "docker" else package


def _program(pid: int, argv: List[str], env: Dict[str, str], cwd: str) -> str:
    """The program a command line's first word means, as a path."""
    first = argv[0]
    if "/" in first:
        return str(Path(cwd, first))
    for folder in env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(os.pathsep):
        if os.access(str(Path(folder, first)), os.X_OK):
            return str(Path(folder, first))
    return processes.program(pid)


def _start(python: Interpreter) -> str:
    """What Python put first on its path for a script; empty for -m and -c, which put the working folder there."""
    words = python.argv[1:]
    script = next((word for word in words if not word.startswith("-")), "")
    by_module = any(word in ("-m", "-c") for word in words[: words.index(script)]) if script else True
    return "" if by_module else str(Path(python.cwd, script).parent)


def another_user(what: str, name: str) -> AgentError:
    """The error for a process that may not be looked at."""
    return AgentError(
        "preflight",
        f"{what} belongs to {name}, and only root may look at it",
        "connect as root, or as that user, or set 'sudo: true' in hosts.yaml",
    )


def shown(words: List[str]) -> List[str]:
    """A command line without values that are secret."""
    told, hide = [], False
    for word in words:
        flag = _SECRET_FLAG.match(word)
        told.append(
            secrets.HIDDEN if hide else f"{word.partition('=')[0]}={secrets.HIDDEN}" if flag and flag[1] else word
        )
        hide = bool(flag) and not (flag and flag[1])
    return told


def _run(argv: List[str], env: Optional[Dict[str, str]], cwd: str, user: Optional[Tuple[int, int]]) -> List[str]:
    """The lines a command says on stdout; none when it could not be run. What it complains of is nobody's to show."""
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_IMPORTS_WITHIN_S,
            check=False,
            preexec_fn=_become(user),
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.decode("utf-8", "replace").splitlines()


def _become(user: Optional[Tuple[int, int]]) -> Optional[Callable[[], None]]:
    if user is None or os.geteuid() != 0 or user[0] == 0:
        return None
    uid, gid = user

    def change() -> None:
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)

    return change
