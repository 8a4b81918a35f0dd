"""False alarms of the quick gate: `python -m benchmarks.alarms [--runs 100] [--profile local]`.

One server of the pocket model, the real engine without a fault, is put through its gate again and again; each run is
judged beside the first one, as a candidate is beside known-good. Every check that says no to it is a false alarm.

Needs SGLang's wheel and the runtime in the cache (`kdeploy stage` and `kdeploy prove` of the profile).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.faults.rig import Rig, Told

ENOUGH = 2  # runs: the first is what the others are compared with


def answers(transcript: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every answer of a transcript, wherever it stands."""
    for key in ("alone", "chat", "stream", "bounds", "long", "json", "after", "repeat"):
        yield from transcript[key]
    for group in transcript["together"]:
        yield from group["answers"]


def tokens(transcript: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens that a run had written, and tokens that it had read (prompts, and answers that were asked again)."""
    told = list(answers(transcript))
    again = transcript["lossless"]["answers"]
    by_one = transcript["lossless"]["how"] == "reask"  # a prefix a position, one token each
    written = sum(one["n"] for one in told) + sum(one["tokens"] for one in transcript["pace"])
    read = sum(one["meta"].get("prompt_tokens", 0) for one in told)
    if by_one:
        written += sum(len(one["at"]) for one in again)
        read += sum(one["prompt"] + at for one in again for at in one["at"])
    else:
        read += sum(one["prompt"] + one["n"] for one in again)
    return written, read


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--profile", default="local")
    given = parser.parse_args()
    if given.runs < ENOUGH:
        parser.error(f"--runs must be {ENOUGH} at least")
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder))
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                told = rig.ask(given.profile, [], rounds=given.runs)
        finally:
            rig.close()
    print(report(given.profile, told))


def report(profile: str, told: list[Told]) -> str:
    """What the runs come to, in lines."""
    alarms = [(number, check) for number, one in enumerate(told, 1) for check in one.verdict.failed]
    runs = len({number for number, _ in alarms})
    seconds = sorted(one.seconds for one in told)
    written, read = tokens(told[0].transcript)
    lines = [
        f"{profile}: {len(told)} runs against one server, {runs} with a false alarm",
        f"seconds a run: median {statistics.median(seconds):.1f}, least {seconds[0]:.1f}, most {seconds[-1]:.1f}",
        f"tokens a run: {written:,} written, {read:,} read",
    ]
    lines += [f"{name}: {count}" for name, count in Counter(check.name for _, check in alarms).most_common()]
    lines += [f"  run {number}, {check.name}: {check.detail}" for number, check in alarms]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
