"""Recording: what a server without speculation answers becomes the reference of one with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdeploy.api import gate as gating
from kdeploy.errors import GateError, ProfileError
from kdeploy.gating import Trial
from kdeploy.profile import Profile
from kdeploy.progress import Note
from kdeploy.report import keep
from kdeploy.verdict.questions import Prompt


@dataclass(frozen=True)
class Recorded:
    """A prompts file that was written, and how many of its prompts have a reference now."""

    file: Path
    prompts: int
    references: int
    host: str


def record(path: Path, file: Path, note: Note, *, host: str | None = None, url: str | None = None) -> Recorded:
    """Ask a server all prompts of the profile and write them to `file` with its answers as references.

    Raises ProfileError when the profile speculates, GateError when the server does not pass the gate: what it says is
    no measure of others then. Nothing is written in either case.
    """
    read, trial = gating.trial_of(path, note)
    _refuse_speculation(read)
    gating.must_be_one(read, host, url)
    bare = tuple(prompt.model_copy(update={"reference": None}) for prompt in trial.prompts)
    trial = dataclasses.replace(trial, gate=trial.gate.model_copy(update={"full": True}), prompts=bare)
    (recorded,) = [_record(target, trial, file, note) for target in gating.targets(read, host, url)]
    return recorded


def _record(target: gating.Target, trial: Trial, file: Path, note: Note) -> Recorded:
    told = gating.ask(target, trial, note)
    verdict = gating.judged(target, trial, told).verdict
    if not verdict.accepted:
        raise GateError(
            f"{target.name}: the gate says no ({', '.join(check.name for check in verdict.failed)}), "
            "so its answers are no reference",
            hint="`kdeploy gate` shows all of it",
            details=(*verdict.reasons, "nothing was written, and nothing was changed"),
        )
    made = with_references(trial.prompts, told)
    keep.write(file, as_file(made), private=False)
    return Recorded(file.absolute(), len(made), sum(prompt.reference is not None for prompt in made), target.name)


def with_references(prompts: Sequence[Prompt], transcript: Mapping[str, Any]) -> tuple[Prompt, ...]:
    """The prompts, each of which the exact answer is not known with what was said to it in `transcript`."""
    said = {
        answer["name"]: answer["text"]
        for section in ("chat", "long", "alone")  # what is asked both ways is judged by its text
        for answer in transcript[section]
        if answer["error"] is None
    }
    return tuple(
        prompt.model_copy(update={"reference": said[prompt.name]})
        if prompt.answer is None and prompt.name in said
        else prompt
        for prompt in prompts
    )


def as_file(prompts: Sequence[Prompt]) -> str:
    """A prompts file (JSON) as people read it: what is not said has its default."""
    values = [prompt.model_dump(by_alias=True, exclude_defaults=True) for prompt in prompts]
    return json.dumps({"prompts": values}, ensure_ascii=False, indent=1) + "\n"


def _refuse_speculation(read: Profile) -> None:
    for flag, value in read.file.serve.args.items():
        if flag.startswith("speculative-") and value not in (None, False):
            raise ProfileError(
                f"'serve.args.{flag}': a reference is recorded from a server without speculation",
                where=read.where("serve", "args", flag),
                hint="write a profile that extends this one and takes its speculative-… arguments away with null",
            )
