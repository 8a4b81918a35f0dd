"""Staging with real git: the same input gives the same ids, and nothing of the user's is touched or trusted."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kdeploy.api import stages
from kdeploy.errors import (
    AnchorError,
    ConflictError,
    KdeployError,
    PatchSetError,
    PreflightError,
    RemoteError,
    UnreachableError,
)
from kdeploy.stage import tree as staging
from tests import making
from tests.conftest import REPOSITORY

EDIT = [{"file": "sglang/a.py", "line": 1, "anchor": "one = 1", "insert-after": "half = 1.5\n"}]


def quiet(text: str) -> None:
    """Progress nobody reads."""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A project with an engine of three files, fetched by the real pip from a folder."""
    (home / "cache/bases").unlink()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return making.small_project(tmp_path)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout


def stage(project: Path, *refs: str, name: str = "p") -> stages.Staged:
    return stages.stage(making.profile(project, name, "base.yaml", list(refs)), quiet)


def test_one_commit_a_patch_and_a_stamp(small: Path) -> None:
    staged = stage(small, making.patch_set(small, "half", EDIT))
    assert staged.folder is not None
    log = git(staged.folder, "log", "--format=%s").splitlines()
    tree = staged.stage.tree
    assert log == [f"stamp {tree.version}", "half/1.0.0: change", "sglang==0.0.1"]
    assert "to test half" in git(staged.folder, "log", "-1", "--format=%b", "HEAD~1")
    assert (staged.folder / "sglang/a.py").read_text() == "one = 1\nhalf = 1.5\ntwo = 2\n"
    assert tree.version == f"0.0.1+kd.{tree.tree[:12]}"
    assert f"version = '{tree.version}'" in (staged.folder / "sglang/_version.py").read_text()
    assert git(staged.folder, "rev-parse", "HEAD~1^{tree}").strip() == tree.tree
    assert git(staged.folder, "status", "--porcelain") == ""


def test_manifest_names_every_file(small: Path) -> None:
    staged = stage(small, making.patch_set(small, "half", EDIT))
    assert staged.folder is not None
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "manifest.sha256"], cwd=staged.folder, check=True)
    listed = {line.split("  ")[1] for line in (staged.folder / "manifest.sha256").read_text().splitlines()}
    assert listed == set(git(staged.folder, "ls-files").splitlines()) - {"manifest.sha256"}
    digest = hashlib.sha256((staged.folder / "manifest.sha256").read_bytes()).hexdigest()
    assert digest == staged.stage.tree.manifest


def test_ids_repeat_in_another_cache(small: Path, home: Path) -> None:
    first = stage(small, making.patch_set(small, "half", EDIT)).stage.tree
    shutil.rmtree(home / "cache")
    assert stage(small, "half/1.0.0").stage.tree == first


@pytest.mark.parametrize("part", ["trees", "store.git", "stages", "bases"])
def test_any_part_of_the_cache_may_be_deleted(small: Path, home: Path, part: str) -> None:
    first = stage(small, making.patch_set(small, "half", EDIT))
    shutil.rmtree(home / "cache" / part)
    again = stage(small, "half/1.0.0")
    assert again.stage.tree == first.stage.tree
    assert again.folder is not None
    assert git(again.folder, "log", "--format=%H").splitlines()[0] == first.stage.tree.commit


def test_an_edited_work_tree_is_made_anew(small: Path) -> None:
    first = stage(small, making.patch_set(small, "half", EDIT))
    assert first.folder is not None
    (first.folder / "sglang/a.py").write_text("by hand\n")
    (first.folder / "sglang/stray.py").write_text("stray\n")
    again = stage(small, "half/1.0.0")
    assert again.folder == first.folder
    assert "by hand" not in (first.folder / "sglang/a.py").read_text()
    assert not (first.folder / "sglang/stray.py").exists()


def test_safe_inside_another_repository(
    small: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a git hook: the environment names somebody's repository, which also encloses our cache."""
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "core.autocrlf", "true")
    before = sorted((tmp_path / ".git").rglob("*"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / ".git/index"))
    staged = stage(small, making.patch_set(small, "half", EDIT))
    assert sorted((tmp_path / ".git").rglob("*")) == before
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert staged.folder is not None
    assert len(git(staged.folder, "log", "--format=%h").splitlines()) == 3


