"""The real Triton backend of the tree under proof, on CPU: its own source and kernels, few stand-ins around it.

Importing sglang itself takes seconds and needs the whole runtime. The backend needs little of it, so the modules it
imports are taken from the tree where they decide anything (the kernels, the enums, by their source) and stood in for
where they only answer questions about the machine. TRITON_INTERPRET=1 must be set before triton is imported.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from tree_batch import BLOCK_SIZE, CONTEXT, HEAD_DIM, HEADS, KV_HEADS, Batch, GuardedKernel, Outcome, compare, reference

TREE = Path(os.environ["KDEPLOY_TREE"]) / "sglang"
SRT = TREE / "srt"


def load() -> Any:
    """Import the tree's triton_backend module; the enums it uses are its attributes too."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("set TRITON_INTERPRET=1: without a GPU only Triton's interpreter runs the kernels")
    _module("sglang", path=TREE)  # its __init__ imports the frontend and transformers
    _module("sglang.srt", path=SRT)
    utils = _module(
        "sglang.srt.utils",
        get_bool_env_var=lambda name, default="false": os.environ.get(name, default).lower() in ("true", "1"),
        get_device_core_count=lambda *_: 0,
        get_int_env_var=lambda name, default=0: int(os.environ.get(name, default)),
        is_cpu=lambda: True,
        next_power_of_2=lambda n: 1 << (n - 1).bit_length() if n > 0 else 1,
        **{f"is_{other}": lambda: False for other in ("cuda", "hip", "musa", "npu", "xpu")},
    )
    utils.__path__ = []
    _module("sglang.srt.utils.common", is_npu=lambda: False)
    _module("sglang.srt.configs.model_config", **_enums("configs/model_config.py", "AttentionArch"))
    _module("sglang.srt.layers.dp_attention", get_attention_tp_size=lambda: 1)
    _module("sglang.srt.layers.radix_attention", **_enums("layers/radix_attention.py", "AttentionType"))
    _module("sglang.srt.mem_cache.swa_memory_pool", SWAKVPool=type("SWAKVPool", (), {}))
    _module(
        "sglang.srt.model_executor.forward_batch_info",
        ForwardBatch=object,
        **_enums("model_executor/forward_batch_info.py", "ForwardMode"),
    )
    _module("sglang.srt.speculative.spec_utils", generate_draft_decode_kv_indices=None)  # EAGLE's multi-step draft
    return importlib.import_module("sglang.srt.layers.attention.triton_backend")


def server_args(budget: int | None) -> SimpleNamespace:
    """Server arguments, as far as the backend reads them: DDTREE with `budget`, or a stock DFLASH server for None.

    Stock 0.5.11 has no speculative_ddtree_budget, so the stock server's arguments have none either.
    """
    arguments = SimpleNamespace(
        speculative_algorithm="DFLASH",
        speculative_num_draft_tokens=BLOCK_SIZE,
        speculative_num_steps=1,
        triton_attention_num_kv_splits=8,
        triton_attention_split_tile_size=None,
        chunked_prefill_size=4096,
        disable_cuda_graph=False,
        enable_deterministic_inference=False,
    )
    if budget is not None:
        arguments.speculative_algorithm = "DDTREE"
        arguments.speculative_ddtree_budget = budget
    return arguments


def backend(module: Any, batch: Batch, budget: int | None, is_draft_worker: bool = False) -> Any:
    """A real TritonAttnBackend for `batch`, made as a model runner makes it; its extend kernel is guarded."""
    model_config = SimpleNamespace(
        attention_arch=module.AttentionArch.MHA,
        context_len=CONTEXT,
        get_num_kv_heads=lambda tp_size: KV_HEADS,
        is_encoder_decoder=False,
        num_attention_heads=HEADS,
        swa_v_head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
    )
    model_runner = SimpleNamespace(
        device="cpu",
        gpu_id=0,
        hybrid_gdn_config=None,
        is_draft_worker=is_draft_worker,
        kimi_linear_config=None,
        linear_attn_model_spec=None,
        model_config=model_config,
        req_to_token_pool=SimpleNamespace(size=batch.size, req_to_token=batch.req_to_token),
        server_args=server_args(budget),
        sliding_window_size=None,
        token_to_kv_pool=batch.pool,
        token_to_kv_pool_allocator=None,
    )
    made = module.TritonAttnBackend(model_runner)
    made.extend_attention_fwd = GuardedKernel(made.extend_attention_fwd)
    return made


