"""Caches by tree: what engines compile from its files, and what becomes of those when a disk was full.

A cache filled by other code gave garbage, and a rollback goes to OLDER files than the cache has seen; so every cache
that is known to matter belongs to one tree.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Dict

from kdeploy_agent.ground import files
from kdeploy_agent.ground.layout import Layout

_BYTECODE = "pycache"
_FOLDERS = {
    "PYTHONPYCACHEPREFIX": _BYTECODE,
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "SGLANG_DG_CACHE_DIR": "deep-gemm",
    "DG_JIT_CACHE_DIR": "deep-gemm-jit",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "SGLANG_CACHE_DIR": "sglang",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
}
_TORN = re.compile(r"EOFError|marshal data|Ran out of input|importlib[^\0]*SystemError|SystemError[^\0]*importlib")
_BLOCK = 4096  # bytes: where a write that found no room ends


def variables(layout: Layout, tree: str) -> Dict[str, str]:
    """The environment that keeps a tree's caches in its own folder."""
    cache = layout.cache(tree)
    return {variable: str(cache / folder) for variable, folder in _FOLDERS.items()}


def prepare(layout: Layout, tree: str) -> str:
    """Make the caches of a tree ready for a start; gives what is wrong with them, or nothing: no start fails for it.

    What is no folder (a dangling link, a file) is put aside: engines end where they cannot make their folders.
    """
    cache = layout.cache(tree)
    try:
        if not cache.is_dir():
            files.put_aside(cache)
        cache.mkdir(parents=True, exist_ok=True)
        sweep(layout, tree)
    except OSError as fault:
        return f"{cache} cannot be used: {fault.strerror}"
    return "" if os.access(str(cache), os.W_OK) else f"{cache} cannot be written"


def sweep(layout: Layout, tree: str) -> None:
    """Remove bytecode of a tree that may be torn.

    Python renames bytecode into place though the disk took only a part of it, and from then on each import of that
    module ends in EOFError, with room on the disk or without (python/cpython#126606, mended in 3.12.8 and 3.13.1).
    Such a file ends at a block's end; of whole ones that does one in 4,096, which is compiled again.
    """
    for parent, _, names in os.walk(str(layout.cache(tree) / _BYTECODE)):
        for path in (Path(parent, name) for name in names):
            with contextlib.suppress(FileNotFoundError):  # what serves from this tree may be writing
                if path.suffix != ".pyc" or path.stat().st_size % _BLOCK == 0:  # another suffix: not renamed yet
                    path.unlink()


def torn(said: str) -> bool:
    """Whether a server's last words may come from bytecode that is only a part of itself, as Python reports that."""
    return _TORN.search(said) is not None


def drop_bytecode(layout: Layout, tree: str) -> bool:
    """Remove all bytecode of a tree: seconds of compiling at the next start. False when there was none."""
    folder = layout.cache(tree) / _BYTECODE
    if not folder.is_dir():
        return False
    files.discard(folder)
    return not folder.exists()
