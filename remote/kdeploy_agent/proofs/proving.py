"""Verb prove: the proofs of a tree's patch sets, run in the host's own runtime, red and green, before anything stops.

On CPU, beside whatever serves. What a run means is judged where it is asked for (kdeploy/stage/prove.py); here proofs
are run, and those that did what they must are remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import bounded, files, manifests
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.locking import wait_for
from kdeploy_agent.ground.protocol import Call, listening
from kdeploy_agent.proofs import proof_files
from kdeploy_agent.proofs.trial import Trial
from kdeploy_agent.trees import runtimes, serving, store

RED, GREEN = 3, 0


def prove(call: Call) -> Dict[str, Any]:
    """Verb: run every proof of `sets` on the pristine and on the patched tree of `release`; gives `proven[]`.

    `base` names the pristine tree's commit and manifest, which the store has as the ancestor of the release's. The
    payload is a zip of the sets' files (proof_files). The first proof that does not do what it must is the last that is
    run. `again` runs what was remembered, too. Raises `preflight` for what cannot run here, `integrity` for trees that
    are not what they should be.
    """
    layout, release, base = call.layout, call.mapping("release"), call.mapping("base")
    sets = call.request.get("sets")
    if not isinstance(sets, list) or not {"commit", "manifest"} <= set(base):
        raise AgentError("usage", "the request needs 'sets' as a list, and 'base' with commit and manifest")
    python = serving.python_of(layout, release)
    results = []
    with ExitStack() as stack:
        # Nobody may prune the pristine tree meanwhile, which no release needs.
        stack.enter_context(wait_for(layout.home / "store.lock"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kdeploy-proofs-")))
        content = proof_files.unpack(call.payload.read(proof_files.LIMIT_BYTES + 1), folder)
        installed = _installed(python)
        trees: Optional[Tuple[Path, Path]] = None
        for one, proof in _each(sets):
            key = _key([release["tree"], release["manifest"], base["manifest"], installed, content, one, proof])
            kept = layout.cache(release["tree"]) / "proofs" / f"{key}.json"
            found = None if call.request.get("again") else files.read_json(kept)
            if found is None:
                call.emit("note", text=f"proving {one['ref']} {proof['name']}")
                trees = trees or _trees(layout, release, base)
                _require_modules(python, one, proof)
                runs = _red_and_green(folder / one["ref"] / proof["run"], trees, python, proof)
                found = {"patchset": one["ref"], "proof": proof["name"], **runs}
                results.append({**found, "cached": False})
                if (runs["red"]["status"], runs["green"]["status"]) != (RED, GREEN):
                    break  # whoever asked stops at this one
                with contextlib.suppress(OSError):  # then it is run again
                    files.write(kept, files.canonical(found))
            else:
                results.append({**found, "cached": True})
    return {"proven": results}


def _each(sets: List[Any]) -> "Iterator[Tuple[Dict[str, Any], Dict[str, Any]]]":
    for one in sets:
        for proof in one["proofs"]:
            proof_files.check_name(f"{one['ref']}/{proof['run']}")
            yield {"ref": one["ref"], "digest": one["digest"]}, proof


def _key(parts: List[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def _installed(python: Path) -> str:
    if not python.exists():
        raise AgentError(
            "preflight",
            f"proofs are to run in {python}, which is not there",
            "make that virtual environment, or prove on the operator's machine: prove: {lock: PATH}",
        )
    return f"{python} {runtimes.fingerprint(python.parent.parent)}"


def _trees(layout: Layout, release: Dict[str, Any], base: Dict[str, Any]) -> Tuple[Path, Path]:
    """The pristine tree, placed from the store when it is not here, and the patched one; all files compared."""
    patched = layout.tree(release["tree"])
    manifests.verify(patched, release["manifest"])
    return store.pristine(layout, base["commit"], base["manifest"]), patched


def _require_modules(python: Path, one: Dict[str, Any], proof: Dict[str, Any]) -> None:
    code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    env = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    name = f"proof {one['ref']} {proof['name']}"
    try:
        done = bounded.run([str(python), "-I", "-c", code, *proof["needs"]], 120, env)
    except OSError as fault:
        raise AgentError("preflight", f"{name} cannot run: {python}: {fault.strerror}") from fault
    if done is None:
        raise AgentError("preflight", f"{name} cannot run: {python} did not answer within 120 s", "is the disk slow?")
    if done.status != 0 or done.out.split():
        missing = ", ".join(done.out.split()) or done.err.strip()[-400:]
        raise AgentError(
            "preflight",
            f"{name} needs what {python} does not have: {missing}",
            "install it there; a proof that cannot run proves nothing",
        )


def _red_and_green(program: Path, trees: Tuple[Path, Path], python: Path, proof: Dict[str, Any]) -> Dict[str, Any]:
    with ExitStack() as stack:
        running = []
        for tree in trees:  # side by side: they take a core each
            running.append(Trial(program, tree, python, proof))
            stack.callback(running[-1].end)
        red, green = (one.finish(listening) for one in running)
    return {"red": red, "green": green}
