"""One difference between what was declared and what is, in words that may be shown."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from kdeploy_agent.asking import logs
from kdeploy_agent.ground import secrets


class Drift(NamedTuple):
    """One thing that is not as declared."""

    what: str
    expected: str
    found: str
    fix: str


def told(value: Optional[str], hidden: bool) -> str:
    """A variable's value; what is `hidden` is only said to be there."""
    if value is None:
        return "not set"
    return "(withheld)" if hidden else shown(value)


def shown(value: Any) -> str:
    """Anything, in a few words of one line."""
    if isinstance(value, bool):
        return "there" if value else "gone"
    text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    text = logs.mask(text)
    return text if len(text) <= 300 else f"{secrets.cut(text, 300)}…"