def test_the_users_git_settings_change_no_byte(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gitconfig").write_text("[core]\n autocrlf = true\n eol = crlf\n[init]\n defaultBranch = strange\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    staged = stage(small, making.patch_set(small, "half", EDIT))
    assert staged.folder is not None
    assert b"\r" not in (staged.folder / "sglang/a.py").read_bytes()


@pytest.mark.parametrize(
    "variables",
    [
        {"GIT_DEFAULT_HASH": "sha256"},
        {"GIT_DEFAULT_REF_FORMAT": "reftable"},
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.autocrlf", "GIT_CONFIG_VALUE_0": "true"},
    ],
)
def test_no_git_variable_changes_an_id(
    small: Path, home: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    first = stage(small, making.patch_set(small, "half", EDIT)).stage.tree
    shutil.rmtree(home / "cache")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    again = stage(small, "half/1.0.0")
    assert again.stage.tree == first
    assert len(again.stage.tree.commit) == 40
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    assert again.folder is not None
    assert git(again.folder, "config", "--get", "core.repositoryformatversion").strip() == "0"


def test_bytes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (home / "cache/bases").unlink()
    odd = {
        "sglang/a.py": b"one = 1\r\ntwo = 2",
        "sglang/latin.txt": b"caf\xe9\n",
        "sglang/.gitattributes": b"* text eol=crlf ident\n",
        "sglang/id.txt": b"$Id$\n",
        'sglang/a "quoted" name.txt': b"x\n",
        "sglang/na\xc3\xafve.txt".encode("latin-1").decode(): b"y\n",
    }
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    project = making.small_project(tmp_path, odd)
    staged = stage(project, making.patch_set(project, "half", EDIT))
    assert staged.folder is not None
    assert (staged.folder / "sglang/a.py").read_bytes() == b"one = 1\r\nhalf = 1.5\r\ntwo = 2"
    for path, content in odd.items():
        if path != "sglang/a.py":
            assert (staged.folder / path).read_bytes() == content
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "manifest.sha256"], cwd=staged.folder, check=True)


