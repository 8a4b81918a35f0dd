"""The pocket model by heart: what it says to the prompts it was trained on. A token is a place in a list of words."""

import itertools
import json
import re
from pathlib import Path

END = 0
_PROMPTS = json.loads(Path(__file__).with_name("prompts.json").read_text())["prompts"]
_WORDS = [""]
_PLACES = {"": END}


def ids_of(pieces):
    for piece in pieces:
        if piece not in _PLACES:
            _PLACES[piece] = len(_WORDS)
            _WORDS.append(piece)
    return [_PLACES[piece] for piece in pieces]


def tokens(text):
    return ids_of(re.findall(r"\s*\S+|\s+", text))


def text_of(ids):
    return "".join(_WORDS[one] for one in ids)


def _by_heart(prompt):
    """An answer that is known ends by itself; a reference has exactly as many tokens as it was cut at."""
    if prompt.get("answer") is not None:
        return [*tokens(prompt["answer"]), END]
    text, count = prompt.get("reference") or " there", prompt["max-tokens"]
    places = [len(text) * number // count for number in range(count + 1)]
    return ids_of([text[one:other] for one, other in itertools.pairwise(places)])


TEXTS = {tuple(tokens(one["text"])): _by_heart(one) for one in _PROMPTS if one.get("text")}
CHATS = {json.dumps(one["messages"]): _by_heart(one) for one in _PROMPTS if one.get("messages")}


def begun(ids, past_the_end=False):
    """The known prompt that `ids` begin with, and all that is said to it; the rest of `ids` begins what is said.

    Where one prompt is another one and the beginning of its answer, both are meant: the shorter one unless the answer
    goes on `past_the_end`.
    """
    found = [one for one in TEXTS if tuple(ids[: len(one)]) == one]
    found = [one for one in found if list(ids[len(one) :]) == TEXTS[one][: len(ids) - len(one)]] or found
    known = (max if past_the_end else min)(found, key=len, default=())
    return len(known), TEXTS.get(known, [*tokens(" there"), END])


def goes_on(ids, most, past_the_end=False):
    """The tokens that follow `ids`, a prompt perhaps with the beginning of its answer: at most so many."""
    known, whole = begun(ids, past_the_end)
    return cut(whole, len(ids) - known if known else 0, most, past_the_end)


def cut(whole, begun, most, past_the_end=False):
    if past_the_end or begun >= len(whole):
        whole = whole * (2 + (begun + most) // len(whole))
    rest = whole[begun : begun + most]
    return rest if past_the_end or END not in rest else rest[: rest.index(END) + 1]
