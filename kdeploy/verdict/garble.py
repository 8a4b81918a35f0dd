"""Does a text look like something a sane model writes? Surface statistics over characters, words and token ids.

This catches what is broken beyond doubt: a constant token, NaN made valid, dead attention, torn bytes, scripts in a
stew. It misses text that is fluent and wrong; known answers and company are there for that. The limits are set by
samples in tests/test_garble.py: good ones in a dozen languages, code, tables, JSON and poems with refrains keep well
below them, garble from broken servers goes well beyond.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

READABLE = 24  # characters: less says too little to count as an answer of unknown content

# A run of one character. Rules and leaders ("-----", "......", "=====") are drawn on purpose, zeros stand in numbers,
# and people write "Aaaaaah"; "!!!!!!" is token 0 of many vocabularies, the face of NaN.
RULES = frozenset("-=_*#~.+·•─━═│┃|/\\<>^…")
RULE_RUN, SPACE_RUN, WORD_RUN, OTHER_RUN = 160, 80, 16, 6
TOKEN_RUN = 16  # the same token id in a row; in good samples 3 (indentation, "= = =")

# A piece repeated at once, again and again: so many times in a row, over so many characters.
LOOP_TIMES, LOOP_CHARS = 6, 72
LOOP_ALL, LOOP_ALL_CHARS = 0.8, 24  # of a short text that is little else: such a share, so many characters
LOOP_PERIOD = 200  # characters: the longest piece that is looked for

WORDS = 40  # from so many words on, repetition and variety say something
GRAM_REPEATS = 0.55  # share of word 4-grams that were there before; poems with refrains reach 0.4
ZLIB_BYTES, ZLIB_LEAST = 400, 0.16  # bytes from which, and compressed share below which, a text says one thing only

FAMILY_SHARE, FAMILIES = 0.04, 3  # so many families of scripts with such a share of the letters each ...
SWITCHES = 0.25  # ... changing from word to word so often
TORN_WORDS, TORN_SHARE = 3, 0.04  # words that change script inside: so many, and such a share
WORDLESS_CHARS, WORDLESS_SHARE = 40, 0.08  # a text this long with fewer letters and digits than this share

REPETITIVE = frozenset({"loop", "repetition", "compressible"})
"""Kinds of findings that a sane model earns too when it is made to go on past its end."""

SPECIAL = re.compile(r"<\|[a-zA-Z_]{2,40}\|>|<(?:pad|unk|s|/s|bos|eos)>")


@dataclass(frozen=True)
class Finding:
    """One reason to call a text garble."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})"


def find(text: str, ids: Sequence[int] | None = None, *, cut: bool = False) -> tuple[Finding, ...]:
    """All findings in an answer; none means that it looks like text, not that it is right.

    `ids` are its token ids where known; `cut` says that it ended at its token limit, maybe within a character.
    """
    if not text.strip():
        return (Finding("empty", f"{len(text)} characters, all white space" if text else "no text"),)
    found = [rule(text, cut) for rule in _RULES]
    found.append(_token_run(text, ids or ()))
    return tuple(finding for finding in found if finding is not None)


def _character_run(text: str, cut: bool) -> Finding | None:
    for char, group in groupby(text):
        length = sum(1 for _ in group)
        if length >= _longest_run(char):
            return Finding("character run", f"{char!r} {length} times")
    return None


def _longest_run(char: str) -> int:
    if char.isspace():
        return SPACE_RUN
    if char in RULES:
        return RULE_RUN
    return WORD_RUN if char.isalnum() else OTHER_RUN


def _token_run(text: str, ids: Sequence[int]) -> Finding | None:
    longest, token = max(((sum(1 for _ in group), token) for token, group in groupby(ids)), default=(0, -1))
    drawn = max((sum(1 for _ in group) for char, group in groupby(text) if char in RULES or char == " "), default=0)
    if longest < TOKEN_RUN or longest <= drawn:  # a drawn rule or deep indentation has no fewer characters than tokens
        return None
    return Finding("token run", f"token {token} {longest} times")


