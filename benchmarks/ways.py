"""The ways of deploying that kdeploy is compared with by peers.py: a floor for scripts, rsync, pyinfra, Ansible."""

from __future__ import annotations

import abc
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts.bed import SSH_PORT, Host
from tests.hosts.proxy import Wire

MANIFEST = "manifest.sha256"

CHECK = f"sha256sum -c --quiet --strict {MANIFEST}"
SWITCH = "ln -sfn releases/$rel .next && mv -T .next current"
FINISH = f"(cd releases/$rel && {CHECK}) && {SWITCH}"


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


class Peer(abc.ABC):
    """One way of deploying."""

    name = ""
    memory = cpu = 0.0
    """Peak memory in MB and CPU seconds, here, of the command that was called last."""

    def __init__(self, ground: Field) -> None:
        self.field = ground
        self.folder = ground.folder / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write()

    def write(self) -> None:  # noqa: B027 - most need nothing
        """Write what it needs, once."""

    def empty(self) -> None:
        """Bring the host back to nothing."""
        shutil.rmtree(self.field.root, ignore_errors=True)
        self.field.root.mkdir(parents=True)

    @abc.abstractmethod
    def run(self, work: str) -> None:
        """Do one piece of `WORK`."""

    def serving(self) -> tuple[float, float, float]:
        """Of the last run: seconds of starting and of serving, and CPU seconds of the server."""
        return 0.0, 0.0, 0.0

    def placed(self, work: str) -> float | None:
        """When the tree of the last run was on the host and compared, seconds since the epoch; None: at its end."""
        return None

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


def cpu_seconds(cgroup: Path) -> float:
    """CPU seconds that a control group has used; nothing when it is not there."""
    with contextlib.suppress(OSError):
        return int((cgroup / "cpu.stat").read_text().split()[1]) / 1e6
    return 0.0
