"""kdeploy beside what people use instead, on one real host: `python -m benchmarks.peers [--venvs DIR] [--rounds 5]`.

Needs root on Debian (tests/hosts makes the host) and SGLang's wheel in the cache (`kdeploy stage profiles/local.yaml`).
With `--venvs`, virtual environments with pyinfra and Ansible are made there when missing, and those take part.

The work is the same for all, on the tree of SGLang 0.5.11 (2,536 files, 35 MB):

    first      an empty host gets the tree; every file's sha256 compared there; it is made current
    one-line   a new release beside it in which one line differs, compared and made current
    unchanged  the same again
    rollback   the first release is made current again

kdeploy runs whole: `kdeploy apply` and `kdeploy rollback`, with a server behind systemd's socket. The others start
none, so the spans of serving that the host's journal tells stand in columns of their own and are not in `wall`:

    start      CANDIDATE and PROBED: the server's launch until its first answer, and the gate's questions
    serve      DRAINED and OPEN: the old server's stop, and the opening of the public port

Everything else is in `wall`: the connection, facts, push, checkout, every hashing, the import in precheck, the
verdict's trip, confirming. `x tar` compares it; `with` adds `serve`. The server is a stand-in that starts in a second;
CPU seconds of its units are left out of those on the host. After each run the bench compares the live tree itself.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

import yaml

from kdeploy import lock, places
from tests import making
from tests.hosts import image
from tests.hosts.bed import SSH_PORT, Bed, Host
from tests.hosts.fleet import SERVICE, Home, engine, furnish
from tests.hosts.proxy import Wire

REPOSITORY = Path(__file__).resolve().parent.parent
ENGINE = "sglang==0.5.11"
LINE = {
    "file": "sglang/srt/layers/sampler.py",
    "anchor": "import torch.distributed as dist",
    "insert-before": "# one line\n",
}
WORK = ("first", "one-line", "unchanged", "rollback")
MANIFEST = "manifest.sha256"

CHECK = f"sha256sum -c --quiet --strict {MANIFEST}"
SWITCH = "ln -sfn releases/$rel .next && mv -T .next current"
FINISH = f"(cd releases/$rel && {CHECK}) && {SWITCH}"


@dataclass(frozen=True)
class Sample:
    """One run: seconds by kind, what went over the wire, CPU seconds here and there, peak memory here in MB."""

    seconds: float
    start: float
    serve: float
    turns: int
    connections: int
    up: int
    cpu_here: float
    cpu_there: float
    memory: float


@dataclass
class Field:
    """The host, the wire to it, and the two trees."""

    host: Host
    wire: Wire
    folder: Path
    trees: dict[str, Path] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Where peers put releases, as seen from here; on the host it is /opt/peer."""
        return self.host.root / "opt/peer"

    @property
    def config(self) -> Path:
        """An ssh_config in which `wired` is the host behind the wire."""
        path = self.folder / "ssh_config"
        text = (self.host.home / ".ssh/config").read_text()
        own = text.replace(f"Host {self.host.name}\n", "Host wired\n").replace(
            f"Port {SSH_PORT}\n", f"Port {self.wire.port}\n"
        )
        path.write_text(own)
        return path


