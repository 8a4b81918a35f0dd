"""Secrets of a service: values that a server is started with, and that appear nowhere else.

Each is a file of its own, for its owner only, read at the moment a process becomes the server. What leaves the host or
is kept as evidence goes through `mask`. While a change is under way the values from before it lie beside the new ones,
so that the way back starts what served before with what it had. What was replaced or forgotten is masked on: a server's
log holds it in clear as well, for the same owner only, and is shown long afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import os
import re
import urllib.parse
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files
from kdeploy_agent.ground.layout import Layout

HIDDEN = "***"
RECORDED = "adopted-"  # what a release's id begins with that stands for a recorded environment

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEFORE = ".before"  # a folder: the values as they were before the last change; names of secrets have no dot
_EARLIER = ".earlier"  # a folder: NAME.DIGEST, the last values of each name that are no secrets any more
_EARLIER_KEPT = 10  # of each name
_CHANGED_BY = ".changed-by"  # the transaction that put the present values there and may have to take them back
_SALT = ".salt"
_LOOKS_SECRET = {"TOKEN", "KEY", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"}
_LONGEST = 1 << 16  # characters of a secret, however it is written
_LEAST = 4  # characters: a shorter line of a secret would turn every log into asterisks


def replace(layout: Layout, txn: str, values: Dict[str, Any]) -> None:
    """Keep `values` (name to text) for the releases that ask for them; what was there before can be had back.

    Raises `usage` for what cannot be passed to a program. The caller holds the service's lock.
    """
    for name, value in values.items():
        if not _NAME.fullmatch(name) or not isinstance(value, str) or not value or "\0" in value:
            raise AgentError("usage", f"the secret {name!r} is empty, or is no text that a program can be given")
    folder = layout.secrets
    present = _values(folder)
    if all(present.get(name) == value for name, value in values.items()):
        return
    files.make_private(folder)
    if _read(folder / _SALT) is None:
        files.write(folder / _SALT, os.urandom(16).hex().encode("ascii"))
    files.wipe(folder / _CHANGED_BY)  # from here to its being written anew nothing is taken back: nothing changed yet
    files.wipe(folder / _BEFORE)
    files.make_private(folder / _BEFORE)
    for name, value in present.items():
        files.write(folder / _BEFORE / name, value.encode("utf-8"))
    _remember(layout, {name: value for name, value in present.items() if values.get(name, value) != value})
    files.write(folder / _CHANGED_BY, txn.encode("utf-8"))
    for name, value in values.items():
        files.write(folder / name, value.encode("utf-8"))


def take_back(layout: Layout, txn: str) -> None:
    """Put back the values that were here before the transaction changed them; nothing when it changed none."""
    folder = layout.secrets
    changed_by = folder / _CHANGED_BY
    if _read(changed_by) != txn:
        return
    before = _values(folder / _BEFORE)
    rejected = {name: value for name, value in _values(folder).items() if before.get(name) != value}
    with contextlib.suppress(OSError):  # to be masked on; on a full disk going back counts more
        _remember(layout, rejected)
    for name, value in before.items():
        files.write(folder / name, value.encode("utf-8"))
    for name in rejected:
        if name not in before:
            (folder / name).unlink()
    changed_by.unlink()


def _remember(layout: Layout, values: Dict[str, str]) -> None:
    """Keep values that are about to go, to be masked; of each name the last ones."""
    folder = layout.secrets / _EARLIER
    for name, value in values.items():
        files.make_private(folder)
        files.write(folder / f"{name}.{hashlib.sha256(value.encode('utf-8')).hexdigest()[:16]}", value.encode("utf-8"))
        oldest_first = sorted(folder.glob(f"{name}.*"), key=lambda path: path.stat().st_mtime_ns)
        for path in oldest_first[:-_EARLIER_KEPT]:
            path.unlink()


def load(layout: Layout, names: Iterable[str]) -> Dict[str, str]:
    """The values of `names`, for the environment of a process that is about to become the server.

    The id of an adopted release among them stands for the environment it was found with.
    Raises `preflight` naming those that are not on this host.
    """
    names = list(names)
    present, found = _values(layout.secrets), {}
    for release in [name for name in names if name.startswith(RECORDED)]:
        names.remove(release)
        found.update(_recorded(layout, release))
    missing = [name for name in names if name not in present]
    if missing:
        raise AgentError(
            "preflight",
            f"this host has no value of the secret {', '.join(missing)}",
            "apply a profile that declares it under serve.secrets: its value is sent and kept with that",
        )
    return {**found, **{name: present[name] for name in names}}


def _recorded(layout: Layout, release: str) -> Dict[str, str]:
    """All of the environment of an adopted server: its release's id stands for it."""
    kept = files.read_json(layout.release(release) / "process.json")
    return {str(key): str(value) for key, value in kept["env"].items()} if isinstance(kept, dict) else {}


