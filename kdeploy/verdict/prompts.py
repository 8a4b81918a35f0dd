"""What a candidate is asked: prompts with what is known about their answers, and the bounded plan of probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """One question and what is known about its answer.

    `answer` is the exact text a greedy model gives; `expect` is a regular expression for answers known only in part.
    `text` goes to /generate, `messages` to /v1/chat/completions; at least one of them is there.
    """

    name: str
    kind: str
    text: str | None
    max_tokens: int
    messages: tuple[Mapping[str, str], ...] = ()
    answer: str | None = None
    expect: str | None = None
    schema: Mapping[str, Any] | None = None
    quick: bool = True


@dataclass(frozen=True)
class Bounds:
    """How much is asked: the gate section of a profile."""

    quick: bool = True
    together: tuple[int, ...] = (2, 4)  # sizes of the batches of different prompts
    chats: int = 4  # chat requests in flight at once
    repeats: int = 3  # prompts asked again at the very end
    json: bool = True  # whether answers constrained by a JSON schema are asked for
    request_s: float = 30.0  # no single answer may take longer


def read_prompts(values: Sequence[Mapping[str, Any]], path: str) -> tuple[Prompt, ...]:
    """Read prompts from the parsed JSON of a prompts file; raises ProfileError naming `path` and the prompt."""
    raise NotImplementedError


def default_prompts() -> tuple[Prompt, ...]:
    """The prompts for a model whose exact answers are not known."""
    raise NotImplementedError


def probes(prompts: Sequence[Prompt], bounds: Bounds, model: str) -> dict[str, Any]:
    """Build the plan of probes that the agent runs: JSON, every list bounded, nothing to decide on the host.

    Keys: `protocol`, `model` (its name at /v1), `request-s`, `alone`, `together` (groups), `chat`, `json`, `repeat`, `brief`
    (for the agent's own check after it went back to known-good), `signatures` (what to look for in the log).
    """
    raise NotImplementedError
