"""The page of one release on one host: verdict, figures, answers side by side, log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdeploy import __version__
from kdeploy.report import pairs
from kdeploy.report.figures import figures, table
from kdeploy.report.glance import Glance, glance
from kdeploy.report.markup import Markup, element
from kdeploy.verdict.expectation import Check, Outcome, Verdict

_OUTCOMES = {Outcome.PASSED: "✓ passed", Outcome.FAILED: "✗ failed", Outcome.NOT_APPLICABLE: "· not applicable"}
_GUARD = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is loaded and nothing runs, even if some text came through as markup."""


@dataclass(frozen=True)
class About:
    """Whose page it is."""

    service: str
    host: str
    release: str
    asked_for: str
    """What it was judged for: apply, rollback, gate."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """More to say about it, by what it is: version, patches, clients."""


@dataclass(frozen=True)
class Kept:
    """What it is compared with: a release that was confirmed there, and the transcript that its host has kept of it."""

    release: str
    transcript: Mapping[str, Any]


def page(
    about: About,
    transcript: Mapping[str, Any],
    verdict: Verdict,
    known: Kept | None = None,
    declared: Mapping[str, str] | None = None,
    floor: float | None = None,
) -> str:
    """The whole page as HTML; what a transcript lacks is left out.

    `declared` are texts that prompts must be answered with, by name, for those that `known` was not asked; `floor`
    is the least accept length.
    """
    seen, before = glance(transcript), glance(known.transcript) if known else None
    title = f"{about.service} {about.release}: {'accepted' if verdict.accepted else 'rejected'}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_GUARD),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(Path(__file__).with_name("page.css").read_text(encoding="utf-8"))),
    )
    body = element(
        "body",
        _head(about, seen, verdict),
        element("h2", "Checks"),
        _checks(verdict),
        _drawn(seen, before, known, floor),
        _lossless(seen),
        _answers(seen, before, known, declared or {}),
        _log(seen),
        _server(seen),
        element(
            "footer", f"Made by kdeploy {__version__} from the transcript that stays with the release on its host."
        ),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _head(about: About, seen: Glance, verdict: Verdict) -> Markup:
    said = element("strong", "Accepted" if verdict.accepted else "Rejected")
    why = None if verdict.accepted else f": {', '.join(check.name for check in verdict.failed) or 'nothing passed'}"
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seen.started)) if seen.started else "unknown"
    failed = len(verdict.failed)
    told = {
        "release": about.release,
        "host": about.host,
        **about.facts,
        "checks": f"{len(verdict.checks)}, {failed or 'none'} failed",
        "answers": f"{len(seen.answers)}, {seen.tokens:,} tokens",
        "asked": f"{at}, {seen.seconds:.1f} s",
    }
    if (first := seen.first.get("answered_s")) is not None:
        told["first answer"] = f"{first:.1f} s after launch"
    return element(
        "header",
        element("h1", f"{about.service} on {about.host}"),
        element(
            "p", said, why, element("span", " · kdeploy ", about.asked_for, class_="soft"), class_=_manner(verdict)
        ),
        element(
            "dl",
            (element("div", element("dt", name), element("dd", value)) for name, value in told.items()),
            class_="figures",
        ),
    )


def _manner(verdict: Verdict) -> str:
    return "verdict" if verdict.accepted else "verdict no"


def _checks(verdict: Verdict) -> Markup:
    head = element("tr", (element("th", text) for text in ("check", "outcome", "what was seen")))
    return element("div", element("table", head, map(_check, verdict.checks)), class_="card wide")


def _check(check: Check) -> Markup:
    evidence = element("ul", (element("li", line) for line in check.evidence)) if check.evidence else None
    return element(
        "tr",
        element("td", check.name, class_="name"),
        element("td", _OUTCOMES[check.outcome], class_="outcome"),
        element("td", check.detail, evidence),
        class_=check.outcome.value.replace(" ", "-"),
    )


def _drawn(seen: Glance, before: Glance | None, known: Kept | None, floor: float | None) -> Iterator[Markup]:
    drawn = list(figures(seen, before, floor))
    if not drawn:
        return
    yield element("h2", "Acceptance, speed, latency")
    legend: list[Markup | str] = [element("i", class_="here"), "this release"]
    if known is not None:
        legend += [element("i", class_="known"), f"known-good {known.release}"]
    yield element("p", legend, class_="legend")
    yield element("div", drawn, class_="plots")


def _lossless(seen: Glance) -> Iterator[Markup]:
    shown = table(seen)
    if shown is not None or seen.lossless_how:
        yield element("h2", "Losslessness ", element("small", f"by {seen.lossless_how}"))
        yield shown if shown is not None else element("p", "no answer was asked anew", class_="soft")


def _answers(seen: Glance, before: Glance | None, known: Kept | None, declared: Mapping[str, str]) -> Iterator[Markup]:
    first = pairs.with_known(seen, before, declared)
    if first:
        beside = f"beside known-good {known.release}" if known else "no known-good to compare with"
        yield element("h2", "Answers ", element("small", f"{_count(first)}; {beside}"))
        yield pairs.show(first)
    rest = pairs.with_alone(seen)
    if rest:
        said = "in company, streamed, bounded, repeated; beside the answer alone"
        yield element("h2", "The same questions again ", element("small", f"{_count(rest)}; {said}"))
        yield pairs.show(rest)


def _count(shown: tuple[pairs.Pair, ...]) -> str:
    apart = sum(pair.apart for pair in shown)
    return f"{len(shown)}, {apart or 'none'} to look at"


def _log(seen: Glance) -> Iterator[Markup]:
    if not seen.tail and not seen.matches:
        return
    yield element("h2", "Log ", element("small", f"{seen.log_lines:,} lines, {len(seen.matches) or 'none'} suspicious"))
    if seen.matches:
        yield element("pre", (element("mark", f"{number:>6}  {text}\n") for number, text in seen.matches), class_="log")
        yield element("p", "its last lines:", class_="soft")
    yield element("pre", "\n".join(seen.tail), class_="log")


def _server(seen: Glance) -> Iterator[Markup]:
    if seen.facts:
        yield element("h2", "What the server says of itself")
        rows = (element("tr", element("td", name, class_="name"), element("td", value)) for name, value in seen.facts)
        yield element("div", element("table", rows), class_="card wide")
    if seen.processes:
        yield element("h2", "Its processes")
        head = element("tr", (element("th", text) for text in ("process", "name", "code first on its path")))
        rows = (element("tr", (element("td", text) for text in one)) for one in seen.processes)
        yield element("div", element("table", head, rows), class_="card wide")
