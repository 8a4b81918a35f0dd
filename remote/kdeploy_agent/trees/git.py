"""git, in the store of a host: with nothing of the machine's or the user's own configuration."""

from __future__ import annotations

import os
import subprocess
from typing import List

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground.layout import Layout


def git(layout: Layout, *arguments: str, given: str = "", **environ: str) -> str:
    """What git says in the host's store, with `given` on its stdin.

    Raises `integrity` when it fails, `lacking` when what was sent builds on what is not here.
    """
    # The store may belong to another user than root (sudo): git would refuse without safe.directory.
    return run(["git", "-c", "safe.directory=*", "--git-dir", str(layout.store), *arguments], given, **environ)


def run(argv: List[str], given: str = "", **environ: str) -> str:
    """The same for a whole command line."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    clean.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL="/dev/null", LC_ALL="C", **environ)
    done = subprocess.run(argv, env=clean, input=os.fsencode(given), capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-600:]
        verb = next((word for word in argv[1:] if word in _EXPLAINED), "")
        kind = "lacking" if _EXPLAINED.get(verb) else "integrity"
        raise AgentError(kind, f"git {verb} failed: {said}", _EXPLAINED.get(verb, ""))
    return done.stdout.decode("utf-8", "surrogateescape")


_EXPLAINED = {
    "init": "",
    "unbundle": "the bundle is damaged or cut short, or builds on commits that are not here: send it again, whole",
    "cat-file": "the commit was neither in the bundle nor here before: send a whole bundle",
}
