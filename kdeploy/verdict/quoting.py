"""Putting pieces of answers into messages."""

from __future__ import annotations


def parting(got: str, right: str) -> str:
    """Where two texts part, with a little of both."""
    at = next((i for i, (a, b) in enumerate(zip(got, right, strict=False)) if a != b), min(len(got), len(right)))
    start = max(0, at - 12)
    return f"parts at character {at}: {clip(got[start:])}, wanted {clip(right[start:])}"


def clip(text: str, most: int = 60) -> str:
    """The beginning of a text, quoted."""
    return repr(text if len(text) <= most else text[:most] + "…")
