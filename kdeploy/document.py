"""YAML read strictly into frozen models, with the place of every value.

Every error names file, line and column, and for an unknown key the nearest right one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from kdeploy import strict_yaml
from kdeploy.errors import KdeployError, Location
from kdeploy.strict_yaml import Loc as Loc  # part of what a Document is


class Model(pydantic.BaseModel):
    """A part of a document: unknown keys are errors, nothing is coerced, nothing changes afterwards."""

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )


M = TypeVar("M", bound=pydantic.BaseModel)


@dataclass(frozen=True)
class Document:
    """A YAML file: its plain values, and where each of them stands."""

    path: str
    values: Any
    marks: Mapping[Loc, Location] = field(repr=False)

    def where(self, loc: Loc = ()) -> Location:
        """The place of the value at `loc`; of its nearest parent when the value itself is not there."""
        while loc and loc not in self.marks:
            loc = loc[:-1]
        return self.marks.get(loc, Location(self.path, 1))


def is_file(path: Path) -> bool:
    """Whether a file is at `path`; one that no file system could have (a name too long) is not there."""
    try:
        return path.is_file()
    except OSError:
        return False


def read(path: Path, error: type[KdeployError]) -> Document:
    """Read one YAML document from `path`.

    Raises `error` with file:line:column when the file is missing, is not UTF-8, is not YAML, or repeats a key.
    """
    try:
        if path.exists() and not path.is_dir() and not path.is_file():
            raise error(f"{path} is not a regular file")  # to read a pipe or a device may never end
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as fault:
        raise error(f"{path} does not exist", hint=_nearest_file(path)) from fault
    except IsADirectoryError as fault:
        raise error(f"{path} is a folder, not a file") from fault
    except UnicodeDecodeError as fault:
        raise error(f"{path} is not UTF-8 text (byte {fault.start})") from fault
    except OSError as fault:
        raise error(f"{path} cannot be read: {fault.strerror}") from fault
    return parse(text, str(path), error)


def parse(text: str, path: str, error: type[KdeployError]) -> Document:
    """Parse the `text` of one YAML document (see `strict_yaml`); `path` is only named in errors."""
    values, marks = strict_yaml.values(text, path, error)
    return Document(path, values, marks)


def load(path: Path, model: type[M], error: type[KdeployError]) -> tuple[M, Document]:
    """Read `path` and check it against `model`; raises `error` at the first value that does not fit."""
    document = read(path, error)
    return check(document, model, error), document


def check(document: Document, model: type[M], error: type[KdeployError]) -> M:
    """Check a document's values against `model`.

    Raises `error` naming the place, what was expected, and for an unknown key the nearest right one.
    """
    if not isinstance(document.values, dict):
        found = "nothing" if document.values is None else type(document.values).__name__
        raise error(f"expected a mapping of keys, found {found}", where=document.where())
    try:
        return model.model_validate(document.values, by_alias=True, by_name=False)
    except pydantic.ValidationError as fault:
        items = _of_likeliest_members(document, fault.errors(include_url=False))
        faults = _sorted([_explain(document, model, item) for item in items])
        first, others = faults[0], faults[1:]
        details = tuple(f"{item.where}: {item.message}" for item in others)
        raise error(first.message, where=first.where, hint=first.hint, details=details) from fault


@dataclass(frozen=True)
class _Fault:
    """One error for people; `loc` is the value's place, `key` the key that is missing or unknown there."""

    where: Location
    loc: Loc
    message: str
    hint: str | None = None
    kind: str = ""
    key: str | None = None
    instead: str | None = None


def _of_likeliest_members(document: Document, items: Sequence[Any]) -> list[Any]:
    """Of every union only the errors of the member that was meant: its kind is right, and it was understood furthest.

    Pydantic gives the errors of all members, and puts the name of the member into loc, where the document has no key.
    """
    members: dict[Loc, dict[Loc, list[Any]]] = {}
    for item in items:
        loc = item["loc"][:-1] if item["type"] == "missing" else item["loc"]
        at = next((at for at, part in enumerate(loc) if not _known(document, loc[:at], part)), len(loc))
        members.setdefault(loc[:at], {}).setdefault(loc[at : at + 1], []).append(item)

    def unlike(errors: list[Any], size: int) -> tuple[bool, int, int]:
        elsewhere = any(len(item["loc"]) == size + 1 and item["type"] != "missing" for item in errors)
        wrong_kind = sum(item["type"] in ("literal_error", "enum") for item in errors)
        return elsewhere, wrong_kind, len(errors)

    kept = []
    for prefix, found in members.items():
        best = min(unlike(errors, len(prefix)) for member, errors in found.items())
        kept += [
            item
            for member, errors in found.items()
            if not member or unlike(errors, len(prefix)) == best
            for item in errors
        ]
    return kept


