"""What comes nearest to an anchor that is not there: for people, never for an edit."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from kdeploy.patching.anchors import Anchor, Range, ScopeError, indented, leading_space, scope_name, scopes

_LEAST_LIKE = 0.4  # a ratio of difflib below which a candidate would only mislead
_CANDIDATES = 40


@dataclass(frozen=True)
class Near:
    """The text that comes nearest to an anchor: its first line, its lines, how alike (0 to 1), and a diff."""

    line: int
    text: str
    ratio: float
    diff: tuple[str, ...]


def nearest(source: str, anchor: Anchor) -> Near | None:
    """The lines of `source` that are most like `anchor`; None when nothing is like it.

    Looks inside the anchor's scope when there is one. Cheap counts of shared words choose a few windows of as many
    lines; difflib then judges those.
    """
    wanted = [line.strip() for line in anchor.lines]
    lines = [line.rstrip("\r") for line in source.split("\n")]
    size = len(wanted)
    scores = _word_scores(lines, wanted)
    sums = [0.0, *accumulate(scores)]
    allowed = _scope_ranges(source, anchor.within) or [(1, len(lines))]
    starts = [
        start
        for first, last in allowed
        for start in range(first - 1, max(first, last - size + 1))
        if sums[min(start + size, len(lines))] > sums[start]
    ]
    starts.sort(key=lambda start: (-(sums[min(start + size, len(lines))] - sums[start]), start))
    best, best_start = _LEAST_LIKE, -1
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2("\n".join(wanted))
    for start in starts[:_CANDIDATES]:
        text = "\n".join(line.strip() for line in lines[start : start + size])
        matcher.set_seq1(text)
        if not anchor.is_block:  # compare a part of a line with as much of the line, around what they share
            shared = matcher.find_longest_match()
            begin = max(0, shared.a - shared.b)
            matcher.set_seq1(text[begin : begin + len(wanted[0])])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, best_start = matcher.ratio(), start
    if best_start < 0:
        return None
    found = lines[best_start : best_start + size]
    return Near(best_start + 1, "\n".join(found), best, _small_diff(anchor.lines, found, best_start + 1))


def _scope_ranges(source: str, name: str | None) -> list[Range]:
    try:
        return list(scopes(source).get(scope_name(name), ())) if name else []
    except ScopeError:
        return []


def _word_scores(lines: list[str], wanted: list[str]) -> list[float]:
    """For each line the weight of the words it shares with the anchor; a rare word weighs more."""
    words = set(re.findall(r"\w+", "\n".join(wanted))) or set("\n".join(wanted).split())
    if not words:
        return [0.0] * len(lines)
    pattern = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))
    shared = [set(pattern.findall(line)) for line in lines]
    seen = Counter(word for found in shared for word in found)
    return [sum(1 / seen[word] for word in found) for found in shared]


def _small_diff(anchor: Sequence[str], found: Sequence[str], line: int) -> tuple[str, ...]:
    """What differs, in the anchor's own indentation where that is possible."""
    extra = leading_space(found[0]).removesuffix(leading_space(anchor[0]))
    diff = difflib.unified_diff(indented(anchor, extra), found, "anchor", f"line {line}", lineterm="", n=2)
    return tuple(_visible(text) for text in diff)


def _visible(text: str) -> str:
    return text.replace("\r", "\\r").encode("utf-8", "backslashreplace").decode()
