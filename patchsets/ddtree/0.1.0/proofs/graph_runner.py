"""How many tokens a request the CUDA graph runner and the dummy run take: DDTREE's target needs budget + 1.

Drives the real CudaGraphRunner (its __init__, capture_one_batch_size, replay) with the real Triton backend, and the
real ModelRunner._dummy_run. Played, because there is no GPU: the device graph (replaying it runs the captured function
again), the stream, and a model of one attention layer that looks its queries, keys and values up by token id.
The model runner around them holds attributes only; server arguments are SGLang's own defaults.

Exit 3: the target is captured or warmed up with another number of tokens than it will verify, or the rows replayed
from the graph are wrong. Exit 0: both right, rows too. The draft worker and a stock DFLASH server must keep the
block size in every tree; anything else is an error.
"""

# ruff: noqa: E402 - the stand-ins must be there before SGLang is imported

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import standins

standins.install("torchvision", "sgl_kernel")

import real_backend
import torch
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.distributed import parallel_state
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor import cuda_graph_runner
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from torch import Tensor
from tree_batch import (
    BLOCK_SIZE,
    CONTEXT,
    EVEN_BUDGET,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    Batch,
    GuardedKernel,
    Outcome,
    blocks,
    compare,
    reference,
    trees,
)

BUDGETS = (4, 16)
PREFIXES = (37, 70, 5)
CAPTURED = [4]  # three requests are padded to it


def main() -> int:
    """Run all cases; the exit code of the proof."""
    set_up_one_rank()
    for name, case in (
        ("draft worker", Case(blocks(PREFIXES, BLOCK_SIZE, seed=1), budget=16, is_draft_worker=True)),
        ("stock DFLASH target", Case(trees(PREFIXES, BLOCK_SIZE, seed=2), budget=None)),
        (f"budget {EVEN_BUDGET}", Case(trees(PREFIXES, EVEN_BUDGET + 1, seed=3), budget=EVEN_BUDGET)),
    ):
        if fault := case.fault():
            raise AssertionError(f"{name}: {fault}")
    cases = [(budget, Case(trees(PREFIXES, budget + 1, seed=budget), budget)) for budget in BUDGETS]
    faults = [f"budget {budget}: {fault}" for budget, case in cases if (fault := case.fault())]
    for fault in faults:
        print(fault)
    if faults:
        print(f"{len(faults)} of {len(BUDGETS)} budgets wrong; {faults[-1]}")
        return 3
    rows = sum(case.batch.rows for _, case in cases)
    print(f"graph and warm-up take budget + 1 tokens at budgets {', '.join(map(str, BUDGETS))}; {rows} rows right")
    return 0


@dataclass(frozen=True)
class Case:
    """One kind of worker; its batch has as many tokens a request as that worker really gets."""

    batch: Batch
    budget: int | None
    is_draft_worker: bool = False

    def fault(self) -> str:
        """What is wrong, or an empty string: first the sizes, then the rows of a replayed graph."""
        worker = Worker(self)
        warm_up = worker.warm_up_tokens()
        runner = PlayedGraphRunner(worker)
        spec_info = runner.get_spec_info(self.batch.rows)
        sizes = {
            "warm-up run": warm_up[0],
            "warm-up spec_info": warm_up[1],
            "graph": runner.num_tokens_per_bs,
            "graph spec_info": spec_info.draft_token_num,
            "graph buffers": runner.max_num_token // runner.max_bs,
            "attention backend": worker.attn_backend.num_draft_tokens,
        }
        if wrong := {name: size for name, size in sizes.items() if size != self.batch.tokens}:
            listed = ", ".join(f"{name} {size}" for name, size in wrong.items())
            return f"{listed}, not {self.batch.tokens} tokens a request"
        if (spec_info.custom_mask is None) != (self.batch.mask is None):
            raise AssertionError("a mask is captured for the target, and for the target only")
        outcome = runner.verify(self.batch)
        return "" if outcome.right else f"replayed from the graph: {outcome}"


class Algorithm(SimpleNamespace):
    """SpeculativeAlgorithm as DDTREE will answer it: DFLASH with another target (0.5.11 has no DDTREE to ask)."""

    name = "DFLASH"

    def __getattr__(self, question: str) -> Any:
        return lambda: question in ("is_dflash", "is_speculative")


