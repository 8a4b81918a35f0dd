"""The agent's door: `session`, or one `VERB`; JSON lines in and out, one place where errors end.

Three more commands are for the agent itself, which starts them detached: `supervise ROOT SERVICE UNIT` keeps a process,
`guard ROOT SERVICE TXN LOCK-FD` runs a transaction and heals the host when that is killed, and
`heal ROOT SERVICE BY LOCK-FD` heals when the guardian was killed as well.
"""

from __future__ import annotations

import errno
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn

from kdeploy_agent import drift, facts, operate, precheck, runner, runtimes, session, store, supervisor
from kdeploy_agent.errors import AgentError
from kdeploy_agent.layout import Layout
from kdeploy_agent.protocol import Call, call_of, read_request, say

VERBS: Dict[str, Callable[[Call], Dict[str, Any]]] = {
    "facts": facts.facts,
    "receive": store.receive,
    "runtime": runtimes.runtime,
    "precheck": precheck.precheck,
    "begin": operate.begin,
    "decide": operate.decide,
    "recover": operate.recover,
    "history": facts.history,
    "logs": operate.logs,
    "evidence": facts.evidence,
    "stop": operate.stop,
    "verify": drift.verify,
}
_HARMLESS = ("facts", "receive", "runtime", "precheck")  # verbs that stop nothing: what ends them ended nothing else


def main() -> NoReturn:
    """Run what the command line names and exit: 0 with a result, 1 with an error."""
    sys.exit(_run(sys.argv[1:]))


def _run(words: List[str]) -> int:
    if len(words) == 4 and words[0] == "supervise":
        return supervisor.supervise(Layout(Path(words[1]), words[2]), words[3])
    if len(words) == 5 and words[0] == "guard":
        return runner.guard(Layout(Path(words[1]), words[2]), words[3], int(words[4]))
    if len(words) == 5 and words[0] == "heal":
        return runner.healer(Layout(Path(words[1]), words[2]), words[3], int(words[4]))
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
