"""Values that must never be told: a type that does not show them, and a last look at every word that goes out."""

from __future__ import annotations

import hashlib
import hmac
import json
import urllib.parse
from collections.abc import Iterator, Mapping

HIDDEN = "***"

_known: set[str] = set()
"""Every form of every value that this process has read."""


class Secrets:
    """Values by name. Whatever prints, compares or serializes it sees the names alone."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})
        for value in self._values.values():
            _known.update(_forms(value))

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.names)})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("secrets are not written anywhere")

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted."""
        return tuple(sorted(self._values))

    def reveal(self) -> dict[str, str]:
        """The values themselves, for the one request that carries them."""
        return dict(self._values)

    def changed(self, kept: Digests) -> tuple[str, ...]:
        """Names whose value is another on a host, or is not there."""
        return tuple(name for name in self.names if not kept.tells(name, self._values[name]))


class Digests:
    """What a host says of the values it keeps: enough to see that one changed, not shown to anybody either."""

    def __init__(self, salt: str = "", values: Mapping[str, str] | None = None) -> None:
        self._salt = salt
        self._values = dict(values or {})

    def __repr__(self) -> str:
        return f"Digests({', '.join(sorted(self._values))})"

    def tells(self, name: str, value: str) -> bool:
        """Whether the host keeps exactly this value under the name."""
        made = hmac.new(self._salt.encode(), value.encode(), hashlib.sha256).hexdigest()
        return hmac.compare_digest(made, self._values.get(name, ""))


def conceal(text: str) -> str:
    """`text` without any value that this process has read, however a program may have written it down."""
    for form in sorted(_known, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


def _forms(value: str) -> Iterator[str]:
    for text in (value, *value.splitlines()):
        text = text.strip()
        if len(text) >= 4:  # the last line of a key may be short: hiding it would hide half of every message
            yield from (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
            yield from (urllib.parse.quote(text), urllib.parse.quote(text, safe=""))
