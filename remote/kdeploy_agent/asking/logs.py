"""A server's log, searched and shown without what looks secret in it."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Deque, Iterable, Iterator, List, Tuple

from kdeploy_agent.asking.client import Json
from kdeploy_agent.ground import secrets

SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password|credentials?)$")
SECRET_IN_LOG = re.compile(r"(\b\w*(?:key|token|secret|password)\w*=)('[^']*'|\"[^\"]*\")")
MATCHES, TAIL, LINE = 50, 60, 500  # of a log: matching lines, last lines, characters a line


def mask(line: str) -> str:
    """A line of a log without values that look secret: SGLang logs all its arguments when it starts."""
    return SECRET_IN_LOG.sub(r"\1(withheld)", line)


def scan_log(log: Iterable[bytes], signatures: List[str]) -> Json:
    """Look through a server's log for `signatures` (regular expressions); returns `bytes, lines, matches, tail`.

    The first matching lines are kept, and the last lines of all; secrets, and values that look so, are left out.
    """
    wanted = re.compile("|".join("(?:%s)" % one for one in signatures)) if signatures else None
    matches: List[Json] = []
    tail: Deque[str] = deque(maxlen=TAIL)
    size = number = 0
    for raw in log:
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        size, number = size + len(raw), number + 1
        text = mask(text)
        if wanted is not None and len(matches) < MATCHES and wanted.search(text):
            matches.append({"line": number, "text": secrets.cut(text, LINE)})
        tail.append(text)
    return {"bytes": size, "lines": number, "matches": matches, "tail": [secrets.cut(text, LINE) for text in tail]}


def lines(parts: List[Tuple[str, int]]) -> Iterator[bytes]:
    """The lines of files one after the other, each from a byte on; no file has no lines, an endless line is cut.

    A log goes on from one release to the next, and its older part may have been moved away meanwhile.
    """
    for path, start in parts:
        if Path(path).exists():
            with Path(path).open("rb") as stream:
                stream.seek(start)
                yield from iter(lambda: stream.readline(1 << 20), b"")
