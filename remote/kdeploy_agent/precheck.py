"""The last look before anything is stopped: would this release start on this host?"""

from __future__ import annotations

import json
import pkgutil
import socket
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List

from kdeploy_agent import files, processes, runtimes, serving
from kdeploy_agent.errors import AgentError
from kdeploy_agent.finding import Finding, judged, refusal
from kdeploy_agent.layout import Layout
from kdeploy_agent.protocol import Call
from kdeploy_agent.switch import Switch
from kdeploy_agent.units import Units

_INSIDE_WITHIN_S = 300.0
_FREE_BYTES = 2 * 1024**3  # what caches and logs of a first start come to
_MODEL_FLAGS = {
    "model": ("--model-path", "--model"),
    "draft model": ("--speculative-draft-model-path", "--speculative-draft-model"),
}


def precheck(call: Call) -> Dict[str, Any]:
    """Verb: findings about `release` on this host; stops nothing, starts nothing that serves.

    `strict` makes what is wrong an error of kind `preflight`, so that what was sent ahead behind it is not done.
    """
    release = call.mapping("release")
    findings: List[Finding] = []
    for finding in _look(call.layout, release):
        call.emit("finding", **finding)
        findings.append(finding)
    if call.request.get("strict") and not all(finding["ok"] for finding in findings):
        raise refusal(findings)
    return {"findings": findings}


def _look(layout: Layout, release: Dict[str, Any]) -> Iterator[Finding]:
    tree = layout.tree(release["tree"])
    if tree.is_dir():
        yield from _inside_once(layout, release, tree)
    else:
        yield _finding("tree", False, f"tree {tree.name} is not on this host", "send it first (verb receive)")
    for what, flags in _MODEL_FLAGS.items():
        path = serving.argument(release["launch"]["args"], *flags)
        if path is not None:
            yield check_model(what, path)
    yield from _address(release)
    yield from _ports(layout, release)
    space = files.free_space(layout.home)
    free = space.f_bavail * space.f_frsize
    yield _finding("disk", free >= _FREE_BYTES, f"{free / 1024**3:.1f} GB free", f"{_FREE_BYTES >> 30} GB are needed")


def check_model(what: str, path: str) -> Finding:
    """Whether a model's folder is whole: its config, and every shard its index names."""
    folder = Path(path).expanduser()
    if not folder.is_absolute():
        return _finding(what, True, f"{path} is a name, not a path: the server will look for it on the hub itself")
    if not folder.is_dir():
        return _finding(what, False, f"{folder} does not exist", "put the model there, or correct the profile")
    if files.read_json(folder / "config.json") is None:
        return _finding(what, False, f"{folder} has no readable config.json", "copy the model again")
    index = files.read_json(folder / "model.safetensors.index.json")
    if index is not None:
        shards = sorted(set(index["weight_map"].values()))
        missing = [name for name in shards if not _filled(folder / name)]
        if missing:
            detail = f"{len(missing)} of {len(shards)} shards are missing: {', '.join(missing[:3])}"
            return _finding(what, False, detail, "a server with a missing shard boots and babbles: copy them")
        return _finding(what, True, f"{folder}: all {len(shards)} shards")
    weights = [one for kind in ("safetensors", "bin", "gguf", "pt") for one in folder.glob(f"*.{kind}") if _filled(one)]
    if not weights:
        return _finding(what, False, f"{folder} has no weights", "copy the model again")
    return _finding(what, True, f"{folder}: {len(weights)} file{'s' if len(weights) > 1 else ''} of weights")


def _inside_once(layout: Layout, release: Dict[str, Any], tree: Path) -> Iterator[Finding]:
    """The findings of `_inside`, remembered when all is well: the import takes 4 s.

    A release's id covers its tree and its arguments, and PREPARED compares the tree's files again; what is installed
    in a runtime that we made is compared here. A virtual environment of somebody else's is always asked.
    """
    known = layout.cache(release["tree"]) / "precheck" / f"{serving.release_id(release)}.json"
    python = serving.python_of(layout, release)
    ours = "key" in release["launch"]["runtime"] and python.exists()
    installed = runtimes.fingerprint(python.parent.parent) if ours else ""
    memo = (files.read_json(known) if ours else None) or {}
    if isinstance(memo, dict) and memo.get("runtime") == installed and memo.get("findings"):
        yield from memo["findings"]
        return
    findings: List[Finding] = []
    for finding in _inside(layout, release, tree):
        findings.append(finding)
        yield finding
    if ours and all(finding["ok"] for finding in findings):
        files.write(known, files.canonical({"runtime": installed, "findings": findings}))


