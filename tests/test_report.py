"""The page: whole and self-contained whatever a host said, nothing of that taken for markup, disagreements marked."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdeploy.errors import PreflightError
from kdeploy.report import keep, plots
from kdeploy.report.differing import compare
from kdeploy.report.glance import glance
from kdeploy.report.markup import element, join
from kdeploy.report.page import About, Kept, page
from kdeploy.secrecy import Secrets
from kdeploy.verdict.expectation import Verdict, failed, not_applicable, passed

GOOD: dict[str, Any] = json.loads((Path(__file__).parent / "data/transcript_pocket.json").read_text(encoding="utf-8"))
ABOUT = About("local", "b300-1", "e9c81e11235c", "apply", {"version": "0.5.11+kd.0123456789ab"})
VERDICT = Verdict(
    (passed("health", "200"), failed("answers.exact", "2 wrong", "sea: <b>"), not_applicable("json", "x"))
)
EVIL = "</pre><script>alert(1)</script><img src=x onerror=y>\"'&\x1b[31m\u202e\ud800"


class Page(HTMLParser):
    """Every element opened is closed in its order; texts and attributes by element."""

    EMPTY = ("meta", "line", "rect", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.EMPTY
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def says(self, tag: str) -> str:
        return " ".join(self.texts.get(tag, ()))


def speculating(length: float) -> dict[str, Any]:
    """The true transcript with what later parts of the gate and a speculating engine add."""
    told = copy.deepcopy(GOOD)
    for answer in [*told["alone"], *told["chat"], *(one for group in told["together"] for one in group["answers"])]:
        answer["meta"]["spec_verify_ct"] = max(1, round(answer["n"] / length))
    told["stream"] = [{**told["alone"][0], "pieces": 9, "first_s": 0.0123, "done": True}]
    told["bounds"] = [{**told["alone"][0], "how": "length", "text": told["alone"][0]["text"][:40], "finish": "length"}]
    told["pace"] = [
        {"at_once": many, "round": 0, "seconds": 2.0, "tokens": 400 * many, "first_s": [0.02] * many, "error": None}
        for many in (1, 8)
    ]
    ids = told["alone"][0]["ids"]
    again = [*ids[:7], ids[7] + 1, *ids[8:]]
    one = {"name": "sea", "prompt": 4, "n": len(ids), "at": list(range(len(ids))), "said": ids, "again": again}
    told["lossless"] = {"how": "logprobs", "why": "", "answers": [{**one, "margins": [0.25] * len(ids), "error": None}]}
    return told


def test_a_page_tells_everything_and_loads_nothing() -> None:
    told = speculating(2.5)
    told["alone"][0].update(text="!" * 150)
    text = page(ABOUT, told, VERDICT, Kept("bbf62f714929", speculating(3.1)), floor=2.0)
    seen = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(seen.tags)
    assert not re.search(r"https?://|url\(|@import|\bon\w+=", re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL))
    assert not re.search(r"url\(|@import", text)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in seen.attributes
    assert "prefers-color-scheme: dark" in seen.says("style")
    assert seen.says("strong") == "Rejected"
    assert "✗ failed" in seen.says("td") and "sea: <b>" in seen.says("li")
    captions = seen.says("figcaption")
    for plot in ("Accept length, tokens a step", "Speed, tokens a second", "Time to the first token", "seconds"):
        assert plot in captions
    assert "floor 2" in seen.says("span")
    assert "prose, known-good: 3." in seen.says("title") and "prose, this: " in seen.says("title")
    assert "8 at once, this: 1,600 tokens a second, all together" in seen.says("title")
    assert "parts from known-good at character 0" in seen.says("span")
    assert "!" * 150 in seen.says("mark")
    assert "0.25 nats" in seen.says("td")
    assert "CUDA" not in seen.says("pre") and "Decode batch" in seen.says("pre")


def test_only_what_differs_is_unfolded_and_it_comes_first() -> None:
    told = copy.deepcopy(GOOD)
    told["alone"][5].update(text="garbage")
    told["chat"][1].update(error="hang: no complete answer within 6.0 s", text="")
    unfolded = re.findall(r'<details class="pair" open>.*?<b>(.*?)</b>', page(ABOUT, told, VERDICT, Kept("k", GOOD)))
    assert unfolded[:2] == [told["alone"][5]["name"], told["chat"][1]["name"]]
    assert set(unfolded[2:]) == {told["alone"][5]["name"]}  # in company it is still right, alone it is not
    assert "details open" not in page(ABOUT, GOOD, VERDICT, Kept("k", GOOD))


def test_what_is_declared_stands_in_for_known_good() -> None:
    text = page(ABOUT, GOOD, VERDICT, None, {"sea": " hurry. It never comes."})
    assert "parts from declared at character" in text
    assert "no known-good to compare with" in text


def spoil(value: Any) -> Any:
    """Every text of a transcript, and every key that is not ours to name, replaced by what a bad host would say."""
    if isinstance(value, dict):
        return {key: spoil(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spoil(item) for item in value]
    return EVIL if isinstance(value, str) else value


def test_what_a_host_says_is_text() -> None:
    verdict = Verdict((failed("answers.exact", EVIL, EVIL),))
    told = {
        **spoil(speculating(2.0)),
        "log": {"bytes": 1, "lines": 1, "matches": [{"line": 3, "text": EVIL}], "tail": [EVIL]},
    }
    text = page(About(EVIL, EVIL, EVIL, "gate", {EVIL: EVIL}), told, verdict, Kept(EVIL, told), {EVIL: EVIL})
    seen = Page(text)
    assert not {"script", "img"} & set(seen.tags)
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert "\x1b" not in text and "\u202e" not in text
    assert "alert(1)" in seen.says("li") and "\\x1b[31m\\u202e\\ud800" in seen.says("li")
    text.encode("utf-8")


def test_secrets_are_not_on_a_page() -> None:
    Secrets({"HF_TOKEN": "hf_page_of_secrets"})
    told = copy.deepcopy(GOOD)
    told["log"]["tail"].append("token is hf_page_of_secrets")
    text = page(ABOUT, told, VERDICT)
    assert "hf_page_of_secrets" not in text and "token is ***" in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(GOOD)) | st.text(), inner),
    max_leaves=20,
)
SECTIONS = [*GOOD, "stream", "bounds", "long", "lossless", "abort", "pace", "after", "first"]


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(SECTIONS), JSON), JSON)
def test_a_broken_transcript_has_a_page_all_the_same(values: dict[str, Any], known: Any) -> None:
    Page(page(ABOUT, {**GOOD, **values}, VERDICT, Kept("k", known)))
    Page(page(ABOUT, values, VERDICT))


ANSWER = st.fixed_dictionaries(
    {},
    optional={
        "ask": JSON, "name": JSON, "kind": JSON, "text": JSON, "error": JSON, "n": JSON, "seconds": JSON,
        "meta": st.dictionaries(st.just("spec_verify_ct"), st.integers() | st.floats()), "first_s": JSON,
        "at_once": st.integers(), "tokens": st.integers(), "at": JSON, "said": JSON, "again": JSON, "how": JSON,
    },
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(ANSWER, max_size=4), st.sampled_from(["alone", "stream", "pace", "lossless", "together"]))
def test_broken_answers_have_a_page_all_the_same(rows: list[Any], section: str) -> None:
    values: Any = {"answers": rows, "name": 3} if section in ("lossless", "together") else rows
    told = {section: [values] if section == "together" else values}
    Page(page(ABOUT, told, VERDICT, Kept("k", told)))


@given(st.text(), st.text())
def test_differences_keep_both_texts(one: str, other: str) -> None:
    found = compare(one, other)
    assert "".join(run.text for run in found.one) == one
    assert "".join(run.text for run in found.other) == other
    assert (found.at is None) == (one == other)
    assert any(run.differs for run in (*found.one, *found.other)) == (one != other)


def test_differences_are_those_of_words() -> None:
    found = compare("the cat sat on the mat", "the dog sat on the mat")
    assert [run.text for run in found.one if run.differs] == ["cat"]
    assert [run.text for run in found.other if run.differs] == ["dog"]
    assert found.at == 4


def test_long_texts_are_compared_in_no_time() -> None:
    """Equal words by the thousand are the worst case of a comparison."""
    found = compare("a b " * 4000, "b a " * 4000)
    assert found.at == 0
    assert len(found.one) < 5


def test_the_strip_shows_where_an_answer_is_wrong() -> None:
    text = plots.strip(100, range(0, 100, 2), [50])
    assert text.count('class="wrong"') == 1
    assert 'x="150" y="0"' in text
    assert plots.strip(2048, range(2048), []).count("<rect") == 2
    assert plots.strip(0, [], [5]).count("wrong") == 0


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.013, 1.0, 3.7, 99, 12345.6, 9e14])
def test_axes_of_any_size(value: float) -> None:
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", plots.rows("t", "s", [plots.Row("one", (value,))]))
    assert 3 <= len(labels) <= 8
    assert len(set(labels)) == len(labels)


def test_markup_is_made_by_elements_alone() -> None:
    assert (
        element("p", "<b>", [element("b", 1), None, 0.25], class_='"x"')
        == '<p class="&quot;x&quot;">&lt;b&gt;<b>1</b>0.25</p>'
    )
    assert join("a\u200cb\x00") == "a\u200cb\\x00"


def test_accept_length_needs_steps() -> None:
    assert all(one.accept_length is None for one in glance(GOOD).answers)
    assert glance(speculating(2.0)).answers[0].accept_length == pytest.approx(2.0, abs=0.1)


def test_a_page_is_kept_by_service_host_and_release(home: Path) -> None:
    path = keep.write(keep.place(ABOUT), "one")
    assert path == home / "state/reports/local/b300-1/e9c81e11235c-apply.html"
    assert keep.write(keep.place(ABOUT), "two").read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    odd = keep.place(About("s", "http://[::1]:30000", "../../etc/x", "gate"))
    assert odd == home / "state/reports/s/http-1-30000/etc-x-gate.html"


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match="cannot be written: "):
        keep.write(tmp_path / "file/page.html", "x")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(PreflightError, match="cannot be written: "):
        keep.write(tmp_path / "folder.html", "x")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder.html", "home"}