def test_two_at_once(small: Path) -> None:
    making.profile(small, "p", "base.yaml", [making.patch_set(small, "half", EDIT)])
    command = [sys.executable, "-m", "kdeploy", "stage", "profiles/p.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    both = [
        subprocess.Popen(command, cwd=small, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [child.communicate() for child in both]
    assert [child.returncode for child in both] == [0] * 4, outputs
    assert len({out for out, _ in outputs}) == 1


def test_what_does_not_compile_is_a_conflict(small: Path) -> None:
    broken = [{"file": "sglang/a.py", "anchor": "one = 1", "replace": "one = ("}]
    with pytest.raises(ConflictError, match=r"sglang/a\.py does not compile") as caught:
        stage(small, making.patch_set(small, "broken", broken))
    assert caught.value.where is not None
    assert caught.value.where.path == "sglang/a.py"


def test_a_moved_away_anchor_writes_nothing(small: Path, home: Path) -> None:
    lost = [{"file": "sglang/a.py", "anchor": "one = 11", "replace": "one = 2"}]
    with pytest.raises(AnchorError):
        stage(small, making.patch_set(small, "half", EDIT), making.patch_set(small, "lost", lost))
    assert not (home / "cache/store.git").exists()
    assert not (home / "cache/stages").exists()


def test_a_tampered_base_is_noticed(small: Path, home: Path) -> None:
    stage(small, name="plain")
    (base,) = (home / "cache/bases").iterdir()
    (base / "sglang/a.py").write_text("one = 1\nevil = True\n")
    with pytest.raises(ConflictError, match="is not what the wheel"):
        stage(small, making.patch_set(small, "half", EDIT))


def test_a_patched_version_cannot_be_stamped(small: Path) -> None:
    edit = [{"file": "sglang/_version.py", "anchor": "'0.0.1'", "replace": "'9'"}]
    with pytest.raises(ConflictError, match="cannot be stamped"):
        stage(small, making.patch_set(small, "liar", edit))


def relock(project: Path, **changes: object) -> None:
    lock = yaml.safe_load((project / "kdeploy.lock").read_text())
    lock["engines"]["sglang==0.0.1"]["3.11"].update(changes)
    (project / "kdeploy.lock").write_text(yaml.safe_dump(lock))


def test_another_sha256_is_refused(small: Path) -> None:
    relock(small, sha256="0" * 64)
    with pytest.raises(RemoteError, match="the lock pins 000000"):
        stage(small)


def test_an_index_without_the_wheel(small: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "wheels")
    with pytest.raises(UnreachableError, match=r"could not fetch sglang==0\.0\.1"):
        stage(small)


@pytest.mark.parametrize(
    ("files", "record", "message"),
    [
        ({"sglang/a.py": b"x"}, {"sglang/a.py": "A" * 43}, "is not what its RECORD says"),
        ({"sglang/../../evil.py": b"x"}, None, "leaves its folder"),
    ],
)
def test_a_wheel_that_lies(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    files: dict[str, bytes],
    record: dict[str, str] | None,
    message: str,
) -> None:
    (home / "cache/bases").unlink()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    project = making.small_project(tmp_path, files, record=record)
    with pytest.raises(KdeployError, match=message):
        stage(project)
    assert not list((home / "cache/bases").iterdir())


def test_frozen_sets_and_trees(small: Path) -> None:
    ref = making.patch_set(small, "half", EDIT)
    path = making.profile(small, "p", "base.yaml", [ref])
    frozen = stages.freeze(str(path), small, quiet)
    assert set(frozen.digests) == {ref}
    assert list(frozen.trees) == ["sglang==0.0.1 py3.11 + half/1.0.0"]
    stages.stage(path, quiet)
    patch = small / "patchsets/half/1.0.0/patches/change.yaml"
    patch.write_text(patch.read_text().replace("half = 1.5", "half = 1.6"))
    with pytest.raises(PatchSetError, match=r"half/1\.0\.0 is frozen and has changed"):
        stages.stage(path, quiet)
    stages.freeze(ref, small, quiet)
    with pytest.raises(ConflictError, match="gave tree"):
        stages.stage(path, quiet)
    stages.freeze(str(path), small, quiet)
    stages.stage(path, quiet)


def test_a_host_that_has_the_base_gets_the_change_alone(tmp_path: Path, small: Path) -> None:
    """The manifest, too: it is a delta to one that the host has."""
    many = {f"sglang/m{number}.py": f"x = {number}\n".encode() * 9 for number in range(2000)}
    project = making.small_project(tmp_path / "many", {"sglang/a.py": b"one = 1\n", **many})
    os.environ["PIP_FIND_LINKS"] = str(tmp_path / "many/wheels")  # the fixture puts it back
    first = stages.stage(making.profile(project, "p", "base.yaml", []), quiet)
    ref = making.patch_set(project, "half", EDIT)
    second = stages.stage(making.profile(project, "q", "base.yaml", [ref]), quiet)
    whole = staging.bundle(second.stage, [])
    change = staging.bundle(second.stage, [first.stage.tree.commit])
    assert len(whole) > 100_000
    assert len(change) < 4_000
    assert staging.bundle(second.stage, [second.stage.tree.commit]) == b""


def test_a_full_cache(small: Path) -> None:
    """A limit on the size of files stands for it: the kernel says no in the middle of a write."""
    stage(small, name="plain")
    ref = making.patch_set(small, "half", EDIT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = making.profile(small, "p", "base.yaml", [ref])
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(PreflightError, match="cannot be used: File too large"):
            stages.stage(path, quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert stages.stage(path, quiet).folder is not None


def test_a_cache_that_git_cannot_write_to(small: Path, home: Path) -> None:
    stage(small, name="plain")
    pack = home / "cache/store.git/objects/pack"
    shutil.rmtree(pack)
    pack.write_text("in the way")
    with pytest.raises(PreflightError, match="cannot be used: fatal: ") as caught:
        stage(small, making.patch_set(small, "half", EDIT))
    assert "delete it" in (caught.value.hint or "")