def _loop(text: str, cut: bool) -> Finding | None:
    """The same piece again and again, at once. Pieces without a letter or digit are rules of tables."""
    least = min(LOOP_CHARS, max(LOOP_ALL_CHARS, int(LOOP_ALL * len(text))))
    for period in range(1, min(LOOP_PERIOD, len(text) // LOOP_TIMES) + 1):
        length = 0  # of the stretch in which each character equals the one a period before
        for at in range(period, len(text)):
            length = length + 1 if text[at] == text[at - period] else 0
            if length + period >= max(least, LOOP_TIMES * period):
                piece = text[at - period + 1 : at + 1]
                if any(char.isalnum() for char in piece) and len(set(piece)) > 1:
                    return Finding("loop", f"{piece[:40]!r} {(length + period) // period} times and more")
                break
    return None


def _gram_repeats(text: str, cut: bool) -> Finding | None:
    words = _words(text)
    if len(words) < WORDS:
        return None
    grams = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    share = 1 - len(set(grams)) / len(grams)
    return Finding("repetition", f"{share:.0%} of its 4-word pieces repeat") if share > GRAM_REPEATS else None


def _compressible(text: str, cut: bool) -> Finding | None:
    raw = text.encode("utf-8", "replace")
    if len(raw) < ZLIB_BYTES:
        return None
    share = len(zlib.compress(raw, 9)) / len(raw)
    return Finding("compressible", f"to {share:.0%} of its size") if share < ZLIB_LEAST else None


def _torn_bytes(text: str, cut: bool) -> Finding | None:
    body = text.rstrip("\ufffd") if cut else text
    count = body.count("\ufffd")
    return Finding("replacement characters", f"{count} of U+FFFD") if count else None


def _control(text: str, cut: bool) -> Finding | None:
    wrong = [char for char in text if unicodedata.category(char) in ("Cc", "Co", "Cn", "Cs") and char not in "\n\t\r"]
    return Finding("control characters", f"{len(wrong)}, the first {wrong[0]!r}") if wrong else None


def _special(text: str, cut: bool) -> Finding | None:
    leaked = SPECIAL.search(text)
    return Finding("special token in the text", leaked.group()) if leaked else None


def _torn_words(text: str, cut: bool) -> Finding | None:
    """Words that change script inside. Chinese and Japanese put Latin words in without a space; that is no tear."""
    words = [word for word in re.findall(r"[^\W\d_]+", text) if len(word) > 1]
    torn = [word for word in words if len(_families_of_word(word)) > 1]
    if len(torn) < TORN_WORDS or len(torn) < TORN_SHARE * len(words):
        return None
    return Finding("script mix", f"{len(torn)} of {len(words)} words change script inside, as {torn[0]!r}")


def _families_of_word(word: str) -> set[str]:
    families = [family for char in word if (family := _family(char))]
    neutral = {"CJK"} | ({"GREEK"} if families.count("GREEK") == 1 else set())  # "Δx"
    return set(families) - neutral


def _stew(text: str, cut: bool) -> Finding | None:
    """Several scripts by turns, word by word."""
    letters = [family for char in text if (family := _family(char))]
    if len(letters) < READABLE:
        return None
    present = {name for name in set(letters) if letters.count(name) >= FAMILY_SHARE * len(letters)}
    runs = [name for name, _ in groupby(letters)]
    words = len(re.findall(r"[^\W\d_]+", text))
    if len(present) < FAMILIES or len(runs) - 1 < SWITCHES * words:
        return None
    return Finding("script mix", f"{', '.join(sorted(present))} by turns: {len(runs) - 1} changes in {words} words")


def _wordless(text: str, cut: bool) -> Finding | None:
    dense = [char for char in text if not char.isspace()]
    share = sum(char.isalnum() for char in dense) / len(dense)
    if len(dense) < WORDLESS_CHARS or share >= WORDLESS_SHARE:
        return None
    return Finding("no words", f"{share:.0%} of {len(dense)} characters are letters or digits")


def _words(text: str) -> list[str]:
    """Words; in scripts that write without spaces each character is one."""
    return re.findall(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]|[^\s\u3040-\u9fff\uac00-\ud7af]+", text)


_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "HALFWIDTH", "IDEOGRAPHIC", "KANGXI")


def _family(char: str) -> str | None:
    """The family of scripts a letter belongs to: LATIN, CYRILLIC, ARABIC, CJK (with kana and hangul), ..."""
    if not char.isalpha():
        return None
    first = unicodedata.name(char, "UNKNOWN").partition(" ")[0]
    if first.startswith(_CJK):
        return "CJK"
    return "LATIN" if first in ("MICRO", "FEMININE", "MASCULINE", "MODIFIER") else first


_RULES: tuple[Callable[[str, bool], Finding | None], ...] = (
    _character_run, _loop, _gram_repeats, _compressible, _torn_bytes, _control, _special, _torn_words, _stew, _wordless,
)  # fmt: skip
