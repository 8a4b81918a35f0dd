"""A host in a folder: real git, real processes, real sockets; only the engine is a stand-in (standin/README.md)."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
REMOTE = REPO / "remote"
STANDIN = Path(__file__).resolve().parent / "standin"
sys.path.insert(0, str(REMOTE))

from kdeploy_agent.ground import locking, processes, systemctl  # noqa: E402
from kdeploy_agent.ground.layout import Layout  # noqa: E402
from kdeploy_agent.keeping.supervised import Supervised  # noqa: E402
from kdeploy_agent.keeping.units import MARK  # noqa: E402

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_TXN = itertools.count(1)
_PORTS = itertools.cycle(random.sample(range(22000, 32000), 10000))  # the profiles of this repository have 21xxx


@dataclass(frozen=True)
class Tree:
    tree: str
    commit: str
    manifest: str
    version: str
    bundle: bytes


@dataclass
class Answer:
    """What the agent said: events, and a result or an error."""

    events: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    status: int = 0

    @property
    def ok(self) -> dict[str, Any]:
        assert self.result is not None, self.error
        return self.result

    @property
    def states(self) -> list[str]:
        return [f"{one['state']}:{one['phase']}" for one in self.events if one["event"] == "state"]


def git(*words: str, cwd: Path, **kwargs: Any) -> str:
    env = {
        "PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t",
        "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000",
    }  # fmt: skip
    return subprocess.run(["git", *words], cwd=cwd, env=env, check=True, capture_output=True, **kwargs).stdout.decode()


def make_tree(folder: Path, name: str) -> Tree:
    """A stamped commit as the stage makes it: the tree, then version and manifest on top of it."""
    shutil.copytree(STANDIN, folder, ignore=shutil.ignore_patterns("sglang_router"))
    (folder / "sglang" / "patched.py").write_text(f"PATCH = {name!r}\n")
    (folder / "crlf.txt").write_bytes(b"windows\r\nlines\r\n")
    (folder / "unix.txt").write_bytes(b"unix\nlines $Id$\n")
    (folder / ".gitattributes").write_text("unix.txt text eol=crlf ident\nsglang/** export-ignore\n")
    (folder / "sglang" / "näme mit leer.txt").write_bytes(b"\xff\x00binary")
    git("init", "-q", "-b", "main", cwd=folder)
    (folder / ".git" / "info" / "attributes").write_text("* -text -eol -ident\n")
    git("add", "-A", cwd=folder)
    git("commit", "-qm", "patched", cwd=folder)
    tree = git("rev-parse", "HEAD^{tree}", cwd=folder).strip()
    version = f"0.5.11+kd.{tree[:12]}"
    init = folder / "sglang" / "__init__.py"
    init.write_text(init.read_text().replace("@VERSION@", version))
    names = sorted(git("ls-files", "-z", cwd=folder).split("\0")[:-1])
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "manifest.sha256").write_text("".join(lines))
    manifest = hashlib.sha256((folder / "manifest.sha256").read_bytes()).hexdigest()
    git("add", "-A", cwd=folder)
    git("commit", "-qm", "stamp", cwd=folder)
    git("bundle", "create", "-q", "../out.bundle", "HEAD", cwd=folder)
    bundle = (folder.parent / "out.bundle").read_bytes()
    return Tree(tree, git("rev-parse", "HEAD", cwd=folder).strip(), manifest, version, bundle)


@pytest.fixture(scope="session")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tree]:
    base = tmp_path_factory.mktemp("trees")
    return {name: make_tree(base / name, name) for name in ("one", "two", "three", "four", "five")}


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runtime with the stand-in router. On the system's Python, so that no test tool leaks in."""
    return make_venv(tmp_path_factory.mktemp("venv"), sys.executable)


def make_venv(folder: Path, python: str) -> Path:
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(STANDIN / "sglang_router", site / "sglang_router")
    return folder


def environment() -> dict[str, str]:
    """The agent's: it keeps units itself, whatever machine the tests run on."""
    home = os.environ.get("HOME", "/")
    return {"PATH": os.environ["PATH"], "HOME": home, "PYTHONPATH": str(REMOTE), systemctl.WITHOUT: "supervisor"}


