"""The verb prove, wherever a profile says that proofs run: on this machine, or on each of its hosts."""

from __future__ import annotations

from pathlib import Path

from kdeploy import deploy, plan, proving
from kdeploy.api import hosts, stages
from kdeploy.api.reach import hosts_of
from kdeploy.api.stages import Staged
from kdeploy.progress import Note
from kdeploy.stage.prove import Proven


def prove(path: Path, note: Note, *, again: bool = False) -> tuple[Staged, tuple[Proven, ...]]:
    """Stage a profile and run its proofs, red and green; `again` runs them even when they were run before.

    For `prove: host` the tree and the runtime are brought to each host first, if they are not there; nothing that
    serves is touched. Raises ProofError.
    """
    staged = stages.stage(path, note, check_out=False)
    read = staged.declared.profile
    if not read.proves_on_hosts:
        return staged, stages.run_proofs(staged, note, again)
    made = hosts.make_release(staged)
    proven: list[Proven] = []
    for host in hosts_of(read):
        known = deploy.facts(host, made.tree, manifest=made.manifest)
        deploy.bring(host, plan.make(known, made), known, hosts.goal_of(read, made, staged), note)
        proven += proving.on_host(host, staged.stage, made, note, again=again)
    return staged, tuple(proven)
