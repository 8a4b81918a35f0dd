"""A full batch within n tokens of the context limit: its masks must fit the graph's mask buffer.

Exit 3: the buffer has no room for them, so that the copy into it raises. The budget is block size - 1, so that the
mask fault itself (proof `mask`) plays no part.
"""

from __future__ import annotations

import sys
from typing import Any

import real_backend
from tree_batch import CONTEXT, EVEN_BUDGET, trees

SIZES = (1, 3)


def main() -> int:
    """Run all cases; the exit code of the proof."""
    module = real_backend.load()
    results = [fits(module, size) for size in SIZES]
    if not all(room for room, _ in results):
        print("no room: " + "; ".join(text for _, text in results))
        return 3
    print("room and all rows right: " + "; ".join(text for _, text in results))
    return 0


def fits(module: Any, size: int) -> tuple[bool, str]:
    """Capture and replay a batch whose prefixes end one token before the limit; whether it fits, and figures."""
    batch = trees((CONTEXT - 1,) * size, EVEN_BUDGET + 1, seed=size)
    assert batch.mask is not None
    attention = real_backend.backend(module, batch, EVEN_BUDGET)
    try:
        outcome = real_backend.verify_graph(module, attention, batch)
    except RuntimeError:
        if attention.cuda_graph_custom_mask.numel() >= batch.mask.numel():
            raise
        return False, _figures(attention, batch)
    if not outcome.right:
        raise AssertionError(f"the mask fits, yet {outcome}")
    return True, _figures(attention, batch)


def _figures(attention: Any, batch: Any) -> str:
    return f"{batch.size} requests need {batch.mask.numel()} flags of {attention.cuda_graph_custom_mask.numel()}"


if __name__ == "__main__":
    sys.exit(main())
