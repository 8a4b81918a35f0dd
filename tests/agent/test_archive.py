"""Hosts without git get a tree as an archive: nothing in it reaches elsewhere, and half of one blocks nothing."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import manifests
from kdeploy_agent.trees import archive

from .conftest import Rig, git


def packed(rig: Rig, name: str) -> bytes:
    """The files of a tree as the operator packs them."""
    folder = rig.layout.root.with_name(f"packed-{name}")
    bundle = rig.layout.root.with_name(f"{name}.bundle")
    bundle.write_bytes(rig.trees[name].bundle)
    git(
        "clone",
        "-q",
        "-c",
        "core.attributesFile=/dev/null",
        "--no-checkout",
        str(bundle),
        str(folder),
        cwd=bundle.parent,
    )
    (folder / ".git/info/attributes").write_text("* -text -eol -ident -filter\n")
    git("checkout", "-q", rig.trees[name].commit, cwd=folder)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and ".git" not in path.relative_to(folder).parts:
                tar.add(path, str(path.relative_to(folder)))
    return made.getvalue()


def receive(rig: Rig, name: str, data: bytes, **changes: Any) -> Any:
    tree = rig.trees[name]
    request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest, "form": "tar", **changes}
    return rig.agent("receive", request, data, PATH=str(rig.layout.root / "no-git"))


def test_a_host_without_git_serves(rig: Rig) -> None:
    data = packed(rig, "one")
    assert receive(rig, "one", data).ok["files"] > 5
    tree = rig.layout.tree(rig.trees["one"].tree)
    assert (tree / "crlf.txt").read_bytes() == b"windows\r\nlines\r\n" and (tree / "sglang/näme mit leer.txt").exists()
    assert tree.stat().st_mode & 0o222 == 0 and not rig.layout.store.exists()
    assert receive(rig, "one", b"").ok["files"] > 5  # it is here: nothing was needed
    facts = rig.agent("facts", PATH="/nonexistent").ok
    assert facts["git"] is None and facts["service"]["commits"] == []
    order = rig.order(rig.release("one"))
    assert rig.agent("begin", order, PATH="/usr/bin/no-git").ok["state"] == "PROBED"
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    rig.serves(order["release"])
    # A damaged file cannot be put right from a store that is not there: it is said, and what is sent mends it.
    file = tree / "unix.txt"
    file.chmod(0o644)
    file.write_text("damaged")
    answer = rig.agent("begin", rig.order(order["release"]), PATH="/usr/bin/no-git")
    assert answer.ok["state"] == "ROLLED_BACK" and "without git" in answer.ok["reason"]
    assert receive(rig, "one", data).ok
    assert rig.facts(rehash=rig.trees["one"].tree)["rehash"]["ok"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.98])
def test_half_an_archive_blocks_nothing(rig: Rig, share: float) -> None:
    data = packed(rig, "two")
    answer = receive(rig, "two", data[: int(len(data) * share)])
    assert answer.error is not None and answer.error["kind"] == "integrity", answer
    assert not any(rig.layout.trees.glob("*")) and not (rig.layout.home / "incoming.bundle").exists()
    assert receive(rig, "two", data).ok
    assert manifests.verify(rig.layout.tree(rig.trees["two"].tree), rig.trees["two"].manifest)


def test_an_archive_of_another_tree_is_refused(rig: Rig) -> None:
    answer = receive(rig, "one", packed(rig, "two"))
    assert answer.error is not None and answer.error["kind"] == "integrity"
    assert not any(rig.layout.trees.glob("*"))


def entry(name: str, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(made, key, value)
    return made


def link(name: str, kind: bytes) -> tarfile.TarInfo:
    return entry(name, type=kind, linkname="/etc/passwd")


BAD: list[tuple[str, list[tarfile.TarInfo]]] = [
    ("no plain path", [entry("/etc/kdeploy-was-here")]),
    ("no plain path", [entry("../outside")]),
    ("no plain path", [entry("a/../../outside")]),
    ("no plain path", [entry("./a")]),
    ("no plain path", [entry("a//b")]),
    ("no plain path", [entry("a\\b")]),
    ("no plain file", [link("a", tarfile.SYMTYPE)]),
    ("no plain file", [link("a", tarfile.LNKTYPE)]),
    ("no plain file", [entry("a", type=tarfile.DIRTYPE)]),
    ("no plain file", [entry("a", type=tarfile.FIFOTYPE)]),
    ("no plain file", [entry("a", type=tarfile.CHRTYPE)]),
    ("twice", [entry("a"), entry("a")]),
]


@pytest.mark.parametrize(("message", "entries"), BAD)
def test_what_an_archive_may_not_hold(tmp_path: Path, message: str, entries: list[tarfile.TarInfo]) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for one in entries:
            tar.addfile(one)
    made.seek(0)
    with pytest.raises(AgentError, match=message):
        archive.unpack(made, tmp_path / "into", lambda size, count: None)
    assert not (tmp_path / "outside").exists() and not Path("/etc/kdeploy-was-here").exists()


def test_an_archive_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 10_000)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for number in range(3):
            tar.addfile(entry(f"zeros-{number}", size=6_000), io.BytesIO(bytes(6_000)))
    made.seek(0)
    with pytest.raises(AgentError, match="holds more than"):
        archive.unpack(made, tmp_path / "into", lambda size, count: None)
    made.seek(0)

    def full(size: int, count: int) -> None:
        raise AgentError("preflight", "no room")

    with pytest.raises(AgentError, match="no room"):
        archive.unpack(made, tmp_path / "other", full)
    for data in (b"", b"no gzip at all", gzip.compress(b"no tar at all" * 100), os.urandom(2000)):
        with pytest.raises(AgentError):
            archive.unpack(io.BytesIO(data), tmp_path / "third", lambda size, count: None)
            raise AgentError("integrity", "an empty archive has no files: the manifest finds that out")


def test_the_operator_packs_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kdeploy.api import stages
    from kdeploy.stage import tree as staging
    from tests import making

    for variable in ("KDEPLOY_CACHE", "KDEPLOY_STATE"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    files = {"sglang/a.py": b"one = 1\r\n", "sglang/empty": b"", "sglang/b/.gitattributes": b"* export-ignore\n"}
    project = making.small_project(tmp_path, files)
    making.profile(project, "p", "base.yaml", [])
    quiet: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    staged = stages.stage(project / "profiles/p.yaml", quiet)
    data = staging.archive(staged.stage)
    assert data == staging.archive(staged.stage)
    archive.unpack(io.BytesIO(data), tmp_path / "there", lambda size, count: None)
    assert staged.folder is not None
    same = subprocess.run(["diff", "-r", "-x", ".git", str(staged.folder), str(tmp_path / "there")], check=False)
    assert same.returncode == 0
