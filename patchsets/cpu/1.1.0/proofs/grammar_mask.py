"""Apply a grammar's token mask to logits on a CPU with the real XGrammarGrammar, and check every logit.

Exit 3: the device is refused, which in a server kills the scheduler. Exit 0: exactly the forbidden tokens are -inf
and all others keep their value. The modules around it that would import the runtime are stood in for.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
import xgrammar

SRT = Path(os.environ["KDEPLOY_TREE"]) / "sglang" / "srt"
VOCABULARY = 77  # not a multiple of 32: the last word of a row is used in part
ROWS = 3


def main() -> int:
    """Run the check; the exit code of the proof."""
    backend = load()
    generator = torch.Generator().manual_seed(11)
    mask = xgrammar.allocate_token_bitmask(ROWS, VOCABULARY)
    mask.copy_(torch.randint(-(2**31), 2**31, mask.shape, generator=generator))
    before = torch.randn(ROWS, VOCABULARY, generator=generator)
    logits = before.clone()
    grammar = object.__new__(backend.XGrammarGrammar)  # the mask is all that is used, not the matcher
    try:
        grammar.apply_vocab_mask(logits, grammar.move_vocab_mask(mask, "cpu"))
    except RuntimeError as error:
        if str(error) != "Unsupported device: cpu":
            raise
        print(f"a grammar's mask cannot be applied on a CPU: {error}")
        return 3
    forbidden = 0
    for row, words in enumerate(mask.tolist()):
        for token in range(VOCABULARY):
            allowed = words[token // 32] >> (token % 32) & 1
            expected = before[row, token].item() if allowed else float("-inf")
            forbidden += not allowed
            if logits[row, token].item() != expected:
                raise AssertionError(f"row {row}, token {token}: {logits[row, token].item()}, not {expected}")
    print(f"all {ROWS * VOCABULARY} logits right, {forbidden} of them forbidden")
    return 0


def load() -> Any:
    """Import the tree's xgrammar_backend; its torch and Triton mask operations are the tree's own too."""
    for package in ("sglang", "sglang.srt", "sglang.srt.constrained"):
        _module(package).__path__ = [str(SRT.parent.joinpath(*package.split(".")[1:]))]
    grammar_types = ("BaseGrammarBackend", "BaseGrammarObject", "GrammarStats", "InvalidGrammarObject")
    _module("sglang.srt.utils", get_device_core_count=lambda *_: 0, is_hip=lambda: False)
    _module("sglang.srt.constrained.base_grammar_backend", **{name: type(name, (), {}) for name in grammar_types})
    return importlib.import_module("sglang.srt.constrained.xgrammar_backend")


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module
    return module


if __name__ == "__main__":
    sys.exit(main())
