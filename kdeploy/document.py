"""YAML read strictly into frozen models, with the place of every value.

PyYAML by itself keeps the last of two equal keys, reads `no` as False and `12:30:45` as 45045. Here a scalar is what
YAML 1.2's core schema says it is, a duplicate key is an error, and every error knows its line and column.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from kdeploy.errors import KdeployError, Location

Loc = tuple[str | int, ...]


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

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: Mapping[str, object] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"),
}  # fmt: skip


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


def read(path: Path, error: type[KdeployError]) -> Document:
    """Read one YAML document from `path`.

    Raises `error` with file:line:column when the file is missing, is not UTF-8, is not YAML, or repeats a key.
    """
    try:
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
    """Parse the `text` of one YAML document; `path` is only named in errors."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        where = Location(path, mark.line + 1, mark.column + 1) if mark else None
        raise error(f"not valid YAML: {fault.problem or fault.context}", where=where) from fault
    except (yaml.YAMLError, ValueError) as fault:
        raise error(f"{path} is not valid YAML: {fault}") from fault
    marks: dict[Loc, Location] = {}
    values = _construct(node, (), path, marks, error) if node is not None else None
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
        return model.model_validate(document.values)
    except pydantic.ValidationError as fault:
        faults = [_explain(document, model, item) for item in fault.errors(include_url=False)]
        faults.sort(key=lambda item: item[0])
        where, message, hint = faults[0]
        others = tuple(f"{at}: {what}" for at, what, _ in faults[1:])
        raise error(message, where=where, hint=hint, details=others) from fault


def _construct(
    node: yaml.Node, loc: Loc, path: str, marks: dict[Loc, Location], error: type[KdeployError]
) -> Any:
    here = Location(path, node.start_mark.line + 1, node.start_mark.column + 1)
    marks[loc] = here
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*loc, index), path, marks, error) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):  # pragma: no cover - YAML has three kinds of node
        raise error(f"unexpected YAML node {node.tag}", where=here)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key_at = Location(path, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        if not isinstance(key_node, yaml.ScalarNode):
            raise error("a key must be plain text", where=key_at)
        key = key_node.value
        if key in values:
            raise error(f"key '{key}' is given twice (first at {marks[(*loc, key)]})", where=key_at)
        values[key] = _construct(value_node, (*loc, key), path, marks, error)
        marks[(*loc, key)] = key_at  # an error about a value is easiest to find at its key
    return values


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.style is not None:  # quoted or a block: always text
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text, 0) if text.lower().startswith(("0o", "0x")) else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _explain(
    document: Document, model: type[pydantic.BaseModel], item: Any
) -> tuple[Location, str, str | None]:
    # Tagged and plain unions put the name of the member into loc; what the document knows are its own keys.
    loc = tuple(part for index, part in enumerate(item["loc"]) if _known(document, item["loc"][:index], part))
    missing = item["type"] == "missing"
    name = ".".join(str(part) for part in (*loc, *(item["loc"][-1:] if missing else ())))
    where = document.where(loc)
    if missing:
        return where, f"'{name}' is required", None
    if item["type"] == "extra_forbidden":
        right = _keys(model, item["loc"][:-1])
        near = difflib.get_close_matches(str(item["loc"][-1]), right, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known keys here: {', '.join(right)}"
        return where, f"unknown key '{name}'", hint
    if item["type"] == "value_error":
        return where, f"'{name}': {str(item['ctx']['error'])}" if name else str(item["ctx"]["error"]), None
    given = item["input"]
    shown = "" if isinstance(given, dict | list) else f", not {given!r}"
    return where, f"'{name}': {item['msg'][0].lower()}{item['msg'][1:]}{shown}", None


def _known(document: Document, parents: Loc, part: str | int) -> bool:
    values = document.values
    for step in parents:
        if isinstance(values, dict) and step in values:
            values = values[step]
        elif isinstance(values, list) and isinstance(step, int) and step < len(values):
            values = values[step]
    return (isinstance(values, dict) and part in values) or (
        isinstance(values, list) and isinstance(part, int) and part < len(values)
    )


def _keys(model: type[pydantic.BaseModel], loc: Loc) -> list[str]:
    """Keys the model allows at `loc`, found in its JSON schema (the one source of the shape)."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})
    spots = [schema]
    for part in loc:
        spots = [deeper for spot in spots for deeper in _descend(spot, part, definitions)]
    found = {
        key for spot in spots for flat in _flatten(spot, definitions) for key in flat.get("properties", {})
    }
    return sorted(found)


def _flatten(spot: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in spot:
        return _flatten(definitions[spot["$ref"].rsplit("/", 1)[-1]], definitions)
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
        elif flat.get("title") == part:  # the member's name of a union
            deeper.append(flat)
    return deeper


def _nearest_file(path: Path) -> str | None:
    parent = path.parent
    if not parent.is_dir():
        return f"the folder {parent} does not exist either"
    near = difflib.get_close_matches(path.name, [item.name for item in parent.iterdir()], n=1)
    return f"did you mean {parent / near[0]}?" if near else None