class Worker(SimpleNamespace):
    """What CudaGraphRunner, the attention backend and _dummy_run read of a ModelRunner, and the model it runs."""

    def __init__(self, case: Case) -> None:
        batch = case.batch
        super().__init__(
            batch=batch,
            device="cpu",
            device_timer=None,
            gpu_id=0,
            hisparse_coordinator=None,
            hybrid_gdn_config=None,
            is_draft_worker=case.is_draft_worker,
            is_generation=True,
            is_hybrid_swa=False,
            kimi_linear_config=None,
            linear_attn_model_spec=None,
            model=SimpleNamespace(forward=self.forward),
            model_config=SimpleNamespace(
                attention_arch=AttentionArch.MHA,
                context_len=CONTEXT,
                dtype=torch.float32,
                get_num_kv_heads=lambda tp_size: KV_HEADS,
                hf_config=SimpleNamespace(architectures=[]),
                hidden_size=HEADS * HEAD_DIM,
                is_encoder_decoder=False,
                num_attention_heads=HEADS,
                swa_v_head_dim=HEAD_DIM,
                v_head_dim=HEAD_DIM,
                vocab_size=32,
            ),
            req_to_token_pool=SimpleNamespace(size=max(CAPTURED), req_to_token=batch.req_to_token),
            server_args=server_args(case.budget),
            sliding_window_size=None,
            spec_algorithm=Algorithm(),
            token_to_kv_pool=batch.pool,
            token_to_kv_pool_allocator=None,
            tp_group=SimpleNamespace(barrier=lambda: None),
            use_ngram_embedding=False,
        )
        set_global_server_args_for_scheduler(self.server_args)
        self.attn_backend = TritonAttnBackend(self)
        self.attn_backend.extend_attention_fwd = GuardedKernel(self.attn_backend.extend_attention_fwd)

    def forward(self, input_ids: Tensor, positions: Tensor, forward_batch: Any) -> Any:
        """The model: one attention layer over the batch's own queries, keys and values, found by token id."""
        ids = input_ids.clamp(max=self.batch.rows - 1)
        kind = AttentionType.ENCODER_ONLY if self.batch.mask is None else AttentionType.DECODER
        output = forward_batch.attn_backend.forward_extend(
            self.batch.queries[ids],
            self.batch.keys[ids],
            self.batch.values[ids],
            real_backend.layer(kind),
            forward_batch,
        )
        return LogitsProcessorOutput(next_token_logits=None, hidden_states=output)

    def warm_up_tokens(self) -> tuple[float, int]:
        """Tokens a request in the real _dummy_run's batch, and in its spec_info."""
        seen: list[tuple[int, Any]] = []
        self.model = SimpleNamespace(
            forward=lambda input_ids, positions, forward_batch: seen.append((len(input_ids), forward_batch.spec_info))
        )
        ModelRunner._dummy_run(self, batch_size=2)
        self.model = SimpleNamespace(forward=self.forward)
        [(tokens, spec_info)] = seen
        return tokens / 2, spec_info.draft_token_num


class PlayedGraph:
    """A device graph: replaying it runs what was captured, with the metadata and into the output of the capture."""

    def __init__(self, attention: Any) -> None:
        self.attention = attention

    def capture(self, run: Callable[[], Any]) -> Any:
        """Run once and keep what a graph would: the function, the attention metadata, the output's memory."""
        self.run = run
        self.metadata = self.attention.forward_metadata
        self.output = run()
        return self.output

    def replay(self) -> None:
        """Run again, into the same output."""
        self.attention.forward_metadata = self.metadata
        self.output.hidden_states.copy_(self.run().hidden_states)


class PlayedGraphRunner(cuda_graph_runner.CudaGraphRunner):  # type: ignore[misc]
    """The real runner; only what needs a GPU is overridden, as its NPU subclass does."""

    stream = None

    def capture(self) -> None:
        """Capture every batch size, without the GPU's stream and memory figures."""
        for bs in reversed(self.capture_bs):
            self.graphs[bs], self.output_buffers[bs] = self.capture_one_batch_size(bs, self.model_runner.forward)

    def _create_device_graph(self) -> PlayedGraph:
        return PlayedGraph(self.attn_backend)

    def _capture_graph(self, graph: PlayedGraph, pool: Any, stream: Any, run_once_fn: Any) -> Any:
        return graph.capture(run_once_fn)

    def verify(self, batch: Batch) -> Outcome:
        """Replay the graph for `batch` and compare its rows."""
        ids = torch.arange(batch.rows)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=batch.size,
            input_ids=ids,
            req_pool_indices=batch.requests,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=batch.seq_lens,
            seq_lens_sum=sum(batch.prefixes),
            out_cache_loc=batch.slots,
            positions=ids,
            spec_info=DFlashVerifyInput(
                draft_token=None,
                positions=None,
                draft_token_num=batch.tokens,
                custom_mask=batch.mask,
                capture_hidden_mode=self.capture_hidden_mode,
            ),
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        if not self.can_run(forward_batch):
            raise AssertionError("the runner refuses a batch it was captured for")
        output = self.replay(forward_batch).hidden_states
        return compare(batch, reference(batch), output, self.attn_backend.extend_attention_fwd.past_end)


def server_args(budget: int | None) -> Any:
    """SGLang's defaults with DFLASH's values, or DDTREE's for a budget; without the checks a real start makes."""
    arguments = object.__new__(ServerArgs)
    arguments.model_path = "none"
    arguments.cuda_graph_bs = list(CAPTURED)
    arguments.triton_attention_num_kv_splits = 8
    for name, value in vars(real_backend.server_args(budget)).items():
        setattr(arguments, name, value)
    return arguments


def set_up_one_rank() -> None:
    """Tell SGLang's parallel state that there is one rank, without starting torch.distributed."""
    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    for group in ("_TP", "_ATTN_TP", "_ATTN_CP", "_MOE_EP"):
        setattr(parallel_state, group, alone)
    cuda_graph_runner.set_global_graph_memory_pool("none")


if __name__ == "__main__":
    sys.exit(main())
