"""Import-only stand-ins for packages that SGLang imports everywhere and needs here nowhere.

They come last: where the real package is installed, it is imported. Nothing of a stand-in can be called.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any


class _Name(type):
    """A class that has every attribute: enum members and base classes of a package that is not there."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


class _Finder:
    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__version__ = "0"  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(*packages: str) -> None:
    """Let every module of `packages` be imported, where nothing else provides it."""
    sys.meta_path.append(_Finder(packages))  # type: ignore[arg-type]
