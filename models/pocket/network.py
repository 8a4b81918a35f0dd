"""The two networks in plain torch: a Qwen3 target and a DFlash draft that reads the target's hidden states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

HEADS, KV_HEADS, HEAD_DIM, EPSILON = 4, 2, 32, 1e-6
TARGET_THETA = 10_000.0
# SGLang 0.5.11, models/dflash.py:93, reads config.rope_theta, which transformers 5.6 no longer sets there, and falls
# back to 1e6 without a word. A draft trained with another base accepts nothing on the server.
DRAFT_THETA = 1_000_000.0
BLOCK = 8  # tokens a draft proposes at once, the known one included

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Model:
    """Weights in float32 with their configuration."""

    weights: Weights
    config: Mapping[str, Any]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.config["num_hidden_layers"])


def load(folder: Path) -> Model:
    """Read a model that `save` wrote."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Model({name: one.float() for name, one in load_file(folder / "model.safetensors").items()}, config)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer beside a model."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def save(weights: Weights, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the weights as safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: one.detach().to(dtype).contiguous() for name, one in weights.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})


def new_layers(prefix: str, layers: int, hidden: int, inner: int, generator: torch.Generator, scale: float) -> Weights:
    """Fresh weights of some layers; `scale` damps what is added to the residual stream."""
    weights: Weights = {}

    def draw(name: str, rows: int, columns: int, by: float = 1.0) -> None:
        weights[name] = torch.randn(rows, columns, generator=generator) * columns**-0.5 * by

    for layer in range(layers):
        base = f"{prefix}layers.{layer}."
        draw(base + "self_attn.q_proj.weight", HEADS * HEAD_DIM, hidden)
        draw(base + "self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, hidden)
        draw(base + "self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, hidden)
        draw(base + "self_attn.o_proj.weight", hidden, HEADS * HEAD_DIM, scale)
        draw(base + "mlp.gate_proj.weight", inner, hidden)
        draw(base + "mlp.up_proj.weight", inner, hidden)
        draw(base + "mlp.down_proj.weight", hidden, inner, scale)
        weights[base + "input_layernorm.weight"] = torch.ones(hidden)
        weights[base + "post_attention_layernorm.weight"] = torch.ones(hidden)
        weights[base + "self_attn.q_norm.weight"] = torch.ones(HEAD_DIM)
        weights[base + "self_attn.k_norm.weight"] = torch.ones(HEAD_DIM)
    return weights


def target_logits(model: Model, ids: Tensor, without_attention: int = -1) -> tuple[Tensor, list[Tensor]]:
    """Logits [batch, length, vocabulary] of the target, and the hidden states after each layer.

    `without_attention` names a layer whose attention is left out: what a broken attention kernel amounts to.
    """
    weights = model.weights
    batch, length = ids.shape
    x = weights["model.embed_tokens.weight"][ids]
    positions = torch.arange(length).expand(batch, length)
    hidden = []
    for layer in range(model.layers):
        base = f"model.layers.{layer}."
        normed = _norm(x, weights[base + "input_layernorm.weight"])
        k = _heads(weights, base, "k", normed, positions, TARGET_THETA)
        v = _values(weights, base, normed)
        q = _heads(weights, base, "q", normed, positions, TARGET_THETA)
        if layer != without_attention:
            x = x + _attend(q, k, v, causal=True) @ weights[base + "self_attn.o_proj.weight"].T
        x = x + _mlp(weights, base, _norm(x, weights[base + "post_attention_layernorm.weight"]))
        hidden.append(x)
    return _norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T, hidden


@dataclass(frozen=True)
class Blocks:
    """A batch of draft blocks: each begins at a known token and continues what stands before it."""

    ids: Tensor  # [batch, BLOCK]: the known token, then masks
    positions: Tensor  # [batch, BLOCK]
    context: Tensor  # [batch, longest context, hidden states side by side]
    context_positions: Tensor
    mask: Tensor  # [batch, 1, BLOCK, context + BLOCK]: True where there is something to look at
    truth: Tensor  # [batch, BLOCK - 1], -100 past the end


def draft_logits(draft: Model, embedding: Tensor, blocks: Blocks) -> Tensor:
    """Logits [batch, BLOCK - 1, vocabulary] for the masked places of each block, all at once."""
    weights = draft.weights
    x = embedding[blocks.ids]
    context = _norm(blocks.context @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    for layer in range(draft.layers):
        base = f"layers.{layer}."
        normed = _norm(x, weights[base + "input_layernorm.weight"])
        k = _heads(weights, base, "k", normed, blocks.positions, DRAFT_THETA)
        v = _values(weights, base, normed)
        q = _heads(weights, base, "q", normed, blocks.positions, DRAFT_THETA)
        k = torch.cat([_heads(weights, base, "k", context, blocks.context_positions, DRAFT_THETA), k], 1)
        v = torch.cat([_values(weights, base, context), v], 1)
        seen = _attend(q, k, v, blocks.mask)
        x = x + seen @ weights[base + "self_attn.o_proj.weight"].T
        x = x + _mlp(weights, base, _norm(x, weights[base + "post_attention_layernorm.weight"]))
    return (_norm(x, weights["norm.weight"]) @ embedding.T)[:, 1:]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def _rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    angles = positions[..., None].float() * theta ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    cos, sin = angles.cos()[:, :, None], angles.sin()[:, :, None]
    left, right = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def _heads(weights: Weights, base: str, which: str, x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Queries or keys: projected, normed per head, rotated."""
    count = HEADS if which == "q" else KV_HEADS
    projected = (x @ weights[f"{base}self_attn.{which}_proj.weight"].T).view(*x.shape[:2], count, HEAD_DIM)
    return _rotate(_norm(projected, weights[f"{base}self_attn.{which}_norm.weight"]), positions, theta)


def _values(weights: Weights, base: str, x: Tensor) -> Tensor:
    return (x @ weights[base + "self_attn.v_proj.weight"].T).view(*x.shape[:2], KV_HEADS, HEAD_DIM)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    k, v = (one.repeat_interleave(HEADS // KV_HEADS, 2).transpose(1, 2) for one in (k, v))
    seen = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, is_causal=causal)
    return seen.transpose(1, 2).flatten(2)


def _mlp(weights: Weights, base: str, x: Tensor) -> Tensor:
    gate = functional.silu(x @ weights[base + "mlp.gate_proj.weight"].T)
    return (gate * (x @ weights[base + "mlp.up_proj.weight"].T)) @ weights[base + "mlp.down_proj.weight"].T
