"""Whether a JSON value has the shape that a small schema asks for: the part of JSON Schema that prompts use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,),
    "integer": (int,), "number": (int, float), "null": (type(None),),
}  # fmt: skip


def faults(value: Any, schema: Any, path: str = "answer") -> list[str]:
    """What `value` has wrong against `schema`: type, required, properties, additionalProperties, items, enum."""
    if not isinstance(schema, Mapping):
        return [f"{path}: there is no schema to compare with"]
    wanted = schema.get("type")
    if wanted is not None and not _is(value, str(wanted)):
        return [f"{path}: {type(value).__name__}, not {wanted}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is not one of {schema['enum']}")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        found += [f"{path}.{key}: missing" for key in schema.get("required", ()) if key not in value]
        if schema.get("additionalProperties") is False:
            found += [f"{path}.{key}: not in the schema" for key in value if key not in properties]
        for key, item in value.items():
            if key in properties:
                found += faults(item, properties[key], f"{path}.{key}")
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            found += faults(item, schema["items"], f"{path}[{index}]")
    return found


def _is(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):  # in Python a kind of int, in JSON not
        return wanted == "boolean"
    return isinstance(value, _TYPES.get(wanted, ()))
