"""Putting pieces of answers into messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def parting(got: str, right: str) -> str:
    """Where two texts part, with a little of both."""
    at = shared(got, right)
    start = max(0, at - 12)
    return f"parts at character {at}: {clip(got[start:])}, wanted {clip(right[start:])}"


def shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many elements two sequences both begin with: where they part, if they do."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def clip(text: str, most: int = 60) -> str:
    """The beginning of a text, quoted."""
    return repr(text if len(text) <= most else text[:most] + "…")
