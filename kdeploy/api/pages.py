"""Pages about what was judged: made of it, kept on this machine, and told where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kdeploy.errors import KdeployError
from kdeploy.gating import Judged, Trial
from kdeploy.progress import Note
from kdeploy.verdict.questions import Prompt

if TYPE_CHECKING:
    from kdeploy.report.page import About


class Keeper:
    """Keeps the page of what is judged on one host: a context, at whose end the page is written.

    An error on its way out says where the page is; one that cannot be kept is noted, and nothing else happens.
    """

    def __init__(self, host: str, verb: str, trial: Trial, clients: str, note: Note) -> None:
        """`verb` is what it is judged for, `clients` the URL at which they reach it."""
        self._host, self._verb, self._trial, self._note = host, verb, trial, note
        self._clients = clients
        self._judged: Judged | None = None
        self.path: Path | None = None
        """Where the page is; None as long as there is none."""

    def __call__(self, judged: Judged) -> None:
        """Take what was judged; nothing is written yet, since clients wait until the host has heard the verdict."""
        self._judged = judged

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._judged is None:
            return
        self.path = self._write(self._judged)
        if isinstance(fault, KdeployError) and self.path is not None:
            fault.details = (*fault.details, f"page: {self.path}")

    def _write(self, judged: Judged) -> Path | None:
        from kdeploy.report import keep  # not before there is something to keep: an unchanged apply is quick

        about = of(self._host, self._verb, self._trial, judged, {"clients": self._clients})
        try:
            return keep.write(keep.place(about), text(about, judged, self._trial))
        except KdeployError as fault:
            self._note(f"{self._host}: {fault.message}")
            return None


def of(host: str, verb: str, trial: Trial, judged: Judged, facts: Mapping[str, str]) -> About:
    """Whose page it is, with what else is to be said of it: `facts` by their names."""
    from kdeploy.report.page import About

    release = trial.release
    patches = ", ".join(one["ref"] for one in release.patchsets) or "none"
    return About(release.service, host, judged.release, verb, {"version": release.version, "patches": patches, **facts})


def text(about: About, judged: Judged, trial: Trial) -> str:
    """The page itself."""
    from kdeploy.report.page import Kept, page

    known = Kept(judged.known_good, judged.before) if judged.known_good and judged.before is not None else None
    floor = trial.gate.min_accept_length
    return page(about, judged.transcript, judged.verdict, known, _declared(trial.prompts), floor)


def _declared(prompts: Sequence[Prompt]) -> dict[str, str]:
    """What prompts are to be answered with, by their names, where that is known."""
    texts = {prompt.name: prompt.answer or prompt.reference for prompt in prompts}
    return {name: wanted for name, wanted in texts.items() if wanted is not None}
