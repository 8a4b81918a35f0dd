"""Trees: every byte compared, half a tree never seen, interruptions and damage survived."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import manifests

from .conftest import REMOTE, parse


def placed(rig: Any, name: str) -> Path:
    path: Path = rig.layout.tree(rig.trees[name].tree)
    return path


def test_bytes_modes_and_attributes(rig: Any) -> None:
    assert rig.receive("one").ok["files"] == 11
    tree = placed(rig, "one")
    assert (tree / "crlf.txt").read_bytes() == b"windows\r\nlines\r\n"
    assert (tree / "unix.txt").read_bytes() == b"unix\nlines $Id$\n"  # its .gitattributes asks for other bytes
    assert (tree / "sglang" / "näme mit leer.txt").read_bytes() == b"\xff\x00binary"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [tree, *tree.rglob("*")]}
    assert modes == {0o444, 0o555}
    assert sorted(path.name for path in rig.layout.trees.iterdir()) == [tree.name]
    assert not (rig.layout.home / "incoming.bundle").exists()


def test_a_second_time_changes_nothing_and_needs_no_bundle(rig: Any) -> None:
    first = rig.receive("one").ok
    before = placed(rig, "one").stat().st_ino
    tree = rig.trees["one"]
    request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}
    assert rig.agent("receive", request).ok == first
    assert placed(rig, "one").stat().st_ino == before


def test_a_small_bundle_builds_on_what_is_here(rig: Any) -> None:
    assert rig.receive("one").ok
    tree = rig.trees["one"]
    error = rig.agent("receive", {"tree": "ab" * 20, "commit": "cd" * 20, "manifest": tree.manifest}).error
    assert error["kind"] == "lacking" and "whole bundle" in error["hint"]
    assert rig.facts()["commits"] == [tree.commit]


def test_a_manifest_that_is_not_the_declared_one(rig: Any) -> None:
    error = rig.receive("one", manifest="0" * 64).error
    assert error["kind"] == "integrity" and "manifest.sha256" in error["message"]
    assert not placed(rig, "one").exists()
    assert rig.receive("one").ok


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_bundle_that_was_cut_short(rig: Any, share: float) -> None:
    tree = rig.trees["one"]
    request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}
    error = rig.agent("receive", request, tree.bundle[: int(len(tree.bundle) * share)]).error
    assert error["kind"] == "lacking" and "cut short" in error["hint"]
    assert not placed(rig, "one").exists()
    assert rig.receive("one").ok


def test_killed_half_way_then_repeated(rig: Any) -> None:
    for after_s in (0.12, 0.2, 0.28):
        tree = rig.trees["one"]
        request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}
        child = rig.start("receive", request, tree.bundle)
        time.sleep(after_s)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    partial = rig.layout.trees / f"{rig.trees['one'].tree}.partial"
    partial.mkdir(parents=True, exist_ok=True)  # as a kill in the middle of the checkout leaves it
    (partial / "stray.py").write_text("left over")
    partial.chmod(0o555)
    assert rig.receive("one").ok["files"] == 11
    assert not partial.exists() and not (placed(rig, "one") / "stray.py").exists()


def test_two_at_once(rig: Any) -> None:
    tree = rig.trees["one"]
    request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}
    both = [rig.start("receive", request, tree.bundle) for _ in range(2)]
    for child in both:
        child.communicate(timeout=60)
    assert [child.returncode for child in both] == [0, 0]


def test_drift_is_seen_and_mended(rig: Any) -> None:
    assert rig.receive("one").ok
    tree = placed(rig, "one")
    target = tree / "sglang" / "patched.py"
    target.chmod(0o644)
    target.write_text("PATCH = 'hot fix of 3 a.m.'\n")
    with pytest.raises(AgentError, match=r"sglang/patched\.py: differs"):
        manifests.verify(tree, rig.trees["one"].manifest)
    again = rig.receive("one")
    assert again.ok and any("placing it anew" in event["text"] for event in again.events)
    manifests.verify(tree, rig.trees["one"].manifest)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda tree: (tree / "sglang" / "extra.py").write_text(""), "extra.py: not in the manifest"),
        (lambda tree: (tree / "crlf.txt").unlink(), "crlf.txt: missing"),
        (lambda tree: (tree / "link").symlink_to("/etc/passwd"), "link: not a plain file"),
        (lambda tree: (tree / "folder").symlink_to("/etc"), "folder: not a plain file"),
        (lambda tree: os.mkfifo(tree / "pipe"), "pipe: not a plain file"),
    ],
)
def test_whatever_is_not_declared_fails(rig: Any, damage: Any, says: str) -> None:
    assert rig.receive("one").ok
    tree = placed(rig, "one")
    for path in [tree, *tree.rglob("*")]:
        path.chmod(0o755)
    damage(tree)
    with pytest.raises(AgentError, match=says):
        manifests.verify(tree, rig.trees["one"].manifest)


def test_a_full_disk_is_said_beforehand(rig: Any) -> None:
    script = (
        "import os, sys\n"
        "from kdeploy_agent import __main__\n"
        "from kdeploy_agent.ground import files\n"
        "real = files.free_space\n"
        "files.free_space = lambda path: os.statvfs_result((4096, 4096, 9, 9, 9, 9, 9, 9, 0, 255))\n"
        "sys.argv = ['agent', 'receive']\n"
        "__main__.main()\n"
    )
    tree = rig.trees["one"]
    request = {"protocol": 1, "root": str(rig.layout.root), "service": "local", "tree": tree.tree,
               "commit": tree.commit, "manifest": tree.manifest}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(request).encode() + b"\n" + tree.bundle,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REMOTE)}, capture_output=True, check=False,
    )  # fmt: skip
    error = parse(done.stdout).error
    assert error is not None and error["kind"] == "preflight" and "are free" in error["message"]


def test_retention_keeps_what_is_needed(rig: Any) -> None:
    releases = [rig.apply(name, front="none") for name in ("one", "two", "three", "four", "five")]
    facts = rig.facts()
    kept = {release["tree"] for release in releases[2:]}
    assert set(facts["trees"]) == kept
    assert facts["known_goods"] == [release["id"] for release in reversed(releases[2:])]
    assert set(facts["commits"]) == {release["commit"] for release in releases[2:]}
    assert {path.name for path in rig.layout.caches.iterdir()} == kept
    # A rollback to the oldest that is kept must not make retention drop the way forward.
    order = rig.order(releases[2], goal="rollback")
    assert rig.agent("begin", order).ok["state"] == "PROBED"
    assert rig.decide(order).ok["state"] == "CONFIRMED"
    assert set(rig.facts()["trees"]) == kept


def test_a_name_may_hold_what_else_ends_lines(tmp_path: Path) -> None:
    name = "line\u2028separator\x85.txt"
    (tmp_path / name).write_text("text")
    listing = f"{hashlib.sha256(b'text').hexdigest()}  {name}\n".encode()
    (tmp_path / manifests.MANIFEST).write_bytes(listing)
    assert manifests.verify(tmp_path, hashlib.sha256(listing).hexdigest())[0] == 2


def test_the_store_is_sha1_whatever_the_machine_prefers(rig: Any) -> None:
    tree = rig.trees["one"]
    request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}
    assert rig.agent("receive", request, tree.bundle, GIT_DEFAULT_HASH="sha256").ok
    assert rig.facts()["commits"] == [tree.commit]


def damage(rig: Any, how: str) -> None:
    """What a bad disk leaves of a store."""
    if how == "no objects":
        shutil.rmtree(rig.layout.store / "objects")
        (rig.layout.store / "objects").mkdir()
        return
    for pack in (rig.layout.store / "objects" / "pack").glob("*.pack"):
        pack.chmod(0o644)
        data = pack.read_bytes()
        pack.write_bytes(data[:40] + bytes(len(data) - 80) + data[-40:])


@pytest.mark.parametrize("here", [True, False], ids=["tree here", "tree gone"])
@pytest.mark.parametrize("how", ["no objects", "zeros"])
def test_a_damaged_store_makes_way_for_a_new_one(rig: Any, how: str, here: bool) -> None:
    assert rig.receive("one").ok
    damage(rig, how)
    if not here:
        subprocess.run(["chmod", "-R", "u+w", str(placed(rig, "one"))], check=True)
        shutil.rmtree(placed(rig, "one"))
    for name in ("one", "two"):
        assert rig.receive(name).ok["files"] == 11
    assert rig.trees["two"].commit in rig.facts()["commits"]
    assert rig.layout.store.with_name("store.git.damaged").is_dir()
    subprocess.run(["git", "--git-dir", str(rig.layout.store), "fsck"], check=True, capture_output=True)


def test_a_damaged_store_says_to_send_everything_and_claims_nothing_more(rig: Any) -> None:
    assert rig.receive("one").ok
    damage(rig, "no objects")
    tree = rig.trees["two"]
    thin = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}
    answer = rig.agent("receive", thin)
    assert answer.error["kind"] == "lacking" and "whole bundle" in answer.error["hint"]
    assert any("beginning a new one" in one.get("text", "") for one in answer.events)
    assert rig.facts()["commits"] == []
    assert rig.receive("two").ok


def test_a_sound_store_stays_whatever_is_sent(rig: Any) -> None:
    assert rig.receive("one").ok
    tree = rig.trees["two"]
    request = {"tree": tree.tree, "commit": tree.commit, "manifest": tree.manifest}
    assert rig.agent("receive", request, tree.bundle[:-20]).error["kind"] == "lacking"
    assert rig.facts()["commits"] == [rig.trees["one"].commit]
    assert not rig.layout.store.with_name("store.git.damaged").exists()