def verify_eager(module: Any, attention: Any, batch: Batch) -> Outcome:
    """One TARGET_VERIFY pass without a graph."""
    forward_batch = _forward_batch(module, batch)
    attention.init_forward_metadata(forward_batch)
    return _attend(module, attention, batch, forward_batch)


def verify_graph(module: Any, attention: Any, batch: Batch) -> Outcome:
    """One TARGET_VERIFY pass with the metadata of a CUDA graph: captured on filler, then replayed for `batch`."""
    capture(module, attention, batch)
    replay(module, attention, batch)
    return _attend(module, attention, batch, _forward_batch(module, batch))


def capture(module: Any, attention: Any, batch: Batch) -> None:
    """Make the graph's buffers and its metadata for batches like `batch`, as CudaGraphRunner does (0.5.11)."""
    filler = attention.get_cuda_graph_seq_len_fill_value()
    attention.init_cuda_graph_state(batch.size, batch.rows)
    filler_mask = None if batch.mask is None else torch.ones(batch.rows * (filler + batch.tokens), dtype=torch.bool)
    attention.init_forward_metadata_capture_cuda_graph(
        batch.size,
        batch.rows,
        torch.zeros(batch.size, dtype=torch.int64),
        torch.full((batch.size,), filler, dtype=torch.int64),
        None,
        module.ForwardMode.TARGET_VERIFY,
        SimpleNamespace(custom_mask=filler_mask),
    )


def replay(module: Any, attention: Any, batch: Batch) -> None:
    """Bring the captured metadata up to `batch`, as CudaGraphRunner does before it replays the graph."""
    attention.init_forward_metadata_replay_cuda_graph(
        batch.size,
        batch.requests,
        batch.seq_lens,
        sum(batch.prefixes),
        None,
        module.ForwardMode.TARGET_VERIFY,
        SimpleNamespace(custom_mask=batch.mask),
        batch.seq_lens,
    )


def layer(attention_type: Any) -> SimpleNamespace:
    """The one attention layer, as far as the backend reads it."""
    return SimpleNamespace(
        attn_type=attention_type,
        is_cross_attention=False,
        k_scale=None,
        layer_id=0,
        logit_cap=0.0,
        logit_capping_method="tanh",
        qk_head_dim=HEAD_DIM,
        scaling=HEAD_DIM**-0.5,
        sliding_window_size=-1,
        tp_q_head_num=HEADS,
        v_head_dim=HEAD_DIM,
        v_scale=None,
        xai_temperature_len=-1,
    )


def _attend(module: Any, attention: Any, batch: Batch, forward_batch: Any) -> Outcome:
    expected = reference(batch)
    types_ = module.AttentionType
    output: Tensor = attention.forward_extend(
        batch.queries.clone(),
        batch.keys.clone(),
        batch.values.clone(),
        layer(types_.ENCODER_ONLY if batch.mask is None else types_.DECODER),  # a draft block sees itself whole
        forward_batch,
    )
    return compare(batch, expected, output, attention.extend_attention_fwd.past_end)


def _forward_batch(module: Any, batch: Batch) -> SimpleNamespace:
    return SimpleNamespace(
        batch_size=batch.size,
        forward_mode=module.ForwardMode.TARGET_VERIFY,
        out_cache_loc=batch.slots,
        req_pool_indices=batch.requests,
        seq_lens=batch.seq_lens,
        seq_lens_sum=sum(batch.prefixes),
        spec_info=SimpleNamespace(custom_mask=batch.mask, draft_token_num=batch.tokens),
        token_to_kv_pool=batch.pool,
    )


def _module(name: str, path: Path | None = None, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    if path is not None:
        module.__path__ = [str(path)]
    module.__dict__.update(attributes)
    sys.modules[name] = module
    return module


def _enums(file: str, name: str) -> dict[str, Any]:
    """The enum `name` of a module of the tree, from its source: the module itself would import the runtime."""
    source = (SRT / file).read_text(encoding="utf-8")
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    namespace: dict[str, Any] = {**vars(enum), "total_ordering": functools.total_ordering}
    exec(compile(ast.Module(body=list(classes), type_ignores=[]), file, "exec"), namespace)
    return {name: namespace[name]}
