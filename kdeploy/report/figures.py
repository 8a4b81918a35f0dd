"""What a page draws: acceptance, speed and latency of this release beside known-good's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kdeploy.report import plots
from kdeploy.report.glance import Glance, Said
from kdeploy.report.markup import Markup, element
from kdeploy.report.pairs import FIRST
from kdeploy.report.plots import Point, Row
from kdeploy.verdict.figures import LONG_ENOUGH


def figures(seen: Glance, known: Glance | None, floor: float | None) -> Iterator[Markup]:
    """Every plot there are figures for; `floor` is the profile's least accept length."""
    acceptance = _rows(_acceptance(seen), _acceptance(known) if known else {})
    if acceptance:
        yield plots.rows("Accept length", "tokens a step", acceptance, least=1.0, floor=floor)
    speed = _rows(_speed(seen), _speed(known) if known else {})
    if speed:
        yield plots.rows("Speed", "tokens a second, all together", speed)
    first = _rows(_first(seen), _first(known) if known else {})
    if first:
        yield plots.rows("Time to the first token", "seconds", first)
    here = _points(seen)
    if here:
        yield plots.scatter("Every first answer: its tokens and its seconds", here, _points(known) if known else ())


def table(seen: Glance) -> Markup | None:
    """How often the answers were asked anew and which tokens were then others; None when none was."""
    if not seen.lossless:
        return None
    head = element(
        "tr", (element("th", text) for text in ("answer", "tokens", "asked anew", "differ", "largest margin", "where"))
    )
    body = (
        element(
            "tr",
            element("td", one.name, class_="name"),
            element("td", one.n),
            element("td", len(one.at)),
            element("td", one.error if one.error else len(one.wrong), class_="apart" if one.wrong else "same"),
            element("td", None if one.margin is None else f"{one.margin:.3g} nats"),
            element("td", plots.strip(one.n, one.at, one.wrong)),
        )
        for one in seen.lossless
    )
    return element("div", element("table", head, body), class_="card wide")


def _rows(here: dict[str, list[float]], known: dict[str, list[float]]) -> list[Row]:
    labels = dict.fromkeys((*here, *known))
    return [Row(label, tuple(here.get(label, ())), tuple(known.get(label, ()))) for label in labels]


def _acceptance(seen: Glance) -> dict[str, list[float]]:
    """Accept length by kind of prompt, then by how many were asked at once; each of all its answers together."""
    firsts = [one for one in seen.answers if one.section in FIRST]
    company = [one for one in seen.answers if one.company > 1]
    kinds = _mean_by((one.kind or "?", one) for one in firsts)
    return kinds | _mean_by((f"{one.company} at once", one) for one in sorted(company, key=lambda one: one.company))


def _mean_by(pairs: Iterable[tuple[str, Said]]) -> dict[str, list[float]]:
    tokens: dict[str, tuple[int, int]] = {}
    for label, one in pairs:
        if one.steps is not None and one.n >= LONG_ENOUGH:
            n, steps = tokens.get(label, (0, 0))
            tokens[label] = (n + one.n, steps + one.steps)
    return {label: [n / steps] for label, (n, steps) in tokens.items()}


def _speed(seen: Glance) -> dict[str, list[float]]:
    told: dict[str, list[float]] = {}
    for one in seen.pace:
        if one.speed:
            told.setdefault(f"{one.at_once} at once", []).append(one.speed)
    return told


def _first(seen: Glance) -> dict[str, list[float]]:
    told = {"streamed": [one.first_s for one in seen.answers if one.first_s is not None]}
    for one in seen.pace:
        told.setdefault(f"{one.at_once} at once", []).extend(one.first_s)
    return {label: values for label, values in told.items() if values}


def _points(seen: Glance) -> list[Point]:
    return [Point(one.name, one.n, one.seconds) for one in seen.answers if one.section in FIRST and one.error is None]
