"""What a candidate is asked: prompts with what is known about their answers, and the bounded plan of probes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kdeploy import document
from kdeploy.document import Model
from kdeploy.errors import ProfileError
from kdeploy.verdict import signatures


class Message(Model):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(Model):
    """One question and what is known about its answer.

    A greedy model gives `answer`, to the letter, or a text in which the regular expression `expect` is found; with
    neither only the look of the text can be judged.
    """

    name: Annotated[str, Field(min_length=1)]
    kind: Annotated[str, Field(min_length=1, description="prose, code, arithmetic, json, ...")]
    text: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="for /generate, as it is")
    messages: list[Message] = Field(default=[], description="for /v1/chat/completions")
    max_tokens: Annotated[int, Field(ge=1, le=4096)]
    answer: str | None = None
    expect: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, description="also asked with this schema as a constraint")
    quick: bool = Field(default=True, description="whether the quick gate asks it")

    @model_validator(mode="after")
    def _can_be_asked(self) -> Prompt:
        if self.text is None and not self.messages:
            raise ValueError(f"prompt '{self.name}' needs 'text' or 'messages'")
        if self.answer is not None and self.expect is not None:
            raise ValueError(f"prompt '{self.name}': give 'answer' or 'expect', not both")
        if self.json_schema is not None and not self.messages:
            raise ValueError(f"prompt '{self.name}': a 'json-schema' needs 'messages'")
        try:
            re.compile(self.expect or "")
        except re.error as fault:
            raise ValueError(f"prompt '{self.name}': 'expect' is not a regular expression: {fault}") from fault
        return self


class PromptsFile(Model):
    """A prompts file."""

    prompts: Annotated[list[Prompt], Field(min_length=1)]

    @model_validator(mode="after")
    def _all_different(self) -> PromptsFile:
        # Equal prompts in a batch have equal answers, which hides a mix-up of its rows.
        for what in ("name", "text"):
            values = [value for prompt in self.prompts if (value := getattr(prompt, what)) is not None]
            twice = {value for value in values if values.count(value) > 1}
            if twice:
                raise ValueError(f"two prompts have the {what} {min(twice)!r}")
        return self


@dataclass(frozen=True)
class Bounds:
    """How much is asked."""

    quick: bool = True  # only the prompts marked so
    together: tuple[int, ...] = (2, 4)  # sizes of batches; the largest is made of every prompt once
    chats: int = 4  # chat requests in flight at once
    repeats: int = 3  # prompts asked once more, at the very end
    json: bool = True  # whether answers constrained by a JSON schema are asked for
    request_s: float = 30.0  # no single answer may take longer
    chat_options: Mapping[str, Any] = field(default_factory=dict)  # more keys for chat requests


def takes_schemas(args: Mapping[str, Any]) -> bool:
    """Whether a server launched with `args` can be asked for JSON of a schema: Bounds.json.

    With DFLASH it refuses (SGLang 0.5.11, srt/managers/scheduler.py: "does not support grammar-constrained decoding").
    """
    algorithm = args.get("speculative-algorithm") or args.get("speculative_algorithm")
    return str(algorithm).upper() not in ("DFLASH", "DDTREE")


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read a prompts file (JSON, which is YAML); raises ProfileError with the place of the fault."""
    return tuple(document.load(path, PromptsFile, ProfileError)[0].prompts)


def default_prompts() -> tuple[Prompt, ...]:
    """The prompts for a model whose exact answers are not known."""
    return load_prompts(Path(__file__).with_name("default_prompts.json"))


def probes(prompts: Sequence[Prompt], bounds: Bounds, model: str) -> dict[str, Any]:
    """Build the plan of probes that the agent runs: JSON, every list bounded, nothing to decide on the host.

    Keys: `protocol`, `model` (its name at /v1), `request-s`, `chat-options`, `alone`, `chat`, `together` (groups),
    `json`, `repeat`, `brief` (for the agent's own check after it went back to known-good), `log` (signatures).
    """
    chosen = [prompt for prompt in prompts if prompt.quick or not bounds.quick]
    texts = [prompt for prompt in chosen if prompt.text is not None]
    chats = _at_least(bounds.chats, [prompt for prompt in chosen if prompt.messages], prompts)
    typed = [prompt for prompt in prompts if prompt.json_schema is not None][:2] if bounds.json else []
    again = [*map(_as_text, _spread(texts, bounds.repeats)), *map(_as_chat, chats[:1])] if bounds.repeats else []
    together = _batches(texts, bounds.together)
    if len(chats) > 1 and bounds.chats > 1:
        together.append({"name": "chats", "how": "threads", "asks": list(map(_as_chat, chats[: bounds.chats]))})
    return {
        "protocol": 1,
        "model": model,
        "request-s": bounds.request_s,
        "chat-options": dict(bounds.chat_options),
        "alone": list(map(_as_text, texts)),
        "chat": list(map(_as_chat, chats)),
        "together": together,
        "json": [{**_as_chat(prompt), "schema": prompt.json_schema} for prompt in typed],
        "repeat": again,
        "brief": [{**_as_text(prompt), "answer": prompt.answer} for prompt in _briefest(texts)],
        "log": list(signatures.FATAL),
    }


def _as_text(prompt: Prompt) -> dict[str, Any]:
    return {"name": prompt.name, "kind": prompt.kind, "text": prompt.text, "max_tokens": prompt.max_tokens}


def _as_chat(prompt: Prompt) -> dict[str, Any]:
    messages = [message.model_dump() for message in prompt.messages]
    return {"name": prompt.name, "kind": prompt.kind, "messages": messages, "max_tokens": prompt.max_tokens}


def _at_least(count: int, chosen: list[Prompt], prompts: Sequence[Prompt]) -> list[Prompt]:
    """`chosen`, filled up to `count` chats from those that are not marked quick."""
    others = (prompt for prompt in prompts if prompt.messages and prompt not in chosen)
    return [*chosen, *islice(others, max(0, count - len(chosen)))]


def _batches(texts: list[Prompt], sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """One batch of each size; of the largest as many as give every prompt its turn in company.

    The members of a batch are taken from all over the list, so that kinds and lengths mix.
    """
    groups: list[list[Prompt]] = []
    for size in sorted(sizes):
        count = -(-len(texts) // size) if size == max(sizes) else 1
        for start in range(min(count, len(texts))):
            members = texts[start::count][:size] if count > 1 else _spread(texts, size)
            spare = [prompt for prompt in texts if prompt not in members]
            groups.append([*members, *spare[: size - len(members)]])
    return [
        {"name": f"batch-{len(members)}-{number}", "how": "batch", "asks": list(map(_as_text, members))}
        for number, members in enumerate(groups, 1)
    ]


def _spread(texts: list[Prompt], count: int) -> list[Prompt]:
    """`count` prompts evenly from the whole list."""
    return texts[:: max(1, len(texts) // max(1, count))][:count]


def _briefest(texts: list[Prompt]) -> list[Prompt]:
    known = [prompt for prompt in texts if prompt.answer is not None]
    return sorted(known or texts, key=lambda prompt: prompt.max_tokens)[len(known or texts) // 3 :][:2]