def _looking_secret(environment: Dict[str, str]) -> Dict[str, str]:
    return {name: value for name, value in environment.items() if _LOOKS_SECRET & set(name.upper().split("_"))}


def names_of(release: Dict[str, Any]) -> Tuple[str, ...]:
    """The names of the secrets that a release's server is started with."""
    return tuple(release["launch"].get("secrets") or ())


def digests(layout: Layout) -> Dict[str, Any]:
    """`salt` of this host and `values`, name to HMAC-SHA256 of the value with it: whether a value changed, no more."""
    salt = _read(layout.secrets / _SALT)
    if salt is None:
        return {"salt": "", "values": {}}
    values = {
        name: hmac.new(salt.encode("utf-8"), value.encode("utf-8"), hashlib.sha256).hexdigest()
        for name, value in _values(layout.secrets).items()
    }
    return {"salt": salt, "values": values}


def forget(layout: Layout, needed: Iterable[str]) -> List[str]:
    """Remove every value that no release needs any more; gives the names."""
    present = _values(layout.secrets)
    gone = sorted(set(present) - set(needed))
    _remember(layout, {name: present[name] for name in gone})
    for name in gone:
        (layout.secrets / name).unlink()
    return gone


def forget_recorded(layout: Layout, release: str) -> None:
    """The same for what was recorded with an adopted release, whose folder is about to go."""
    _remember(layout, _looking_secret(_recorded(layout, release)))


_hidden: List[Layout] = []  # the services this process speaks for


def hide(layout: Layout) -> None:
    """From now on what this process says and keeps hides the secrets of this service."""
    if layout not in _hidden:
        _hidden.append(layout)


def hidden(document: Any) -> Any:
    """A JSON document masked for every service this process speaks for."""
    for layout in _hidden:
        document = mask_all(layout, document)
    return document


def cut(text: str, most: int) -> str:
    """The first `most` characters of a text; masked before, since half a secret would not be known as one."""
    if len(text) <= most:
        return text
    return str(hidden(text[: most + _LONGEST]))[:most]


def mask(layout: Layout, text: str) -> str:
    """`text` without any value kept here, in whatever way a program is likely to have written it down."""
    found = _pattern(layout)
    return found.sub(HIDDEN, text) if found is not None else text


def mask_all(layout: Layout, document: Any) -> Any:
    """A JSON document with every text in it masked, keys included."""
    found = _pattern(layout)
    return _masked(found, document) if found is not None else document


def _masked(found: "re.Pattern[str]", value: Any) -> Any:
    if isinstance(value, str):
        return found.sub(HIDDEN, value)
    if isinstance(value, dict):
        return {_masked(found, key): _masked(found, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(found, item) for item in value]
    return value


def _pattern(layout: Layout) -> "Optional[re.Pattern[str]]":
    try:
        changed = tuple(folder.stat().st_mtime_ns for folder in _folders(layout) if folder.is_dir())
    except OSError:
        changed = ()
    return _compile(layout, changed) if changed else None


@functools.lru_cache(maxsize=4)
def _compile(layout: Layout, _changed: Tuple[int, ...]) -> "Optional[re.Pattern[str]]":
    # A file is replaced by renaming, which the folder's time tells: the pattern lasts as long as that.
    values = {*_values(layout.secrets).values(), *_values(layout.secrets / _BEFORE).values()}
    values.update(value for value in map(_read, (layout.secrets / _EARLIER).glob("*.*")) if value)
    for path in layout.releases.glob(f"{RECORDED}*/process.json"):
        values.update(_looking_secret(_recorded(layout, path.parent.name)).values())
    forms = {form for value in values for form in _forms(value)}
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if forms else None


def _forms(value: str) -> Iterable[str]:
    """A value, each of its lines, and how JSON, Python and a URL write them."""
    for text in (value, *value.splitlines()):
        text = text.strip()
        if len(text) >= _LEAST:
            yield from (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
            yield from (urllib.parse.quote(text), urllib.parse.quote(text, safe=""))


def _folders(layout: Layout) -> Tuple[Path, ...]:
    kept = (layout.secrets, layout.secrets / _BEFORE, layout.secrets / _EARLIER)
    return *kept, layout.releases, *layout.releases.glob(f"{RECORDED}*")


def _values(folder: Path) -> Dict[str, str]:
    try:
        names = sorted(os.listdir(str(folder)))  # noqa: PTH208 - names are all we need
    except OSError:
        return {}
    found = {name: _read(folder / name) for name in names if _NAME.fullmatch(name)}
    return {name: value for name, value in found.items() if value}


def _read(path: Path) -> Optional[str]:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, ValueError):
        return None
