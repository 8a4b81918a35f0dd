"""Asks a server on this host what the operator's plan says, and writes down what came back. Judges nothing.

Deadlines are values of time.monotonic(). No request outlives its deadline or `request-s` of the plan; a hang is
written down as such. `note` is called with one line of text when there is something to tell.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List


class NotReady(Exception):
    """The server does not answer (in time, at all, or not with what it must)."""


def wait_ready(base_url: str, alive: Callable[[], bool], deadline: float, note: Callable[[str], None]) -> float:
    """Wait until the server answers a real completion; returns the seconds it took.

    Raises NotReady at once when `alive()` is False, and at the deadline.
    """
    raise NotImplementedError


def run(base_url: str, probes: Dict[str, Any], deadline: float, note: Callable[[str], None]) -> Dict[str, Any]:
    """Run the plan `probes`; returns the transcript's half that comes from asking (kdeploy/verdict/transcript.py)."""
    raise NotImplementedError


def brief(base_url: str, expected: List[Dict[str, Any]], deadline: float) -> None:
    """Ask the few prompts of the plan's `brief`; raises NotReady when one is not answered, or not with its `answer`."""
    raise NotImplementedError


def scan_log(path: str, signatures: List[str]) -> Dict[str, Any]:
    """Look through a server log for `signatures` (regular expressions); returns `bytes, lines, matches, tail`."""
    raise NotImplementedError
