"""Trains the DFlash draft: one layer that proposes seven tokens at once from the target's hidden states."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from corpus import MASK, Corpus, questions
from network import (
    BLOCK,
    DRAFT_THETA,
    Blocks,
    Model,
    draft_logits,
    load,
    load_tokenizer,
    new_layers,
    save,
    target_logits,
)
from tokenizer import VOCABULARY
from torch import Tensor
from torch.nn import functional
from train_target import descend

RATE, LAYERS, BATCH = 3e-3, 1, 64
# The draft is stopped early, since one that knows everything would leave a tree of proposals nothing to gain. That
# makes it unsure of itself, which spoils a best-first tree; a larger final norm keeps every argmax and mends it.
SHARPEN = 1.75


@dataclass(frozen=True)
class Walk:
    """One question with its answer as token ids, and the target's hidden states along it."""

    ids: list[int]
    hidden: Tensor  # [length, hidden states side by side]
    start: int  # where the answer begins


def learn_draft(corpus: Corpus, target: Path, folder: Path, *, steps: int, inner: int = 96, seed: int = 0) -> None:
    """Train the draft for the target in `target`; writes it into `folder`."""
    tokenizer, model = load_tokenizer(target), load(target)
    hidden = int(model.config["hidden_size"])
    read = taps(model.layers)
    mask_id = tokenizer.token_to_id(MASK)
    generator, rng = torch.Generator().manual_seed(seed + 7), random.Random(seed + 7)
    found = walks(corpus, model, target, read)
    weights = new_layers("", LAYERS, hidden, inner, generator, (2 * LAYERS) ** -0.5)
    wide = len(read) * hidden
    weights["fc.weight"] = torch.randn(hidden, wide, generator=generator) * wide**-0.5
    weights["hidden_norm.weight"], weights["norm.weight"] = torch.ones(hidden), torch.ones(hidden)
    for one in weights.values():
        one.requires_grad_()
    draft = Model(weights, _config(model, read, mask_id, inner))
    embedding = model.weights["model.embed_tokens.weight"]
    anchors = [(w, at) for w, walk in enumerate(found) for at in range(max(1, walk.start - 1), len(walk.ids) - 1)]
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=0.02, betas=(0.9, 0.95))
    nearer = torch.tensor([0.85**depth for depth in range(BLOCK - 1)])  # what comes first is needed most
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 30) * 0.5 * (1 + math.cos(math.pi * step / steps))
        blocks = make_blocks(found, rng.sample(anchors, BATCH), mask_id)
        logits = draft_logits(draft, embedding, blocks)
        truth = blocks.truth
        flat = functional.cross_entropy(
            logits.reshape(-1, VOCABULARY), truth.reshape(-1), reduction="none", ignore_index=-100
        )
        counts = (truth >= 0) * nearer
        loss = (flat.view(truth.shape) * counts).sum() / counts.sum()
        descend(optimizer, loss, weights)
        if step % 50 == 0 or step == steps - 1:
            print(f"draft {step}: loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        weights["norm.weight"].mul_(SHARPEN)
    save(weights, folder)
    (folder / "config.json").write_text(json.dumps(draft.config, indent=1), encoding="utf-8")


def taps(layers: int) -> list[int]:
    """The target's layers that the draft reads; SGLang 0.5.11 wants them at most `layers` - 2."""
    return sorted({max(0, layers - 3), layers - 2})


@torch.no_grad()
def walks(corpus: Corpus, model: Model, target: Path, read: Sequence[int]) -> list[Walk]:
    """Every question with its right answer, and what the target thinks along the way."""
    tokenizer = load_tokenizer(target)
    found = []
    for question in questions(corpus):
        asked = tokenizer.encode(question.text).ids
        ids = asked + tokenizer.encode(question.answer + question.end).ids
        _, hidden = target_logits(model, torch.tensor([ids]))
        found.append(Walk(ids, torch.cat([hidden[layer][0] for layer in read], -1), len(asked)))
    return found


def make_blocks(found: Sequence[Walk], anchors: Sequence[tuple[int, int]], mask_id: int) -> Blocks:
    """A batch of blocks; an anchor (walk, place) is the known token a block begins with."""
    count, longest, wide = len(anchors), max(at for _, at in anchors), found[0].hidden.shape[-1]
    ids, truth = torch.full((count, BLOCK), mask_id), torch.full((count, BLOCK - 1), -100)
    context, mask = torch.zeros(count, longest, wide), torch.zeros(count, 1, BLOCK, longest + BLOCK, dtype=torch.bool)
    mask[..., longest:] = True
    for row, (number, at) in enumerate(anchors):
        walk = found[number]
        ids[row, 0] = walk.ids[at]
        following = walk.ids[at + 1 : at + BLOCK]
        truth[row, : len(following)] = torch.tensor(following)
        context[row, :at] = walk.hidden[:at]
        mask[row, :, :, :at] = True
    positions = torch.tensor([at for _, at in anchors])[:, None] + torch.arange(BLOCK)
    return Blocks(ids, positions, context, torch.arange(longest).expand(count, longest), mask, truth)


def _config(target: Model, read: list[int], mask_id: int, inner: int) -> dict[str, object]:
    return {
        **target.config,
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": LAYERS,
        "num_target_layers": target.layers,
        "intermediate_size": inner,
        "block_size": BLOCK,
        "max_window_layers": LAYERS,
        "layer_types": ["full_attention"] * LAYERS,
        "dflash_config": {"mask_token_id": mask_id, "target_layer_ids": read},
        "tie_word_embeddings": False,
        "rope_theta": DRAFT_THETA,
    }
