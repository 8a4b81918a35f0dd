"""Notes on long work: what every verb takes to tell people where it is."""

from __future__ import annotations

from typing import Protocol


class Note(Protocol):
    """Takes one line of text. A `passing` one (a line of pip's) may be shown for a moment only, or left out."""

    def __call__(self, text: str, /, *, passing: bool = False) -> None:
        """Tell `text`."""
        ...
