"""How many tokens of a request DDTREE takes through one TARGET_VERIFY pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs


def verify_tokens_per_req(
    server_args: ServerArgs, is_draft_worker: bool
) -> Optional[int]:
    """Tokens a request in one TARGET_VERIFY pass; None without speculative decoding.

    DDTREE drafts blocks of speculative_num_draft_tokens, but its target verifies
    the draft tree: the root and `budget` nodes. The two differ unless the budget
    happens to be the block size - 1. All other algorithms verify what they draft.
    """
    if server_args.speculative_algorithm == "DDTREE" and not is_draft_worker:
        return server_args.speculative_ddtree_budget + 1
    return server_args.speculative_num_draft_tokens