def _inside(layout: Layout, release: Dict[str, Any], tree: Path) -> Iterator[Finding]:
    python = serving.python_of(layout, release)
    source = (pkgutil.get_data("kdeploy_agent", "inside.py") or b"").decode("utf-8")
    serving.make_room(layout, release)
    scratch = serving.scratch(layout, "precheck")
    scratch.mkdir(parents=True, exist_ok=True)
    asked = json.dumps({"args": release["launch"]["args"]})
    try:
        done = subprocess.run(
            [str(python), "-c", source, asked],
            env=serving.environment(layout, release, "precheck"),
            cwd=str(layout.empty),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_INSIDE_WITHIN_S,
            check=False,
        )
    except OSError as fault:
        yield _finding("runtime", False, f"{python} does not run: {fault.strerror}", "make the runtime (verb runtime)")
        return
    except subprocess.TimeoutExpired:
        yield _finding(
            "runtime", False, f"importing the engine took more than {_INSIDE_WITHIN_S:.0f} s", "is the disk slow?"
        )
        return
    finally:
        files.wipe(scratch)
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    told = [line for line in lines if line.startswith("kdeploy-inside ")]
    if not told:
        said = done.stderr.decode("utf-8", "replace").strip()[-800:]
        yield _finding("runtime", False, f"{python} ended with {done.returncode}: {said}", "make the runtime anew")
        return
    yield _finding("runtime", True, f"{python} runs")
    answer = json.loads(told[-1].partition(" ")[2])
    yield from _judge(answer, release, tree)


def _judge(answer: Dict[str, Any], release: Dict[str, Any], tree: Path) -> Iterator[Finding]:
    engine = answer["engine"]
    if not engine["ok"]:
        yield _finding("import", False, f"the engine does not import: {engine['error']}", engine["hint"])
        return
    # Links resolved on both sides: the root may be reached through one.
    if tree.resolve() not in Path(engine["file"]).resolve().parents:
        yield _finding("import", False, f"sglang comes from {engine['file']}", "something shadows the release's tree")
        return
    right = engine["version"] == release["version"]
    yield _finding(
        "import", right, f"sglang {engine['version']} from {engine['file']}", f"the release is {release['version']}"
    )
    arguments = answer["arguments"]
    detail = f"{arguments['parsed']} words parsed" if arguments["ok"] else arguments["error"]
    yield _finding("arguments", arguments["ok"], detail, arguments.get("hint", ""))


def _ports(layout: Layout, release: Dict[str, Any]) -> Iterator[Finding]:
    switch = Switch(layout, Units(layout), print)
    for what, port in serving.ports(release).items():
        try:
            switch.check_port(what, port)
            held = processes.holders(port)
            yield _finding(f"{what} port", True, f"{port} is {'ours' if held else 'free'}")
        except AgentError as fault:
            yield _finding(f"{what} port", False, fault.message, fault.hint)


def _address(release: Dict[str, Any]) -> Iterator[Finding]:
    """Whether this host has the address at which clients are to come in."""
    front = release["launch"]["front"]
    if front["kind"] == "none":
        return
    host = front.get("host") or serving.LOOPBACK
    try:
        family, kind, number, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as tried:
            tried.bind(place)
    except OSError as fault:
        detail = f"this host cannot listen at {host}: {fault.strerror or fault}"
        yield _finding("public address", False, detail, "correct 'host' of the profile: an address of this host")
    else:
        yield _finding("public address", True, host)


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _finding(check: str, ok: bool, detail: str, hint: str = "") -> Finding:
    return judged(check, ok, detail, hint)
