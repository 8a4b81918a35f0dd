"""Patch sets: what a folder must hold; every fault at its place, with a remedy; nothing is ignored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kdeploy.errors import PatchSetError
from kdeploy.patching import patchset, set_folder
from kdeploy.patching.edits import AddFile, ApplyHunks, DeleteFile, InsertAfter, Replace
from tests import making

SET = """\
name: demo
version: 1.0.0
summary: A set for tests
engine: ">=0.5.11,<0.5.12"
requires: []
conflicts: []
series:
  - first
  - second
proofs:
  - name: works
    run: proofs/works.py
    needs: [json]
    timeout-s: 5
    env: {A: "1"}
"""

FIRST = """\
reason: >
  Because.
origin: tests
edits:
  - file: sglang/x.py
    within: A.b
    line: 3
    anchor: n = 1
    insert-after: |
      m = 2
"""

SECOND = """\
reason: More.
origin: tests
retire-when:
  engine: ">=0.5.17"
edits:
  - file: sglang/y.py
    count: 2
    anchor: |
      a
      b
    replace: ""
  - file: sglang/new.py
    add-file: files/new.py
  - file: sglang/old.py
    delete-file: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  - diff: files/some.diff
"""

DIFF = "--- a/python/sglang/z.py\n+++ b/python/sglang/z.py\n@@ -1,2 +1,2 @@\n-a\n+b\n c\n"


def write(root: Path, files: dict[str, str | bytes], name: str = "demo", version: str = "1.0.0") -> Path:
    folder = root / name / version
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def good(**more: str | bytes | None) -> dict[str, str | bytes]:
    files: dict[str, str | bytes | None] = {
        "patchset.yaml": SET,
        "patches/first.yaml": FIRST,
        "patches/second.yaml": SECOND,
        "files/new.py": b"new\n",
        "files/some.diff": DIFF,
        "proofs/works.py": "",
        **more,
    }
    return {path: text for path, text in files.items() if text is not None}


def minimal(root: Path, name: str, version: str, **keys: object) -> Path:
    values = {"name": name, "version": version, "summary": "x", "engine": ">=0.5", "series": ["only"], **keys}
    patch = {"reason": "x", "origin": "x", "edits": [{"file": "x", "anchor": "a", "replace": "b"}]}
    return write(root, {"patchset.yaml": json.dumps(values), "patches/only.yaml": json.dumps(patch)}, name, version)


def test_a_set_is_read_whole(tmp_path: Path) -> None:
    folder = write(tmp_path, good())
    (folder / "files/new.py").chmod(0o755)
    found = patchset.load(folder)
    assert (found.ref, found.engine, found.folder) == ("demo/1.0.0", ">=0.5.11,<0.5.12", folder)
    assert found.proofs == (patchset.Proof("works", "proofs/works.py", ("json",), 5.0, (("A", "1"),)),)
    first, second = found.patches
    assert (first.name, first.reason, first.origin, first.retire_when) == ("first", "Because.", "tests", None)
    assert second.retire_when == patchset.RetireWhen(engine=">=0.5.17")
    kinds = [InsertAfter, Replace, AddFile, DeleteFile, ApplyHunks]
    assert [type(edit) for edit in (*first.edits, *second.edits)] == kinds
    assert [edit.number for edit in second.edits] == [1, 2, 3, 4]
    assert str(first.edits[0].where) == f"{folder}/patches/first.yaml:5:5"
    added, hunks = second.edits[1], second.edits[3]
    assert isinstance(added, AddFile)
    assert (added.content, added.executable) == (b"new\n", True)
    assert isinstance(hunks, ApplyHunks)
    assert (hunks.file, str(hunks.hunks[0].where)) == ("sglang/z.py", f"{folder}/files/some.diff:3:1")


def test_the_architectures_a_set_is_made_for(tmp_path: Path) -> None:
    project = tmp_path / "p"
    edits = [{"file": "sglang/a.py", "anchor": "x", "replace": "y"}]
    ref = making.patch_set(project, "a", edits, arch=["sm_100", "sm_103"])
    assert patchset.find(project / "patchsets", ref).arch == ("sm_100", "sm_103")
    assert patchset.find(project / "patchsets", making.patch_set(project, "b", edits)).arch == ()
    for bad in ("sm103", "sm_103a", "10.3"):
        ref = making.patch_set(project, f"c-{bad.replace('_', '-').replace('.', '-')}", edits, arch=[bad])
        with pytest.raises(PatchSetError, match=r"'arch\.0'"):
            patchset.find(project / "patchsets", ref)


def test_the_digest_covers_paths_modes_and_bytes_and_nothing_else(tmp_path: Path) -> None:
    digest = patchset.load(write(tmp_path / "a", good())).digest
    folder = write(tmp_path / "b", good())
    assert patchset.load(folder).digest == digest
    write(tmp_path / "b", {"proofs/__pycache__/works.pyc": b"x"})
    assert patchset.load(folder).digest == digest
    seen = {digest}
    for change in (
        lambda: (folder / "proofs/works.py").chmod(0o755),
        lambda: (folder / "proofs/works.py").write_text("#"),
        lambda: (folder / "proofs/works.py").rename(folder / "proofs/works2.py"),
    ):
        change()
        seen.add(set_folder.digest(set_folder.contents(folder)))
    assert len(seen) == 4


def edit(text: str) -> str:
    return f"reason: x\norigin: x\nedits:\n  - {text}\n"


SHA = "f" * 64

FAULTS = [
    # id, files changed, place, message, hint
    ("no manifest", {"patchset.yaml": None}, "", "patchset.yaml does not exist", None),
    ("unknown key", {"patchset.yaml": SET + "proof: []\n"}, "patchset.yaml:16:1", "unknown key 'proof'",
     "'proofs'?"),
    ("missing key", {"patchset.yaml": SET.replace("summary: A set for tests\n", "")}, "patchset.yaml:1:1",
     "'summary' is required", None),
    ("name", {"patchset.yaml": SET.replace("name: demo", "name: dem")}, "patchset.yaml:1:1",
     "the name is 'dem', but the folder is called 'demo'", "make them equal"),
    ("version", {"patchset.yaml": SET.replace("1.0.0", "1.0.1")}, "patchset.yaml:2:1",
     "the version is '1.0.1', but the folder is called '1.0.0'", "make them equal"),
    ("no version", {"patchset.yaml": SET.replace("1.0.0", "one")}, "patchset.yaml:2:1",
     "'one' is not a version", "PEP 440"),
    ("version as a number", {"patchset.yaml": SET.replace("1.0.0", "1.0")}, "patchset.yaml:2:1", "not 1.0",
     "in quotes"),
    ("engine", {"patchset.yaml": SET.replace(">=0.5.11,", "about 0.5,")}, "patchset.yaml:4:1",
     "not version specifiers",
     ">=0.5.11"),
    ("requires", {"patchset.yaml": SET.replace("requires: []", 'requires: ["cpu 1"]')}, "patchset.yaml:5:12",
     "'cpu 1' does not name a patch set", "cpu>=1.0.0"),
    ("conflicts", {"patchset.yaml": SET.replace("conflicts: []", 'conflicts: ["a", "cpu>=x"]')},
     "patchset.yaml:6:18",
     "'>=x' are not version specifiers", ">=0.5.11"),
    ("empty series", {"patchset.yaml": SET.replace("\n  - first\n  - second", " []")}, "patchset.yaml:7:1",
     "'series': list should have at least 1 item", None),
    ("listed, missing", {"patchset.yaml": SET.replace("- second", "- secund")}, "patchset.yaml:9:5",
     "patches/secund.yaml does not exist", "did you mean 'second'?"),
    ("listed twice", {"patchset.yaml": SET.replace("- second", "- first")}, "patchset.yaml:9:5",
     "listed twice", None),
    ("not listed", {"patchset.yaml": SET.replace("  - second\n", "")}, "patches/second.yaml:1:1",
     "the series does not list this file", "list it"),
    ("not a patch", {"patches/third.yml": "x"}, "patches/third.yml:1:1", "the series does not list this file",
     "list it"),
    ("unused file", {"files/more.diff": DIFF}, "files/more.diff:1:1", "no edit uses 'files/more.diff'", "use it"),
    ("stray file", {"target.yaml": FIRST}, "target.yaml:1:1", "'target.yaml' is no part of a patch set",
     "known here"),
    ("stray folder", {"fixes/x.py": ""}, "fixes/x.py:1:1", "is no part of a patch set", "known here"),
    ("proof missing", {"proofs/works.py": None, "proofs/work.py": ""}, "patchset.yaml:12:5",
     "'proofs/works.py' does not exist", "did you mean 'proofs/work.py'?"),
    ("proof elsewhere", {"patchset.yaml": SET.replace("proofs/works", "files/new")}, "patchset.yaml:12:5",
     "must be a path below proofs/", None),
    ("proof twice", {"patchset.yaml": SET + "  - {name: works, run: proofs/works.py}\n"}, "patchset.yaml:16:6",
     "two proofs are called 'works'", None),
    ("proof escapes", {"patchset.yaml": SET.replace("proofs/works.py", "proofs/../../../x.py")},
     "patchset.yaml:12:5",
     "leads out of the tree", "sglang/x.py"),
    ("no reason", {"patches/first.yaml": FIRST.replace("  Because.\n", "  \n")}, "patches/first.yaml:1:1",
     "'reason': string should match pattern", None),
    ("no origin", {"patches/first.yaml": FIRST.replace("origin: tests\n", "")}, "patches/first.yaml:1:1",
     "'origin' is required", None),
    ("empty origin", {"patches/first.yaml": FIRST.replace("origin: tests", "origin: ' '")},
     "patches/first.yaml:3:1",
     "'origin': string should match pattern", None),
    ("no edits", {"patches/first.yaml": "reason: x\norigin: x\nedits: []\n"}, "patches/first.yaml:3:1",
     "at least 1 item", None),
    ("retire-when says nothing", {"patches/first.yaml": FIRST + "retire-when: {}\n"}, "patches/first.yaml:11:1",
     "'retire-when' says nothing", "engine"),
    ("retire-when by halves", {"patches/first.yaml": FIRST + "retire-when: {file: x}\n"}, "patches/first.yaml:11:1",
     "go together", None),
    ("retire-when, wrong engine", {"patches/first.yaml": FIRST + "retire-when: {engine: 0.5.x}\n"},
     "patches/first.yaml:11:15", "are not version specifiers", ">=0.5.11"),
    ("no action", {"patches/first.yaml": edit("{file: x, anchor: a}")}, "patches/first.yaml:4:5",
     "this edit has no action", "one of insert-after"),
    ("several actions", {"patches/first.yaml": edit("{file: x, anchor: a, replace: b, insert-after: c}")},
     "patches/first.yaml:4:38", "several actions: insert-after, replace", "give one"),
    ("no anchor", {"patches/first.yaml": edit("{file: x, insert-before: a}")}, "patches/first.yaml:4:15",
     "'insert-before' needs an 'anchor'", None),
    ("blank anchor", {"patches/first.yaml": edit('{file: x, anchor: " ", replace: a}')}, "patches/first.yaml:4:15",
     "no visible text", None),
    ("no file", {"patches/first.yaml": edit("{anchor: a, replace: b}")}, "patches/first.yaml:4:5",
     "'replace' needs a 'file'", None),
    ("nothing changed", {"patches/first.yaml": edit('{file: x, anchor: a, replace: "a\\n"}')},
     "patches/first.yaml:4:26",
     "changes nothing", None),
    ("nothing inserted", {"patches/first.yaml": edit('{file: x, anchor: a, insert-after: ""}')},
     "patches/first.yaml:4:26", "at least 1 character", None),
    ("carriage return", {"patches/first.yaml": edit('{file: x, anchor: "a\\r\\n", replace: b}')},
     "patches/first.yaml:4:15", "'anchor' holds a carriage return", "newlines of the file"),
    ("count of nothing", {"patches/first.yaml": edit("{file: x, anchor: a, count: 0, replace: b}")},
     "patches/first.yaml:4:26", "greater than or equal to 1", None),
    ("anchor without meaning", {"patches/first.yaml": edit(f"{{file: x, anchor: a, delete-file: {SHA}}}")},
     "patches/first.yaml:4:15", "'anchor' has no meaning for 'delete-file'", None),
    ("file without meaning", {"patches/first.yaml": edit("{file: x, diff: files/some.diff}")},
     "patches/first.yaml:4:6",
     "'file' has no meaning for 'diff'", None),
    ("digest", {"patches/first.yaml": edit("{file: x, delete-file: abc}")}, "patches/first.yaml:4:15",
     "'edits.0.delete-file': string should match", None),
    ("file missing", {"patches/first.yaml": edit("{file: x, add-file: files/nwe.py}")}, "patches/first.yaml:4:15",
     "'files/nwe.py' does not exist", "did you mean 'files/new.py'?"),
    ("file elsewhere", {"patches/first.yaml": edit("{file: x, add-file: proofs/works.py}")},
     "patches/first.yaml:4:15",
     "must be a path below files/", None),
    ("folder for a file", {"patches/first.yaml": edit("{file: x, add-file: files/sub}"), "files/sub/x": ""},
     "patches/first.yaml:4:15", "'files/sub' is a folder", "did you mean 'files/sub/x'?"),
    ("bad diff", {"files/some.diff": DIFF.replace(" c\n", "")}, "files/some.diff:3:1",
     "the diff ends inside a hunk", None),
    ("diff that escapes", {"files/some.diff": DIFF.replace("python/", "../")}, "files/some.diff:1:1",
     "leads out of the tree", "sglang/x.py"),
    *(
        (f"path {path}", {"patches/first.yaml": edit(f"{{file: '{path}', anchor: a, replace: b}}")},
         "patches/first.yaml:4:6", problem, "sglang/x.py")
        for path, problem in [
            ("../x", "leads out of the tree"), ("/x", "is absolute"), ("C:/x", "is absolute"),
            ("a//b", "written plainly"),
            ("./x", "written plainly"), ("x/", "written plainly"), (".git/hooks/x", "git's own folder"),
            ("a/.GIT/x", "git's own folder"), ("a\\x", "backslash"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "place", "message", "hint"), [case[1:] for case in FAULTS], ids=[c[0] for c in FAULTS]
)
def test_fault_is_found_at_its_place(tmp_path: Path, files, place, message, hint) -> None:
    folder = write(tmp_path, good(**files))
    with pytest.raises(PatchSetError) as caught:
        patchset.load(folder)
    assert message in str(caught.value)
    if place:
        assert str(caught.value.where) == f"{folder}/{place}"
    assert (hint is None) == (caught.value.hint is None)
    assert hint is None or hint in caught.value.hint


@pytest.mark.parametrize("link", ["files/new.py", "files", "proofs/more.py"])
def test_symlinks_in_a_set_are_refused(tmp_path: Path, link) -> None:
    folder = write(tmp_path, good())
    outside = tmp_path / "outside"
    if (folder / link).exists():
        (folder / link).rename(outside)
    else:
        outside.write_text("")
    (folder / link).symlink_to(outside)
    with pytest.raises(PatchSetError, match="this is a symlink") as caught:
        patchset.load(folder)
    assert caught.value.where.path == str(folder / link)


def test_notes_beside_the_manifest_are_fine(tmp_path: Path) -> None:
    patchset.load(write(tmp_path, good(**{"README.md": "notes"})))


# --- finding sets


def test_find_takes_the_highest_version_and_names_the_nearest(tmp_path: Path) -> None:
    tmp_path = tmp_path / "sets"
    for name, version in (("tree", "0.9.0"), ("tree", "0.10.0"), ("tree", "0.10.0rc1"), ("cpu", "1.0.0")):
        minimal(tmp_path, name, version)
    (tmp_path / "tree" / "draft").mkdir()  # no version: never the highest
    assert patchset.all_refs(tmp_path) == ("cpu/1.0.0", "tree/draft", "tree/0.9.0", "tree/0.10.0rc1", "tree/0.10.0")
    assert patchset.find(tmp_path, "tree").ref == "tree/0.10.0"
    assert patchset.find(tmp_path, "tree/0.9.0").ref == "tree/0.9.0"
    for ref, hint in (("tre", "did you mean 'tree'?"), ("tree/0.9.1", "did you mean 'tree/0.9.0'?"),
                      ("cpu/3", "did you mean 'cpu/1.0.0'?"), ("../cpu/1.0.0", "did you mean 'cpu/1.0.0'?"),
                      ("zzzzzz", "known: cpu/1.0.0")):  # fmt: skip
        with pytest.raises(PatchSetError, match="there is no patch set") as caught:
            patchset.find(tmp_path, ref)
        assert hint in caught.value.hint
    with pytest.raises(PatchSetError) as caught:
        patchset.find(tmp_path / "nowhere", "cpu")
    assert caught.value.hint == f"there is no patch set in {tmp_path / 'nowhere'}"


def sets(root: Path, *given: tuple[str, str, dict[str, object]]) -> list[patchset.PatchSet]:
    return [patchset.load(minimal(root, name, version, **keys)) for name, version, keys in given]


@pytest.mark.parametrize(
    ("given", "engine", "message"),
    [
        ([("a", "1.0", {"engine": ">=0.5.11,<0.5.12"})], "0.5.11", None),
        ([("a", "1.0", {"engine": ">=0.5.11,<0.5.12"})], "0.5.11.post1", None),
        ([("a", "1.0", {"engine": ">=0.5.11,<0.5.12"})], "0.5.12",
         "a/1.0 is made for sglang >=0.5.11,<0.5.12, not for 0.5.12"),
        ([("a", "1.0", {}), ("b", "1.0", {"requires": ["a>=1.0", "a"]})], "0.5.11", None),
        ([("b", "1.0", {"requires": ["a>=1.0"]})], "0.5.11", "b/1.0 requires 'a>=1.0', which is not among"),
        ([("b", "1.0", {"requires": ["a"]}), ("a", "1.0", {})], "0.5.11",
         "b/1.0 requires 'a' earlier, and a/1.0 comes later"),
        ([("a", "1.0", {}), ("b", "1.0", {"requires": ["a>=2"]})], "0.5.11",
         "b/1.0 requires 'a>=2', and a/1.0 is given"),
        ([("a", "1.0", {}), ("b", "1.0", {"conflicts": ["a>=1"]})], "0.5.11", "b/1.0 conflicts with a/1.0"),
        ([("b", "1.0", {"conflicts": ["a"]}), ("a", "1.0", {})], "0.5.11", "b/1.0 conflicts with a/1.0"),
        ([("a", "1.0", {}), ("b", "1.0", {"conflicts": ["a<1"]})], "0.5.11", None),
        ([("a", "1.0", {}), ("a", "2.0", {})], "0.5.11", "the patch set 'a' is given twice: a/1.0 and a/2.0"),
    ],
)  # fmt: skip
def test_resolve(tmp_path: Path, given, engine, message) -> None:
    found = sets(tmp_path, *given)
    if message is None:
        assert patchset.resolve(found, engine) == tuple(found)
        return
    with pytest.raises(PatchSetError) as caught:
        patchset.resolve(found, engine)
    assert message in caught.value.message
    assert caught.value.where is not None


def test_with_required_brings_what_a_set_needs_in_order(tmp_path: Path) -> None:
    minimal(tmp_path, "a", "1.0")
    minimal(tmp_path, "a", "2.0")
    minimal(tmp_path, "b", "1.0", requires=["a<2"])
    top = patchset.load(minimal(tmp_path, "c", "1.0", requires=["b", "a"]))
    found = patchset.with_required(tmp_path, top)
    assert [one.ref for one in found] == ["a/1.0", "b/1.0", "c/1.0"]
    assert patchset.resolve(found, "0.5.11") == found
    lone = patchset.load(minimal(tmp_path, "d", "1.0", requires=["a>=3"]))
    with pytest.raises(PatchSetError, match=r"d/1.0 requires 'a>=3', which does not exist") as caught:
        patchset.with_required(tmp_path, lone)
    assert caught.value.hint == "there are: a/1.0, a/2.0"
    minimal(tmp_path, "e", "1.0", requires=["f"])
    ring = patchset.load(minimal(tmp_path, "f", "1.0", requires=["e"]))
    with pytest.raises(PatchSetError, match=r"require each other: f/1.0 > e/1.0 > f/1.0"):
        patchset.with_required(tmp_path, ring)


def test_schemas_describe_every_key() -> None:
    found = patchset.schemas()
    assert set(found) == {"patchset", "patch"}
    for schema in found.values():
        for model in (schema, *schema.get("$defs", {}).values()):
            assert model["additionalProperties"] is False
            for key, shape in model["properties"].items():
                assert shape.get("description"), key
                assert "_" not in key


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_manifest_that_cannot_be_read_is_no_fault_of_ours(tmp_path: Path) -> None:
    folder = write(tmp_path, good())
    (folder / "patchset.yaml").chmod(0)
    with pytest.raises(PatchSetError, match="cannot be read"):
        patchset.load(folder)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("patches/second.yaml", "add-file: files/new.py", "add-file: files/__pycache__/new.py"),
        ("patches/second.yaml", "diff: files/some.diff", "diff: files/a/__pycache__/some.diff"),
        ("patchset.yaml", "run: proofs/works.py", "run: proofs/__pycache__/works.py"),
    ],
)
def test_nothing_used_escapes_the_digest(tmp_path: Path, file: str, old: str, new: str) -> None:
    files = good()
    text = files[file]
    assert isinstance(text, str)
    assert old in text
    used, moved = old.split(": ")[1], new.split(": ")[1]
    folder = write(tmp_path, {**files, file: text.replace(old, new), moved: files[used]})
    with pytest.raises(PatchSetError, match="__pycache__, which the set's digest leaves out") as caught:
        patchset.load(folder)
    assert (caught.value.where or pytest.fail()).path == str(folder / file)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("sglang/\\u2028.py", "cannot be shown"),
        ("sglang/\\x7f.py", "cannot be shown"),
        ("manifest.sha256", "kdeploy's own"),
        ("manifest.sha256/x", "kdeploy's own"),
        ("x" * 241, "is too long"),
        ("\u00e4" * 121, "is too long"),
        ("/".join(["d"] * 600), "is too long"),
    ],
)
def test_a_path_no_tree_can_have(tmp_path: Path, path: str, message: str) -> None:
    text = SECOND.replace("sglang/new.py", f'"{path}"')
    folder = write(tmp_path, good(**{"patches/second.yaml": text}))
    with pytest.raises(PatchSetError, match=message) as caught:
        patchset.load(folder)
    assert str(caught.value.where) == f"{folder}/patches/second.yaml:12:5"
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("name", [r"\377", r"\303(", r"\355\240\200", r"a\nb", r"\033[2J"])
def test_an_escaped_name_that_is_no_text(tmp_path: Path, name: str) -> None:
    diff = f'--- /dev/null\n+++ "b/sglang/{name}.py"\n@@ -0,0 +1 @@\n+x = 1\n'
    folder = write(tmp_path, good(**{"files/some.diff": diff}))
    with pytest.raises(PatchSetError, match="cannot be shown or is not UTF-8") as caught:
        patchset.load(folder)
    assert str(caught.value.where) == f"{folder}/files/some.diff:1:1"
    assert caught.value.message.isprintable()
    assert caught.value.message.isascii()


def test_an_escaped_name_that_is_text(tmp_path: Path) -> None:
    diff = '--- /dev/null\n+++ "b/sglang/na\\303\\257ve.py"\n@@ -0,0 +1 @@\n+x = 1\n'
    loaded = patchset.load(write(tmp_path, good(**{"files/some.diff": diff})))
    assert loaded.patches[1].edits[-1].file == "sglang/na\u00efve.py"


@pytest.mark.parametrize("path", ["proofs/pipe", "files/pipe", "patches/pipe.yaml", "patchset.yaml"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, path: str) -> None:
    folder = write(tmp_path, good())
    (folder / path).unlink(missing_ok=True)
    os.mkfifo(folder / path)
    with pytest.raises(PatchSetError, match="regular file"):
        patchset.load(folder)


@pytest.mark.parametrize(
    ("old", "new", "place", "key"),
    [
        ('{A: "1"}', '{A: "a\\0b"}', "15:11", "proofs.0.env.A"),
        ('{A: "1"}', '{A=B: "1"}', "15:11", "proofs.0.env.A=B"),
        ("[json]", '["a b"]', "13:13", "proofs.0.needs.0"),
    ],
)
def test_what_no_proof_can_be_given(tmp_path: Path, old: str, new: str, place: str, key: str) -> None:
    assert old in SET
    folder = write(tmp_path, good(**{"patchset.yaml": SET.replace(old, new)}))
    with pytest.raises(PatchSetError, match=f"'{key}': string should match pattern") as caught:
        patchset.load(folder)
    assert str(caught.value.where) == f"{folder}/patchset.yaml:{place}"
