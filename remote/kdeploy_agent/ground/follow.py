"""Following a growing file line by line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable, Iterator


class Follow:
    """Whole lines of a file as they appear, from `start` on; survives that the file is cut or not there yet."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._at = start
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        """Lines that were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                if self._path.stat().st_size < self._at:
                    self._at, self._rest = 0, b""
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        yield from whole


def follow_log(path: Path, start: int, emit: Callable[[str], None], wanted: Callable[[], bool]) -> None:
    """Give every line of a log after byte `start` to `emit` for as long as `wanted()`."""
    follow = Follow(path, start)
    while wanted():
        for line in follow.lines():
            emit(line.decode("utf-8", "replace"))
        time.sleep(0.25)
