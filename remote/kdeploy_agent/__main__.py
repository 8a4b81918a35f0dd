"""The agent's door: `session`, or one `VERB`; JSON lines in and out, one place where errors end.

More commands are for the agent itself, which starts them detached: `supervise ROOT SERVICE UNIT` keeps a process,
`guard ROOT SERVICE TXN LOCK-FD` runs a transaction and heals the host when that is killed, and
`heal ROOT SERVICE BY LOCK-FD` heals when the guardian was killed as well. Three are for systemd's units:
`exec ROOT SERVICE UNIT` becomes its process, `boot ROOT SERVICE` serves again after a reboot, `deafen` shuts a port.
`compile` keeps the agent's bytecode, when it was pushed.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call, call_of, read_request, say


def _late(room: str, name: str) -> Callable[..., Any]:
    """The function `name` of a room that is entered only when it is called: each process needs few of them."""

    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f"kdeploy_agent.{room}"), name)(*arguments)

    return call


VERBS: Dict[str, Callable[[Call], Dict[str, Any]]] = {
    "facts": _late("looking.facts", "facts"),
    "receive": _late("trees.store", "receive"),
    "runtime": _late("trees.runtimes", "runtime"),
    "precheck": _late("looking.precheck", "precheck"),
    "doctor": _late("looking.doctor", "doctor"),
    "prove": _late("proofs.proving", "prove"),
    "begin": _late("change.operate", "begin"),
    "probe": _late("change.probing", "probe_live"),
    "decide": _late("change.operate", "decide"),
    "recover": _late("change.operate", "recover"),
    "history": _late("looking.facts", "history"),
    "logs": _late("change.operate", "logs"),
    "evidence": _late("looking.facts", "evidence"),
    "stop": _late("change.operate", "stop"),
    "survive": _late("change.operate", "survive"),
    "verify": _late("looking.drift", "verify"),
    "adopt": _late("adoption.adopt", "adopt"),
    "unlock": _late("change.unlocking", "unlock"),
}
_HARMLESS = ("facts", "receive", "runtime", "precheck", "doctor", "prove")  # what ends one of them ended nothing else

_SUPERVISE, _GUARD = _late("trees.starting", "supervise"), _late("change.runner", "guard")
_HEAL, _EXEC = _late("change.runner", "healer"), _late("trees.starting", "execute")
_BOOT, _DEAFEN = _late("change.boot", "boot"), _late("keeping.draining", "deafen")
_COMPILE = _late("compiled", "make")

_OWN: Dict[Tuple[str, int], Callable[..., int]] = {  # by name and number of arguments
    ("supervise", 3): lambda root, service, unit: _SUPERVISE(Layout(Path(root), service), unit),
    ("guard", 4): lambda root, service, txn, handle: _GUARD(Layout(Path(root), service), txn, int(handle)),
    ("heal", 4): lambda root, service, by, handle: _HEAL(Layout(Path(root), service), by, int(handle)),
    ("exec", 3): lambda root, service, unit: _EXEC(Layout(Path(root), service), unit),
    ("boot", 2): lambda root, service: _BOOT(Layout(Path(root), service)),
    ("deafen", 0): lambda: _DEAFEN(),
    ("compile", 0): lambda: _COMPILE(),
}


def main() -> NoReturn:
    """Run what the command line names and exit: 0 with a result, 1 with an error."""
    gc.set_threshold(20_000, 20, 20)  # what is imported stays: looking for dead objects among it takes its time
    atexit.register(gc.freeze)
    sys.exit(_run(sys.argv[1:]))


def _run(words: List[str]) -> int:
    own = _OWN.get((words[0], len(words) - 1)) if words else None
    if own is not None:
        return own(*words[1:])
    try:
        if words == ["session"]:
            from kdeploy_agent import session

            return session.serve(VERBS, _explain)
        if len(words) != 1 or words[0] not in VERBS:
            raise AgentError("usage", f"unknown verb {' '.join(words)!r}", f"verbs: {', '.join(sorted(VERBS))}")
        call = call_of(read_request(sys.stdin.buffer.readline()), sys.stdin.buffer)
        say({"result": VERBS[words[0]](call)})
        return 0
    except BrokenPipeError:  # the operator hung up; what was begun goes on without
        sys.stderr.close()
        return 1
    except Exception as fault:
        say({"error": _explain(fault, words[0] if words else "")})
        return 1


def _explain(fault: Exception, verb: str) -> Dict[str, Any]:
    if isinstance(fault, AgentError):
        told: Dict[str, Any] = {"kind": fault.kind, "message": fault.message, "hint": fault.hint}
        return {**told, "details": list(fault.details)} if fault.details else told
    if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = "preflight" if verb in _HARMLESS else "fault"
        return {"kind": kind, "message": f"the disk is full: {fault}", "hint": "make room and try again"}
    if isinstance(fault, OSError) and fault.errno == errno.EROFS:
        kind = "preflight" if verb in (*_HARMLESS, "begin", "stop") else "fault"  # they write before they stop anything
        hint = "mount it for writing (see dmesg for why it is not), or set another root"
        return {"kind": kind, "message": f"the disk cannot be written: {fault}", "hint": hint}
    if isinstance(fault, PermissionError):
        return {"kind": "preflight", "message": str(fault), "hint": "run as the owner of the root, or set another root"}
    import traceback

    where = "".join(traceback.format_exception(type(fault), fault, fault.__traceback__))
    return {"kind": "fault", "message": f"{type(fault).__name__}: {fault}", "hint": where}


if __name__ == "__main__":
    main()
