"""The garble detector: good samples pass, garble does not, and every limit lies well between the two.

The samples are in tests/data/texts_good.yaml and texts_garble.yaml.
"""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdeploy import document
from kdeploy.errors import KdeployError
from kdeploy.verdict import garble


def texts(name: str) -> dict[str, str]:
    path = Path(__file__).parent / "data" / f"texts_{name}.yaml"
    return dict(document.read(path, KdeployError).values)


GOOD, BAD = texts("good"), texts("garble")


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_good_text_passes(text: str) -> None:
    assert garble.find(text) == ()


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_garble_is_found(text: str) -> None:
    findings = garble.find(text)
    assert findings
    assert all(finding.kind and finding.detail for finding in findings)


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_good_text_that_collapses_is_found(text: str) -> None:
    """The fault of the poem: it starts well and ends in one token."""
    assert garble.find(text[: len(text) // 2] + "!" * 24)
    assert garble.find(text, [*range(20), *[7] * 200])


def test_all_good_text_together_and_in_pieces() -> None:
    whole = [text for text in GOOD.values() if len(text) > 200]
    for text in whole:
        for start in range(0, len(text) - 100, 50):
            assert garble.find(text[start : start + 100]) == (), text[start : start + 100]


def test_a_repeated_token_counts_even_when_the_text_hides_it() -> None:
    text = "The lamp at sea and the lamp on the hill look alike from here."
    assert garble.find(text, [5, 6, *[9] * 16])
    assert not garble.find(text, [5, 6, *[9] * 3, 7])
    assert not garble.find("a = 1\n" + "-" * 40 + "\nb = 2\n", [3, *[12] * 20, 4])


def test_an_answer_cut_within_a_character_is_not_torn() -> None:
    assert garble.find("Das Café öffnet um sechs, und die Señora \ufffd", cut=True) == ()
    assert garble.find("Das Café öffnet um sechs, und die Señora \ufffd", cut=False)
    assert garble.find("Das Caf\ufffd öffnet um sechs", cut=True)


def test_noise_over_many_scripts_is_found() -> None:
    rng = random.Random(7)
    letters = string.ascii_letters + "".join(GOOD[language] for language in ("russian", "arabic", "japanese", "thai"))
    letters = "".join(filter(str.isalpha, letters))
    for _ in range(50):
        words = ["".join(rng.choice(letters) for _ in range(rng.randint(2, 8))) for _ in range(30)]
        assert garble.find(" ".join(words))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=400), st.lists(st.integers(0, 50), max_size=60), st.booleans())
def test_any_text_can_be_looked_at(text: str, ids: list[int], cut: bool) -> None:
    assert all(isinstance(str(finding), str) for finding in garble.find(text, ids, cut=cut))
