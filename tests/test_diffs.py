"""Unified diffs: read exactly, placed exactly, or refused with the line and the reason."""

from __future__ import annotations

import difflib
import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdeploy.errors import PatchSetError
from kdeploy.patching import diffs, hunks
from kdeploy.patching.anchors import State
from kdeploy.patching.attempt import attempt
from kdeploy.patching.edits import AddFile, ApplyHunks, DeleteFile, RenameFile, SetExecutable
from kdeploy.patching.finding import splice
from kdeploy.patching.overlay import Overlay
from kdeploy.patching.trees import MemoryTree


def unified(old: str, new: str, context: int = 3, path: str = "x.py") -> str:
    """A diff as git writes it, missing newlines at the end included."""
    lines = [text.split("\n") for text in (old, new)]
    sides = [[f"{line}\n" for line in side[:-1]] + ([side[-1]] if side[-1] else []) for side in lines]
    out = []
    for line in difflib.unified_diff(*sides, f"a/{path}", f"b/{path}", n=context):
        out.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(out)


def applied(files: dict[str, bytes], diff: str) -> tuple[list[State], dict[str, tuple[bytes | None, bool]]]:
    overlay = Overlay(MemoryTree(files))
    findings = [found for edit in diffs.parse(diff, "x.diff", 1) for found in attempt(overlay, edit, "test")]
    return [found.state for found in findings], overlay.changed


OLD = "def f():\n    a = 1\n    b = 2\n    c = 3\n    return a\n"
NEW = "def f():\n    a = 1\n    b = 20\n    c = 3\n    return a\n"


@pytest.mark.parametrize(
    ("head", "path"),
    [
        ("--- a/x.py\n+++ b/x.py\n", "x.py"),
        ("--- x.py\n+++ x.py\n", "x.py"),
        ("--- a/python/sglang/x.py\n+++ b/python/sglang/x.py\n", "sglang/x.py"),
        ("--- python/sglang/x.py\n+++ python/sglang/x.py\n", "sglang/x.py"),
        (
            "--- sglang/x.py\t2026-01-01 10:00:00.0 +0000\n+++ sglang/x.py\t2026-01-02 10:00:00.0 +0000\n",
            "sglang/x.py",
        ),
        ("--- sglang/x.py.orig\n+++ sglang/x.py\n", "sglang/x.py"),
        ("diff --git a/x y.py b/x y.py\nindex 1..2 100644\n--- a/x y.py\t\n+++ b/x y.py\t\n", "x y.py"),
        ('diff --git "a/\\303\\244.py" "b/\\303\\244.py"\n--- "a/\\303\\244.py"\n+++ "b/\\303\\244.py"\n', "ä.py"),
        ("From 123\nSubject: [PATCH] why\n---\n x.py | 2 +-\n 1 file changed\n\n--- a/x.py\n+++ b/x.py\n", "x.py"),
    ],
)
def test_paths_and_prose(head, path) -> None:
    diff = head + "".join(unified(OLD, NEW).splitlines(keepends=True)[2:]) + "-- \n2.40.1\n\n"
    (edit,) = diffs.parse(diff, "x.diff", 3)
    assert isinstance(edit, ApplyHunks)
    assert (edit.file, edit.number, len(edit.hunks)) == (path, 3, 1)
    assert applied({path: OLD.encode()}, diff) == ([State.APPLICABLE], {path: (NEW.encode(), False)})


def test_a_diff_that_was_converted_to_crlf_is_read_and_crlf_content_is_kept() -> None:
    converted = unified(OLD, NEW).replace("\n", "\r\n")
    assert applied({"x.py": OLD.encode()}, converted)[1] == {"x.py": (NEW.encode(), False)}
    old, new = OLD.replace("\n", "\r\n"), NEW.replace("\n", "\r\n")
    assert applied({"x.py": old.encode()}, unified(old, new))[1] == {"x.py": (new.encode(), False)}
    assert applied({"x.py": OLD.encode()}, unified(old, new))[0] == [State.MISSING]


