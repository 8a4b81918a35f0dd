"""Starting this very agent again, detached: in its own session, so that no connection takes it along when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Sequence

from kdeploy_agent import files

_KEPT = ("PATH", "HOME", "USER", "LOGNAME")
_HOOKS = "KDEPLOY_CRASH_"  # see journal.py


def argv(*arguments: str) -> List[str]:
    """The command line that runs this agent (the same zip, or the same folder in development)."""
    home = Path(__file__).resolve().parent.parent
    if home.is_file():
        return [sys.executable, str(home), *arguments]
    return [sys.executable, "-m", "kdeploy_agent", *arguments]


def environment() -> Dict[str, str]:
    """A small clean environment for the agent's own processes."""
    env = {key: value for key, value in os.environ.items() if key in _KEPT or key.startswith(_HOOKS)}
    env.update(LANG="C.UTF-8", PYTHONUTF8="1")
    home = Path(__file__).resolve().parent.parent
    if home.is_dir():
        env["PYTHONPATH"] = str(home)
    return env


def spawn(arguments: Sequence[str], log: Path, env: Dict[str, str], pass_fds: Sequence[int] = ()) -> int:
    """Start the agent with `arguments` in its own session, writing to `log`; gives its pid and does not wait."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(str(log), "ab", opener=files.private) as out:
        child = subprocess.Popen(
            argv(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env=env,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    child.returncode = 0  # it outlives us on purpose: Popen need not warn or wait
    return child.pid
