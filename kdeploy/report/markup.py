"""HTML and SVG by construction: what is not markup is text, and text is always escaped.

A page shows what a server said, which nobody has to trust: `Markup` is made by `element` alone, every other value is
escaped on its way in, and what would be invisible or turn the writing around is shown by its code.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

from kdeploy.secrecy import conceal

_EMPTY = frozenset(("meta", "line", "rect", "circle"))
"""Elements without children; those of SVG must be closed even so, and HTML's may."""

_DOUBTFUL = re.compile(r"[^\t\n -~]")
_JOINERS = "\u200c\u200d"
"""Unprintable, and part of how Persian, Hindi and emoji are written."""


class Markup(str):
    """A piece of a page that needs no escaping any more."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | int | float | Iterable[Child] | None"


def element(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element with its children; None is no child, and an iterable stands for what is in it.

    Attributes are named as in Python (`class_`, `stroke_width`); True is a bare one, False and None leave it out.
    """
    opened = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        shown = name.rstrip("_").replace("_", "-")
        opened.append(shown if value is True else f'{shown}="{html.escape(visible(_plain(value)))}"')
    head = " ".join(opened)
    return Markup(f"<{head}/>" if tag in _EMPTY else f"<{head}>{join(children)}</{tag}>")


def join(children: Child) -> Markup:
    """Children one after the other; text among them is escaped."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int | float):
        return Markup(html.escape(visible(_plain(children)), quote=False))
    return Markup("".join(map(join, children)))


def visible(text: str) -> str:
    """`text` without secrets, and with what cannot be seen as its code: `\\x1b`, `\\u202e`; tab and newline stay."""
    return _DOUBTFUL.sub(_seen, conceal(text))


def _seen(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() or char in _JOINERS else _code(char)


def _code(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _plain(value: str | int | float) -> str:
    """Numbers as a page needs them: no more than three digits behind the point, and none that say nothing."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
