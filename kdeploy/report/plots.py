"""Plots as inline SVG, drawn with the page's own colours: this release filled, known-good a ring around nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kdeploy.report.markup import Markup, element

_WIDTH = 520
_LABELS, _RIGHT = 128, 22  # left and right of what is drawn, pixels of the drawing's own size
_ROW, _AXIS = 26, 30
_HEIGHT, _FOOT = 230, 44


@dataclass(frozen=True)
class Row:
    """One line of a plot: figures of this release and of known-good, each perhaps none."""

    label: str
    here: tuple[float, ...]
    known: tuple[float, ...] = ()


@dataclass(frozen=True)
class Point:
    """One answer: how long it was and how long it took."""

    name: str
    tokens: float
    seconds: float


def rows(title: str, unit: str, lines: Sequence[Row], *, least: float = 0.0, floor: float | None = None) -> Markup:
    """Figures in rows over one axis that starts at `least`; `floor` is what they must not be below."""
    values = [value for line in lines for value in (*line.here, *line.known)] + ([floor] if floor is not None else [])
    ticks = _ticks(least, max(values, default=least))
    top, bottom = 8, 8 + _ROW * len(lines)

    def across(value: float) -> float:
        return _LABELS + (value - least) / (ticks[-1] - least) * (_WIDTH - _LABELS - _RIGHT)

    drawn: list[Markup] = []
    for tick in ticks:
        x = across(tick)
        drawn.append(element("line", class_="grid", x1=x, x2=x, y1=top, y2=bottom))
        drawn.append(_label(_exact(tick, ticks), x, bottom + 16, "middle"))
    if floor is not None:
        x = across(floor)
        drawn.append(element("line", class_="floor", x1=x, x2=x, y1=top - 6, y2=bottom))
    for number, line in enumerate(lines):
        y = top + _ROW * (number + 0.5)
        drawn.append(_label(_clip(line.label), _LABELS - 12, y + 4, "end"))
        for kind, radius, said, found in (("known", 6.5, "known-good", line.known), ("here", 4, "this", line.here)):
            drawn += [
                _dot(kind, across(one), y, radius, f"{line.label}, {said}: {_short(one)} {unit}") for one in found
            ]
    return _figure(f"{title}, {unit}", bottom + _AXIS, drawn, floor=floor)


def scatter(title: str, here: Sequence[Point], known: Sequence[Point]) -> Markup:
    """Every answer by its tokens and the seconds it took."""
    both = [*here, *known]
    wide, high = (_ticks(0, max((getattr(one, what) for one in both), default=0)) for what in ("tokens", "seconds"))
    left, top, bottom = 58, 10, _HEIGHT - _FOOT

    def across(value: float) -> float:
        return left + value / wide[-1] * (_WIDTH - left - _RIGHT)

    def up(value: float) -> float:
        return bottom - value / high[-1] * (bottom - top)

    drawn: list[Markup] = []
    for tick in high:
        drawn.append(element("line", class_="grid", x1=left, x2=_WIDTH - _RIGHT, y1=up(tick), y2=up(tick)))
        drawn.append(_label(f"{_exact(tick, high)} s", left - 8, up(tick) + 4, "end"))
    drawn += [_label(_exact(tick, wide), across(tick), bottom + 18, "middle") for tick in wide]
    drawn.append(_label("tokens of the answer", (left + _WIDTH - _RIGHT) / 2, bottom + 36, "middle"))
    for kind, radius, said, points in (("known", 6, "known-good", known), ("here", 3.5, "this", here)):
        for one in points:
            told = f"{one.name}, {said}: {one.tokens:.0f} tokens in {_short(one.seconds)} s"
            drawn.append(_dot(kind, across(one.tokens), up(one.seconds), radius, told))
    return _figure(title, _HEIGHT, drawn)


def strip(n: int, at: Sequence[int], wrong: Sequence[int]) -> Markup:
    """The tokens of one answer from left to right: which were asked anew, and which were then another."""
    size, width = max(n, 1), 300.0
    cell = width / size
    bad = set(wrong)
    drawn = [element("rect", class_="unasked", x=0, y=4, width=width, height=8)]
    for first, last in _spans([one for one in at if one not in bad and 0 <= one < size]):
        drawn.append(element("rect", class_="asked", x=first * cell, y=4, width=(last - first + 1) * cell, height=8))
    for one in sorted(bad):
        if 0 <= one < size:
            seen = max(cell, 3.0)
            drawn.append(element("rect", class_="wrong", x=min(one * cell, width - seen), y=0, width=seen, height=16))
    return element("svg", drawn, viewBox=f"0 0 {width:.0f} 16", class_="strip", role="img", aria_label="positions")


def _spans(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring places as first and last: a long answer is a few shapes, not thousands."""
    first = last = None
    for place in sorted(set(places)):
        if first is None or last is None or place != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = place
        last = place
    if first is not None and last is not None:
        yield first, last


def _figure(caption: str, height: float, drawn: Sequence[Markup], floor: float | None = None) -> Markup:
    picture = element(
        "svg", drawn, viewBox=f"0 0 {_WIDTH} {height:.0f}", role="img", aria_label=caption,
        style=f"max-width: {_WIDTH + 160}px",
    )  # fmt: skip
    return element(
        "figure",
        element("figcaption", caption, element("span", f"floor {_short(floor)}", class_="floored") if floor else None),
        picture,
    )


def _dot(kind: str, x: float, y: float, radius: float, told: str) -> Markup:
    return element("g", element("title", told), element("circle", cx=x, cy=y, r=radius), class_=kind)


def _label(text: str, x: float, y: float, anchor: str) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _clip(text: str, most: int = 18) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to at least `high`, four to six of them."""
    span = max(high - low, 1e-3)  # of seconds and tokens nothing smaller is worth an axis
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= 5)
    count = max(1, math.ceil(span / step - 1e-9))
    return [low + step * number for number in range(count + 1)]


def _exact(tick: float, ticks: Sequence[float]) -> str:
    """A tick with as many digits as its axis needs."""
    step = ticks[1] - ticks[0]
    digits = next((count for count in range(7) if abs(round(step, count) - step) < step / 1e6), 6)
    return f"{tick:,.{digits}f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
