"""How fast 300 anchors are checked in an unpacked engine, beside grep and git on the same work.

    python benchmarks/anchors.py FOLDER [PATCHSETS]

FOLDER is an unpacked SGLang wheel. 300 real lines of as many files become anchors, a third of them in a scope, each
with one inserted line. Three ways are measured in turns, and the best turn of each counts: `series.check` in this
process; one `grep -rnF` an anchor (of which a tenth is run and multiplied); `git apply --check` of the same edits as
one diff. Then, in a process of its own, all sets in PATCHSETS are loaded and checked.
"""

from __future__ import annotations

import difflib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kdeploy.document import Document
from kdeploy.errors import Location
from kdeploy.patching import series
from kdeploy.patching.anchors import Anchor, scopes
from kdeploy.patching.edits import InsertAfter
from kdeploy.patching.patchset import Patch, PatchSet

COUNT = 300
TURNS = 5
GREPS = 30
HERE = Location("benchmark", 1)


def find_anchors(folder: Path) -> list[tuple[str, Anchor]]:
    """Lines that occur once in their file, of files all over the tree; every third one with its function's name."""
    chance = random.Random(2026)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    chance.shuffle(files)
    found: list[tuple[str, Anchor]] = []
    for path in files:
        source = (folder / path).read_text(encoding="utf-8")
        lines = source.split("\n")
        seen = Counter(line.strip() for line in lines)
        usable = {number: line.strip() for number, line in enumerate(lines, 1) if len(line.strip()) > 15}
        usable = {number: text for number, text in usable.items() if seen[text] == source.count(text) == 1}
        name = None
        if len(found) % 3 == 0:
            inner = [(spans[0], scope) for scope, spans in scopes(source).items() if len(spans) == 1 and "." in scope]
            if not inner:
                continue
            (first, last), name = chance.choice(inner)
            usable = {number: text for number, text in usable.items() if first <= number <= last}
        if usable:
            line = chance.choice(sorted(usable))
            found.append((path, Anchor(usable[line], name, 1, line)))
        if len(found) == COUNT:
            scopes.cache_clear()
            return found
    raise SystemExit(f"{folder} has too few Python files for {COUNT} anchors")


def as_set(anchors: list[tuple[str, Anchor]]) -> PatchSet:
    """One patch that puts a comment after every anchor."""
    edits = tuple(InsertAfter(n, HERE, path, anchor, "# here\n") for n, (path, anchor) in enumerate(anchors, 1))
    patch = Patch("all", "benchmark", "benchmark", None, edits, HERE)
    empty = Document("benchmark", {}, {})
    return PatchSet("all", "1", "", ">=0", (), (), (patch,), (), "", Path(), empty)


def as_diff(changes: dict[str, tuple[bytes | None, bool]], folder: Path) -> str:
    """The same edits as a unified diff."""
    parts = []
    for path, (content, _) in changes.items():
        sides = [(folder / path).read_bytes(), content or b""]
        lines = [side.decode("utf-8").splitlines(keepends=True) for side in sides]
        for line in difflib.unified_diff(lines[0], lines[1], f"a/{path}", f"b/{path}"):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(folder: Path, patchsets: Path | None) -> None:
    """Measure and print."""
    anchors = find_anchors(folder)
    one = as_set(anchors)
    report = series.check(series.FolderTree(folder), [one], "0")
    report.require()
    files = sum(1 for path in folder.rglob("*") if path.is_file())
    scoped = sum(anchor.within is not None for _, anchor in anchors)
    print(f"{len(anchors)} anchors ({scoped} in a scope) of {len(report.changes)} files, in a tree of {files} files")

    def check() -> None:
        scopes.cache_clear()
        series.check(series.FolderTree(folder), [one], "0").require()

    def grep() -> None:
        for _, anchor in anchors[:GREPS]:
            subprocess.run(["grep", "-rnF", "--", anchor.text, "."], cwd=folder, stdout=subprocess.DEVNULL, check=True)

    with tempfile.TemporaryDirectory() as scratch:
        diff = Path(scratch, "all.diff")
        diff.write_text(as_diff(dict(report.changes), folder), encoding="utf-8")
        outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}

        def git() -> None:
            subprocess.run(["git", "apply", "--check", str(diff)], cwd=folder, env=outside, check=True)

        took: dict[str, list[float]] = {"kdeploy": [], "grep": [], "git": []}
        for _ in range(TURNS):
            took["kdeploy"].append(seconds(check))
            took["git"].append(seconds(git))
            took["grep"].append(seconds(grep) * len(anchors) / GREPS)
    ours = min(took["kdeploy"])
    print(f"series.check                {ours:8.3f} s")
    for name, command in (("grep", "grep -rnF, one an anchor"), ("git", "git apply --check")):
        best = min(took[name])
        print(f"{command:27} {best:8.3f} s   {best / ours:7.2f} times ours")
    if patchsets is not None:
        code = (
            "import sys; from pathlib import Path; from kdeploy.patching import patchset, series\n"
            "tree, root = series.FolderTree(Path(sys.argv[1])), Path(sys.argv[2])\n"
            "for ref in patchset.all_refs(root):\n"
            "    series.check(tree, [patchset.find(root, ref)], '0.5.11')\n"
        )
        whole_command = [sys.executable, "-c", code, str(folder.resolve()), str(patchsets.resolve())]
        bare = min(seconds(lambda: subprocess.run([sys.executable, "-c", ""], check=True)) for _ in range(TURNS))
        whole = min(seconds(lambda: subprocess.run(whole_command, check=True)) for _ in range(TURNS))
        print(f"all sets, whole process     {whole:8.3f} s   (python alone {bare:.3f} s)")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else None)
