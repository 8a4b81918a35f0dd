"""Verify a drafted block on the real torch_native backend, and compare every row with attention written out by hand.

Three requests of different prefixes, their entries all over the pool. Exit 3: the backend cannot verify. Exit 0: the
outputs are right, an ordinary extension still is, and a tree, whose mask this backend does not read, is refused.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

SRT = Path(os.environ["KDEPLOY_TREE"]) / "sglang" / "srt"
PREFIXES, BLOCK = (5, 1, 11), 4
QUERY_HEADS, KEY_HEADS, WIDTH = 4, 2, 8
POOL = 64


def main() -> int:
    """Run the check; the exit code of the proof."""
    backend = load().TorchNativeAttnBackend(SimpleNamespace(device="cpu"))
    generator = torch.Generator().manual_seed(17)
    worst = max(difference(backend, generator, verify=False), 0.0)
    try:
        worst = max(worst, difference(backend, generator, verify=True))
    except (TypeError, AttributeError) as error:  # None has no shape: nobody has said how long what is added is
        if "NoneType" not in str(error):
            raise
        print(f"torch_native cannot verify a block: {error}")
        return 3
    if worst > 1e-5:
        raise AssertionError(f"an output is {worst:.2g} away from what it must be")
    try:
        difference(backend, generator, verify=True, topk=2)
    except NotImplementedError:
        print(f"{len(PREFIXES)} blocks of {BLOCK} verified, at most {worst:.1g} away; a tree is refused")
        return 0
    raise AssertionError("a tree was verified as if it were a chain")


def difference(backend: Any, generator: torch.Generator, *, verify: bool, topk: int = 1) -> float:
    """How far the backend's output for the last BLOCK tokens of each request is from the right one, at most."""
    total = [prefix + BLOCK for prefix in PREFIXES]
    slots = torch.randperm(POOL, generator=generator)[: sum(total)].split(total)
    table = torch.zeros(len(total) + 1, POOL, dtype=torch.int32)
    rows = torch.tensor([2, 0, 3])
    for row, own in zip(rows, slots, strict=True):
        table[row, : len(own)] = own
    keys, values = (torch.randn(POOL, KEY_HEADS, WIDTH, generator=generator) for _ in range(2))
    query = torch.randn(len(total) * BLOCK, QUERY_HEADS * WIDTH, generator=generator)
    prefixes, added = torch.tensor(PREFIXES), torch.full((len(total),), BLOCK)
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_target_verify=lambda: verify),
        spec_info=SimpleNamespace(draft_token_num=BLOCK, topk=topk) if verify else None,
        seq_lens=prefixes if verify else prefixes + added,
        extend_prefix_lens=None if verify else prefixes,
        extend_seq_lens=None if verify else added,
        out_cache_loc=None,
        token_to_kv_pool=SimpleNamespace(get_key_buffer=lambda _: keys, get_value_buffer=lambda _: values),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        req_pool_indices=rows,
    )
    layer = SimpleNamespace(
        qk_head_dim=WIDTH, v_head_dim=WIDTH, tp_q_head_num=QUERY_HEADS, tp_k_head_num=KEY_HEADS, layer_id=0,
        scaling=WIDTH**-0.5, is_cross_attention=False, attn_type="decoder",
    )  # fmt: skip
    got = backend.forward_extend(query, None, None, layer, batch, save_kv_cache=False)
    wanted = [
        attention(part.view(BLOCK, QUERY_HEADS, WIDTH), keys[own], values[own])
        for part, own in zip(query.split(BLOCK), slots, strict=True)
    ]
    return float((got - torch.cat(wanted)).abs().max())


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last tokens of a sequence, token by token and head by head."""
    rows = []
    for number, token in enumerate(query):
        seen = len(keys) - len(query) + number + 1
        heads = []
        for head, one in enumerate(token):
            shared = head * KEY_HEADS // QUERY_HEADS
            weights = torch.softmax(keys[:seen, shared] @ one * WIDTH**-0.5, dim=0)
            heads.append(weights @ values[:seen, shared])
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def load() -> Any:
    """Import the tree's torch_native backend; the modules around it would import the runtime."""
    for package in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.attention"):
        _module(package).__path__ = [str(SRT.parent.joinpath(*package.split(".")[1:]))]
    _module("sglang.srt.layers.attention.base_attn_backend", AttentionBackend=type("AttentionBackend", (), {}))
    _module("sglang.srt.layers.radix_attention", AttentionType=SimpleNamespace(ENCODER_ONLY="encoder_only"))
    _module("sglang.srt.model_executor.forward_batch_info", ForwardBatch=object)
    return importlib.import_module("sglang.srt.layers.attention.torch_native_backend")


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module
    return module


if __name__ == "__main__":
    sys.exit(main())
