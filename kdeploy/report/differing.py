"""Where two texts differ, for people: pieces of words with the parts that only one of them has marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from kdeploy.verdict.quoting import shared

_PIECE = re.compile(r"\w+|\s+|[^\w\s]")
_MOST = 600
"""Pieces that are compared; comparing takes time that grows with their square, so longer rests count as different."""


@dataclass(frozen=True)
class Run:
    """A stretch of text that both have, or that only this one has."""

    text: str
    differs: bool


@dataclass(frozen=True)
class Difference:
    """Two texts side by side; `at` is the first character that differs, None when they are the same."""

    one: tuple[Run, ...]
    other: tuple[Run, ...]
    at: int | None


def compare(one: str, other: str) -> Difference:
    """Mark in each of two texts what the other has not."""
    if one == other:
        same = (Run(one, False),) if one else ()
        return Difference(same, same, None)
    a, b = _PIECE.findall(one), _PIECE.findall(other)
    head = shared(a, b)
    tail = shared(a[head:][::-1], b[head:][::-1])
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    kept_a, kept_b = _kept(middle_a, middle_b)
    left = [(piece, False) for piece in a[:head]] + kept_a + [(piece, False) for piece in a[len(a) - tail :]]
    right = [(piece, False) for piece in b[:head]] + kept_b + [(piece, False) for piece in b[len(b) - tail :]]
    return Difference(tuple(_runs(left)), tuple(_runs(right)), shared(one, other))


def _kept(one: list[str], other: list[str]) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The pieces between what both begin and end with, each with whether only its own text has it."""
    left, right = [(piece, True) for piece in one], [(piece, True) for piece in other]
    if len(one) > _MOST or len(other) > _MOST:
        return left, right
    for i, j, size in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
        if any(piece.strip() for piece in one[i : i + size]):  # blanks alone are no agreement
            left[i : i + size] = [(piece, False) for piece in one[i : i + size]]
            right[j : j + size] = [(piece, False) for piece in other[j : j + size]]
    return left, right


def _runs(pieces: Sequence[tuple[str, bool]]) -> Iterator[Run]:
    """Neighbours of one kind joined."""
    text, differs = "", False
    for piece, only in pieces:
        if text and only != differs:
            yield Run(text, differs)
            text = ""
        text, differs = text + piece, only
    if text:
        yield Run(text, differs)