def free_port() -> int:
    """A port below the range from which the kernel gives out its own."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Rig:
    """A host with one service, and everything a test asks it."""

    def __init__(self, root: Path, trees: dict[str, Tree], venv: Path) -> None:
        self.trees, self.venv = trees, venv
        self.layout = Layout(root, "local")
        self.units = Supervised(self.layout)
        self.private, self.public, self.metrics = free_port(), free_port(), free_port()
        self.python = sys.executable
        self.command: list[str] = []

    def agent(self, verb: str, request: dict[str, Any] | None = None, payload: bytes = b"", **env: str) -> Answer:
        child = self.start(verb, request, payload, **env)
        out, err = child.communicate(timeout=60)
        answer = parse(out)
        answer.status = child.returncode
        if answer.result is None and answer.error is None and child.returncode >= 0:
            raise AssertionError(err.decode())
        return answer

    def start(
        self, verb: str, request: dict[str, Any] | None = None, payload: bytes = b"", **env: str
    ) -> subprocess.Popen[bytes]:
        line = {"protocol": 1, "root": str(self.layout.root), "service": "local", **(request or {})}
        asked = self.layout.root.with_name(f"request-{next(_TXN)}")  # beside the host: it may hold secrets
        asked.write_bytes(json.dumps(line).encode() + b"\n" + payload)
        base = environment()
        command = self.command or [self.python, "-m", "kdeploy_agent"]
        pipe = subprocess.PIPE
        with asked.open("rb") as stdin:
            return subprocess.Popen([*command, verb], stdin=stdin, stdout=pipe, stderr=pipe, env={**base, **env})

    def launch(self, order: dict[str, Any], accept: bool | None = None, **env: str) -> None:
        """Start a transaction with nobody watching it; `accept` puts the decision there beforehand."""
        script = (
            "import json, sys; from pathlib import Path\n"
            "from kdeploy_agent.ground import files, layout, locking\n"
            "from kdeploy_agent.change import runner, transaction\n"
            "root, text, accept = sys.argv[1:]\n"
            "host, order = layout.Layout(Path(root), 'local'), transaction.Order(**json.loads(text))\n"
            "verdict = {'accept': accept == 'True', 'reasons': ['said no'], 'evidence': {}}\n"
            "answer = host.transaction(order.txn) / 'decision.json'\n"
            "if accept != 'None': files.write(answer, files.canonical(verdict))\n"
            "runner.launch(host, order, locking.take(host.lock, order.by, 'apply', order.txn))\n"
        )
        base = environment()
        argv = [self.python, "-c", script, str(self.layout.root), json.dumps(order), str(accept)]
        subprocess.run(argv, env={**base, **env}, check=True, timeout=30)

    def wait_for(self, line: str, seconds: float = 30) -> None:
        """Wait until the journal's last line is `STATE:phase`."""
        end = time.monotonic() + seconds
        while not (self.layout.journal.exists() and self.journal()[-1:] == [line]):
            assert time.monotonic() < end, (line, self.journal() if self.layout.journal.exists() else [])
            time.sleep(0.02)

    def wait_until_abandoned(self, seconds: float = 30) -> None:
        """Wait until no process holds the service's lock."""
        end = time.monotonic() + seconds
        while locking.holder(self.layout.lock) is not None:
            assert time.monotonic() < end, self.journal()
            time.sleep(0.02)

    def receive(self, name: str, **changes: Any) -> Answer:
        tree = self.trees[name]
        request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest, **changes}
        return self.agent("receive", request, tree.bundle)

    def release(self, name: str, front: str = "router", **env: str) -> dict[str, Any]:
        """The release document of a tree; `env` changes its launch and with it its id."""
        tree = self.trees[name]
        document = {
            "service": "local", "profile": "local", "engine": "sglang==0.5.11", "patchsets": [],
            "tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest, "version": tree.version,
            "launch": {
                "runtime": {"venv": str(self.venv)}, "module": "sglang.launch_server",
                "args": ["--host", "127.0.0.1", "--port", str(self.private)], "env": env, "port": self.private,
                "grace_s": 2,
                "front": {"kind": front, "host": "127.0.0.1", "port": self.public, "metrics_port": self.metrics},
            },
        }  # fmt: skip
        return seal(document)

    def order(self, release: dict[str, Any], **changes: Any) -> dict[str, Any]:
        ask = {"name": "hello", "kind": "prose", "text": "Hello", "max_tokens": 4}
        brief = [{**ask, "answer": f" Hello from {release['version']}"}]
        probes = {
            "model": "standin", "request-s": 5, "alone": [ask], "chat": [], "together": [], "json": [], "repeat": [],
            "log": ["Traceback", "out of memory"], "brief": brief,
        }  # fmt: skip
        return {
            "txn": f"t{next(_TXN)}", "by": "tester@here", "goal": "apply", "release": release, "probes": probes,
            "start_s": 15, "probe_s": 60, "decide_s": 15, "soak_s": 0.2, **changes,
        }  # fmt: skip

    def apply(self, name: str, front: str = "router", **env: str) -> dict[str, Any]:
        """Receive, begin, accept: the whole way of a good release."""
        assert self.receive(name).ok
        order = self.order(self.release(name, front, **env))
        assert self.agent("begin", order).ok["state"] == "PROBED"
        assert self.decide(order).ok["state"] == "CONFIRMED"
        release: dict[str, Any] = order["release"]
        return release

    def decide(self, order: dict[str, Any], accept: bool = True, **env: str) -> Answer:
        reasons = [] if accept else ["garbled prose"]
        return self.agent("decide", {"txn": order["txn"], "accept": accept, "reasons": reasons, "evidence": {}}, **env)

    def facts(self, **request: Any) -> dict[str, Any]:
        service: dict[str, Any] = self.agent("facts", request).ok["service"]
        return service

    def answers(self, port: int, path: str = "/server_info") -> dict[str, Any] | None:
        try:
            with _OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
                body: dict[str, Any] = json.loads(reply.read())
                return body
        except (OSError, urllib.error.HTTPError):
            return None

    def serves(self, release: dict[str, Any]) -> None:
        """Assert that clients are served by this release, that the links say so, and that nothing else is left."""
        answer = self.answers(self.public)
        assert answer is not None and answer["version"] == release["version"], answer
        assert (self.layout.live(), self.layout.good()) == (release["id"], release["id"])
        facts = self.facts()
        for name in ("server", "front"):
            assert facts["units"][name]["alive"] and facts["units"][name]["release"] == release["id"]
        assert facts["lock"] is None
        leaders = {pid for pid in self.units.members("server") if self.release_of(pid) is not None}
        assert {self.release_of(pid) for pid in leaders} == {release["id"]}

    def silent(self) -> None:
        """Assert that nothing runs, nothing listens, and no link points anywhere."""
        assert (self.layout.live(), self.layout.good()) == (None, None)
        self.stopped()

    def stopped(self) -> None:
        assert not self.units.members("server") and not self.units.members("front")
        for port in (self.private, self.public):
            assert processes.holders(port) == []

    @staticmethod
    def release_of(pid: int) -> str | None:
        return processes.environ(pid).get("KDEPLOY_RELEASE")

    def journal(self) -> list[str]:
        lines = [json.loads(line) for line in self.layout.journal.read_text().splitlines()]
        return [f"{line.get('state')}:{line['phase']}" for line in lines]

    def close(self) -> None:
        """End everything that was started here, agents included."""
        end = time.monotonic() + 10
        for name in ("server", "front"):
            processes.kill_all(MARK, self.units.mark(name), end)
        for pid in processes._pids():
            if str(self.layout.root) in processes.command(pid) and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)


