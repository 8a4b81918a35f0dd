"""DDTREE's verify pass on the real Triton backend: every node must attend to the prefix and its ancestors only.

Compares each output row with plain torch attention, for budgets on both sides of the block size, for one request and
for three, without and with the metadata of a CUDA graph. Exit 0: all rows right. Exit 3: the mask fault, that is
rows wrong, never written, or written past the end, because queries and mask are laid out for the block size.
"""

from __future__ import annotations

import sys
from typing import Any

import real_backend
from tree_batch import BLOCK_SIZE, BUDGETS, EVEN_BUDGET, Outcome, blocks, trees

PREFIXES = (37, 70, 5)
PATHS = {"eager": real_backend.verify_eager, "graph": real_backend.verify_graph}


def main() -> int:
    """Run all cases; the exit code of the proof."""
    module = real_backend.load()
    check_unaffected(module)
    faults: dict[int, Outcome] = {}
    all_rows = Outcome()
    for budget in BUDGETS:
        outcome = Outcome()
        for size in (1, 3):
            for verify in PATHS.values():
                outcome += one_case(module, verify, budget, size)
        all_rows += outcome
        if not outcome.right:
            faults[budget] = outcome
        print(f"budget {budget}: {outcome}")
    if EVEN_BUDGET in faults:
        raise AssertionError(f"budget {EVEN_BUDGET} is wrong, which the mask fault does not explain")
    if faults:
        print(f"mask fault at budgets {', '.join(map(str, faults))}: {sum(faults.values(), Outcome())}")
        return 3
    print(f"all {all_rows.rows} rows right at budgets {', '.join(map(str, BUDGETS))}, eager and graph")
    return 0


def one_case(module: Any, verify: Any, budget: int, size: int) -> Outcome:
    """Verify `size` requests with trees of `budget` nodes below the root."""
    batch = trees(PREFIXES[:size], budget + 1, seed=budget)
    attention = real_backend.backend(module, batch, budget)
    outcome: Outcome = verify(module, attention, batch)
    if not outcome.right and attention.num_draft_tokens != BLOCK_SIZE:
        raise AssertionError(
            f"budget {budget}: {outcome}, although the layout is for {attention.num_draft_tokens} tokens: another fault"
        )
    return outcome


def check_unaffected(module: Any) -> None:
    """The draft worker and a stock DFLASH server keep the block size, in every tree; anything else is an error."""
    for name, verify in PATHS.items():
        for who, batch, budget, is_draft in (
            ("draft worker", blocks(PREFIXES, BLOCK_SIZE, seed=1), 16, True),
            ("stock DFLASH target", trees(PREFIXES, BLOCK_SIZE, seed=2), None, False),
        ):
            outcome = verify(module, real_backend.backend(module, batch, budget, is_draft), batch)
            if not outcome.right:
                raise AssertionError(f"{who}, {name}: {outcome}")


if __name__ == "__main__":
    sys.exit(main())