class Peer:
    """One way of deploying."""

    name = ""
    memory = cpu = 0.0
    """Peak memory in MB and CPU seconds, here, of the command that was called last."""

    def __init__(self, ground: Field) -> None:
        self.field = ground
        self.folder = ground.folder / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write()

    def write(self) -> None:
        """Write what it needs, once."""

    def empty(self) -> None:
        """Bring the host back to nothing."""
        shutil.rmtree(self.field.root, ignore_errors=True)
        self.field.root.mkdir(parents=True)

    def run(self, work: str) -> None:
        """Do one piece of `WORK`."""
        raise NotImplementedError

    def serving(self) -> tuple[float, float, float]:
        """Of the last run: seconds of starting and of serving, and CPU seconds of the server."""
        return 0.0, 0.0, 0.0

    def live(self) -> Path:
        """The tree that is current, as seen from here."""
        return self.field.root / (self.field.root / "current").readlink()

    def call(self, *argv: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
        """Run a command; its failure is ours."""
        with tempfile.TemporaryFile("w+") as told:
            child = subprocess.Popen(
                list(map(str, argv)), env={**os.environ, **(env or {})}, cwd=cwd or self.folder,
                stdin=subprocess.DEVNULL, stdout=told, stderr=told,
            )  # fmt: skip
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.memory, self.cpu = used.ru_maxrss / 1e3, used.ru_utime + used.ru_stime
            told.seek(0)
            if child.returncode != 0:
                raise SystemExit(f"{self.name}: {argv[0]} ended with {child.returncode}\n{told.read()}")
            return told.read()

    def shell(self, script: str) -> None:
        """Run a bash script that may call `remote COMMAND`."""
        head = f'remote() {{ ssh -F {self.field.config} wired "cd /opt/peer && rel=$rel && $1"; }}\nset -euo pipefail\n'
        self.call("bash", "-c", head + script)


RELEASE = {"first": "r1", "one-line": "r2", "unchanged": "r2", "rollback": "r1"}


class Tar(Peer):
    """The floor for a script: one connection, only what the manifests say differs, every file re-hashed on the host."""

    name = "tar"

    def run(self, work: str) -> None:
        """See Peer.run."""
        rel, trees = RELEASE[work], self.field.trees
        if work == "first":
            push = f"tar -C {trees['r1']} -cf - . | gzip -1"
            there = f"mkdir -p releases/$rel && tar -xzf - -C releases/$rel && {FINISH}"
        elif work == "one-line":
            changed = f"comm -13 <(sort {trees['r1']}/{MANIFEST}) <(sort {trees['r2']}/{MANIFEST}) | cut -c67-"
            push = f"{{ {changed}; echo {MANIFEST}; }} | tar -C {trees['r2']} -cf - -T - | gzip -1"
            there = f"cp -al releases/r1 releases/$rel && (cd releases/$rel && tar -xzUf -) && {FINISH}"
        else:
            push = "true"
            link = "test $(readlink current) = releases/$rel"
            there = f"{link} && cd current && {CHECK}" if work == "unchanged" else SWITCH
        self.shell(f"rel={rel}; {push} | remote '{there}'")


class Rsync(Peer):
    """What a good shell script does: rsync against the live tree, then one command that compares and switches."""

    name = "rsync"

    def run(self, work: str) -> None:
        """See Peer.run."""
        rel = RELEASE[work]
        push = (
            f'rsync -aW --delete --mkpath --link-dest=../r1/ -e "ssh -F {self.field.config}" '
            f"{self.field.trees[rel]}/ wired:/opt/peer/releases/$rel/"
        )
        self.shell(f"rel={rel}; {push if work != 'rollback' else 'true'}; remote '{FINISH}'")


class Pyinfra(Peer):
    """pyinfra's own rsync operation, then the command that compares and switches."""

    name = "pyinfra"
    program = Path()

    def write(self) -> None:
        """See Peer.write."""
        (self.folder / "inventory.py").write_text(
            f'hosts = [("wired", {{"ssh_config_file": "{self.field.config}", '
            f'"ssh_known_hosts_file": "{self.field.host.home}/.ssh/known_hosts", '
            '"ssh_strict_host_key_checking": "yes", "ssh_allow_agent": False, "ssh_look_for_keys": False, '
            f'"ssh_key": "{self.field.host.home}/.ssh/id_ed25519", "ssh_user": "root"}})]\n'
        )
        (self.folder / "deploy.py").write_text(
            "from pyinfra import host\nfrom pyinfra.operations import files, server\n"
            "if host.data.tree:\n"
            "    files.rsync(src=host.data.tree + '/', dest=f'/opt/peer/releases/{host.data.rel}/',\n"
            "                flags=['-aW', '--delete', '--mkpath', '--link-dest=/opt/peer/releases/r1/'])\n"
            f"server.shell(commands=[f'cd /opt/peer && rel={{host.data.rel}} && ' + {FINISH!r}])\n"
        )

    def run(self, work: str) -> None:
        """See Peer.run."""
        rel = RELEASE[work]
        tree = self.field.trees[rel] if work != "rollback" else ""
        words = ("--yes", "--data", f"tree={tree}", "--data", f"rel={rel}", "inventory.py", "deploy.py")
        self.call(self.program, *words, env={"LC_ALL": "C.UTF-8"})


class Ansible(Peer):
    """Ansible's own synchronize module with pipelining, then the command that compares and switches."""

    name = "ansible"
    program = Path()

    def write(self) -> None:
        """See Peer.write."""
        (self.folder / "ansible.cfg").write_text(
            f"[defaults]\ngathering = explicit\nlocal_tmp = {self.folder}/tmp\ninterpreter_python = /usr/bin/python3\n"
            f"[ssh_connection]\npipelining = True\nssh_args = -F {self.field.config} -o ControlMaster=auto "
            f"-o ControlPersist=60s -o ControlPath={self.field.folder}/%C\n"
        )
        (self.folder / "deploy.yml").write_text(
            f"""- hosts: all
  gather_facts: false
  tasks:
    - ansible.posix.synchronize:
        src: "{{{{ tree }}}}/"
        dest: "/opt/peer/releases/{{{{ rel }}}}/"
        archive: true
        delete: true
        compress: false
        use_ssh_args: true
        link_dest: ["/opt/peer/releases/r1/"]
        rsync_opts: ["--mkpath", "-W"]
      when: tree != ""
    - ansible.builtin.command: {{cmd: {CHECK}, chdir: "/opt/peer/releases/{{{{ rel }}}}"}}
      changed_when: false
    - ansible.builtin.file: {{src: "releases/{{{{ rel }}}}", dest: /opt/peer/current, state: link}}
"""
        )

    def run(self, work: str) -> None:
        """See Peer.run."""
        rel = RELEASE[work]
        more = json.dumps({"tree": str(self.field.trees[rel]) if work != "rollback" else "", "rel": rel})
        env = {
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"), "LC_ALL": "C.UTF-8",
            "PATH": f"{self.program.parent}:{os.environ['PATH']}",
        }  # fmt: skip
        try:
            self.call(self.program, "-i", "wired,", "-e", more, "deploy.yml", env=env)
        finally:  # the next run is cold again
            for master in self.field.folder.glob("?" * 40):
                subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={master}", "wired"], capture_output=True)


class Kdeploy(Peer):
    """The whole command, as a user runs it."""

    name = "kdeploy"

    def write(self) -> None:
        """A project whose trees are SGLang's with a stand-in for its server, and the host behind the wire."""
        host, project = self.field.host, self.folder / "project"
        self.home, self._seen = Home(host), 0
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
        told = self.kdeploy("rollback" if work == "rollback" else "apply", f"profiles/{RELEASE[work]}.yaml")
        assert ("nothing to do" in told) == (work == "unchanged"), told

    def serving(self) -> tuple[float, float, float]:
        """See Peer.serving."""
        at = {(line["state"], line["phase"]): line["at"] for line in self.home.journal()[self._seen :]}

        def span(*states: str) -> float:
            return sum(at[state, "done"] - at[state, "intent"] for state in states if (state, "done") in at)

        return span("CANDIDATE", "PROBED"), span("DRAINED", "OPEN"), self._units()

    def live(self) -> Path:
        """See Peer.live."""
        release = json.loads((self.home.path / "releases" / str(self.home.live()) / "release.json").read_text())
        return self.home.path / "trees" / release["tree"]

    def _units(self) -> float:
        """CPU seconds of the server and its front, which began in this run."""
        folders = self.field.host.cgroup.glob(f"payload/system.slice/kdeploy-{SERVICE}-*.service")
        return sum(_cpu(folder) for folder in folders) if self.home.journal()[self._seen :] else 0.0


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


def measure(peer: Peer, work: str) -> Sample:
    """One run, and the proof that it did what it should."""
    ground = peer.field
    ground.wire.reset()
    before, started = _cpu(ground.host.cgroup), time.monotonic()
    peer.run(work)
    seconds = time.monotonic() - started
    wire, there = ground.wire, _cpu(ground.host.cgroup) - before
    sample = (wire.turns, wire.connections, wire.up, peer.cpu, there, peer.memory)
    start, serve, cpu = peer.serving()
    _check(peer, work)
    return Sample(seconds - start - serve, start, serve, *sample[:4], there - cpu, sample[5])


def _check(peer: Peer, work: str) -> None:
    live = peer.live()
    has = "# one line" in (live / "sglang/srt/layers/sampler.py").read_text()
    assert has == (RELEASE[work] == "r2"), f"{peer.name}: the live tree is not that of {RELEASE[work]}"
    done = subprocess.run(["sha256sum", "-c", "--quiet", "--strict", MANIFEST], cwd=live, capture_output=True)
    assert done.returncode == 0, f"{peer.name}: {done.stderr.decode()}"


def _cpu(cgroup: Path) -> float:
    """CPU seconds that a control group has used; nothing when it is not there."""
    with contextlib.suppress(OSError):
        return int((cgroup / "cpu.stat").read_text().split()[1]) / 1e6
    return 0.0


def compare(peers: Sequence[Peer], rounds: int) -> dict[str, list[Sample]]:
    """Every peer does all the work, `rounds` times, one after the other; gives samples by `work peer`."""
    samples: dict[str, list[Sample]] = {}
    for number in range(rounds):
        for peer in (*peers[number % len(peers) :], *peers[: number % len(peers)]):
            peer.empty()
            for work in WORK:
                samples.setdefault(f"{work} {peer.name}", []).append(measure(peer, work))
    return samples


def table(samples: dict[str, list[Sample]]) -> str:
    """Medians, and how many times the floor's wall time each took."""
    titles = ("", "wall s", "x tar", "serve s", "with", "start s", "turns", "conn", "up kB", "cpu here", "there", "MB")
    form = "{:19} {:>7} {:>6} {:>7} {:>6} {:>7} {:>5} {:>4} {:>8} {:>8} {:>6} {:>4}"
    lines = [form.format(*titles)]
    for name, runs in sorted(samples.items(), key=lambda item: WORK.index(item[0].split()[0])):
        one = Sample(*(statistics.median(column) for column in zip(*map(astuple, runs), strict=True)))
        floor = statistics.median(run.seconds for run in samples[f"{name.split()[0]} tar"])
        ratio, whole = one.seconds / floor, (one.seconds + one.serve) / floor
        wall = f"{one.seconds:.2f}", f"{ratio:.2f}", f"{one.serve:.2f}", f"{whole:.2f}", f"{one.start:.2f}"
        cpu = f"{one.cpu_here:.2f}", f"{one.cpu_there:.2f}", f"{one.memory:.0f}"
        lines.append(
            form.format(name, *wall, f"{one.turns:.0f}", f"{one.connections:.0f}", f"{one.up / 1e3:.1f}", *cpu)
        )
    return "\n".join(lines)


def tool(venvs: Path, package: str, program: str) -> Path:
    """A peer's program in a virtual environment of its own, made when it is missing."""
    path = venvs / package / "bin" / program
    if not path.exists():
        subprocess.run([sys.executable, "-m", "venv", venvs / package], check=True)
        subprocess.run([venvs / package / "bin/pip", "install", "-q", package], check=True)
    return path


def main() -> None:
    """Make the bed, let everybody run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venvs", type=Path, help="where pyinfra and Ansible are, or are to be made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-trips", type=float, nargs="*", default=[0, 50], help="milliseconds")
    asked = parser.parse_args()
    kinds: list[type[Peer]] = [Kdeploy, Tar, Rsync]
    if asked.venvs is not None:
        Pyinfra.program = tool(asked.venvs.resolve(), "pyinfra", "pyinfra")
        Ansible.program = tool(asked.venvs.resolve(), "ansible", "ansible-playbook")
        kinds += [Pyinfra, Ansible]
    image.prepare()
    bed = Bed.make(image.root_file_system(places.cache()))
    try:
        with bed.host("peer") as host, tempfile.TemporaryDirectory(prefix="kdeploy-peers-") as folder:
            wire = Wire(host.address, (host.address, SSH_PORT))
            with wire.laid():
                host.also_at(wire.port)
                ground = Field(host, wire, Path(folder))
                peers = [kind(ground) for kind in kinds]  # kdeploy first: it makes the trees
                for milliseconds in asked.round_trips:
                    wire.delay_s = milliseconds / 2000
                    load = os.getloadavg()[0]
                    told = table(compare(peers, asked.rounds))
                    print(
                        f"\n{milliseconds:.0f} ms, medians of {asked.rounds}, load {load:.1f} at the start\n{told}",
                        flush=True,
                    )
    finally:
        bed.close()


if __name__ == "__main__":
    main()