def test_files_come_go_move_and_change_mode() -> None:
    diff = (
        "diff --git a/new.sh b/new.sh\nnew file mode 100755\nindex 0..1\n--- /dev/null\n+++ b/new.sh\n"
        "@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n"
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 0..0\n"
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
        "diff --git a/old.py b/sub/to.py\nsimilarity index 90%\nrename from old.py\nrename to sub/to.py\n"
        "--- a/old.py\n+++ b/sub/to.py\n@@ -1,2 +1,2 @@\n keep\n-a\n+b\n"
        "diff --git a/tool b/tool\nold mode 100644\nnew mode 100755\n"
    )
    edits = diffs.parse(diff, "x.diff", 1)
    kinds = [AddFile, AddFile, DeleteFile, RenameFile, ApplyHunks, SetExecutable]
    assert [type(edit) for edit in edits] == kinds
    assert isinstance(edits[2], DeleteFile)
    assert edits[2].sha256 == hashlib.sha256(b"bye\n").hexdigest()
    files = {"gone": b"bye\n", "old.py": b"keep\na\n", "tool": b"x\n"}
    states, changed = applied(files, diff)
    assert set(states) == {State.APPLICABLE}
    assert changed == {
        "new.sh": (b"one\ntwo", True),
        "empty": (b"", False),
        "gone": (None, False),
        "old.py": (None, False),
        "sub/to.py": (b"keep\nb\n", False),
        "tool": (b"x\n", True),
    }
    result = {path: content for path, (content, _) in changed.items() if content is not None}
    overlay = Overlay(MemoryTree(result, frozenset({"new.sh", "tool"})))
    again = [found.state for edit in edits for found in attempt(overlay, edit, "test")]
    assert set(again) == {State.APPLIED}


def test_plain_diff_with_missing_files_shown_by_their_time() -> None:
    stamp = "\t1970-01-01 00:00:00.000000000 +0000"
    (edit,) = diffs.parse(f"--- old/x{stamp}\n+++ sglang/x\t2026-01-01 00:00:00\n@@ -0,0 +1 @@\n+x\n", "d", 1)
    assert edit == AddFile(1, edit.where, "sglang/x", b"x\n")


HUNK = "--- a/x\n+++ b/x\n"

REFUSED = [
    ("nothing", "", 1, "no change was found"),
    ("prose", "dear all\n", 1, "no change was found"),
    ("insertion without context", HUNK + "@@ -3,0 +4 @@\n+x\n", 3, "an insertion without context"),
    ("blank context", HUNK + "@@ -3,2 +3,3 @@\n \n \n+x\n", 3, "no visible text"),
    ("binary", "diff --git a/x b/x\nGIT binary patch\nliteral 1\n", 2, "a binary patch"),
    ("binary, said only", "diff --git a/x b/x\nBinary files a/x and b/x differ\n", 2, "a binary patch"),
    ("copy", "diff --git a/x b/y\ncopy from x\ncopy to y\n", 2, "a copied file"),
    ("symlink", "diff --git a/x b/x\nnew file mode 120000\n", 2, "symlinks"),
    ("merge", "diff --cc x\n--- a/x\n+++ b/x\n@@@ -1 -1 +1 @@@\n", 4, "a combined diff"),
    ("merge, late", HUNK + "@@ -1 +1 @@\n-a\n+b\n@@@ -1,2 -1,2 +1,2 @@@\n", 6, "a combined diff"),
    ("too short", HUNK + "@@ -1,3 +1,3 @@\n a\n-b\n+c\n", 3, "the diff ends inside a hunk"),
    (
        "too short, more follows",
        HUNK + "@@ -1,4 +1,4 @@\n a\n-b\n+c\n" + HUNK + "@@ -1 +1 @@\n",
        9,
        "has fewer lines",
    ),
    ("too long", HUNK + "@@ -1 +1 @@\n-a\n+b\n+c\n", 6, "more lines than its header says"),
    ("context too much", HUNK + "@@ -1,1 +1,2 @@\n-a\n+b\n c\n", 6, "fewer lines than its header"),
    ("no names", "@@ -1 +1 @@\n-a\n+b\n", 1, "without the names of its file"),
    ("no hunk", HUNK, 2, "a hunk (@@ ...) was expected"),
    ("bad header", HUNK + "@@ -1 @@\n-a\n+b\n", 3, "not a hunk header"),
    ("changes nothing", HUNK + "@@ -1 +1 @@\n a\n", 3, "the hunk changes nothing"),
    (
        "newline in the middle",
        HUNK + "@@ -1,2 +1,2 @@\n a\n\\ No newline at end of file\n-b\n+c\n",
        3,
        "not the last one",
    ),
    ("names only", "diff --git a/x b/x\nindex 1..2 100644\n", 1, "changes nothing in it"),
    ("new file with context", "--- /dev/null\n+++ b/x\n@@ -1 +1,2 @@\n a\n+b\n", 3, "a new file has one hunk"),
    ("deleted with rest", "--- a/x\n+++ /dev/null\n@@ -1,2 +1 @@\n a\n-b\n", 3, "a deleted file has one hunk"),
]


