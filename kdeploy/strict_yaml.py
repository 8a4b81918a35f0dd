"""YAML as far as a declaration needs it, and nothing that could surprise its writer.

PyYAML by itself keeps the last of two equal keys, reads `no` as False and `12:30:45` as 45045, and follows aliases
without end. Here a scalar is what YAML 1.2's core schema says it is, and every error knows its line and column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from kdeploy.errors import KdeployError, Location

Loc = tuple[str | int, ...]
"""The way to a value: keys and list positions."""

MAX_DEPTH = 64
MAX_VALUES = 100_000

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: Mapping[str, object] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"),
}  # fmt: skip


def values(text: str, path: str, error: type[KdeployError]) -> tuple[Any, dict[Loc, Location]]:
    """The plain values of the one YAML document in `text`, and the place of each; `path` is only named in errors.

    Refuses what YAML has and a declaration needs not: tags, merge keys, keys that are not text, a second document,
    an alias inside of itself, and aliases or nesting without end.
    """
    reader = _Reader(path, error)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        events = yaml.parse(text.removeprefix("\ufeff"), Loader=loader)
        return reader.document(events), reader.marks
    except yaml.MarkedYAMLError as fault:
        problem = fault.problem or fault.context or "cannot be read"
        hint = "indent with blanks; a tab is not allowed there" if "\t" in text and "token" in problem else None
        mark = fault.problem_mark or fault.context_mark
        raise error(f"not valid YAML: {problem}", where=_place(path, mark) if mark else None, hint=hint) from fault
    except yaml.reader.ReaderError as fault:
        before = text[: fault.position] if isinstance(fault.position, int) else ""
        where = Location(path, before.count("\n") + 1, len(before) - before.rfind("\n"))
        shown = f"U+{fault.character:04X}" if isinstance(fault.character, int) else repr(fault.character)
        raise error(f"not valid YAML: the character {shown} is not allowed", where=where) from fault
    except (yaml.YAMLError, UnicodeEncodeError) as fault:
        raise error(f"{path} is not valid YAML: {fault}", where=Location(path, 1)) from fault


@dataclass
class _Known:
    """A value that aliases may repeat, and where it stands; `size` counts the values in it, 0: not complete yet."""

    loc: Loc
    value: Any = None
    size: int = 0


class _Reader:
    """Builds plain values from YAML's events, so that depth, aliases and tags are seen before they can do harm."""

    def __init__(self, path: str, error: type[KdeployError]) -> None:
        self.path = path
        self.error = error
        self.marks: dict[Loc, Location] = {}
        self.aliases: dict[str, _Known] = {}
        self.size = 0

    def document(self, events: Iterator[yaml.Event]) -> Any:
        values = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.error("a second YAML document begins here; one is expected", where=self._at(event))
            elif isinstance(event, yaml.NodeEvent):
                values = self._value(event, events, ())
        return values

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event], loc: Loc) -> Any:
        here = self.marks[loc] = self._at(event)
        if len(loc) > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep", where=here)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), here, loc)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        self._count(1, here)
        if event.tag is not None:
            hint = "leave the tag out; put text in quotes"
            raise self.error(f"tags are not used here: {event.tag}", where=here, hint=hint)
        known = _Known(loc)
        if event.anchor is not None:
            self.aliases[event.anchor] = known
        before = self.size
        if isinstance(event, yaml.ScalarEvent):
            known.value = self._scalar(event.value, event.style, here)
        elif isinstance(event, yaml.SequenceStartEvent):
            known.value = self._sequence(events, loc)
        else:
            known.value = self._mapping(events, loc)
        known.size = self.size - before + 1
        return known.value

    def _sequence(self, events: Iterator[yaml.Event], loc: Loc) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            values.append(self._value(event, events, (*loc, len(values))))
        return values

    def _mapping(self, events: Iterator[yaml.Event], loc: Loc) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            here = self._at(event)
            key = self._key(event, here)
            if key in values:
                raise self.error(f"key '{key}' is given twice (first at {self.marks[(*loc, key)]})", where=here)
            values[key] = self._value(next(events), events, (*loc, key))
            self.marks[(*loc, key)] = here  # an error about a value is easiest to find at its key
        return values

    def _key(self, event: yaml.Event, here: Location) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            raise self.error("a key must be plain text", where=here)
        key: str = event.value
        if key == "<<" and not event.style:
            hint = "write the keys out, or use 'extends' in a profile"
            raise self.error("merge keys (<<) are not supported", where=here, hint=hint)
        if not isinstance(self._scalar(key, event.style, here), str):
            hint = f"write it in quotes: '{key}'"
            raise self.error(f"a key must be text, and {key or 'an empty one'} is not", where=here, hint=hint)
        return key

    def _alias(self, name: str, here: Location, loc: Loc) -> Any:
        if name not in self.aliases:
            raise self.error(f"the alias '*{name}' is not defined above", where=here)
        known = self.aliases[name]
        if not known.size:
            raise self.error(f"the alias '*{name}' is inside of what it repeats", where=here)
        self._count(known.size, here)
        self._mark_below(known.loc, known.value, loc)
        return known.value

    def _mark_below(self, there: Loc, value: Any, loc: Loc) -> None:
        """Mark what is below an alias at `loc` with the places it is written at, below its anchor at `there`."""
        if len(loc) > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep, aliases written out", where=self.marks[there])
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            self.marks[(*loc, key)] = self.marks[(*there, key)]
            self._mark_below((*there, key), item, (*loc, key))

    def _count(self, values: int, here: Location) -> None:
        self.size += values
        if self.size > MAX_VALUES:
            raise self.error(f"more than {MAX_VALUES} values, aliases written out", where=here)

    def _scalar(self, text: str, style: str | None, here: Location) -> Any:
        if style:  # quoted or a block: always text
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _INT.fullmatch(text):
            digits = 0 if len(text) > 80 else int(text, 0 if text.startswith(("0o", "0x")) else 10)
            if len(text) > 80 or not -(2**63) <= digits < 2**63:
                raise self.error("this number does not fit into 64 bits", where=here, hint="quote it if it is text")
            return digits
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isinf(number):
                raise self.error("this number is too large", where=here, hint="quote it if it is text")
            return number
        return text

    def _at(self, event: yaml.Event) -> Location:
        return _place(self.path, event.start_mark)


def _place(path: str, mark: Any) -> Location:
    return Location(path, mark.line + 1, mark.column + 1)
