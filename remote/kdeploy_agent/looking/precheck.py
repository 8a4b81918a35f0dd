"""The last look before anything is stopped: would this release start on this host? Stops nothing, serves nothing.

Here is the list; the rooms that know how to look are `machine` and `gpus`, `engine` with `inside`, `abi` and `cuda`,
`models`, and `system`. Each may take its time but none for ever.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import Any, Dict, Iterator, List

from kdeploy_agent.change.switch import Switch
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import gpus, processes
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call
from kdeploy_agent.keeping import adopted
from kdeploy_agent.keeping.keeper import of as keeper_of
from kdeploy_agent.keeping.units import NAMES
from kdeploy_agent.looking import engine, machine, models, system
from kdeploy_agent.looking.finding import Finding, doubt, refusal, well, wrong
from kdeploy_agent.trees import serving, store

_HERE_ALONE = "only programs on the host itself reach it"


def precheck(call: Call) -> Dict[str, Any]:
    """Verb: findings about `release` on this host; stops nothing, starts nothing that serves.

    `machine` is what the profile says the host must be, `archs` by patch set what it was made for, `now` the operator's
    clock, `remote` that clients are elsewhere. `strict` makes what is wrong an error of kind `preflight`, so that what
    was sent ahead behind it is not done.
    """
    return answer(call, look(call))


def answer(call: Call, found: Iterator[Finding]) -> Dict[str, Any]:
    """What the request gets: all `findings`, or an error when it is strict and one of them is not ok."""
    findings = _told(call, found)
    if call.request.get("strict") and not all(finding["ok"] for finding in findings):
        raise refusal(findings, keeper_of(call.layout).status("server").alive)
    return {"findings": findings}


def _told(call: Call, found: Iterator[Finding]) -> List[Finding]:
    """All findings, each an event as soon as it is there."""
    findings = []
    for finding in found:
        call.emit("finding", **finding)
        findings.append(finding)
    return findings


def look(call: Call, pushed: bool = True) -> Iterator[Finding]:
    """The whole list. With `pushed` the tree must be here; else what needs it is left for when it is."""
    layout, release = call.layout, call.mapping("release")
    if adopted.is_adopted(release):
        yield from _adopted(layout, release)
        return
    mine: List[gpus.Gpu] = []
    yield from _gpus(call, release, mine)
    yield from _tree(layout, release, pushed)
    yield from engine.look(layout, release, mine, pushed)
    yield from models.look(release)
    yield from _address(release, call.request.get("remote") is True)
    yield from _units(layout, release)
    yield from ports(layout, release)
    yield from system.disk(layout.home)
    yield from system.shared_memory(machine.together(release))
    yield from system.limits(machine.together(release))
    if "now" in call.request:
        yield from system.clock(call.number("now"))


def _adopted(layout: Layout, release: Dict[str, Any]) -> Iterator[Finding]:
    """Of what kdeploy did not make it only knows how it was started, and that its port can be had."""
    try:
        adopted.recorded(layout, release)
        yield well("adopted", f"{release['id']} can be started as it was found")
    except AgentError as fault:
        yield wrong("adopted", fault.message, fault.hint)
    yield from ports(layout, release)


def _tree(layout: Layout, release: Dict[str, Any], pushed: bool) -> Iterator[Finding]:
    tree = layout.tree(release["tree"])
    if tree.is_dir():
        return
    known = serving.find_release(layout, release["id"])  # which commit a tree is made from, only its own release says
    if pushed and known and known["tree"] == tree.name and known["commit"] in store.commits(layout):
        try:
            store.ensure(layout, known, lambda _: None)  # its folder is gone, what it is made from is not
            return
        except AgentError as fault:
            yield wrong("tree", fault.message, fault.hint)
            return
    detail = f"tree {tree.name} is not on this host"
    if pushed:
        yield wrong("tree", detail, "send it first (verb receive)")
    else:
        yield doubt("tree", f"{detail}: import, arguments and Python ABI are unchecked", "`kdeploy apply` sends it")


def _gpus(call: Call, release: Dict[str, Any], mine: List[gpus.Gpu]) -> Iterator[Finding]:
    """Findings about the GPUs, and into `mine` those that the release's server will see."""
    declared = call.mapping("machine")
    if not declared and not machine.needs_gpus(release):
        return
    try:
        found, running = gpus.query(), gpus.apps()
    except AgentError as fault:
        yield wrong("gpus", fault.message, fault.hint)
        return
    if not found and not declared:
        fix = "install the driver; `device: cpu` in serve.args says that none is needed"
        seen = "nvidia-smi shows no GPU" if gpus.tool() else "there is no nvidia-smi"
        yield doubt("gpus", f"{seen}: GPUs are not looked at", fix)
        return
    if declared:
        yield from machine.as_declared(declared, found)
    mine += machine.usable(release, found)
    yield from machine.fits_sets(call.mapping("archs"), mine)
    yield from machine.health(mine)
    yield from machine.whole(mine, all_of_it=bool(declared) or machine.together(release) > 1)
    yield from machine.fabric(mine, bool(declared.get("nvlink")))
    units = keeper_of(call.layout)
    ours = {pid for name in NAMES for pid in units.members(name)}
    yield from machine.strangers(mine, running, ours, whole_machine=bool(declared))
    yield from system.kernel_log()


def _units(layout: Layout, release: Dict[str, Any]) -> Iterator[Finding]:
    """Whether the server's unit can be had: another service's may have its name, or somebody has masked it."""
    try:
        keeper_of(layout).check(serving.server(layout, release))
    except AgentError as fault:
        yield wrong("units", fault.message, fault.hint)


def ports(layout: Layout, release: Dict[str, Any]) -> Iterator[Finding]:
    """Who holds each port of the release: nobody, or our own units, which will give theirs up."""
    switch = Switch(layout, keeper_of(layout), print)
    for what, port in serving.ports(release).items():
        try:
            switch.check_port(what, port)
            held = processes.holders(port)
            yield well(f"{what} port", f"{port} is {'ours' if held else 'free'}")
        except AgentError as fault:
            yield wrong(f"{what} port", fault.message, fault.hint)


def _address(release: Dict[str, Any], remote: bool) -> Iterator[Finding]:
    """Whether this host has the address at which clients are to come in; those of a `remote` host are elsewhere."""
    front = release["launch"]["front"]
    if front["kind"] == "none":
        if remote:
            yield doubt("public address", f"front 'none': {_HERE_ALONE}", "`front: router` and `host: 0.0.0.0`")
        return
    host = front.get("host") or serving.LOOPBACK
    try:
        family, kind, number, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as tried:
            tried.bind(place)
    except OSError as fault:
        detail = f"this host cannot listen at {host}: {fault.strerror or fault}"
        yield wrong("public address", detail, "correct 'host' of the profile: an address of this host")
        return
    if remote and ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback:
        fix = "set `serve.host: 0.0.0.0`, or an address of the host"
        yield doubt("public address", f"{host}: {_HERE_ALONE}", fix)
    else:
        yield well("public address", host)
    if front["kind"] == "socket" and not (Path("/run/systemd/system").is_dir() and os.geteuid() == 0):
        yield wrong(
            "front", "a front of kind 'socket' is systemd's, and we are not root under systemd here", "'router'"
        )
