"""A transcript that a real SGLang 0.5.11 CPU server gave, what was declared for it, and ways to spoil it.

tests/data/transcript_pocket.json: the quick gate of an apply with the pocket model, 55 answers; only paths, and the
ids of tree and version, were changed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kdeploy.verdict.judge import Expectation, judge
from kdeploy.verdict.prompts import load_prompts

HERE = Path(__file__).parent
TREE = "0123456789ab" + "0" * 28
GOOD: dict[str, Any] = json.loads((HERE / "data" / "transcript_pocket.json").read_text(encoding="utf-8"))
POCKET = load_prompts(HERE.parent / "models" / "pocket" / "prompts.json")

EXPECTED = Expectation(
    version="0.5.11+kd.0123456789ab",
    tree=TREE,
    args={
        "model-path": "/opt/kdeploy/models/pocket/target",
        "served-model-name": "pocket",
        "--attention-backend": "torch_native",
        "dtype": "float32",
        "max-total-tokens": 4096,
        "sleep-on-idle": True,
        "tp": 1,
        "data-parallel-size": 1,
        "load-format": "auto",
        "grammar-backend": None,
        "enable-metrics": False,
    },
    prompts=POCKET,
)

Change = Callable[[dict[str, Any]], Any]


def failures(transcript: dict[str, Any], expected: Expectation = EXPECTED) -> dict[str, str]:
    verdict = judge(transcript, expected)
    assert verdict.accepted == (not verdict.failed)
    return {check.name: " | ".join((check.detail, *check.evidence)) for check in verdict.failed}


def spoilt(change: Change) -> dict[str, Any]:
    transcript = copy.deepcopy(GOOD)
    change(transcript)
    return transcript
