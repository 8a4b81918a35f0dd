"""Long prompts for any model: the list of a lost property office, in which something far above is asked for again.

What broke past a length of prompt (a chunk, a window, 4,096 tokens) shows here, because the answer stands only there.
"""

from __future__ import annotations

import re

from kdeploy.verdict.questions import LONG, Prompt

_HEAD = (
    "List of the lost property office at Alder Street station. What is asked for again is written down again, in the"
    " same words, at the end of the list.\n\n"
)
_MADE = ("brass", "tin", "wooden", "velvet", "paper", "copper", "woollen", "glass", "leather", "silver", "felt")
_THINGS = (
    "whistle", "lantern", "flute", "bell", "fan", "kettle", "ladle", "compass", "thimble", "buckle", "mirror", "tray",
    "drum",
)  # fmt: skip
_FIRST = ("Mara", "Otto", "Ines", "Jakob", "Lena", "Pavel", "Ruth", "Simon", "Tilda", "Viktor", "Wanda", "Yusuf")
_LAST = ("Quill", "Brand", "Ferry", "Holm", "Ketteler", "Lund", "Marsh", "Novak", "Ostrow", "Pell", "Reed")
_LOCKERS = 997  # a prime, so that numbers come in no order and none comes twice


def long_prompts() -> tuple[Prompt, ...]:
    """Two long lists, about 700 and 5,000 tokens with a vocabulary of today, and one long answer."""
    on = (
        "The ferry to the island leaves when the ferryman has finished his tea, and not before. On the morning that"
        " this story is about he drank three cups, one after the other, and looked at the sky. Then he said:"
    )
    return (
        _list("office_short", entries=45, wanted=4),
        _list("office_long", entries=340, wanted=9),
        Prompt(name="ferry", kind=LONG, text=on, max_tokens=512, ignore_eos=True),
    )


def entry(number: int) -> tuple[str, str]:
    """Locker and what is in it, of one line of the list; all lines up to the 997th differ in both."""
    locker = f"Locker {number * 389 % _LOCKERS + 1:03d}:"
    thing = f"a {_MADE[number % len(_MADE)]} {_THINGS[number % len(_THINGS)]}"
    return locker, f"{thing}, left by {_FIRST[number % len(_FIRST)]} {_LAST[number // 3 % len(_LAST)]}."


def _list(name: str, entries: int, wanted: int) -> Prompt:
    """A list of so many entries; at its end three are there again, and the one that is `wanted` is to be."""
    asked = [*range(entries), *(wanted + 5 * step for step in (1, 2, 3))]
    lines = "\n".join(" ".join(entry(number)) for number in asked)
    locker, thing = entry(wanted)
    return Prompt(
        name=name, kind=LONG, text=f"{_HEAD}{lines}\n{locker}", max_tokens=24, expect=rf"^\s*{re.escape(thing)}"
    )