@pytest.mark.parametrize(("diff", "line", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_not_exact_is_refused_at_its_line(diff, line, reason) -> None:
    with pytest.raises(PatchSetError) as caught:
        diffs.parse(diff, "x.diff", 1)
    assert reason in caught.value.message
    assert (caught.value.where.path, caught.value.where.line) == ("x.diff", line)


# --- where a hunk may go

TWIN = """\
class A:
    def one(self):
        self.x = 1
        self.y = 2
        return self

    def two(self):
        self.x = 1
        self.y = 2
        return self
"""


def twin_diff(heading: str) -> str:
    body = "         self.x = 1\n-        self.y = 2\n+        self.y = 3\n         return self\n"
    return f"--- a/x.py\n+++ b/x.py\n@@ -8,3 +8,3 @@{heading}\n{body}"


def test_a_twin_is_told_apart_by_the_heading_only() -> None:
    states, changed = applied({"x.py": TWIN.encode()}, twin_diff(" def two(self):"))
    assert states == [State.APPLICABLE]
    assert changed["x.py"][0] == TWIN[::-1].replace("2 = y", "3 = y", 1)[::-1].encode()
    assert applied({"x.py": TWIN.encode()}, twin_diff(" class A:"))[0] == [State.AMBIGUOUS]
    assert applied({"x.py": TWIN.encode()}, twin_diff(""))[0] == [State.AMBIGUOUS]


def test_the_twin_of_a_place_that_is_gone_is_never_edited() -> None:
    gone = TWIN[: TWIN.index("    def two")] + "    def three(self):\n        return None\n"
    (edit,) = diffs.parse(twin_diff(" def two(self):"), "x.diff", 1)
    assert isinstance(edit, ApplyHunks)
    (found,) = hunks.judge(gone, edit)
    assert found.state is State.MISSING
    assert found.details == ("its lines stand at line 3, but not under 'two' as its header says",)


def test_what_git_apply_does_with_that_twin(tmp_path: Path) -> None:
    """The reason for being strict: git edits the other function, and says that all is well."""
    gone = TWIN[: TWIN.index("    def two")] + "    def three(self):\n        return None\n"
    (tmp_path / "x.py").write_text(gone)
    (tmp_path / "d").write_text(twin_diff(" def two(self):"))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "d"], cwd=tmp_path, check=True)
    assert "self.y = 3" in (tmp_path / "x.py").read_text()


def test_a_hunk_that_shows_its_own_def_needs_no_heading() -> None:
    old = "def moved():\n    pass\n\ndef mine():\n    return 1\n"
    diff = "--- a/x.py\n+++ b/x.py\n@@ -3,3 +3,3 @@ def before():\n \n def mine():\n-    return 1\n+    return 2\n"
    assert applied({"x.py": old.encode()}, diff)[0] == [State.APPLICABLE]


def test_a_line_number_is_a_hint() -> None:
    diff = unified(OLD, NEW).replace("@@ -1,5 +1,5 @@", "@@ -40,5 +40,5 @@")
    assert applied({"x.py": OLD.encode()}, diff)[0] == [State.MOVED]


def test_hunks_are_looked_for_in_the_text_as_it_was() -> None:
    """The first hunk must not make a place for the second."""
    diff = HUNK + "@@ -1 +1,2 @@\n-a\n+a2\n+b\n@@ -9 +10 @@\n-b\n+c\n"
    assert applied({"x": b"a\n"}, diff)[0] == [State.APPLICABLE, State.MISSING]
    assert applied({"x": b"a\nb\n"}, diff)[1] == {"x": (b"a2\nb\nc\n", False)}
    same = HUNK + "@@ -1 +1 @@\n-a\n+b\n@@ -5 +5 @@\n-a\n+c\n"
    assert applied({"x": b"a\n"}, same)[0] == [State.APPLICABLE, State.AMBIGUOUS]


def test_a_hunk_whose_result_it_would_change_again_is_refused() -> None:
    diff = HUNK + "@@ -2,2 +2 @@\n-b\n a\n"
    assert applied({"x": b"c\nb\na\n"}, diff)[1] == {"x": (b"c\na\n", False)}
    assert applied({"x": b"b\nb\na\n"}, diff) == ([State.AMBIGUOUS], {})


