"""Whether a host's key is the one we know, by the rules of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.

Pure, but for reading the files. Certificates are not looked at: `@cert-authority` lines match no plain key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class Entry:
    """One line: which hosts it speaks of, and their key."""

    path: str
    line: int
    marker: str
    names: tuple[str, ...]
    kind: str
    key: str

    def matches(self, name: str) -> bool:
        """Whether it speaks of `name`: `host`, or `[host]:port` for a port that is not 22."""
        found = False
        for pattern in self.names:
            negated = pattern.startswith("!")
            if _fits(pattern.removeprefix("!"), name):
                if negated:
                    return False
                found = True
        return found


@dataclass(frozen=True)
class Finding:
    """What the files say of a key, and the line that says so."""

    verdict: Verdict
    entry: Entry | None = None


def read(paths: Sequence[str]) -> tuple[Entry, ...]:
    """The entries of all files that are there, in order; lines that are none are passed over, as ssh does."""
    return tuple(entry for path in paths for entry in _entries(path))


def judge(entries: Sequence[Entry], names: Sequence[str], kind: str, key: str) -> Finding:
    """What is to be thought of `key` (base64, of type `kind`), offered by a host of these names.

    The first name that any entry speaks of decides; of the rest a right key is taken, as ssh does for a host that is
    known without its port.
    """
    for entry in entries:
        if entry.marker == "@revoked" and entry.key == key:
            return Finding("revoked", entry)
    for index, name in enumerate(names):
        about = [entry for entry in entries if not entry.marker and entry.matches(name)]
        for entry in about:
            if entry.key == key:
                return Finding("known", entry)
        if about and index == 0:
            same_kind = [entry for entry in about if entry.kind == kind]
            return Finding("changed", (same_kind or about)[0])
    return Finding("unknown")


def kinds(entries: Sequence[Entry], names: Sequence[str]) -> tuple[str, ...]:
    """The types of key we know of a host: to be asked for first, lest it offers one that we do not know."""
    found = (entry.kind for entry in entries if not entry.marker and any(entry.matches(name) for name in names))
    return tuple(dict.fromkeys(found))


def names_of(host: str, port: int, alias: str | None) -> tuple[str, ...]:
    """The names a host may be known by, the decisive one first; an alias stands for host and port."""
    if alias:
        return (alias,)
    return (host,) if port == 22 else (f"[{host}]:{port}", host)


def fingerprint(key: str) -> str:
    """The SHA256 fingerprint of a key (base64), as ssh shows it."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _entries(path: str) -> Iterator[Entry]:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) >= 3:
            yield Entry(path, number, marker, tuple(words[0].split(",")), words[1], words[2])


def _fits(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
        except ValueError:
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), "sha1").digest(), digest)
    expression = "".join(".*" if sign == "*" else "." if sign == "?" else re.escape(sign) for sign in pattern.lower())
    return re.fullmatch(expression, name.lower()) is not None
