"""The series: all patches in sequence, everything reported at once, nothing handed out unless all of it passes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kdeploy.errors import AnchorError, ExitCode
from kdeploy.patching import patchset, series
from kdeploy.patching.anchors import State
from kdeploy.patching.overlay import Overlay
from kdeploy.patching.series import Change, FolderTree, MemoryTree

BASE = {
    "pkg/a.py": b"class A:\n    def run(self):\n        self.n = args.n\n        return self.n\n",
    "pkg/b.py": b"x = 1\ny = 2\nz = 3\n",
    "pkg/old.py": b"old\n",
}

Edits = list[dict[str, Any]]


def make(
    folder: Path,
    patches: dict[str, Edits | dict[str, Any]],
    name: str = "demo",
    files: dict[str, str] | None = None,
) -> patchset.PatchSet:
    """A patch set with these patches: each a list of edits, or a mapping with more keys."""
    root = folder / "sets" / name / "1.0.0"
    (root / "patches").mkdir(parents=True)
    (root / "files").mkdir()
    manifest = {"name": name, "version": "1.0.0", "summary": "x", "engine": ">=0.5", "series": list(patches)}
    (root / "patchset.yaml").write_text(yaml.safe_dump(manifest))
    for patch, content in patches.items():
        whole = content if isinstance(content, dict) else {"edits": content}
        (root / f"patches/{patch}.yaml").write_text(yaml.safe_dump({"reason": "r", "origin": "o", **whole}))
    for path, text in (files or {}).items():
        (root / "files" / path).write_text(text)
    return patchset.load(root)


def check(sets: list[patchset.PatchSet], files: dict[str, bytes] | None = None) -> series.SeriesReport:
    return series.check(MemoryTree(BASE if files is None else files), sets, "0.5.11")


def replace(old: str, new: str, file: str = "pkg/b.py", **more: Any) -> dict[str, Any]:
    return {"file": file, "anchor": old, "replace": new, **more}


def test_all_edits_of_all_sets_are_made_in_sequence(tmp_path: Path) -> None:
    first = make(tmp_path, {"one": [replace("x = 1", "x = 10")], "two": [replace("x = 10", "x = 100", line=1)]}, "a")
    after = {
        "file": "pkg/a.py",
        "within": "A.run",
        "line": 3,
        "anchor": "self.n = args.n",
        "insert-after": "self.n += 1\n",
    }
    second = make(tmp_path, {"three": [replace("x = 100", "x = 0"), after]}, "b")
    report = check([first, second])
    report.require()
    assert report.ok
    assert [(item.ref, item.patch, item.edit, item.line, item.state) for item in report.anchors] == [
        ("a/1.0.0", "one", 1, 1, "applicable"),
        ("a/1.0.0", "two", 1, 1, "applicable"),
        ("b/1.0.0", "three", 1, 1, "applicable"),
        ("b/1.0.0", "three", 2, 3, "applicable"),
    ]
    assert report.anchors[3].text == "self.n = args.n"
    assert report.changes == {
        "pkg/b.py": (b"x = 0\ny = 2\nz = 3\n", False),
        "pkg/a.py": (BASE["pkg/a.py"].replace(b"args.n\n", b"args.n\n        self.n += 1\n"), False),
    }
    assert [(change.path, change.added, change.removed) for change in report.patches[2].changes] == [
        ("pkg/a.py", 1, 0),
        ("pkg/b.py", 1, 1),
    ]
    assert report.patches[1].changes[0].before == b"x = 10\ny = 2\nz = 3\n"


def test_lines_are_those_of_the_base_however_much_was_put_above(tmp_path: Path) -> None:
    edits = [
        {"file": "pkg/b.py", "anchor": "x = 1", "insert-before": "a\nb\nc\n"},
        replace("y = 2", "y = 3", line=2),
        {"file": "pkg/b.py", "anchor": "z = 3", "line": 3, "insert-after": "w = 1\nv = 2\n"},
        replace("v = 2", "v = 3"),
    ]
    report = check([make(tmp_path, {"one": edits})])
    assert [item.state for item in report.anchors] == [State.APPLICABLE] * 4
    assert [item.line for item in report.anchors] == [1, 2, 3, 8]


def test_lines_are_those_of_the_base_between_two_places_of_one_edit(tmp_path: Path) -> None:
    edits = [{"file": "f", "anchor": "a", "count": 2, "insert-after": "x\ny\n"}, replace("b", "c", "f", line=2)]
    report = check([make(tmp_path, {"one": edits})], {"f": b"a\nb\na\n"})
    assert [(item.state, item.line) for item in report.anchors] == [(State.APPLICABLE, 1), (State.APPLICABLE, 2)]


def test_another_line_than_the_hint_is_moved_and_passes(tmp_path: Path) -> None:
    report = check([make(tmp_path, {"one": [replace("z = 3", "z = 4", line=30)]})])
    assert (report.ok, report.anchors[0].state, report.anchors[0].line, report.anchors[0].hint) == (
        True,
        "moved",
        3,
        30,
    )
    assert report.patches[0].state is State.MOVED


def test_three_patches_that_apply_alone_do_not_in_sequence(tmp_path: Path) -> None:
    patches: dict[str, Any] = {
        "one": [replace("x = 1\n", "x = 1\nx += 1\n")],
        "two": [replace("y = 2", "y = 20")],
        "three": [replace("x = 1\ny = 2\n", "x, y = 1, 2\n")],
    }
    for name, edits in patches.items():
        assert check([make(tmp_path / name, {name: edits})]).ok
    together = make(tmp_path, patches)
    report = check([together])
    assert not report.ok
    assert [patch.state for patch in report.patches] == ["applicable", "applicable", "missing"]
    assert report.changes == {}
    assert report.patches[2].changes == ()
    with pytest.raises(AnchorError) as caught:
        report.require()
    assert caught.value.code is ExitCode.ANCHOR
    assert caught.value.message == "missing: demo/1.0.0 three, edit 1 (replace) of pkg/b.py"
    assert str(caught.value.where) == f"{together.folder}/patches/three.yaml:2:3"
    assert caught.value.details[0] == "it fits before the change made by demo/1.0.0 one, edit 1"
    assert caught.value.details[1].startswith("nearest, at line ")
    assert "-x = 1" in caught.value.details
    assert caught.value.hint is not None


def test_a_twin_whose_meant_place_is_gone_is_not_edited(tmp_path: Path) -> None:
    twin = b"def one():\n    n = 1\n\n\ndef other():\n    n = 1\n"
    patch = make(tmp_path, {"one": [replace("n = 1", "n = 2", "pkg/t.py", within="one")]})
    assert check([patch], {"pkg/t.py": twin}).changes["pkg/t.py"][0] == twin.replace(b"n = 1", b"n = 2", 1)
    gone = twin[twin.index(b"def other") :]
    report = check([patch], {"pkg/t.py": gone})
    assert report.anchors[0].state is State.MISSING
    assert report.anchors[0].details == ("it stands at line 2, but not inside 'one'", "the file has no 'one'")


def test_everything_is_reported_at_once(tmp_path: Path) -> None:
    one = make(tmp_path, {
        "missing": [replace("q = 1", "q = 2")],
        "good": [replace("x = 1", "x = 2")],
        "ambiguous": [replace("=", "==")],
        "outside": [replace("a", "b", "pkg/none.py")],
        "applied": [{"file": "pkg/b.py", "anchor": "y = 2", "insert-after": "z = 3\n"}],
        "upstreamed": {"edits": [replace("y = 2", "y = 3")], "retire-when": {"engine": ">=0.5.11"}},
    })  # fmt: skip
    report = check([one])
    states = {patch.name: str(patch.state) for patch in report.patches}
    assert states == {name: "applicable" if name == "good" else name for name in states}
    with pytest.raises(AnchorError) as caught:
        report.require()
    also = [detail for detail in caught.value.details if detail.startswith("also ")]
    assert [line.split(":")[0] for line in also] == [
        "also ambiguous",
        "also outside",
        "also applied",
        "also upstreamed",
    ]
    assert also[0].endswith("): found 3 times, at lines 1, 2, 3; wanted 1")
    assert also[1].startswith("also outside: demo/1.0.0 outside, edit 1 (replace) of pkg/none.py (")


@pytest.mark.parametrize(
    ("patch", "message", "hint"),
    [
        ([{"file": "pkg/b.py", "anchor": "y = 2", "insert-after": "z = 3\n"}],
         "already applied: demo/1.0.0 one, edit 1 (insert-after) of pkg/b.py:2", "pristine"),
        ({"edits": [replace("x = 1", "x = 2")], "retire-when": {"file": "pkg/b.py", "contains": "y = 2\nz"}},
         "upstreamed: demo/1.0.0 one: its retire-when is true", "drop the patch"),
        ([replace("=", "==")], "ambiguous: demo/1.0.0 one, edit 1 (replace) of pkg/b.py:1", "within"),
        ([replace("x = 7", "x = 8")], "missing: demo/1.0.0 one, edit 1 (replace) of pkg/b.py", "mend the anchor"),
        ([replace("x", "y", "pkg/c.py")], "outside: demo/1.0.0 one, edit 1 (replace) of pkg/c.py", "in the wheel"),
    ],
)  # fmt: skip
def test_what_a_person_is_told(tmp_path: Path, patch, message, hint) -> None:
    with pytest.raises(AnchorError) as caught:
        check([make(tmp_path, {"one": patch})]).require()
    assert caught.value.message == message
    assert hint in caught.value.hint
    assert caught.value.where.path.endswith("patches/one.yaml")


def test_half_applied_never_passes_and_says_which(tmp_path: Path) -> None:
    patch = make(
        tmp_path, {"one": [replace("x = 1", "x = 10"), replace("y = 2", "y = 20"), replace("z = 3", "z = 30")]}
    )
    report = check([patch], {"pkg/b.py": b"x = 10\ny = 2\nz = 30\n"})
    assert [item.state for item in report.anchors] == ["applied", "applicable", "applied"]
    assert report.patches[0].state is State.APPLIED
    assert report.patches[0].changes == ()
    assert report.patches[0].details == (
        "half applied: edits 1 (pkg/b.py:1), 3 (pkg/b.py:3) in the tree, edit 2 (pkg/b.py:2) not",
    )
    with pytest.raises(AnchorError) as caught:
        report.require()
    assert caught.value.details[0] == report.patches[0].details[0]


def test_the_patched_tree_refuses_the_series_as_applied(tmp_path: Path) -> None:
    sha = hashlib.sha256(BASE["pkg/old.py"]).hexdigest()
    body = "     def run(self):\n         self.n = args.n\n+        self.m = 0\n         return self.n\n"
    diff = f"--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -2,3 +2,4 @@\n{body}"
    one = make(
        tmp_path,
        {
            "edits": [
                {"file": "pkg/b.py", "anchor": "x = 1", "insert-before": "import os\n"},
                {"file": "pkg/b.py", "anchor": "y = 2", "insert-after": "y = y or 2\n"},
                replace("z = 3", "z = f(3)"),
                {"file": "pkg/new.py", "add-file": "files/new.py"},
                {"file": "pkg/old.py", "delete-file": sha},
                {"diff": "files/a.diff"},
            ]
        },
        files={"new.py": "new = 1\n", "a.diff": diff},
    )
    report = check([one])
    report.require()
    patched = {**BASE, **{path: content for path, (content, _) in report.changes.items() if content is not None}}
    del patched["pkg/old.py"]
    again = check([one], patched)
    assert {item.state for item in again.anchors} == {State.APPLIED}
    assert not again.ok
    assert again.changes == {}


def test_an_edit_that_cannot_be_told_from_its_text_goes_with_those_that_can(tmp_path: Path) -> None:
    """A replacement that stands elsewhere too, or a deletion: only the other edits know."""
    vague: Edits = [replace("z = 3", "x = 1"), replace("y = 2\n", "")]
    clear: Edits = [replace("v = 8", "v = 9")]
    applied, base = {"pkg/b.py": b"x = 1\nx = 1\nv = 9\n"}, {"pkg/b.py": b"x = 1\ny = 2\nz = 3\nv = 8\n"}
    for number, patches in enumerate(({"one": vague + clear}, {"one": vague, "two": clear})):
        one = make(tmp_path / str(number), patches)
        assert check([one], base).changes["pkg/b.py"][0] == applied["pkg/b.py"]
        report = check([one], applied)
        assert [item.state for item in report.anchors] == [State.APPLIED] * 3
        assert report.anchors[0].details[0] == "taken as applied, as the other edits are"
        gone = check([one], {"pkg/b.py": b"x = 1\nx = 1\nv = 8\n"})
        assert [item.state for item in gone.anchors] == [State.MISSING, State.MISSING, State.APPLICABLE]
    mixed = make(tmp_path / "half", {"one": [*vague, *clear, replace("u = 1", "u = 2")]})
    half = check([mixed], {"pkg/b.py": b"v = 9\nu = 1\nx = 1\nx = 1\n"})
    assert [str(item.state) for item in half.anchors] == ["missing", "missing", "applied", "applicable"]
    alone = check([make(tmp_path / "alone", {"one": vague})], applied)
    assert [item.state for item in alone.anchors] == [State.MISSING, State.MISSING]


def test_two_contents_claim_a_path(tmp_path: Path) -> None:
    one = make(tmp_path, {"one": [{"file": "pkg/n.py", "add-file": "files/n"}]}, "a", {"n": "1"})
    two = make(tmp_path, {"two": [{"file": "pkg/n.py", "add-file": "files/n"}]}, "b", {"n": "2"})
    report = check([one, two])
    assert report.anchors[1].state is State.AMBIGUOUS
    assert report.anchors[1].details == (
        "two contents claim this path: the file is there, and is another",
        "it was put there by a/1.0.0 one, edit 1",
    )
    assert check([one], {**BASE, "pkg/n.py": b"1"}).anchors[0].state is State.APPLIED
    assert check([one], {**BASE, "pkg/n.py": b"3"}).anchors[0].state is State.AMBIGUOUS
    assert (
        series.check(MemoryTree({"pkg/n.py": b"1"}, frozenset({"pkg/n.py"})), [one], "0").anchors[0].state
        == "ambiguous"
    )


@pytest.mark.parametrize(
    ("path", "detail"), [("pkg", "pkg is a folder"), ("pkg/b.py/x", "pkg/b.py is a file, not a folder")]
)
def test_a_file_cannot_stand_where_a_folder_is(tmp_path: Path, path, detail) -> None:
    one = make(tmp_path, {"one": [{"file": path, "add-file": "files/n"}]}, files={"n": "1"})
    report = check([one])
    assert (report.anchors[0].state, report.anchors[0].details) == (State.OUTSIDE, (detail,))


def test_deleting_needs_the_content_that_was_meant(tmp_path: Path) -> None:
    sha = hashlib.sha256(b"old\n").hexdigest()
    one = make(tmp_path, {"one": [{"file": "pkg/old.py", "delete-file": sha}, replace("old", "new", "pkg/old.py")]})
    report = check([one])
    assert [item.state for item in report.anchors] == ["applicable", "outside"]
    assert report.anchors[1].details == (
        "pkg/old.py is not in the base",
        "it was deleted by demo/1.0.0 one, edit 1",
    )
    report = check([one], {"pkg/old.py": b"older\n"})
    assert report.anchors[0].state is State.MISSING
    assert report.anchors[0].details[1] == f"the patch was made for    {sha}"


def test_a_later_edit_of_a_file_names_the_earlier_one_that_did_not_fit(tmp_path: Path) -> None:
    report = check([make(tmp_path, {"one": [replace("q", "r"), replace("r", "s")]})])
    assert report.anchors[1].details[-1] == "an earlier edit of this file did not fit: demo/1.0.0 one, edit 1"


@pytest.mark.parametrize(
    ("when", "state"),
    [
        ({"engine": ">=0.5.12"}, "applicable"),
        ({"engine": ">=0.5.11"}, "upstreamed"),
        ({"file": "pkg/b.py", "contains": "y = 2"}, "upstreamed"),
        ({"file": "pkg/b.py", "contains": "y = 3"}, "applicable"),
        ({"file": "pkg/none.py", "contains": "y = 2"}, "applicable"),
        ({"engine": ">=0.5.12", "file": "pkg/b.py", "contains": "y = 2"}, "applicable"),
        ({"engine": ">=0.5.11", "file": "pkg/b.py", "contains": "y = 2"}, "upstreamed"),
    ],
)
def test_retire_when_asks_the_pristine_base(tmp_path: Path, when, state) -> None:
    one = make(
        tmp_path,
        {
            "zero": [replace("y = 2", "y = 2  # same")],
            "one": {"edits": [replace("x = 1", "x = 2")], "retire-when": when},
        },
    )
    assert str(check([one]).patches[1].state) == state


def test_a_folder_is_read_but_never_through_a_symlink(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for path, content in BASE.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
    (tree / "pkg/b.py").chmod(0o755)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/x.py").write_bytes(b"x = 1\n")
    (tree / "pkg/link.py").symlink_to(tmp_path / "secret/x.py")
    (tree / "away").symlink_to(tmp_path / "secret")
    edits = [
        replace("x = 1", "x = 2"),
        replace("x = 1", "x = 2", "pkg/link.py"),
        replace("x = 1", "x = 2", "away/x.py"),
    ]
    adds = [{"file": path, "add-file": "files/n"} for path in ("away/new.py", "pkg/link.py", "pkg")]
    report = series.check(FolderTree(tree), [make(tmp_path, {"one": edits + adds}, files={"n": "1"})], "0.5.11")
    assert [detail for item in report.anchors for detail in item.details] == [
        "pkg/link.py is a symlink",
        "away is a symlink",
        "away is a symlink",
        "pkg/link.py is a symlink",
        "pkg is a folder",
    ]
    assert [item.state for item in report.anchors] == ["applicable"] + ["outside"] * 5
    assert FolderTree(tree / "pkg").read("../pkg/b.py") is None
    good = series.check(FolderTree(tree), [make(tmp_path / "2", {"one": edits[:1]})], "0.5.11")
    assert good.changes == {"pkg/b.py": (b"x = 2\ny = 2\nz = 3\n", True)}
    assert (tree / "pkg/b.py").read_bytes() == BASE["pkg/b.py"]


def test_python_that_does_not_compile_is_found() -> None:
    changes: dict[str, tuple[bytes | None, bool]] = {
        "good.py": (b"x = '\\d'\n", False),
        "bad.py": (b"x = 1\ndef f(:\n", False),
        "outside.py": (b"return 1\n", False),
        "null.py": (b"x = '\0'\n", False),
        "bytes.py": (b"x = '\xff'\n", False),
        "latin.py": (b"# coding: latin-1\nx = '\xff'\n", False),
        "gone.py": (None, False),
        "text.txt": (b"def f(:\n", False),
    }
    found = {item.path: (item.line, item.text) for item in series.compile_errors(changes)}
    assert found["bad.py"] == (2, "def f(:")
    assert found["outside.py"] == (1, "return 1")
    assert set(found) == {"bad.py", "outside.py", "null.py", "bytes.py"}


def test_lines_are_counted() -> None:
    assert (Change("x", b"a\nb\n", b"a\nc\nd\n").added, Change("x", b"a\nb\n", b"a\nc\nd\n").removed) == (2, 1)
    assert (Change("x", None, b"a\nb").added, Change("x", b"a\nb", None).removed) == (2, 2)


def test_nothing_is_left_of_a_file_that_was_added_and_deleted() -> None:
    overlay = Overlay(MemoryTree({}))
    overlay.put("x", b"1", False, "a")
    overlay.put("x", None, False, "b")
    assert overlay.changed == {}
    assert [step.by for step in overlay.steps("x")] == ["a", "b"]


TOKENS = [f"t{n} = {n}" for n in range(12)]


PICKS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 2)), min_size=1, max_size=6, unique_by=lambda p: p[0])


@settings(max_examples=100, deadline=None)
@given(st.permutations(TOKENS), PICKS, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_series_gives_what_its_edits_say(tmp_path_factory, lines, picks, newline, final) -> None:
    """Against a model: a list of lines. Bytes that are not UTF-8 stay as they are."""
    keys = ["insert-after", "insert-before", "replace"]
    edits, model = [], ["\udcff\udc80", *lines]
    for token, action in picks:
        edits.append({"file": "f", "anchor": TOKENS[token], keys[action]: f"new{token}\n"})
        at = model.index(TOKENS[token])
        model[at : at + 1] = [[model[at], f"new{token}"], [f"new{token}", model[at]], [f"new{token}"]][action]
    # t1 is a part of t10 and t11: whole lines only
    for edit in edits:
        edit["anchor"] += "\n"
    source = newline.join(["\udcff\udc80", *lines]) + (newline if final else "")
    expected = newline.join(model) + (newline if final else "")
    one = make(tmp_path_factory.mktemp("p"), {"one": edits})
    report = check([one], {"f": source.encode("utf-8", "surrogateescape")})
    report.require()
    assert report.changes["f"][0] == expected.encode("utf-8", "surrogateescape")
    again = check([one], {"f": report.changes["f"][0] or b""})
    assert not any(item.state.passes for item in again.anchors)
