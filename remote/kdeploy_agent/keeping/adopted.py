"""A release that kdeploy did not make: what a host was found serving, recorded so that there is a way back to it.

Its document says what a person may see. What it is started with (words, environment, folder) lies beside it, for its
owner only, and is covered by the release's id: `process.json`. Who keeps its processes is in `bystander`.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from kdeploy_agent.asking import client
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping.units import MARK, Spec

KIND = "adopted"
PREFIX = "adopted-"

_GRACE_S = 30.0
_ASKED_WITHIN_S = 8.0


def is_adopted(document: Dict[str, Any]) -> bool:
    """Whether a release's document is of this kind."""
    return document.get("kind") == KIND


def identify(document: Dict[str, Any]) -> str:
    """The id that belongs to the document (kdeploy/release.py has the same rule)."""
    keys = ("manifest", "tree", "launch", "adopted")
    identity = json.dumps({key: document[key] for key in keys}, sort_keys=True)
    return PREFIX + hashlib.sha256(identity.encode()).hexdigest()[:12]


def on(layout: Layout) -> Iterator[Dict[str, Any]]:
    """Every adopted release on this host whose document is what its id says."""
    for path in sorted(layout.releases.glob(f"{PREFIX}*/release.json")):
        document = files.read_json(path)
        try:
            if isinstance(document, dict) and is_adopted(document) and identify(document) == path.parent.name:
                yield document
        except KeyError:
            continue


def recorded(layout: Layout, document: Dict[str, Any]) -> Dict[str, Any]:
    """What its process was started with: `argv, env, cwd`; raises `integrity` when that is not what was recorded."""
    path = layout.release(document["id"]) / "process.json"
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if hashlib.sha256(data).hexdigest() != document["adopted"]["process"]:
        raise AgentError(
            "integrity",
            f"how {document['id']} was started is not on this host any more, or was edited: {path}",
            "start that server by hand and adopt it again",
        )
    told: Dict[str, Any] = json.loads(data)
    return told


def spec(layout: Layout, document: Dict[str, Any], scratch: Path) -> Spec:
    """The unit of its server, for hosts where nobody else keeps it; its environment is loaded like a secret."""
    process, about = recorded(layout, document), document["adopted"]
    argv = list(process["argv"])
    if about["uid"] != 0 and os.geteuid() == 0:
        argv = [*_as_user(about), *argv]
    env = {MARK: str(layout.units / "server"), "KDEPLOY_SERVICE": layout.service, "KDEPLOY_RELEASE": document["id"]}
    return Spec(
        name="server",
        release=document["id"],
        argv=tuple(argv),
        env={**env, "SPT_NOENV": "1"},  # see serving.environment
        cwd=process["cwd"],
        scratch=str(scratch),
        ports=(document["launch"]["port"],),
        grace_s=_GRACE_S,
        secrets=(document["id"],),
    )


def url(document: Dict[str, Any]) -> str:
    """Where it answers, as this host sees it."""
    host = document["launch"]["front"]["host"]
    return f"http://{f'[{host}]' if ':' in host else host}:{document['launch']['port']}"


def readiness(base_url: str) -> List[Any]:
    """How a server that is ready can be told: `[path, status]`; empty when it does not speak HTTP."""
    for path in ("/health", "/v1/models", "/"):
        status = client.request(base_url, path, _ASKED_WITHIN_S).status
        if status:
            found = [path, status]
            if status == 200:
                return found
    return found if status else []


def ails(document: Dict[str, Any]) -> str:
    """Why it does not serve as it did when it was adopted; empty when it does."""
    ready = document["adopted"]["ready"]
    if not ready:
        return ""
    reply = client.request(url(document), ready[0], _ASKED_WITHIN_S)
    if reply.status == ready[1]:
        return ""
    return f"{ready[0]} at {url(document)}: {reply.error or reply.status}, it said {ready[1]} when it was adopted"


def listing(package: Path) -> bytes:
    """sha256 and path of every file of a package but bytecode, in the form of `sha256sum`."""
    lines = []
    for path in sorted(package.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
            lines.append(f"{digest.hexdigest()}  {path.relative_to(package).as_posix()}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def changed_files(layout: Layout, document: Dict[str, Any]) -> Tuple[List[str], int]:
    """Files of the package it imports that are not as they were, `PATH: how`, and how many were compared."""
    about = document["adopted"]
    kept = layout.release(document["id"]) / "package.sha256"
    try:
        data = kept.read_bytes()
    except OSError:
        data = b""
    if hashlib.sha256(data).hexdigest() != document["manifest"]:
        return [f"{kept.name}: the list of its files is gone, or was edited"], 0
    if not about["package"] or about["keeper"] == "docker":
        return [], 0
    before, now = (_parsed(one) for one in (data, listing(Path(about["package"]))))
    names = sorted({*before, *now})
    wrong = [name for name in names if before.get(name) != now.get(name)]
    how = {True: "differs", False: "missing"}
    return [f"{name}: {how[name in now] if name in before else 'was not there'}" for name in wrong], len(names)


def _parsed(data: bytes) -> Dict[str, str]:
    lines = data.decode("utf-8", "surrogateescape").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _as_user(about: Dict[str, Any]) -> List[str]:
    return ["/usr/bin/setpriv", f"--reuid={about['uid']}", f"--regid={about['gid']}", "--init-groups"]
