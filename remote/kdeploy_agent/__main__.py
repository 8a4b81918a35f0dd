"""The agent's door: `session`, or one `VERB`; JSON lines in and out, one place where errors end.

More commands are for the agent itself, which starts them detached: `supervise ROOT SERVICE UNIT` keeps a process,
`guard ROOT SERVICE TXN LOCK-FD` runs a transaction and heals the host when that is killed, and
`heal ROOT SERVICE BY LOCK-FD` heals when the guardian was killed as well. Three are for systemd's units:
`exec ROOT SERVICE UNIT` becomes its process, `boot ROOT SERVICE` serves again after a reboot, `deafen` shuts a port.
"""

from __future__ import annotations

import errno
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from kdeploy_agent import session
from kdeploy_agent.adoption import adopt
from kdeploy_agent.change import boot, operate, runner, unlocking
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.protocol import Call, call_of, read_request, say
from kdeploy_agent.keeping import becoming, draining, supervisor
from kdeploy_agent.looking import doctor, drift, facts, precheck
from kdeploy_agent.proofs import proving
from kdeploy_agent.trees import runtimes, store

VERBS: Dict[str, Callable[[Call], Dict[str, Any]]] = {
    "facts": facts.facts,
    "receive": store.receive,
    "runtime": runtimes.runtime,
    "precheck": precheck.precheck,
    "doctor": doctor.doctor,
    "prove": proving.prove,
    "begin": operate.begin,
    "decide": operate.decide,
    "recover": operate.recover,
    "history": facts.history,
    "logs": operate.logs,
    "evidence": facts.evidence,
    "stop": operate.stop,
    "verify": drift.verify,
    "adopt": adopt.adopt,
    "unlock": unlocking.unlock,
}
_HARMLESS = ("facts", "receive", "runtime", "precheck", "doctor", "prove")  # what ends one of them ended nothing else

_OWN: Dict[Tuple[str, int], Callable[..., int]] = {  # by name and number of arguments
    ("supervise", 3): lambda root, service, unit: supervisor.supervise(Layout(Path(root), service), unit),
    ("guard", 4): lambda root, service, txn, handle: runner.guard(Layout(Path(root), service), txn, int(handle)),
    ("heal", 4): lambda root, service, by, handle: runner.healer(Layout(Path(root), service), by, int(handle)),
    ("exec", 3): lambda root, service, unit: becoming.execute(Layout(Path(root), service), unit),
    ("boot", 2): lambda root, service: boot.boot(Layout(Path(root), service)),
    ("deafen", 0): draining.deafen,
}


def main() -> NoReturn:
    """Run what the command line names and exit: 0 with a result, 1 with an error."""
    sys.exit(_run(sys.argv[1:]))


def _run(words: List[str]) -> int:
    own = _OWN.get((words[0], len(words) - 1)) if words else None
    if own is not None:
        return own(*words[1:])
    try:
        if words == ["session"]:
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
    if isinstance(fault, PermissionError):
        return {"kind": "preflight", "message": str(fault), "hint": "run as the owner of the root, or set another root"}
    where = "".join(traceback.format_exception(type(fault), fault, fault.__traceback__))
    return {"kind": "fault", "message": f"{type(fault).__name__}: {fault}", "hint": where}


if __name__ == "__main__":
    main()
