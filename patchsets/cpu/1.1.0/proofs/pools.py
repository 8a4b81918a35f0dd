"""Write the request table and move KV entries on a CPU with the tree's own functions, and compare every entry.

Both are Triton kernels upstream. They are taken out of their files as they stand there, with what they use stood in
for. Exit 3: both need a kernel. Exit 0: both are right, and nothing but what was asked for has changed.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

SRT = Path(os.environ["KDEPLOY_TREE"]) / "sglang" / "srt"


class KernelNeeded(Exception):
    """A Triton kernel would be launched."""


class Kernel:
    """Stands where a Triton kernel stands."""

    def __getitem__(self, grid: object) -> Any:
        raise KernelNeeded


def main() -> int:
    """Run both checks; the exit code of the proof."""
    needed = []
    for title, check in (("the request table", table), ("the move of KV entries", move)):
        try:
            check()
        except KernelNeeded:
            needed.append(title)
    if not needed:
        print("the request table and the move of KV entries are right on a CPU")
        return 0
    if len(needed) == 2:
        print(f"{' and '.join(needed)} need a kernel")
        return 3
    raise AssertionError(f"{needed[0]} still needs a kernel, the other does not")


def table() -> None:
    """Three requests of different lengths, one of them empty; the locations are longer than what is used."""
    scope = {"torch": torch, "assign_req_to_token_pool": Kernel(), "next_power_of_2": lambda number: number}
    assign = function("speculative/spec_utils.py", "assign_req_to_token_pool_func", scope)
    rows, start, end = torch.tensor([4, 0, 2]), torch.tensor([3, 6, 0]), torch.tensor([7, 6, 5])
    locations = torch.arange(100, 112)
    found = torch.zeros(5, 16, dtype=torch.int32)
    assign(rows, found, start, end, locations, 3)
    wanted = torch.zeros_like(found)
    wanted[4, 3:7], wanted[2, 0:5] = locations[:4].int(), locations[4:9].int()
    if not torch.equal(found, wanted):
        raise AssertionError(f"the table is\n{found}\nand not\n{wanted}")


def move() -> None:
    """Entries that are read and written by the same move, in both layers."""
    scope: dict[str, Any] = {
        "torch": torch,
        "envs": SimpleNamespace(SGLANG_NATIVE_MOVE_KV_CACHE=SimpleNamespace(get=lambda: False)),
        "next_power_of_2": lambda number: number,
        "copy_all_layer_kv_cache_tiled": Kernel(),
    }
    scope["move_kv_cache_native"] = function("mem_cache/memory_pool.py", "move_kv_cache_native", scope)
    moves = function("mem_cache/memory_pool.py", "MHATokenToKVPool.move_kv_cache", scope)
    before = [torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    found = [one.clone() for one in before]
    pool = SimpleNamespace(
        device="cpu", k_buffer=found[:2], v_buffer=found[2:], data_ptrs=torch.zeros(4), data_strides=torch.zeros(4),
        _kv_copy_config={"num_locs_upper": 256, "byte_tiles": 1, "bytes_per_tile": 128, "num_warps": 1},
    )  # fmt: skip
    target, source = torch.tensor([1, 2, 6]), torch.tensor([2, 4, 1])
    moves(pool, target, source)
    for one, other in zip(before, found, strict=True):
        wanted = one.clone()
        wanted[target] = one[source]
        if not torch.equal(other, wanted):
            raise AssertionError("an entry is not where it was moved to, or another one has changed")


def function(path: str, name: str, scope: dict[str, Any]) -> Any:
    """A function or method of a file of the tree, made with the globals `scope`; its annotations are left out."""
    body: list[ast.stmt] = ast.parse((SRT / path).read_text(encoding="utf-8")).body
    *outer, last = name.split(".")
    for part in outer:
        (owner,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == part)
        body = owner.body
    (found,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == last)
    future = ast.parse("from __future__ import annotations").body
    module = ast.Module(body=[*future, found], type_ignores=[])
    exec(compile(ast.fix_missing_locations(module), path, "exec"), scope)
    return scope[last]


if __name__ == "__main__":
    sys.exit(main())