def seal(document: dict[str, Any], **launch: Any) -> dict[str, Any]:
    """The document with `launch` changed and with the id that belongs to it (the rule of kdeploy/release.py)."""
    document = {**document, "launch": {**document["launch"], **launch}}
    identity = json.dumps({key: document[key] for key in ("manifest", "tree", "launch")}, sort_keys=True)
    return {**document, "id": hashlib.sha256(identity.encode()).hexdigest()[:12]}


def parse(out: bytes) -> Answer:
    answer = Answer()
    for line in out.splitlines():
        message = json.loads(line)
        if "event" in message:
            answer.events.append(message)
        else:
            assert answer.result is None and answer.error is None, "two answers"
            answer.result, answer.error = message.get("result"), message.get("error")
    return answer


@pytest.fixture(autouse=True)
def home() -> None:
    """The agent reads no KDEPLOY_ variable here: every request names its root."""


@pytest.fixture
def rig(tmp_path: Path, trees: dict[str, Tree], venv: Path) -> Rig:
    """A fresh host; the test that has it runs beside others (see pytest_pyfunc_call)."""
    return Rig(tmp_path / "root", trees, venv)


# Tests of a host mostly wait: for ports, for servers, for deadlines. So they run several at a time, each on its own
# host, from the moment the first one is due; each is still reported under its own name.
_POOL = ThreadPoolExecutor(10)
_RUNNING: dict[str, Future[None]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if "rig" not in pyfuncitem.fixturenames:
        return None
    if not _RUNNING:
        first: Rig = pyfuncitem.funcargs["rig"]
        base = pyfuncitem._request.getfixturevalue("tmp_path_factory")
        for item in pyfuncitem.session.items:
            if isinstance(item, pytest.Function) and "rig" in item.fixturenames:
                params = getattr(item, "callspec", None)
                host = Rig(base.mktemp("host") / "root", first.trees, first.venv)
                _RUNNING[item.nodeid] = _POOL.submit(_on, host, item.obj, params.params if params else {})
    _RUNNING[pyfuncitem.nodeid].result(timeout=240)
    return True


def _on(host: Rig, test: Callable[..., None], params: dict[str, Any]) -> None:
    try:
        test(rig=host, **params)
    finally:
        host.close()


def pytest_sessionfinish() -> None:
    _POOL.shutdown(cancel_futures=True)
