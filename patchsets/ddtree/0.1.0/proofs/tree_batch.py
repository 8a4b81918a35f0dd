"""A batch of draft trees to verify, and what attention must give for it: plain torch, nothing of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
CONTEXT = 128
BLOCK_SIZE = 8  # what the drafter emits; speculative_num_draft_tokens
BUDGETS = (4, 7, 12, 16, 32)
EVEN_BUDGET = BLOCK_SIZE - 1  # budget + 1 is the block size: right with and without the set
TOLERANCE = 1e-4  # float32 on CPU: right rows differ by 1e-6, wrong ones by 0.1 and more
GUARD_ROWS = 8192  # more than any wrong layout (33 tokens taken for 5, or 5 for 33) reads or writes past the end


class KVPool:
    """The KV cache of one layer, as far as the attention backend asks for it."""

    def __init__(self, slots: int, generator: torch.Generator) -> None:
        self.keys = torch.randn(slots, KV_HEADS, HEAD_DIM, generator=generator)
        self.values = torch.randn(slots, KV_HEADS, HEAD_DIM, generator=generator)

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """All keys, by slot."""
        return self.keys

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """All values, by slot."""
        return self.values

    def set_kv_buffer(self, layer: Any, slots: Tensor, keys: Tensor, values: Tensor, *_: Any) -> None:
        """Write the keys and values of new tokens."""
        self.keys[slots] = keys.view(-1, KV_HEADS, HEAD_DIM)
        self.values[slots] = values.view(-1, KV_HEADS, HEAD_DIM)


@dataclass(frozen=True)
class Batch:
    """Requests in one verify pass: `tokens` new ones each, after `prefixes[i]` that are in the cache.

    `mask` is what the engine is given, flat, request after request; None lets every token see every other.
    """

    prefixes: tuple[int, ...]
    tokens: int
    pool: KVPool
    req_to_token: Tensor
    requests: Tensor
    slots: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    visible: tuple[Tensor, ...]
    mask: Tensor | None

    @property
    def size(self) -> int:
        """Number of requests."""
        return len(self.prefixes)

    @property
    def rows(self) -> int:
        """Number of output rows."""
        return self.size * self.tokens

    @property
    def seq_lens(self) -> Tensor:
        """Prefix lengths."""
        return torch.tensor(self.prefixes, dtype=torch.int64)


def trees(prefixes: Sequence[int], tokens: int, seed: int) -> Batch:
    """Requests with a random draft tree of `tokens` nodes each; every node sees the prefix and its ancestors."""
    return _batch(prefixes, tokens, seed, tree=True)


def blocks(prefixes: Sequence[int], tokens: int, seed: int) -> Batch:
    """Requests with a draft block each, as the drafter runs them: no mask, every token sees all of its block."""
    return _batch(prefixes, tokens, seed, tree=False)


def reference(batch: Batch) -> Tensor:
    """The attention output of every row, computed request by request from the definition."""
    rows = []
    for i, prefix in enumerate(batch.prefixes):
        new = slice(i * batch.tokens, (i + 1) * batch.tokens)
        cached = batch.req_to_token[batch.requests[i], :prefix].long()
        keys = torch.cat([batch.pool.keys[cached], batch.keys[new]]).repeat_interleave(HEADS // KV_HEADS, 1)
        values = torch.cat([batch.pool.values[cached], batch.values[new]]).repeat_interleave(HEADS // KV_HEADS, 1)
        queries = batch.queries[new].view(batch.tokens, HEADS, HEAD_DIM)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / HEAD_DIM**0.5
        weights = scores.masked_fill(~batch.visible[i], float("-inf")).softmax(-1)
        rows.append(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))
    return torch.cat(rows)


@dataclass
class Outcome:
    """How an output compares with the reference, counted in rows."""

    rows: int = 0
    wrong: int = 0
    unwritten: int = 0
    past_end: int = 0

    @property
    def right(self) -> bool:
        """True when every row is right and nothing was written past the end."""
        return not (self.wrong or self.unwritten or self.past_end)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.rows + other.rows,
            self.wrong + other.wrong,
            self.unwritten + other.unwritten,
            self.past_end + other.past_end,
        )

    def __str__(self) -> str:
        return (
            f"{self.wrong} of {self.rows} rows wrong, {self.unwritten} never written, "
            f"{self.past_end} written past the end"
        )


def compare(batch: Batch, expected: Tensor, output: Tensor, past_end: int) -> Outcome:
    """Count the rows of `output` that are not `expected`; `past_end` comes from the guard."""
    error = (output - expected).abs().amax(1)
    unwritten = int(error.isnan().sum())
    wrong = int((error > TOLERANCE).sum())
    return Outcome(batch.rows, wrong, unwritten, past_end)


class GuardedKernel:
    """The extend kernel on longer copies of its tensors, so that a wrong layout cannot corrupt this process.

    Output rows start as NaN: those still NaN were never written, and those behind the end that are not NaN were
    written by a layout that is too wide. `past_end` counts the latter for the last call.
    """

    def __init__(self, kernel: Callable[..., None]) -> None:
        self.kernel = kernel
        self.past_end = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, *rest: Any, **options: Any) -> None:
        """Stand in for extend_attention_fwd: same arguments, the mask is the sixth after `o`."""
        arguments = list(rest)
        if (mask := arguments[5]) is not None:
            arguments[5] = _longer(mask, 1, mask.new_ones)
        output = _longer(torch.full_like(o, float("nan")), float("nan"), o.new_ones)
        self.kernel(
            _longer(q, 3.0, q.new_ones), _longer(k, 3.0, k.new_ones), _longer(v, 3.0, v.new_ones), output,
            *arguments, **options,
        )  # fmt: skip
        rows = o.shape[0]
        self.past_end = int((~output[rows:].isnan()).any(-1).any(-1).sum())
        o.copy_(output[:rows])


def _longer(tensor: Tensor, value: float, ones: Callable[..., Tensor]) -> Tensor:
    guard = ones((GUARD_ROWS, *tensor.shape[1:])) * value
    return torch.cat([tensor, guard.to(tensor.dtype)])


def _batch(prefixes: Sequence[int], tokens: int, seed: int, tree: bool) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    size = len(prefixes)
    requests = torch.arange(size) + 1
    req_to_token = torch.zeros(size + 1, CONTEXT + 64, dtype=torch.int32)
    needed = sum(prefixes) + size * tokens
    pool = KVPool(needed + 1, generator)
    scattered = torch.randperm(needed, generator=generator) + 1  # slot 0 is the engine's padding
    slots, used = [], 0
    for request, prefix in zip(requests, prefixes, strict=True):
        mine = scattered[used : used + prefix + tokens]
        req_to_token[request, : prefix + tokens] = mine.int()
        slots.append(mine[prefix:])
        used += prefix + tokens
    visible = tuple(
        torch.cat([torch.ones(tokens, prefix, dtype=torch.bool), _ancestors(tokens, generator, tree)], 1)
        for prefix in prefixes
    )
    return Batch(
        prefixes=tuple(prefixes),
        tokens=tokens,
        pool=pool,
        req_to_token=req_to_token,
        requests=requests,
        slots=torch.cat(slots),
        queries=torch.randn(size * tokens, HEADS * HEAD_DIM, generator=generator),
        keys=torch.randn(size * tokens, KV_HEADS, HEAD_DIM, generator=generator),
        values=torch.randn(size * tokens, KV_HEADS, HEAD_DIM, generator=generator),
        visible=visible,
        mask=torch.cat([rows.flatten() for rows in visible]) if tree else None,
    )


def _ancestors(tokens: int, generator: torch.Generator, tree: bool) -> Tensor:
    """Which nodes a node sees: itself and its ancestors (row i = row of its parent, and bit i)."""
    if not tree:
        return torch.ones(tokens, tokens, dtype=torch.bool)
    seen = torch.eye(tokens, dtype=torch.bool)
    for node in range(1, tokens):
        seen[node] |= seen[int(torch.randint(0, node, (1,), generator=generator))]
    return seen
