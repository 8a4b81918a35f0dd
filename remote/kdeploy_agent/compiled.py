"""The agent's bytecode, beside its zip file: a start need not compile what it imports, which took a third of its time.

It is made once, when the agent was pushed, and used only as long as it is whole and of this very zip file and Python:
its first bytes are a sha256 of all three. Otherwise the sources in the zip file are compiled, as Python always does.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
import zipimport
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from kdeploy_agent import HOME

_SIZE = hashlib.sha256().digest_size


def kept_at(archive: Path) -> Path:
    """Where the bytecode of an agent is kept, for this Python."""
    return archive.with_name(f"{archive.stem}.{sys.implementation.cache_tag}.code")


def use() -> None:
    """From now on take modules from the bytecode, if it is there and right."""
    try:
        kept, archive = kept_at(HOME).read_bytes(), HOME.read_bytes()
    except OSError:
        return
    if kept[:_SIZE] == _mark(archive, kept[_SIZE:]):
        sys.meta_path.insert(0, _Finder(marshal.loads(kept[_SIZE:])))


def make() -> int:
    """Command `compile`: keep the bytecode of this agent; gives an exit status. A disk without room does without."""
    import zipfile

    from kdeploy_agent.ground import files

    archive = HOME.read_bytes()
    with zipfile.ZipFile(str(HOME)) as zipped:
        sources = {name: zipped.read(name) for name in zipped.namelist() if name.startswith("kdeploy_agent/")}
    codes = {name: marshal.dumps(compile(text, f"{HOME}/{name}", "exec")) for name, text in sources.items()}
    body = marshal.dumps(codes)
    try:
        files.write(kept_at(HOME), _mark(archive, body) + body)
    except OSError:
        return 1
    return 0


def _mark(archive: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(hashlib.sha256(archive).digest() + hashlib.sha256(sys.version.encode()).digest())
    digest.update(body)
    return digest.digest()


class _Finder:
    """Finds the agent's modules in the bytecode, by their names in the zip file."""

    def __init__(self, codes: Dict[str, bytes]) -> None:
        self._codes = codes

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Optional[ModuleSpec]:
        """See importlib.abc.MetaPathFinder."""
        stem = name.replace(".", "/")
        for entry, package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if entry in self._codes:
                loader: Any = _Loader(self._codes[entry])
                spec = ModuleSpec(name, loader, origin=f"{HOME}/{entry}", is_package=package)
                spec.has_location = True
                if spec.submodule_search_locations is not None:
                    spec.submodule_search_locations.append(f"{HOME}/{stem}")
                return spec
        return None


class _Loader:
    """Runs a module's bytecode; what else is asked of a loader the zip file's own answers."""

    def __init__(self, code: bytes) -> None:
        self._code = code

    def create_module(self, spec: ModuleSpec) -> None:
        """See importlib.abc.Loader."""

    def exec_module(self, module: Any) -> None:
        """See importlib.abc.Loader."""
        exec(marshal.loads(self._code), module.__dict__)

    def __getattr__(self, name: str) -> Any:
        return getattr(zipimport.zipimporter(str(HOME)), name)
