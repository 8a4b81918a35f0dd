"""What a candidate is asked: the plan of probes, bounded in number, made of prompts (questions.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from kdeploy.verdict import signatures
from kdeploy.verdict.office import long_prompts
from kdeploy.verdict.questions import Message, Prompt, PromptsFile, load_prompts

__all__ = [
    "PROTOCOL", "Bounds", "Lossless", "Message", "Prompt", "PromptsFile", "default_prompts", "load_prompts", "probes",
    "reasking", "sizes", "takes_schemas",
]  # fmt: skip

PROTOCOL = 2
"""Of the plan and of the transcript that comes of it."""

Lossless = Literal["logprobs", "reask", "none"]
"""How an answer is compared with a prefill of itself: one with logprobs, or one a position for a single token."""

ABORTED = 1900  # tokens that are asked for where the client hangs up: seconds of work that must not be done
PACED = 96  # tokens a request whose speed is measured
AT_ONCE = (1, 8)  # requests whose speed is measured together
ROUNDS = 3  # of each; the best one counts, for a machine has other things to do as well
BATCH = 16  # prefixes that are asked in one request
EACH, EACH_FULL = 48, 4096  # positions of one answer that are asked again, quick and full


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
    lossless: Lossless = "logprobs"  # see `reasking`
    why: str = ""  # lossless is as it is
    pace: bool = True  # whether speed is measured
    agreement: float = 1.0  # share of a brief answer that must be as it was
    soak_every_s: float = 5.0  # between two questions after the opening


def default_prompts() -> tuple[Prompt, ...]:
    """The prompts for a model whose exact answers are not known."""
    return (*load_prompts(Path(__file__).with_name("default_prompts.json")), *long_prompts())


def takes_schemas(args: Mapping[str, Any]) -> bool:
    """Whether a server launched with `args` can be asked for JSON of a schema: Bounds.json.

    With DFLASH it refuses (SGLang 0.5.11, srt/managers/scheduler.py: "does not support grammar-constrained decoding").
    """
    return _algorithm(args) not in ("DFLASH", "DDTREE")


def sizes(args: Mapping[str, Any], company: int) -> tuple[int, ...]:
    """Sizes of the batches that a server launched with `args` can compute together, up to `company`: Bounds.together.

    Of one that is declared to run a single request at a time there is no company to be seen.
    """
    declared = args.get("max-running-requests") or args.get("max_running_requests")
    most = min(company, int(str(declared))) if str(declared).isdigit() else company
    return tuple(sorted({2, most})) if most > 1 else ()


def reasking(args: Mapping[str, Any]) -> tuple[Lossless, str]:
    """How a server launched with `args` can be asked for its answers again, and why so: Bounds.lossless and .why.

    With DFLASH it refuses logprobs (SGLang 0.5.11, srt/managers/scheduler.py: "does not support return_logprob yet"),
    and a server that has refused something drains for ever when it is told to stop: it must not be tried.
    """
    algorithm = _algorithm(args)
    if algorithm in ("DFLASH", "DDTREE"):
        return "reask", f"{algorithm} refuses logprobs"
    return "logprobs", "one prefill an answer gives every margin"


def probes(prompts: Sequence[Prompt], bounds: Bounds, model: str) -> dict[str, Any]:
    """Build the plan of probes that the agent runs: JSON, every list bounded, nothing to decide on the host.

    protocol, request-s, chat-options; model: its name at /v1
    alone, chat, long  asked one after the other; chat at /v1/chat/completions, all else at /generate
    stream             some of alone and chat once more, streamed
    bounds             names in alone that are asked with a stop string, and for fewer tokens, of their own answers
    lossless           answers that are asked again from their own prefixes
    together           groups: in one request as a batch, or in flight at once
    json               chats under a schema
    abort              asked and hung up on
    pace               asked at once, for its speed
    repeat             asked once more at the very end
    brief              asked after abort and pace, and by the agent itself after it went back to known-good
    soak               asked again and again after the opening, through the public port
    log                signatures that the server's log must not have
    """
    chosen = [prompt for prompt in prompts if prompt.quick or not bounds.quick]
    texts = [prompt for prompt in chosen if prompt.text is not None and not prompt.long]
    long = [prompt for prompt in chosen if prompt.long]
    chats = _at_least(bounds.chats, [prompt for prompt in chosen if prompt.messages], prompts)
    typed = [prompt for prompt in prompts if prompt.json_schema is not None][:2] if bounds.json else []
    again = [*map(_as_text, _spread(texts, bounds.repeats)), *map(_as_chat, chats[:1])] if bounds.repeats else []
    together = [*_batches(texts, bounds.together), *_mixed(long, texts, max(bounds.together, default=0))]
    if len(chats) > 1 and bounds.chats > 1:
        together.append({"name": "chats", "how": "threads", "asks": list(map(_as_chat, chats[: bounds.chats]))})
    known = [(_as_text(prompt), prompt.answer) for prompt in _briefest(texts)]
    brief = [{**ask, "answer": answer, "least": bounds.agreement} for ask, answer in known]
    some = 2 if bounds.quick else 6
    return {
        "protocol": PROTOCOL,
        "model": model,
        "request-s": bounds.request_s,
        "chat-options": dict(bounds.chat_options),
        "alone": list(map(_as_text, texts)),
        "chat": list(map(_as_chat, chats)),
        "stream": [*map(_as_text, _wordiest(texts, some)), *map(_as_chat, chats[: some // 2])],
        "bounds": [prompt.name for prompt in _wordiest(texts, some)],
        "long": list(map(_as_text, long)),
        "lossless": _lossless([*texts, *long], bounds),
        "together": together,
        "json": [{**_as_chat(prompt), "schema": prompt.json_schema} for prompt in typed],
        "abort": _on_and_on("abort", min(texts, key=lambda prompt: len(prompt.text or "")), ABORTED) if texts else None,
        "pace": _pace(texts, prompts) if texts and bounds.pace else None,
        "repeat": again,
        "brief": brief,
        "soak": {"asks": brief, "every-s": bounds.soak_every_s},
        "log": list(signatures.FATAL),
    }


def _algorithm(args: Mapping[str, Any]) -> str:
    return str(args.get("speculative-algorithm") or args.get("speculative_algorithm") or "").upper()


def _as_text(prompt: Prompt) -> dict[str, Any]:
    ask = {"name": prompt.name, "kind": prompt.kind, "text": prompt.text, "max_tokens": prompt.max_tokens}
    return {**ask, "ignore_eos": True} if prompt.ignore_eos else ask


def _as_chat(prompt: Prompt) -> dict[str, Any]:
    messages = [message.model_dump() for message in prompt.messages]
    return {"name": prompt.name, "kind": prompt.kind, "messages": messages, "max_tokens": prompt.max_tokens}


def _on_and_on(name: str, prompt: Prompt, tokens: int) -> dict[str, Any]:
    """A question whose answer has exactly so many tokens."""
    return {"name": name, "kind": name, "text": prompt.text, "max_tokens": tokens, "ignore_eos": True}


def _lossless(asked: list[Prompt], bounds: Bounds) -> dict[str, Any]:
    how, why = (bounds.lossless, bounds.why) if asked else ("none", "nothing is asked by its text")
    names = [prompt.name for prompt in asked] if how != "none" else []
    return {"how": how, "why": why, "of": names, "each": EACH if bounds.quick else EACH_FULL, "batch": BATCH}


def _pace(texts: list[Prompt], prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Different texts, so that none is answered from another's cache."""
    most = max(AT_ONCE)
    others = [p for p in prompts if p.text is not None and not p.long and p not in texts]
    found = [str(prompt.text) for prompt in [*texts, *others]][:most]
    found += [f"{number}. {found[0]}" for number in range(1, most + 1 - len(found))]
    return {
        "ask": _on_and_on("pace", texts[0], PACED), "at_once": list(AT_ONCE), "rounds": ROUNDS, "texts": found,
    }  # fmt: skip


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


def _mixed(long: list[Prompt], texts: list[Prompt], size: int) -> list[dict[str, Any]]:
    """A batch of a long prompt among short ones: in one forward pass some go on where another is still read."""
    if not long or size < 2 or len(texts) < size - 1:
        return []
    members = [long[0], *_spread(texts, size - 1)]
    return [{"name": f"mixed-{size}", "how": "batch", "asks": list(map(_as_text, members))}]


def _spread(texts: list[Prompt], count: int) -> list[Prompt]:
    """`count` prompts evenly from the whole list."""
    return texts[:: max(1, len(texts) // max(1, count))][:count]


def _briefest(texts: list[Prompt]) -> list[Prompt]:
    known = [prompt for prompt in texts if prompt.answer is not None]
    return sorted(known or texts, key=lambda prompt: prompt.max_tokens)[len(known or texts) // 3 :][:2]


def _wordiest(texts: list[Prompt], count: int) -> list[Prompt]:
    """Those with the longest answers: there is a middle to stop at, and a stream of many pieces."""
    return sorted(texts, key=lambda prompt: -prompt.max_tokens)[:count]
