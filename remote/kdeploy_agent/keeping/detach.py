"""Starting this very agent again, detached, so that no connection takes it along when it ends.

That is a session of its own, and under systemd a scope of its own as well: logind may end all that a login has left.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from kdeploy_agent import HOME
from kdeploy_agent.ground import files, systemctl
from kdeploy_agent.keeping import unit_files

_KEPT = ("PATH", "HOME", "USER", "LOGNAME")
_HOOKS = ("KDEPLOY_CRASH_", systemctl.WITHOUT)  # see journal.py


def argv(*arguments: str, keep: Optional[Path] = None) -> List[str]:
    """The command line that runs this agent (the same zip, or the same folder in development).

    With `keep`, a folder, it may be run later too: the zip lies there under its content's name, and is not removed.
    """
    home = HOME
    if home.is_file():
        if keep is not None and home.parent != keep.resolve():
            home = _copy(home, keep)
        return [sys.executable, str(home), *arguments]
    return [sys.executable, "-m", "kdeploy_agent", *arguments]


def environment() -> Dict[str, str]:
    """A small clean environment for the agent's own processes."""
    env = {key: value for key, value in os.environ.items() if key in _KEPT or key.startswith(_HOOKS)}
    env.update(LANG="C.UTF-8", PYTHONUTF8="1")
    if HOME.is_dir():
        env["PYTHONPATH"] = str(HOME)
    return env


def _copy(zipped: Path, folder: Path) -> Path:
    data = zipped.read_bytes()
    copy = folder / f"agent-{hashlib.sha256(data).hexdigest()}.pyz"
    if not copy.exists() or copy.read_bytes() != data:  # emptied by a disk that was full
        files.write(copy, data)
    return copy


def spawn(arguments: Sequence[str], log: Path, env: Dict[str, str], pass_fds: Sequence[int] = ()) -> int:
    """Start the agent with `arguments` (COMMAND ROOT SERVICE ...), writing to `log`; gives its pid at once."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(str(log), "ab", opener=files.private) as out:
        child = subprocess.Popen(
            [*_scope(arguments), *argv(*arguments)],
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


def _scope(arguments: Sequence[str]) -> List[str]:
    if not systemctl.keeps_units():
        return []
    command, _, service = arguments[:3]
    name = f"kdeploy-{service}-{command}-{os.getpid()}-{time.monotonic_ns()}.scope"
    return systemctl.scope(name, unit_files.Names(service).kept)
