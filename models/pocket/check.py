"""Do the weights still know their answers? `check.py [FOLDER]`: exit 0 when they do, with one line of figures.

1. All 70 answers are continued to the letter, end token included, by a plain forward pass in float32.
2. Without the attention of any one layer most are not: the model shows a broken layer.
3. The draft's proposals are accepted, several a step.
Needs torch, tokenizers and safetensors; seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from corpus import MASK, load
from network import BLOCK, Model, draft_logits, load_tokenizer, target_logits
from network import load as load_model
from train_draft import Walk, make_blocks, taps, walks

MOST_WITHOUT = 35  # answers a model with a dead layer may still know; seen: 15 at most
LEAST_ACCEPTED = 2.5  # tokens a step; seen: 2.80


def main() -> int:
    """Check the model in FOLDER (default: beside this script)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    model, draft = load_model(folder / "target"), load_model(folder / "draft")
    found = walks(load(), model, folder / "target", taps(model.layers))
    exact = right(model, found)
    without = [right(model, found, layer) for layer in range(model.layers)]
    mask_id = load_tokenizer(folder / "target").token_to_id(MASK)
    accepted = accept_length(model, draft, found, mask_id)
    good = exact == len(found) and max(without) <= MOST_WITHOUT and accepted >= LEAST_ACCEPTED
    print(
        f"{exact} of {len(found)} answers to the letter; without the attention of a layer"
        f" {', '.join(map(str, without))}; the draft gives {accepted:.2f} tokens a step"
    )
    return 0 if good else 1


@torch.no_grad()
def right(model: Model, found: list[Walk], without_attention: int = -1) -> int:
    """How many answers greedy decoding gives: along a right answer each next token must be the likeliest."""
    count = 0
    for walk in found:
        logits, _ = target_logits(model, torch.tensor([walk.ids]), without_attention)
        count += logits[0, walk.start - 1 : -1].argmax(-1).tolist() == walk.ids[walk.start :]
    return count


@torch.no_grad()
def accept_length(model: Model, draft: Model, found: list[Walk], mask_id: int) -> float:
    """Tokens a step over all answers when the draft's likeliest chain is verified: those accepted, and one more."""
    embedding = model.weights["model.embed_tokens.weight"]
    tokens = steps = 0
    for number, walk in enumerate(found):
        at = walk.start
        while at < len(walk.ids) - 1:
            blocks = make_blocks(found, [(number, at)], mask_id)
            proposed = draft_logits(draft, embedding, blocks)[0].argmax(-1).tolist()
            truth = walk.ids[at + 1 : at + BLOCK]
            accepted = next((n for n, (a, b) in enumerate(zip(proposed, truth, strict=False)) if a != b), len(truth))
            at += min(accepted + 1, len(walk.ids) - 1 - at)
            steps += 1
        tokens += len(walk.ids) - 1 - walk.start
    return tokens / steps


if __name__ == "__main__":
    sys.exit(main())
