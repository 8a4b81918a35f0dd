"""Prompts and what is known about their answers; read from a prompts file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kdeploy import document
from kdeploy.document import Model
from kdeploy.errors import ProfileError

LONG = "long"
"""The kind of prompts that are long, or whose answers are: asked alone, once, after the others."""


class Message(Model):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(Model):
    """One question and what is known about its answer.

    A greedy model gives `answer`, to the letter; or a text in which the regular expression `expect` is found; or, as
    far as near ties allow, `reference`: what the same model said without speculation. With none of them only the look
    of the text can be judged.
    """

    name: Annotated[str, Field(min_length=1)]
    kind: Annotated[str, Field(min_length=1, description="prose, code, arithmetic, json, long, ...")]
    text: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="for /generate, as it is")
    messages: list[Message] = Field(default=[], description="for /v1/chat/completions")
    max_tokens: Annotated[int, Field(ge=1, le=4096)]
    answer: str | None = Field(default=None, description="the whole answer, to the letter; it ends by itself")
    expect: str | None = Field(default=None, description="a regular expression that is found in the answer")
    reference: str | None = Field(
        default=None, description="answer recorded from the same model without speculation, cut at max-tokens"
    )
    ignore_eos: bool = Field(default=False, description="whether it goes on past its end, up to max-tokens")
    json_schema: dict[str, Any] | None = Field(default=None, description="also asked with this schema as a constraint")
    quick: bool = Field(default=True, description="whether the quick gate asks it")

    @property
    def long(self) -> bool:
        """Whether it is asked apart from the others, because it or its answer is long."""
        return self.kind == LONG

    @model_validator(mode="after")
    def _can_be_asked(self) -> Prompt:
        if self.text is None and not self.messages:
            raise ValueError(f"prompt '{self.name}' needs 'text' or 'messages'")
        if self.answer is not None and (self.expect is not None or self.reference is not None):
            other = "expect" if self.expect is not None else "reference"
            raise ValueError(f"prompt '{self.name}': give 'answer' or '{other}', not both")
        if self.json_schema is not None and not self.messages:
            raise ValueError(f"prompt '{self.name}': a 'json-schema' needs 'messages'")
        if self.long and self.text is None:
            raise ValueError(f"prompt '{self.name}': kind '{LONG}' needs 'text': it is asked again token by token")
        if self.ignore_eos and not self.long:
            raise ValueError(f"prompt '{self.name}': 'ignore-eos' is for kind '{LONG}'; others must end by themselves")
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


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read a prompts file (JSON, which is YAML); raises ProfileError with the place of the fault."""
    return tuple(document.load(path, PromptsFile, ProfileError)[0].prompts)
