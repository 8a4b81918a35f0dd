"""The kinds of single values in a profile, each with its own limits."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int | float, Field(gt=0, le=86_400)]
Share = Annotated[int | float, Field(ge=0, le=1)]
Scalar = str | int | float | bool | None

T = TypeVar("T")


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} cannot be the name of an environment variable: letters, digits and _")
    return name


def _flag(name: str) -> str:
    right = name.lstrip("-").replace("_", "-")
    if name != right:
        raise ValueError(f"this is not how SGLang spells a flag: write '{right}'")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name):
        raise ValueError(f"{name!r} cannot be the name of a flag")
    return name


def _without_nul(value: T) -> T:
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, str) and "\0" in text for text in texts):
        raise ValueError("a NUL character cannot be passed to a program")
    return value


Flag = Annotated[str, AfterValidator(_flag)]
Variable = Annotated[str, AfterValidator(_variable)]
Argument = Annotated[Scalar | list[str | int | float], AfterValidator(_without_nul)]
Value = Annotated[str, AfterValidator(_without_nul)]
