"""A mapping inside a transcript that knows where it stands: what is missing or of another type has a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kdeploy.errors import RemoteError

T = TypeVar("T")


class TranscriptError(RemoteError):
    """A transcript lacks something, or has it in another form."""


class Part:
    """A mapping at a `path`; every way to a value raises TranscriptError when it is not there, or not of that type."""

    def __init__(self, values: object, path: str) -> None:
        if not isinstance(values, Mapping):
            raise TranscriptError(f"{path} is {type(values).__name__}, not a mapping")
        self.values, self.path = values, path

    def get(self, key: str, *kinds: type) -> Any:
        """The value at `key`, of one of the types `kinds`."""
        if key not in self.values:
            raise TranscriptError(f"{self.path}.{key} is missing")
        value = self.values[key]
        # In Python True is an int, in a transcript it is not.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise TranscriptError(f"{self.path}.{key} is {type(value).__name__}, not {wanted}")
        return value

    def text(self, key: str) -> str:
        """The text at `key`."""
        return str(self.get(key, str))

    def integer(self, key: str) -> int:
        """The whole number at `key`."""
        return int(self.get(key, int))

    def number(self, key: str) -> float:
        """The number at `key`."""
        return float(self.get(key, int, float))

    def flag(self, key: str) -> bool:
        """The truth value at `key`."""
        return bool(self.get(key, bool))

    def optional(self, key: str, kind: type[T]) -> T | None:
        """The value at `key`, of the type `kind`, or null."""
        value: T | None = self.get(key, kind, type(None))
        return value

    def number_or_none(self, key: str) -> float | None:
        """The number at `key`, or null."""
        value = self.get(key, int, float, type(None))
        return None if value is None else float(value)

    def maybe(self, key: str, build: Callable[[Part], T]) -> T | None:
        """What `build` makes of the mapping at `key`, or null."""
        return None if self.get(key, Mapping, type(None)) is None else build(self.part(key))

    def part(self, key: str) -> Part:
        """The mapping at `key`."""
        return Part(self.get(key, Mapping), f"{self.path}.{key}")

    def each(self, key: str, build: Callable[[Part], T]) -> tuple[T, ...]:
        """What `build` makes of each mapping in the list at `key`."""
        values = self.get(key, list)
        return tuple(build(Part(value, f"{self.path}.{key}[{index}]")) for index, value in enumerate(values))

    def items(self, key: str, *kinds: type) -> tuple[Any, ...]:
        """The list at `key`, every item of it of one of the types `kinds`."""
        values = self.get(key, list)
        for index, value in enumerate(values):
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise TranscriptError(f"{self.path}.{key}[{index}] is {type(value).__name__}, not {wanted}")
        return tuple(values)
