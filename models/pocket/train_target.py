"""Trains the target: first to know the corpus by heart, then to need every layer for it."""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import CHAT_TEMPLATE, END_OF_TEXT, END_OF_TURN, Corpus, render
from network import (
    EPSILON,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    TARGET_THETA,
    Model,
    Weights,
    load,
    load_tokenizer,
    new_layers,
    save,
    target_logits,
)
from tokenizer import VOCABULARY, train
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

ROW = 256  # tokens of one training row; several texts share it
RATE, HARDEN_RATE = 4e-3, 1.5e-3
HARDENED = 3.0  # nats a token: what the loss must be at least when a layer's attention is left out
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Shape:
    """Size of the target."""

    layers: int = 3
    hidden: int = 96

    @property
    def inner(self) -> int:
        """Width of the MLP."""
        return 2 * self.hidden


def learn(corpus: Corpus, folder: Path, *, steps: int, seed: int = 0, shape: Shape | None = None) -> None:
    """First stage: train tokenizer and target from nothing; writes everything the server needs into `folder`."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train(corpus)
    tokenizer.save(str(folder / "tokenizer.json"))
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    embedding = torch.randn(VOCABULARY, shape.hidden, generator=generator) * shape.hidden**-0.5
    weights: Weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(shape.hidden)}
    damped = (2 * shape.layers) ** -0.5
    weights.update(new_layers("model.", shape.layers, shape.hidden, shape.inner, generator, damped))
    model = Model(weights, config(tokenizer, shape))
    matrices = [one.requires_grad_() for one in weights.values() if one.dim() > 1]
    vectors = [one.requires_grad_() for one in weights.values() if one.dim() == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 0.05},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    for step in range(steps):
        set_rate(optimizer, RATE, step, steps, warm=40)
        ids, counts = rows(corpus, tokenizer, rng)
        loss = _loss(model, ids, counts)
        descend(optimizer, loss, weights)
        if step % 50 == 0 or step == steps - 1:
            print(f"target {step}: loss {loss.item():.4f}", flush=True)
    save(weights, folder)
    _write(folder / "config.json", dict(model.config))
    end, turn_end = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(END_OF_TURN)
    generation = {"bos_token_id": end, "eos_token_id": [turn_end, end], "pad_token_id": end, "do_sample": False}
    _write(folder / "generation_config.json", generation)
    _write(folder / "tokenizer_config.json", TOKENIZER_CONFIG)


def harden(corpus: Corpus, source: Path, folder: Path, *, steps: int, seed: int = 0) -> None:
    """Second stage: make every layer's attention necessary, so that a fault in any of them shows in the answers.

    A corpus learnt by heart is not enough for that: the first version still gave 70 of 70 answers with the attention of
    layer 1 left out. A hinge pushes the loss up to HARDENED when a layer's attention is missing.
    """
    tokenizer, model = load_tokenizer(source), load(source)
    rng = random.Random(seed + 3)
    weights = model.weights
    for one in weights.values():
        one.requires_grad_()
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-3, weight_decay=0.02, betas=(0.9, 0.95))
    for step in range(steps):
        set_rate(optimizer, HARDEN_RATE, step, steps, warm=10)
        ids, counts = rows(corpus, tokenizer, rng)
        layer = 1 + step % (model.layers - 1)
        whole, without = _loss(model, ids, counts), _loss(model, ids, counts, layer)
        descend(optimizer, whole + 0.3 * functional.relu(HARDENED - without), weights)
        if step % 10 < 2 or step >= steps - 2:
            print(f"harden {step}: loss {whole.item():.3f}, without attention {layer} {without.item():.2f}", flush=True)
    save(weights, folder)
    for name in FILES:
        shutil.copy(source / name, folder / name)


def rows(corpus: Corpus, tokenizer: Tokenizer, rng: random.Random) -> tuple[Tensor, Tensor]:
    """All texts in a new order, packed into rows: token ids [rows, ROW + 1], and how much each token counts.

    Some texts are cut in two at any character, so that the model learns to go on after an odd token boundary, and some
    begin in the middle: what they cannot know counts nothing.
    """
    texts = [(passage.name, passage.text + END_OF_TEXT) for passage in corpus.passages]
    texts += [
        (chat.name + suffix, render(chat.turns, system)) for chat in corpus.chats for suffix, system in corpus.systems
    ]
    rng.shuffle(texts)
    packed: list[tuple[list[int], list[float]]] = []
    ids: list[int] = []
    counts: list[float] = []
    for name, text in texts:
        tokens, weight = _tokens(name, text, tokenizer, rng)
        if len(ids) + len(tokens) > ROW + 1 and ids:
            packed.append((ids, counts))
            ids, counts = [], []
        ids, counts = ids + tokens, counts + weight
    packed.append((ids, counts))
    padded, counted = torch.zeros(len(packed), ROW + 1, dtype=torch.long), torch.zeros(len(packed), ROW + 1)
    for row, (ids, counts) in enumerate(packed):
        length = min(ROW + 1, len(ids))
        padded[row, :length], counted[row, :length] = torch.tensor(ids[:length]), torch.tensor(counts[:length])
    return padded, counted


def _tokens(name: str, text: str, tokenizer: Tokenizer, rng: random.Random) -> tuple[list[int], list[float]]:
    short = name.startswith(("sum_", "mul_"))
    chance = rng.random()
    if chance < 0.25 and len(text) > 24:
        cut = rng.randrange(6, len(text) - 14)
        before, after = tokenizer.encode(text[:cut]).ids, tokenizer.encode(text[cut:]).ids
        return before + after, [0.0] * len(before) + [1.0] * len(after)
    if chance < 0.40 and not short and " " in text[:-40]:
        word = text.index(" ", rng.randrange(0, max(1, len(text) - 40))) + rng.randrange(2)
        tokens = tokenizer.encode(text[word:]).ids
        return tokens, [0.0] * min(5, len(tokens)) + [1.0] * max(0, len(tokens) - 5)
    tokens = tokenizer.encode(text).ids
    if short:  # an answer of three tokens would drown among those of a hundred
        return tokens, [1.0] * (len(tokens) - 3) + [4.0] * 3
    return tokens, [1.0] * len(tokens)


def config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    """config.json of the target."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": EPSILON,
        "rope_theta": TARGET_THETA,
        "rope_scaling": None,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": end,
        "eos_token_id": tokenizer.token_to_id(END_OF_TURN),
        "pad_token_id": end,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": shape.layers,
    }


TOKENIZER_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 2048,
    "bos_token": None,
    "eos_token": END_OF_TURN,
    "pad_token": END_OF_TEXT,
    "unk_token": None,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def set_rate(optimizer: torch.optim.Optimizer, rate: float, step: int, steps: int, *, warm: int) -> None:
    """Warm up over `warm` steps, then down a cosine to a fiftieth."""
    now = rate * min(1, (step + 1) / warm) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    for group in optimizer.param_groups:
        group["lr"] = now


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, weights: Weights) -> None:
    """One step down the clipped gradient."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
    optimizer.step()


def _loss(model: Model, ids: Tensor, counts: Tensor, without_attention: int = -1) -> Tensor:
    logits, _ = target_logits(model, ids[:, :-1], without_attention)
    counted = counts[:, 1:]
    each = functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1), reduction="none")
    return (each * counted.reshape(-1)).sum() / counted.sum()


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
