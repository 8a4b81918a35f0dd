"""Import what a text server imports, as if torchvision and sgl_kernel were not installed.

Four modules ask for them on every start, each for a reason that a text model on a CPU does not have. Exit 3: each
of the four fails by just the package named here. Exit 0: all four can be imported. Some of each is an error: a patch
that does nothing, or one that is not needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import patch

SRT = Path(os.environ["KDEPLOY_TREE"]) / "sglang" / "srt"
MISSING = ("torchvision", "sgl_kernel")


def main() -> int:
    """Run all checks; the exit code of the proof."""
    hide(MISSING)
    checks = {
        "srt/utils/common.py": (utils, "torchvision"),
        "srt/configs/utils.py": (image_processor, "Torchvision"),
        "srt/multimodal/internvl_utils.py": (internvl, "torchvision"),
        "srt/mem_cache/memory_pool_host.py": (host_cache, "sgl_kernel"),
    }
    fails = {file: package for file, (check, package) in checks.items() if refuses(check, package)}
    if not fails:
        print(f"all {len(checks)} modules work without {' and '.join(MISSING)}")
        return 0
    if len(fails) == len(checks):
        print("; ".join(f"{file} needs {package}" for file, package in fails.items()))
        return 3
    raise AssertionError(f"only {', '.join(fails)} of {len(checks)} modules fail")


def refuses(check: Callable[[], None], package: str) -> bool:
    """True when `check` raises an ImportError that names `package`; any other exception is not expected here."""
    try:
        check()
    except ImportError as error:
        if package not in str(error):
            raise
        return True
    return False


def utils() -> None:
    """The helpers that everything in SGLang imports, with everything they import."""
    importlib.import_module("sglang.srt.utils.common")


def image_processor() -> None:
    """Register a multimodal model's image processor, as configs/janus_pro.py does when it is imported."""
    from transformers import BaseImageProcessor, PretrainedConfig

    config = type("Config", (PretrainedConfig,), {"model_type": "kdeploy-proof"})
    alone("configs/utils.py").register_image_processor(config, type("Processor", (BaseImageProcessor,), {}))


def internvl() -> None:
    """The constants that configs/nano_nemotron_vl.py takes."""
    if len(alone("multimodal/internvl_utils.py").IMAGENET_MEAN) != 3:
        raise AssertionError("IMAGENET_MEAN is not there")


def host_cache() -> None:
    """The hierarchical cache, on the CPU engine; the modules of SGLang that it imports are played."""
    platforms = ("cpu", "cuda", "hip", "mps", "npu", "xpu")
    utils = _Played("sglang.srt.utils")
    vars(utils).update({f"is_{platform}": lambda here=platform == "cpu": here for platform in platforms})
    others = ("sglang", "sglang.jit_kernel", "sglang.jit_kernel.hicache", "sglang.srt", "sglang.srt.mem_cache",
              "sglang.srt.mem_cache.memory_pool")  # fmt: skip
    with patch.dict(sys.modules, {utils.__name__: utils, **{name: _Played(name) for name in others}}):
        alone("mem_cache/memory_pool_host.py")


class _Played(ModuleType):
    """A module that has every name, each an empty class."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def alone(file: str) -> ModuleType:
    """A module of the tree by its file, without the packages around it."""
    spec = importlib.util.spec_from_file_location(f"alone_{Path(file).stem}", SRT / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {spec.name: module}):
        spec.loader.exec_module(module)
    return module


def hide(packages: tuple[str, ...]) -> None:
    """Make `packages` look as if they were not installed, where they are."""
    find = PathFinder.find_spec

    def find_others(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in packages else find(name, path, target)

    PathFinder.find_spec = staticmethod(find_others)  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    sys.exit(main())