def _sorted(faults: list[_Fault]) -> list[_Fault]:
    """The errors by place, each one once; a misspelt key is not also missing."""
    meant = {(fault.loc[:-1], fault.instead) for fault in faults if fault.instead}
    faults = [fault for fault in faults if fault.kind != "missing" or (fault.loc, fault.key) not in meant]
    kept = {(fault.where, fault.message): fault for fault in faults}
    return sorted(kept.values(), key=lambda fault: fault.where)


def _explain(document: Document, model: type[pydantic.BaseModel], item: Any) -> _Fault:
    # Unions put the name of the member into loc; what the document knows are its own keys.
    loc = tuple(part for index, part in enumerate(item["loc"]) if _known(document, item["loc"][:index], part))
    kind, key = item["type"], str(item["loc"][-1]) if item["loc"] else ""
    where = document.where(loc)
    if kind == "missing":
        name = ".".join(map(str, (*loc, key)))
        return _Fault(where, loc, f"'{name}' is required", kind=kind, key=key)
    name = ".".join(map(str, loc))
    if kind == "extra_forbidden":
        right = _keys(model, loc[:-1])
        near = difflib.get_close_matches(key, right, n=1, cutoff=0.5)
        advice = f"did you mean '{near[0]}'?" if near else f"known keys here: {', '.join(right)}"
        return _Fault(where, loc, f"unknown key '{name}'", advice, kind, key, near[0] if near else None)
    if kind == "value_error":
        reason = str(item["ctx"]["error"])
        return _Fault(where, loc, f"'{name}': {reason}" if name else reason, kind=kind)
    given = item["input"]
    shown = "" if isinstance(given, dict | list) else f", not {given!r}"
    message = f"'{name}': {item['msg'][0].lower()}{item['msg'][1:]}{shown}"
    hint = None
    if kind == "string_type" and isinstance(given, bool | int | float):
        hint = "put it in quotes"
    elif kind in ("literal_error", "enum") and isinstance(given, str):
        near = difflib.get_close_matches(given, re.findall(r"'([^']*)'", item["ctx"]["expected"]), n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else None
    return _Fault(where, loc, message, hint, kind)


def _known(document: Document, parents: Loc, part: str | int) -> bool:
    values = document.values
    for step in parents:
        if _holds(values, step):
            values = values[step]
    return _holds(values, part)


def _holds(values: Any, key: str | int) -> bool:
    if isinstance(values, dict):
        return key in values
    return isinstance(values, list) and isinstance(key, int) and key < len(values)


def _keys(model: type[pydantic.BaseModel], loc: Loc) -> list[str]:
    """Keys the model allows at `loc`, found in its JSON schema (the one source of the shape)."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})
    spots = [schema]
    for part in loc:
        spots = [deeper for spot in spots for deeper in _descend(spot, part, definitions)]
    found = {key for spot in spots for flat in _flatten(spot, definitions) for key in flat.get("properties", {})}
    return sorted(found)


def _flatten(spot: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in spot:
        return _flatten(definitions[spot["$ref"].rsplit("/", 1)[-1]], definitions)
    if "properties" in spot:  # its oneOf says which of them go together
        return [spot]
    several = [*spot.get("anyOf", ()), *spot.get("oneOf", ())]
    return [flat for one in several for flat in _flatten(one, definitions)] or [spot]


def _descend(spot: dict[str, Any], part: str | int, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    deeper = []
    for flat in _flatten(spot, definitions):
        if isinstance(part, int) and "items" in flat:
            deeper.append(flat["items"])
        elif part in flat.get("properties", {}):
            deeper.append(flat["properties"][part])
        elif isinstance(flat.get("additionalProperties"), dict):
            deeper.append(flat["additionalProperties"])
    return deeper


def _nearest_file(path: Path) -> str | None:
    parent = path.parent
    if not parent.is_dir():
        return f"the folder {parent} does not exist either"
    near = difflib.get_close_matches(path.name, [item.name for item in parent.iterdir() if item.is_file()], n=1)
    return f"did you mean {parent / near[0]}?" if near else None
