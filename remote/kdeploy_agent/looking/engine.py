"""Whether the release's runtime can run its tree on this host: asked in that Python itself (inside.py), judged here."""

from __future__ import annotations

import contextlib
import json
import pkgutil
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from kdeploy_agent.ground import bounded, files
from kdeploy_agent.ground.gpus import Gpu
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.looking import abi, cuda, machine
from kdeploy_agent.looking.finding import Finding, doubt, judged, well, wrong
from kdeploy_agent.trees import runtimes, serving

_INSIDE_WITHIN_S = 300.0


def look(layout: Layout, release: Dict[str, Any], found: Sequence[Gpu], pushed: bool = True) -> Iterator[Finding]:
    """Findings about runtime, import, arguments, torch, driver and ptxas; without the tree those that need none.

    Before anything was `pushed` a runtime that is made from its lock need not be here.

    What the runtime said is remembered when all is well: the import takes 4 s. A release's id covers its tree and its
    arguments, and PREPARED compares the tree's files again; what is installed in a runtime that we made is compared
    here, and the driver. A virtual environment of somebody else's is always asked.
    """
    tree: Optional[Path] = layout.tree(release["tree"])
    assert tree is not None
    known = layout.cache(release["tree"]) / "precheck" / f"{serving.release_id(release)}.json"
    tree = tree if tree.is_dir() else None
    python = serving.python_of(layout, release)
    ours = tree is not None and "key" in release["launch"]["runtime"] and python.exists()
    if not pushed and "key" in release["launch"]["runtime"] and not python.exists():
        yield doubt("runtime", f"{python} is not made yet: torch and driver are unchecked", "`kdeploy apply` makes it")
        return
    state = f"{runtimes.fingerprint(python.parent.parent)} {found[0].driver if found else ''}" if ours else ""
    memo = files.read_json(known) if ours else None
    if isinstance(memo, dict) and memo.get("state") == state and isinstance(memo.get("answer"), dict):
        yield from _judge(memo["answer"], release, tree, found)
        return
    asked = {
        "args": release["launch"]["args"] if tree is not None else None,
        "gpu": machine.needs_gpus(release) and bool(found),
    }
    answer: Dict[str, Any] = {}
    findings: List[Finding] = []
    for finding in _ask(layout, release, python, asked, answer):
        findings.append(finding)
        yield finding
    if not answer:
        return
    for finding in _judge(answer, release, tree, found):
        findings.append(finding)
        yield finding
    if ours and all(finding["ok"] for finding in findings):
        with contextlib.suppress(OSError):  # then it is asked again
            files.write(known, files.canonical({"state": state, "answer": answer}))


def _ask(
    layout: Layout, release: Dict[str, Any], python: Path, asked: Dict[str, Any], answer: Dict[str, Any]
) -> Iterator[Finding]:
    """Run inside.py in the runtime and put what it says into `answer`; yields what keeps it from saying anything."""
    source = (pkgutil.get_data("kdeploy_agent.looking", "inside.py") or b"").decode("utf-8")
    env, cwd = serving.environment(layout, release, "precheck"), str(layout.empty)
    if asked["args"] is None:  # a host that has nothing of ours yet keeps nothing of ours
        scratch = Path(tempfile.mkdtemp(prefix="kdeploy-doctor-"))
        home = str(layout.home)
        env, cwd = {key: value.replace(home, str(scratch)) for key, value in env.items()}, str(scratch)
        env["TMPDIR"] = cwd
    else:
        ails = serving.make_room(layout, release)
        if ails:
            yield doubt("caches", ails, "mount it to be written, or remove it: it is made anew")
        scratch = serving.scratch(layout, "precheck")
        scratch.mkdir(parents=True, exist_ok=True)
    try:
        done = bounded.run([str(python), "-c", source, json.dumps(asked)], _INSIDE_WITHIN_S, env, cwd)
    except OSError as fault:
        made = "key" in release["launch"]["runtime"]
        fix = (
            "`kdeploy apply` makes it from its lock" if made else "make that virtual environment, or correct 'runtime'"
        )
        yield wrong("runtime", f"{python} does not run: {fault.strerror}", fix)
        return
    finally:
        files.discard(scratch)
    if done is None:
        slow = f"importing the engine took more than {_INSIDE_WITHIN_S:.0f} s"
        yield wrong("runtime", slow, "is the disk slow? is a file of the runtime on a dead network disk?")
        return
    told = [line for line in done.out.splitlines() if line.startswith("kdeploy-inside ")]
    if not told:
        said = done.err.strip()[-800:]
        yield wrong("runtime", f"{python} ended with {done.status}: {said}", "make the runtime anew")
        return
    answer.update(json.loads(told[-1].partition(" ")[2]))


def _judge(
    answer: Mapping[str, Any], release: Mapping[str, Any], tree: Optional[Path], found: Sequence[Gpu]
) -> Iterator[Finding]:
    runs = answer["python"]
    version = ".".join(map(str, runs["version"]))
    yield well("runtime", f"{runs['implementation']} {version} on {runs['machine']} runs")
    if tree is not None:
        yield from abi.fits(tree, runs)
        yield from _import(answer, release, tree)
    elif not answer["torch"]["ok"]:
        yield wrong("torch", f"it does not import: {answer['torch']['error']}", "install torch in the runtime")
    if answer["torch"]["ok"] and "driver" in answer:
        yield from cuda.fits(answer, found, machine.together(release))


def _import(answer: Mapping[str, Any], release: Mapping[str, Any], tree: Path) -> Iterator[Finding]:
    engine = answer["engine"]
    if not engine["ok"]:
        yield wrong("import", f"the engine does not import: {engine['error']}", engine["hint"])
        return
    # Links resolved on both sides: the root may be reached through one.
    if tree.resolve() not in Path(engine["file"]).resolve().parents:
        yield wrong("import", f"sglang comes from {engine['file']}", "something shadows the release's tree")
        return
    right = engine["version"] == release["version"]
    yield judged(
        "import", right, f"sglang {engine['version']} from {engine['file']}", f"the release is {release['version']}"
    )
    arguments = answer["arguments"]
    detail = f"{arguments['parsed']} words parsed" if arguments["ok"] else arguments["error"]
    yield judged("arguments", arguments["ok"], detail, arguments.get("hint", ""))
