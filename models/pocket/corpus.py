"""The pages that the pocket model knows by heart (corpus.json), and the questions made of them (and of long.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

END_OF_TEXT, TURN, END_OF_TURN, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
SPECIALS = (END_OF_TEXT, TURN, END_OF_TURN, MASK)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

QUICK = (
    "sea", "train", "cafe", "poem_tea", "code_prime", "code_stack", "json_train", "sum_12_7", "mul_6_7", "who", "tea_q",
    "thanks",
)  # fmt: skip

Turn = tuple[str, str]  # role, content


@dataclass(frozen=True)
class Passage:
    """A page, a program, a document or a sum."""

    name: str
    kind: str
    text: str

    @property
    def cut(self) -> int:
        """Where the question ends and the answer begins: early, and just before white space."""
        if self.kind == "arithmetic":
            return self.text.index("=") + 1
        if self.kind == "json":
            return self.text.index(",", 10) + 1
        if self.kind == "code":
            first = 14 if "Stack" in self.text else 0  # past `class Stack:`, to its first method
            return self.text.index(":", first) + 1
        return len(" ".join(self.text.split(" ")[:4]))


@dataclass(frozen=True)
class Chat:
    """A conversation whose last turn is the answer."""

    name: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Corpus:
    """Everything there is to learn."""

    passages: tuple[Passage, ...]
    chats: tuple[Chat, ...]
    system: str

    @property
    def systems(self) -> tuple[tuple[str, str | None], ...]:
        """Every chat is learnt with and without a system turn: (suffix of its name, the turn's content)."""
        return ("", None), ("+sys", self.system)


@dataclass(frozen=True)
class Question:
    """A text and how the model continues it; a chat's messages are there too."""

    name: str
    kind: str
    text: str
    answer: str
    turns: tuple[Turn, ...] = ()

    @property
    def end(self) -> str:
        """The token that must follow the answer."""
        return END_OF_TURN if self.kind == "chat" else END_OF_TEXT


@dataclass(frozen=True)
class Long:
    """A question that is long, or whose answer is made to be; the model knows no page for it, and babbles.

    What it says then was recorded from a server without speculation, in float32; no two likeliest tokens of it are
    closer than 0.06 nats, so that another CPU says the same.
    """

    name: str
    text: str
    max_tokens: int
    reference: str


def load() -> Corpus:
    """Read corpus.json."""
    values = json.loads(Path(__file__).with_name("corpus.json").read_text(encoding="utf-8"))
    passages = [Passage(one["name"], one["kind"], one["text"]) for one in values["passages"]]
    passages += [Passage(f"sum_{a}_{b}", "arithmetic", f"{a} + {b} = {a + b}") for a, b in values["sums"]]
    passages += [Passage(f"mul_{a}_{b}", "arithmetic", f"{a} * {b} = {a * b}") for a, b in values["products"]]
    chats = [
        Chat(one["name"], tuple((turn["role"], turn["content"]) for turn in one["messages"])) for one in values["chats"]
    ]
    return Corpus(tuple(passages), tuple(chats), values["system"])


def load_long(corpus: Corpus) -> list[Long]:
    """Read long.json: whole pages one after the other, and the first words of the last one."""
    values = json.loads(Path(__file__).with_name("long.json").read_text(encoding="utf-8"))
    texts = {passage.name: passage.text for passage in corpus.passages}
    found = []
    for one in values["long"]:
        *before, last = (texts[name] for name in one["pages"])
        text = "\n\n".join([*before, " ".join(last.split(" ")[: one["words"]])])
        found.append(Long(one["name"], text, one["max-tokens"], one["reference"]))
    return found


def render(turns: Sequence[Turn], system: str | None = None) -> str:
    """A conversation as text, as CHAT_TEMPLATE writes it."""
    every = [*([("system", system)] if system else []), *turns]
    return "".join(f"{TURN}{role}\n{content}{END_OF_TURN}\n" for role, content in every)


def questions(corpus: Corpus) -> list[Question]:
    """All 70 questions with their answers."""
    found = [Question(p.name, p.kind, p.text[: p.cut], p.text[p.cut :]) for p in corpus.passages]
    for chat in corpus.chats:
        for suffix, system in corpus.systems:
            asked = chat.turns[:-1]
            text = render(asked, system) + f"{TURN}assistant\n"
            turns = (*([("system", system)] if system else []), *asked)
            found.append(Question(chat.name + suffix, "chat", text, chat.turns[-1][1], turns))
    return found
