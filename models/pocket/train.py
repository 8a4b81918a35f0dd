"""Makes the pocket model: `train.py all OUT` goes through the stages; each can be run alone too.

    train.py target OUT       tokenizer and target from nothing, into OUT/first
    train.py harden OUT       OUT/first -> OUT/target, every layer made necessary
    train.py draft OUT        the DFlash draft for OUT/target, into OUT/draft
    train.py prompts FILE     the 70 questions with their answers and the 3 long ones, as a prompts file

Deterministic on one machine (seeded, one thread). Needs torch, tokenizers and safetensors; minutes on one quiet core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import corpus as pages
import torch
from network import load_tokenizer
from tokenizers import Tokenizer
from train_draft import learn_draft
from train_target import harden, learn

SPARE = 24  # tokens a prompt may take beyond its answer: a model that does not stop shows itself

CAT = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "asleep": {"type": "boolean"},
    },
    "required": ["type", "name", "age", "asleep"],
    "additionalProperties": False,
}


def main() -> None:
    """Run the stage named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["target", "harden", "draft", "prompts", "all"])
    parser.add_argument("out", type=Path, help="folder to write into; for `prompts` the file")
    parser.add_argument("--steps", type=int, default=280, help="of the first stage (%(default)s)")
    parser.add_argument("--harden-steps", type=int, default=90, help="of the second (%(default)s)")
    parser.add_argument("--draft-steps", type=int, default=300, help="of the draft (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    corpus = pages.load()
    first, target, draft = given.out / "first", given.out / "target", given.out / "draft"
    if given.stage in ("target", "all"):
        learn(corpus, first, steps=given.steps, seed=given.seed)
    if given.stage in ("harden", "all"):
        harden(corpus, first, target, steps=given.harden_steps, seed=given.seed)
    if given.stage in ("draft", "all"):
        learn_draft(corpus, target, draft, steps=given.draft_steps, seed=given.seed)
    if given.stage == "prompts":
        tokenizer = load_tokenizer(Path(__file__).with_name("target"))
        given.out.write_text(prompts_file(corpus, tokenizer), encoding="utf-8")


def prompts_file(corpus: pages.Corpus, tokenizer: Tokenizer) -> str:
    """The questions in the form that kdeploy's gate reads."""
    prompts = []
    for question in pages.questions(corpus):
        prompt: dict[str, Any] = {
            "name": question.name,
            "kind": question.kind,
            "text": question.text,
            "answer": question.answer,
            "max-tokens": len(tokenizer.encode(question.answer).ids) + SPARE,
            "quick": question.name in pages.QUICK,
        }
        if question.turns:
            prompt["messages"] = [{"role": role, "content": content} for role, content in question.turns]
        if question.name == "json_q":
            prompt["json-schema"] = CAT
        prompts.append(prompt)
    for long in pages.load_long(corpus):
        prompt = {"name": long.name, "kind": "long", "text": long.text, "reference": long.reference}
        prompts.append({**prompt, "max-tokens": long.max_tokens, "ignore-eos": True, "quick": True})
    return json.dumps({"prompts": prompts}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
