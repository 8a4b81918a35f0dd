"""Proofs on a host: sent there with their files, run in its own runtime beside what serves, judged here as anywhere."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from kdeploy.errors import PatchSetError, ProofError, RemoteError
from kdeploy.host import Ask, Host, telling
from kdeploy.patching import set_folder
from kdeploy.patching.patchset import PatchSet
from kdeploy.progress import Note
from kdeploy.release import Release
from kdeploy.stage import prove as proving
from kdeploy.stage import tree as staging
from kdeploy.stage.prove import Proven
from kdeploy.stage.tree import Stage

_TRAVELS = ("proofs", "files")
_SPARE_S = 300.0  # for unpacking and comparing both trees, beside the proofs' own limits


def on_host(host: Host, stage: Stage, release: Release, note: Note, *, again: bool = False) -> tuple[Proven, ...]:
    """Run every proof of a stage's sets on a host that has its tree and runtime; gives what each said.

    Those that were run there for the same tree, runtime and files are not run again unless `again` says so. Raises
    ProofError for the first that does not do what it must, PreflightError when it cannot run there.
    """
    sets = tuple(one for one in stage.sets if one.proofs)
    if not sets:
        return ()
    note(f"{host.name}: {sum(len(one.proofs) for one in sets)} proofs, red and green, in the host's own runtime")
    ask = request(sets, stage, release, again, host.name, note)
    results = host.call(ask.verb, ask.request, payload=ask.payload, on_event=ask.on_event, timeout_s=ask.timeout_s)
    proven = []
    for values in results.get("proven") or ():
        found = proving.read(values, cached=bool(values.get("cached")))
        if found is None:
            raise RemoteError(f"{host.name}: not the result of a proof: {values!r:.200}")
        try:
            proving.judge(found)
        except ProofError as fault:
            raise ProofError(f"{host.name}: {fault.message}", hint=fault.hint, details=fault.details) from fault
        proven.append(found)
    _require_all(sets, proven, host.name)
    return tuple(proven)


def request(sets: Sequence[PatchSet], stage: Stage, release: Release, again: bool, host: str, note: Note) -> Ask:
    """What the host is asked: which proofs, on which two trees, in which runtime; their files as a zip."""
    limits = sum(proof.timeout_s for one in sets for proof in one.proofs)
    return Ask(
        "prove",
        {
            "release": release.as_document(),
            "base": {"commit": stage.base_commit, "manifest": staging.base_manifest(stage)},
            "again": again,
            "sets": [{"ref": one.ref, "digest": one.digest, "proofs": _proofs(one)} for one in sets],
        },
        files(sets),
        telling(host, note),
        timeout_s=limits + _SPARE_S,
    )


def files(sets: Sequence[PatchSet]) -> bytes:
    """The files that proofs may read, below each set's ref, as a zip: same files, same bytes.

    Raises PatchSetError when a set is not what it was when it was read.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        for one in sets:
            contents = set_folder.contents(one.folder)
            if set_folder.digest(contents) != one.digest:
                raise PatchSetError(f"{one.ref} was changed while it was at work", hint="run the same command again")
            for path, file in contents.items():
                if path.split("/")[0] in _TRAVELS:
                    entry = zipfile.ZipInfo(f"{one.ref}/{path}", date_time=(1980, 1, 1, 0, 0, 0))
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                    zipped.writestr(entry, file.read_bytes())
    return buffer.getvalue()


def _proofs(one: PatchSet) -> list[Mapping[str, Any]]:
    return [
        {
            "name": proof.name,
            "run": proof.run,
            "needs": list(proof.needs),
            "timeout_s": proof.timeout_s,
            "env": dict(proof.env),
        }
        for proof in one.proofs
    ]


def _require_all(sets: Sequence[PatchSet], proven: Sequence[Proven], host: str) -> None:
    asked = [(one.ref, proof.name) for one in sets for proof in one.proofs]
    if [(one.patchset, one.proof) for one in proven] != asked:
        raise RemoteError(f"{host}: other proofs came back than were asked for")
