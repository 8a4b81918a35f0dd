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

Why that is fair: how long these take is up to the server and its clients (minutes and a grace, for SGLang), and a
script that serves would wait for the same. Everything else is in `wall`: the connection, facts, push, checkout, every
hashing, the import in precheck, the verdict's trip, confirming. `tree` is what the others do as well: from the
command's start until the tree is on the host, every file compared. What comes after it they have no counterpart of:
the look at the host with the import, the transaction's own process, the way back looked at, every file compared once
more, the verdict. Below each table are kdeploy's parts, by the host's journal: what is in brackets is not in `wall`.
The server is a stand-in that starts in a second; CPU seconds of its units are left out of those on the host. After
each run the bench compares the live tree itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from benchmarks.ways import MANIFEST, RELEASE, Ansible, Field, Peer, Pyinfra, Rsync, Tar, cpu_seconds
from benchmarks.whole import Kdeploy
from kdeploy import places
from tests.hosts import image
from tests.hosts.bed import SSH_PORT, Bed
from tests.hosts.proxy import Wire

WORK = ("first", "one-line", "unchanged", "rollback")


@dataclass(frozen=True)
class Sample:
    """One run: seconds by kind, what went over the wire, CPU seconds here and there, peak memory here in MB."""

    seconds: float
    tree: float
    start: float
    serve: float
    turns: int
    connections: int
    up: int
    cpu_here: float
    cpu_there: float
    memory: float


def measure(peer: Peer, work: str) -> Sample:
    """One run, and the proof that it did what it should."""
    ground = peer.field
    ground.wire.reset()
    before, started, began = cpu_seconds(ground.host.cgroup), time.monotonic(), time.time()
    peer.run(work)
    seconds = time.monotonic() - started
    tree = peer.placed(work)
    wire, there = ground.wire, cpu_seconds(ground.host.cgroup) - before
    sample = (wire.turns, wire.connections, wire.up, peer.cpu, there, peer.memory)
    start, serve, cpu = peer.serving()
    _check(peer, work)
    wall = seconds - start - serve
    return Sample(wall, tree - began if tree else wall, start, serve, *sample[:4], there - cpu, sample[5])


def _check(peer: Peer, work: str) -> None:
    live = peer.live()
    has = "# one line" in (live / "sglang/srt/layers/sampler.py").read_text()
    assert has == (RELEASE[work] == "r2"), f"{peer.name}: the live tree is not that of {RELEASE[work]}"
    done = subprocess.run(["sha256sum", "-c", "--quiet", "--strict", MANIFEST], cwd=live, capture_output=True)
    assert done.returncode == 0, f"{peer.name}: {done.stderr.decode()}"


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
    titles = ("", "wall s", "x tar", "tree s", "x tar", "serve s", "start s", "turns", "conn", "up kB", "cpu here")
    form = "{:19} {:>7} {:>6} {:>7} {:>6} {:>7} {:>7} {:>5} {:>4} {:>8} {:>8} {:>6} {:>4}"
    lines = [form.format(*titles, "there", "MB")]
    for name, runs in sorted(samples.items(), key=lambda item: WORK.index(item[0].split()[0])):
        one = Sample(*(statistics.median(column) for column in zip(*map(astuple, runs), strict=True)))
        floor = statistics.median(run.seconds for run in samples[f"{name.split()[0]} tar"])
        wall = f"{one.seconds:.2f}", f"{one.seconds / floor:.2f}", f"{one.tree:.2f}", f"{one.tree / floor:.2f}"
        spans = f"{one.serve:.2f}", f"{one.start:.2f}"
        cpu = f"{one.cpu_here:.2f}", f"{one.cpu_there:.2f}", f"{one.memory:.0f}"
        lines.append(
            form.format(name, *wall, *spans, f"{one.turns:.0f}", f"{one.connections:.0f}", f"{one.up / 1e3:.1f}", *cpu)
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
    kinds: list[type[Peer]] = [Tar, Rsync]
    if asked.venvs is not None:
        Pyinfra.program = tool(asked.venvs.resolve(), "pyinfra", "pyinfra")
        Ansible.program = tool(asked.venvs.resolve(), "ansible", "ansible-playbook")
        kinds += [Pyinfra, Ansible]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us so wants nothing left behind
    image.prepare()
    bed = Bed.make(image.root_file_system(places.cache()))
    try:
        with bed.host("peer") as host, tempfile.TemporaryDirectory(prefix="kdeploy-peers-") as folder:
            wire = Wire(host.address, (host.address, SSH_PORT))
            with wire.laid():
                host.also_at(wire.port)
                ground = Field(host, wire, Path(folder))
                whole = Kdeploy(ground)  # first: it makes the trees
                peers = [whole, *(kind(ground) for kind in kinds)]
                for milliseconds in asked.round_trips:
                    wire.delay_s = milliseconds / 2000
                    load = os.getloadavg()[0]
                    told = table(compare(peers, asked.rounds))
                    print(
                        f"\n{milliseconds:.0f} ms, medians of {asked.rounds}, load {load:.1f} at the start\n{told}\n"
                        f"{whole.breakdown()}",
                        flush=True,
                    )
    finally:
        bed.close()


if __name__ == "__main__":
    main()
