"""Verb doctor: what this host is, who serves on it now, and the whole list of precheck, before anything was pushed."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, Iterator

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import bounded, manifests, processes
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted
from kdeploy_agent.keeping.keeper import of as keeper_of
from kdeploy_agent.looking import precheck
from kdeploy_agent.looking.finding import Finding, doubt, well, wrong
from kdeploy_agent.trees import serving


def doctor(call: Call) -> Dict[str, Any]:
    """Verb: findings as `precheck` has them for the same request, after those about the host; leaves nothing here."""
    return precheck.answer(call, _look(call))


def _look(call: Call) -> Iterator[Finding]:
    release = call.mapping("release")
    yield well("python", f"{platform.python_version()} ({sys.executable})")
    yield _git()
    yield from _rights(call.layout.root)
    yield from _serves(call.layout, release)
    yield from _live(call.layout)
    yield from precheck.look(call, pushed=False)


def _git() -> Finding:
    done = None
    if shutil.which("git"):
        done = bounded.run(["git", "--version"], 10, {"PATH": os.environ.get("PATH", os.defpath)})
    if done is None or done.status != 0:
        return doubt("git", "not installed: every push sends the whole tree", "apt install git")
    return well("git", done.out.strip().rpartition(" ")[2])


def _rights(root: Path) -> Iterator[Finding]:
    systemd, superuser = Path("/run/systemd/system").is_dir(), os.geteuid() == 0
    if systemd and superuser:
        yield well("service", "root under systemd: it will survive a reboot")
    elif systemd:
        hint = f"`sudo: true` in hosts.yaml{_sudo()}; without it nothing starts after a reboot"
        yield doubt("service", f"{_user()} is not root: units are kept by kdeploy itself, below {root}", hint)
    else:
        yield doubt("service", "no systemd here: units are kept by kdeploy itself", "nothing starts after a reboot")


def _sudo() -> str:
    try:
        done = bounded.run(["sudo", "-n", "true"], 10, {"PATH": os.environ.get("PATH", os.defpath)})
    except OSError:
        return " needs sudo, which is not installed"
    return " (it works without a password)" if done is not None and done.status == 0 else " needs NOPASSWD in sudoers"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _serves(layout: Layout, release: Dict[str, Any]) -> Iterator[Finding]:
    """Who answers where clients of this release will come in; ours, and what was adopted, are told by the ports."""
    keeper = keeper_of(layout)
    wanted = serving.ports(release)
    port = wanted.get("public", wanted["private"])
    held = [
        one
        for one in processes.holders(port)
        if not (keeper.owns(one.pid, port) or processes.environ(one.pid).get("KDEPLOY_SERVICE"))
    ]
    if held:
        who = ", ".join(f"{one.command} (process {one.pid})" for one in held)
        yield wrong("serves now", f"port {port}: {who}", "`kdeploy adopt` records it as the way back, then apply")


def _live(layout: Layout) -> Iterator[Finding]:
    """Whether the files of what is live are as they were declared; what else may have drifted `verify` compares."""
    live = layout.live()
    if live is None:
        return
    try:
        release = serving.read_release(layout, live)
        if adopted.is_adopted(release):
            changed, count = adopted.changed_files(layout, release)
        else:
            changed, count, _ = manifests.compare(layout.tree(release["tree"]), release["manifest"])
    except (AgentError, OSError) as fault:
        yield doubt("live tree", getattr(fault, "message", str(fault)), "`kdeploy verify`")
        return
    if changed:
        told = "1 file is" if len(changed) == 1 else f"{len(changed)} files are"
        yield doubt("live tree", f"{told} not as declared: {changed[0]}", "`kdeploy verify` names all that drifted")
    else:
        yield well("live tree", f"{count} files of {live} are as declared")
