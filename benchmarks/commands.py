"""Whole commands beside what one would use instead, in one run: `python benchmarks/commands.py [--live PROFILE]`.

Needs a warm cache (run `kdeploy stage profiles/local.yaml` once). With --live the profile must be live: unchanged apply
is timed then. Medians of five runs; on a busy machine only the ratios mean something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kdeploy import lock, places, profile
from kdeploy.patching import patchset

PROJECT = Path(__file__).resolve().parent.parent
PROFILE = PROJECT / "profiles/local.yaml"
RUNS = 5
ENVIRONMENT = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": "b", "GIT_AUTHOR_EMAIL": "b@b",
               "GIT_COMMITTER_NAME": "b", "GIT_COMMITTER_EMAIL": "b@b"}  # fmt: skip


def run(*command: str | Path, cwd: Path = PROJECT) -> None:
    """Run a command quietly; its failure is ours."""
    subprocess.run(command, cwd=cwd, env=ENVIRONMENT, check=True, capture_output=True)


def kdeploy(*arguments: str) -> None:
    """Run kdeploy as a user would: a process of its own."""
    run(sys.executable, "-m", "kdeploy", *arguments)


def seconds(action: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """The median time of `action` in seconds; `before` is done first each time and not counted."""
    times = []
    for _ in range(RUNS):
        before()
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def tell(what: str, ours: float, bar: float | None, others: dict[str, float]) -> None:
    """One line: our seconds and bar, then each other's ratio to ours."""
    ratios = "  ".join(f"{name} {other:.2f} s = {other / ours:.2f}x ours" for name, other in others.items())
    print(f"{what:32} {ours:6.2f} s{f' (bar {bar:g} s)' if bar else '':12}  {ratios}")


def anchors() -> list[str]:
    """The first line of every anchor of our patch sets."""
    folder = PROJECT / "patchsets"
    sets = [patchset.find(folder, ref) for ref in patchset.all_refs(folder)]
    texts = [getattr(edit, "anchor", None) for one in sets for patch in one.patches for edit in patch.edits]
    return [found.text.splitlines()[0] for found in texts if found is not None]


def forget_stages() -> None:
    """Leave a warm base and nothing staged."""
    shutil.rmtree(places.cache() / "stages", ignore_errors=True)
    shutil.rmtree(places.cache() / "trees", ignore_errors=True)
    store = places.cache() / "store.git"
    listing = ["git", "-C", str(store), "for-each-ref", "--format=%(refname)", "refs/stages"]
    refs = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    for ref in refs:
        run("git", "-C", store, "update-ref", "-d", ref)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", metavar="PROFILE", help="a profile that is live")
    options = parser.parse_args()
    read = profile.load(PROFILE)
    wheel = lock.load(PROJECT).wheel(read.file.engine, read.file.runtime.python)
    base = places.cache() / "bases" / wheel.sha256[:16]
    nothing = seconds(lambda: run(sys.executable, "-c", "pass"))
    tell("kdeploy --help", seconds(lambda: kdeploy("--help")), 0.2, {"python -c pass": nothing})
    texts = anchors()
    grep = seconds(lambda: [run("grep", "-rnF", "--", text, base / "sglang") for text in texts])
    tell(
        f"verify-anchors, {len(texts)} anchors",
        seconds(lambda: kdeploy("verify-anchors")),
        0.5,
        {"grep -rnF each": grep},
    )

    stage = [sys.executable, "-m", "kdeploy", "stage", str(PROFILE)]
    staged = Path(subprocess.run(stage, capture_output=True, text=True, check=True).stdout.strip())
    with tempfile.TemporaryDirectory() as scratch:
        clone, series = Path(scratch) / "clone", Path(scratch) / "series"
        first = subprocess.run(
            ["git", "-C", staged, "rev-list", "--max-parents=0", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        run("git", "-C", staged, "format-patch", "--quiet", "--binary", f"{first}..HEAD~1", "-o", series)
        patches = sorted(series.iterdir())

        def fresh() -> None:
            shutil.rmtree(clone, ignore_errors=True)
            run("git", "clone", "--quiet", "--shared", "--no-checkout", staged, clone)

        def check_out() -> None:
            run("git", "-C", clone, "reset", "--quiet", "--hard", first)

        am = seconds(lambda: (check_out(), run("git", "-C", clone, "am", "--quiet", *patches)), fresh)
        apply = seconds(lambda: (check_out(), run("git", "-C", clone, "apply", *patches)), fresh)
    ours = seconds(lambda: kdeploy("stage", str(PROFILE)), forget_stages)
    tell(
        f"stage, warm base, {len(patches)} patches", ours, 1.5, {"checkout + git am": am, "checkout + git apply": apply}
    )
    tell("stage, staged before", seconds(lambda: kdeploy("stage", str(PROFILE))), None, {})
    if options.live:
        tell("apply, unchanged", seconds(lambda: kdeploy("apply", options.live)), 1.0, {})


if __name__ == "__main__":
    main()
