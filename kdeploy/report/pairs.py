"""Prompts and answers side by side with what they should be like, disagreements marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kdeploy.report.differing import Difference, compare
from kdeploy.report.glance import Glance, Said
from kdeploy.report.markup import Markup, element

_OPEN = 12
"""Disagreements that are unfolded at once; the rest is folded, or one would scroll for ever."""

FIRST = ("alone", "chat", "long", "json")
"""Sections whose answers are compared with known-good's; all others are compared with the same question alone."""


@dataclass(frozen=True)
class Pair:
    """An answer, and another one to the same question: known-good's, what was declared, or the one alone."""

    said: Said
    other: str | None
    whose: str
    difference: Difference | None

    @property
    def apart(self) -> bool:
        """Whether somebody should look: it differs, or there is no answer."""
        return self.said.error is not None or (self.difference is not None and self.difference.at is not None)


def with_known(seen: Glance, known: Glance | None, declared: Mapping[str, str]) -> tuple[Pair, ...]:
    """The first answers beside known-good's; beside the `declared` text (by name) of a prompt that known-good lacks."""
    return tuple(_known(said, known, declared) for said in seen.answers if said.section in FIRST)


def with_alone(seen: Glance) -> tuple[Pair, ...]:
    """Answers in company, streamed, repeated and after all else, beside the same question asked alone."""
    others = (said for said in seen.answers if said.section not in FIRST)
    return tuple(_pair(said, seen.alone(said), "alone") for said in others)


def _known(said: Said, known: Glance | None, declared: Mapping[str, str]) -> Pair:
    before = known.named(said) if known else None
    if before is None and said.name in declared and said.section != "json":
        return _against(said, declared[said.name], "declared")
    return _pair(said, before, "known-good")


def _pair(said: Said, other: Said | None, whose: str) -> Pair:
    return _against(said, None if other is None or other.error is not None else other.text, whose)


def _against(said: Said, text: str | None, whose: str) -> Pair:
    """An answer beside a text; of one that is cut on purpose (a stop string, fewer tokens) only as far as it goes."""
    if text is None or said.error is not None:
        return Pair(said, text, whose, None)
    cut = said.section == "bounds" and text.startswith(said.text)
    return Pair(said, text, whose, compare(said.text, said.text if cut else text))


def show(pairs: Iterable[Pair]) -> Markup:
    """Pairs as one block each, those that differ first and unfolded."""
    ordered = sorted(pairs, key=lambda pair: not pair.apart)
    return element("div", (_block(pair, number < _OPEN) for number, pair in enumerate(ordered)), class_="card")


def _block(pair: Pair, unfold: bool) -> Markup:
    said = pair.said
    head = element(
        "summary",
        element("b", said.name or "(no name)"),
        element("span", " · ".join(_about(said)), class_="soft"),
        element("span", _state(pair), class_=f"state {_manner(pair)}".rstrip()),
    )
    question = element("p", said.question, class_="question", dir="auto")
    sides = element("div", _sides(pair), class_="sides")
    return element("details", head, question, sides, class_="pair", open=pair.apart and unfold)


def _about(said: Said) -> Iterator[str]:
    yield said.section
    if said.kind:
        yield said.kind
    yield f"{said.n} tokens in {said.seconds:.2f} s"
    if said.accept_length is not None:
        yield f"{said.accept_length:.2f} a step"
    if said.finish and said.finish != "stop":
        yield f"ended by {said.finish}"


def _state(pair: Pair) -> str:
    if pair.said.error is not None:
        return pair.said.error[:120]
    if pair.difference is None:
        return f"nothing {pair.whose} to compare with" if pair.whose != "known-good" else "not asked of known-good"
    if pair.difference.at is None:
        return f"as {pair.whose}"
    return f"parts from {pair.whose} at character {pair.difference.at}"


def _manner(pair: Pair) -> str:
    return "apart" if pair.apart else "same" if pair.difference is not None else "soft"


def _sides(pair: Pair) -> Iterator[Markup]:
    difference = pair.difference
    marked = difference.one if difference else None
    yield _side("this", [(run.text, run.differs) for run in marked] if marked else [(pair.said.text, False)], "here")
    if pair.other is not None and (difference is None or difference.at is not None):
        runs = difference.other if difference else None
        parts = [(run.text, run.differs) for run in runs] if runs else [(pair.other, False)]
        yield _side(pair.whose, parts, "known")


def _side(title: str, parts: list[tuple[str, bool]], kind: str) -> Markup:
    texts = [element("mark", text) if differs else text for text, differs in parts if text]
    body = element("div", texts or "nothing", class_="answer" if texts else "answer empty", dir="auto")
    return element("div", element("p", title), body, class_=f"side {kind}")