@pytest.mark.parametrize("source", [b"xa\nb\n", b"a\nbx\n", b"a\nb", b"a\r\nb\n"])
def test_the_lines_of_a_hunk_are_whole_lines(source) -> None:
    assert applied({"x": source}, HUNK + "@@ -1,2 +1,2 @@\n a\n-b\n+c\n")[0] == [State.MISSING]


@pytest.mark.parametrize("source", [b"a\nb\n", b"a\nb\nc\n", b"a\nbc"])
def test_a_last_line_without_a_newline_is_the_last_one(source) -> None:
    diff = HUNK + "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
    assert applied({"x": source}, diff)[0] == [State.MISSING]
    assert applied({"x": b"a\nb"}, diff)[1] == {"x": (b"a\nc\n", False)}


def test_half_of_the_hunks_do_nothing() -> None:
    diff = HUNK + "@@ -1 +1 @@\n-a\n+b\n@@ -5 +5 @@\n-c\n+d\n"
    assert applied({"x": b"b\nc\n"}, diff) == ([State.APPLIED, State.MOVED], {})


# --- properties

LINE = st.sampled_from(["a", "b", "c", "", " d", "def f():", "--", "++ x", "@@", "\\", "é\udcff", "\tz", "q\r"])
TEXT = st.lists(LINE, max_size=14).map("\n".join)


@settings(max_examples=400, deadline=None)
@given(TEXT, TEXT, st.integers(0, 4))
def test_a_diff_gives_its_result_byte_for_byte_or_is_refused(old, new, context) -> None:
    files = {"x.py": old.encode("utf-8", "surrogateescape")}
    try:
        edits = diffs.parse(unified(old, new, context), "x.diff", 1)
    except PatchSetError:
        return
    overlay = Overlay(MemoryTree(files))
    states = [found.state for edit in edits for found in attempt(overlay, edit, "test")]
    if all(state.passes for state in states):
        assert overlay.content("x.py")[0] == new.encode("utf-8", "surrogateescape")
    else:
        assert overlay.changed == {}
        assert set(states) & {State.AMBIGUOUS, State.APPLIED, State.MISSING}


UNIQUE = st.lists(st.integers(0, 60), unique=True, max_size=30)


@settings(max_examples=200)
@given(UNIQUE, UNIQUE, st.integers(1, 4))
def test_a_diff_between_files_of_distinct_lines_always_applies_once(old, new, context) -> None:
    before, after = ("".join(f"line {n}\n" for n in side) for side in (old, new))
    if not before or not after or before == after:
        return
    (edit,) = diffs.parse(unified(before, after, context), "x.diff", 1)
    assert isinstance(edit, ApplyHunks)
    found = hunks.judge(before, edit)
    assert all(item.state.passes for item in found)
    assert splice(before, [one for item in found for one in item.splices]) == after
    assert {item.state for item in hunks.judge(after, edit)} == {State.APPLIED}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD, NEW),
        (OLD, NEW[:-1]),
        (OLD[:-1], NEW),
        (TWIN, TWIN.replace("return self\n\n", "return 1\n\n")),
        ("".join(f"{n}\n" for n in range(50)), "".join(f"{n if n % 15 else -n}\n" for n in range(1, 50))),
        (OLD.replace("\n", "\r\n"), NEW.replace("\n", "\r\n")),
        (OLD + "# \udcff\n", NEW + "# \udcff\n"),
        (OLD, ""),
        ("", NEW),
    ],
)
def test_gits_own_diffs_give_gits_own_result(tmp_path: Path, old, new) -> None:
    for name, text in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    command = ["git", "diff", "--no-index", "--no-color", "old/x.py", "new/x.py"]
    diff = subprocess.run(command, cwd=tmp_path, capture_output=True).stdout.decode("utf-8", "surrogateescape")
    diff = diff.replace("a/old/", "a/").replace("b/new/", "b/")
    if old == "":  # an empty file that gets lines: nothing before to compare with
        with pytest.raises(PatchSetError, match="without context"):
            diffs.parse(diff, "x.diff", 1)
        return
    states, changed = applied({"x.py": old.encode("utf-8", "surrogateescape")}, diff)
    assert all(state.passes for state in states)
    assert changed["x.py"][0] == new.encode("utf-8", "surrogateescape")
