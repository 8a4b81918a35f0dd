"""Anchors and edits at them: exact, in scope, counted; told apart when applied, moved, ambiguous or gone."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kdeploy.errors import Location
from kdeploy.patching import fit
from kdeploy.patching.anchors import Anchor, Range, ScopeError, State, occurrences, scopes
from kdeploy.patching.attempt import attempt
from kdeploy.patching.edits import InsertAfter, InsertBefore, Replace
from kdeploy.patching.finding import splice
from kdeploy.patching.nearest import nearest
from kdeploy.patching.overlay import Overlay
from kdeploy.patching.trees import MemoryTree

HERE = Location("patch.yaml", 1)

TWINS = """\
class One:
    def start(self):
        self.n = args.n
        self.m = 1

    def stop(self):
        self.n = args.n


class Two:
    @decorated(
        True,
    )
    async def start(self):
        self.n = args.n

        def inner():
            self.n = args.n

if fast:
    def pick():
        return 1
else:
    def pick():
        return 2
"""


def after(source: str, kind, text: str, anchor: str, **more) -> tuple[State, str]:
    """The state of an edit, and the text after it."""
    finding = fit.judge(source, kind(1, HERE, "x.py", Anchor(anchor, **more), text))
    return finding.state, splice(source, finding.splices)


# --- finding


@pytest.mark.parametrize(
    ("source", "anchor", "spans"),
    [
        ("a = 1\nb = 1\n", "= 1", [(2, 5), (8, 11)]),
        ("aaa", "aa", [(0, 2), (1, 3)]),  # overlapping places count too
        ("  x\n  y\n", "x\ny\n", [(0, 8)]),
        ("x\ny\n", "x\ny", [(0, 4)]),
        ("x\ny", "x\ny\n", [(0, 3)]),  # the last line may have no newline
        ("x\r\ny\r\n", "x\ny\n", [(0, 6)]),
        ("  x\n y\n", "x\ny\n", []),  # two indentations
        ("  x\n\n  y\n", "x\n\ny\n", [(0, 9)]),
        ("  x\n  \n  y\n", "x\n\ny\n", []),  # a line of blanks is not an empty line
        ("x\n", "x\n\n", []),  # the end of the file is not an empty line
        ("x y\n", "x\n", []),  # whole lines only
        ("ax\n", "x\n", []),
        ("\t\tif a:\n\t\t\tb\n", "if a:\n\tb\n", [(0, 13)]),
        ("x\ny\nx\ny\n", "x\ny\n", [(0, 4), (4, 8)]),
        ("é\n\udcff x\n", "\udcff x", [(2, 5)]),
        ("x\x0cy\u2028z\n", "y\u2028z", [(2, 5)]),  # only \n ends a line
        ("", "x\ny\n", []),
    ],
)
def test_places(source, anchor, spans) -> None:
    assert [(place.start, place.end) for place in occurrences(source, Anchor(anchor))] == spans


def test_scopes_are_qualified_and_hold_decorators_and_every_definition() -> None:
    assert scopes(TWINS)["One.start"] == [(2, 4)]
    assert scopes(TWINS)["Two.start"] == [(11, 18)]
    assert scopes(TWINS)["Two.start.inner"] == [(17, 18)]
    assert scopes(TWINS)["pick"] == [(21, 22), (24, 25)]


BODIES = [
    "with a:\n  {0}",
    "try:\n  {0}\nexcept E:\n  pass",
    "try:\n  pass\nexcept E:\n  {0}",
    "try:\n  pass\nfinally:\n  {0}",
    "match x:\n  case 1:\n    {0}",
    "for a in b:\n  {0}",
]


@pytest.mark.parametrize("body", BODIES)
def test_scopes_are_found_inside_of_statements(body) -> None:
    assert list(scopes(body.format("def f(): pass"))) == ["f"]


def test_a_lone_carriage_return_does_not_shift_scopes() -> None:
    ranges: list[Range] = scopes("a = 1\rb = 2\n\ndef f():\n    return 1\n")["f"]
    assert ranges == [(3, 4)]


@pytest.mark.parametrize(
    "source", ["def f(:\n", "x = '\0'\n", "# coding: none\n", "(" * 10_000 + ")" * 10_000, "\udcff = 1\n"]
)
def test_a_file_that_does_not_parse_says_so(source) -> None:
    with pytest.raises(ScopeError, match="parse"):
        scopes(source)


def test_the_file_is_parsed_only_when_the_anchor_is_in_it() -> None:
    finding = fit.judge("def f(:\n    here\n", InsertAfter(1, HERE, "x.py", Anchor("here", within="f"), "x\n"))
    assert finding.state is State.MISSING
    assert finding.details == ("the scope 'f' cannot be looked for: line 1 does not parse: invalid syntax",)


# --- states


@pytest.mark.parametrize(
    ("state", "more"),
    [
        (State.AMBIGUOUS, {}),
        (State.APPLICABLE, {"within": "One.start"}),
        (State.APPLICABLE, {"within": "One.start", "line": 3}),
        (State.MOVED, {"within": "One.start", "line": 7}),
        (State.APPLICABLE, {"within": "One", "count": 2}),
        (State.APPLICABLE, {"within": "One", "count": 2, "line": 3}),
        (State.APPLICABLE, {"within": "Two.start.<locals>.inner"}),
        (State.AMBIGUOUS, {"within": "Two"}),
        (State.MISSING, {"within": "One", "count": 3}),
        (State.MISSING, {"within": "Three"}),
        (State.APPLICABLE, {"count": 4}),
    ],
)
def test_count_scope_and_hint_decide(state, more) -> None:
    assert after(TWINS, InsertAfter, "pass\n", "self.n = args.n", **more)[0] is state


@pytest.mark.parametrize(
    ("more", "details"),
    [
        ({"within": "Two.stop"}, ["it stands at lines 3, 7, 15, 18, but not inside 'Two.stop'",
                                  "the file has no 'Two.stop'; the nearest is 'Two.start'"]),
        ({"within": "One", "count": 5}, ["found 2 times only, at lines 3, 7; wanted 5", "'One' is at lines 1-7"]),
        ({}, ["found 4 times, at lines 3, 7, 15, 18; wanted 1"]),
    ],
)  # fmt: skip
def test_details_say_what_was_found(more, details) -> None:
    finding = fit.judge(TWINS, InsertAfter(1, HERE, "x.py", Anchor("self.n = args.n", **more), "pass\n"))
    assert list(finding.details) == details


EDITS = [
    # kind, source, anchor, text, result
    (InsertAfter, "a\n  b\nc\n", "b", "x\n\n  y\n", "a\n  b\n  x\n\n    y\nc\n"),
    (InsertAfter, "a\nb", "b", "x\n", "a\nb\nx"),
    (InsertAfter, "a", "a", "b\n\n", "a\nb\n\n"),  # an empty last line needs its newline
    (Replace, "a", "a\n", "b\n\n", "b\n\n"),
    (InsertAfter, "a\r\nb", "b", "x\n", "a\r\nb\r\nx"),
    (InsertAfter, "a\r\n\tb\r\nc\r\n", "b", "x\ny", "a\r\n\tb\r\n\tx\r\n\ty\r\nc\r\n"),
    (InsertAfter, " a\n b\n", "a\nb\n", "c\n", " a\n b\n c\n"),
    (InsertAfter, "a\n b\n", "a\n b\n", "c\n", "a\n b\nc\n"),  # a block's own indentation is not added
    (
        InsertAfter,
        "n = old\n",
        "n = old",
        "if x:\n    n = old\n",
        "n = old\nif x:\n    n = old\n",
    ),  # repeats its anchor
    (InsertAfter, "x\ny\n", "x", "x\n", "x\nx\ny\n"),
    (InsertBefore, "a\n  b\nc\n", "b", "x\n", "a\n  x\n  b\nc\n"),
    (InsertBefore, "b", "b", "x\n", "x\nb"),
    (InsertBefore, "  a\r\n  b", "a\nb\n", "x\n", "  x\r\n  a\r\n  b"),
    (InsertBefore, "n = old\n", "n = old", "n = old\nif x:\n", "n = old\nif x:\nn = old\n"),
    (Replace, "a = f(x)  # why\n", "f(x)", "g(x)", "a = g(x)  # why\n"),
    (Replace, "a = f(x)\n", "f(x)", "f(x, y)", "a = f(x, y)\n"),
    (Replace, "  a = f(x)\n", "f(x)", "(\n    f(x)\n)\n", "  a = (\n      f(x)\n  )\n"),
    (Replace, "  a\r\n  b\r\nc\r\n", "a\nb\n", "x\n\n  y\n", "  x\r\n\r\n    y\r\nc\r\n"),
    (Replace, "a\nb", "a\nb\n", "x\ny\n", "x\ny"),
    (Replace, "b\nc\n", "b\n", "a\nb\n", "a\nb\nc\n"),
    (Replace, "g\nf\ng\n", "f", "h\ng", "g\nh\ng\ng\n"),
    (Replace, "  a(b)\n", "(b)", "\n  b", "  a\n    b\n"),
    (Replace, "x = [1]\udcff\n", "[1]", "[2]", "x = [2]\udcff\n"),
]


@pytest.mark.parametrize(("kind", "source", "anchor", "text", "result"), EDITS)
def test_edit_is_exact_and_then_applied(kind, source, anchor, text, result) -> None:
    assert after(source, kind, text, anchor) == (State.APPLICABLE, result)
    assert after(result, kind, text, anchor) == (State.APPLIED, result)


@pytest.mark.parametrize(
    ("kind", "source", "anchor", "text", "more", "state"),
    [
        # half of the places have it
        (InsertAfter, "a\nx\nb\na\n", "a", "x\n", {"count": 2}, State.AMBIGUOUS),
        (Replace, "f(1)\nf\n", "f", "f(1)", {"count": 2}, State.AMBIGUOUS),
        (Replace, "g\nf\n", "f", "g", {"count": 2}, State.MISSING),
        # the result stands, and yet a place waits
        (Replace, "f(1)\nf\n", "f", "f(1)", {}, State.AMBIGUOUS),
        (InsertAfter, "a\nx\na\n", "a", "x\n", {}, State.AMBIGUOUS),
        # the result of a replacement stands elsewhere too: which one is meant, only a hint can tell
        (Replace, "g\ng\n", "f", "g", {}, State.MISSING),
        (Replace, "g\ng\n", "f", "g", {"line": 2}, State.APPLIED),
        # deleted text cannot be told from text that never was
        (Replace, "b\n", "a", "", {}, State.MISSING),
        # the file is as it should be, whoever made it so
        (Replace, "a\nb\n", "b\n", "a\nb\n", {}, State.APPLIED),
        # overlapping places are never edited
        (Replace, "aaa\n", "aa", "b", {"count": 2}, State.AMBIGUOUS),
    ],
)
def test_never_applied_by_halves(kind, source, anchor, text, more, state) -> None:
    assert after(source, kind, text, anchor, **more) == (state, source)


def test_a_result_in_another_scope_is_not_this_edits() -> None:
    source = "def one():\n    return g\n\n\ndef two():\n    return h\n"
    assert after(source, Replace, "return g", "return f", within="two")[0] is State.MISSING
    assert after(source, Replace, "return g", "return f", within="one")[0] is State.APPLIED


def test_every_definition_of_a_name_is_its_scope() -> None:
    for line in ("return 1", "return 2"):
        assert after(TWINS, InsertBefore, "pass\n", line, within="pick")[0] is State.APPLICABLE


def test_two_anchors_on_one_line_insert_once() -> None:
    assert after("a, a\n", InsertAfter, "x\n", "a", count=2) == (State.APPLICABLE, "a, a\nx\n")


def test_deleting_lines_and_parts_of_lines() -> None:
    assert after("a\nb\nc\n", Replace, "", "b\n") == (State.APPLICABLE, "a\nc\n")
    assert after("a(b)\n", Replace, "", "(b)") == (State.APPLICABLE, "a\n")


# --- the nearest text


def test_nearest_is_the_line_that_drifted() -> None:
    source = "\n".join(f"value_{n} = compute({n})" for n in range(6000))
    source += "\n        self.num_draft_tokens = server_args.speculative_num_draft_tokens\n"
    near = nearest(source, Anchor("self.num_draft_tokens = model_runner.server_args.speculative_num_draft_tokens"))
    assert near is not None
    assert near.line == 6001
    assert near.diff[-2:] == (
        "-        self.num_draft_tokens = model_runner.server_args.speculative_num_draft_tokens",
        "+        self.num_draft_tokens = server_args.speculative_num_draft_tokens",
    )


def test_nearest_stays_in_the_scope() -> None:
    near = nearest(TWINS, Anchor("self.n = args.nn", within="One.stop"))
    assert near is not None
    assert near.line == 7


def test_nearest_of_a_part_of_a_line_is_compared_with_a_part() -> None:
    source = "a = 1\nresult = wrapper(self.pool.get(key, default_value), timeout=30, retries=5)\n"
    near = nearest(source, Anchor("get(key)"))
    assert near is not None
    assert (near.line, near.ratio > 0.8) == (2, True)


def test_nearest_of_a_block_shows_what_is_new_in_it() -> None:
    near = nearest(TWINS, Anchor("self.n = args.n\nself.m = 2\n"))
    assert near is not None
    assert (near.line, near.text) == (3, "        self.n = args.n\n        self.m = 1")


@pytest.mark.parametrize("text", ["zzzz qqqq", "()", "\n\nwww\n"])
def test_nothing_near_is_said(text) -> None:
    assert nearest("a = 1\nb = 2\n", Anchor(text)) is None
    assert nearest("", Anchor(text)) is None


# --- properties

WORDS = st.text("abx =()#\té\udc80", min_size=1, max_size=12)
LINES = st.lists(WORDS | st.just(""), min_size=1, max_size=12)
KINDS = st.sampled_from([InsertAfter, InsertBefore, Replace])
NEWLINES = st.sampled_from(["\n", "\r\n"])


@st.composite
def edits(draw):
    """A file, an anchor that is in it exactly once (part of a line, or a block), and a text that is not."""
    newline, indent = draw(NEWLINES), draw(st.sampled_from(["", "  ", "\t"]))
    before, middle, behind = draw(LINES), draw(st.lists(WORDS, min_size=1, max_size=3)), draw(LINES)
    middle[0] = f"<{middle[0]}>"  # brackets are nowhere else: the anchor is unique
    block = draw(st.booleans()) or len(middle) > 1
    anchor = "".join(f"{line}\n" for line in middle) if block else middle[0]
    source = newline.join([*before, *(indent + line for line in middle), *behind])
    source += draw(st.sampled_from(["", newline]))
    text = "\n".join([f"[{draw(WORDS)}]", *draw(LINES)]) + draw(st.sampled_from(["", "\n"]))
    return source, anchor, text, draw(KINDS), (newline, indent, before, middle, behind)


@given(edits())
def test_apply_touches_nothing_else_and_is_seen_afterwards(case) -> None:
    source, anchor, text, kind, (newline, indent, before, _, behind) = case
    state, result = after(source, kind, text, anchor)
    assert state is State.APPLICABLE
    head = newline.join(before) + newline
    tail = newline + newline.join(behind)
    assert result.startswith(head)
    assert tail in result
    assert result.rsplit(tail, 1)[1] in ("", newline)
    lines = text.removesuffix("\n").split("\n")
    first = indent if kind is not Replace or "\n" in anchor else ""
    added = newline.join([first + lines[0], *(indent + line if line else line for line in lines[1:])])
    assert result.count(added) >= 1
    assert len(result) - len(source) in (
        len(added) + len(newline),
        len(added) - len(anchor),
        len(added)
        - sum(len(line) + len(indent) for line in anchor.splitlines())
        - len(newline) * (anchor.count("\n") - 1),
    )
    assert after(result, kind, text, anchor) == (State.APPLIED, result)
    raw = result.encode("utf-8", "surrogateescape")
    assert raw.decode("utf-8", "surrogateescape") == result


@given(edits(), st.data())
def test_any_drift_of_one_character_is_seen(case, data) -> None:
    source, anchor, text, kind, _ = case
    place = occurrences(source, Anchor(anchor))[0]
    visible = [at for at in range(place.start, place.end) if source[at] not in "\r\n"]
    at = data.draw(st.sampled_from(visible))
    drifted = source[:at] + data.draw(st.sampled_from(["", "Z", source[at] + "Z"])) + source[at + 1 :]
    assume(not occurrences(drifted, Anchor(anchor)))  # one blank less in front of a block is no drift
    state, result = after(drifted, kind, text, anchor)
    assert not state.passes
    assert result == drifted


@settings(max_examples=300)
@given(st.text("ab\n ", max_size=30), st.text("ab\n ", min_size=1, max_size=5), st.text("ab\n ", max_size=6), KINDS)
@example("a a\n", "a", "a a", Replace)
@example("a  ", "a ", "a", Replace)
@example("b\nb\na\n", "b\na\n", "a\n", Replace)
@example("a\na\na\n", "a\n", "a\n", InsertAfter)
def test_no_edit_is_made_twice(source, anchor, text, kind) -> None:
    assume(anchor.strip() and (kind is Replace or text) and text.removesuffix("\n") != anchor.removesuffix("\n"))
    edit = kind(1, HERE, "x.py", Anchor(anchor), text)
    overlay = Overlay(MemoryTree({"x.py": source.encode()}))
    if all(found.state.passes for found in attempt(overlay, edit, "first")):
        once = overlay.content("x.py")
        assert not any(found.state.passes for found in attempt(overlay, edit, "second"))
        assert overlay.content("x.py") == once
