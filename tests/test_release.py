"""Release ids: the same declaration, the same id; any change of code or flags, another."""

from __future__ import annotations

import dataclasses

import pytest

from kdeploy import release
from kdeploy.release import Front, Launch, Release, Tree

TREE = Tree("a" * 40, "b" * 40, "c" * 64, "0.5.11+kd.aaaaaaaaaaaa")
LAUNCH = Launch(
    runtime={"key": "abc"}, module=release.SERVER_MODULE, args=("--model-path", "/m", "--port", "1"), env={"A": "1"},
    port=1, front=Front("router", "127.0.0.1", 2, 3),
)  # fmt: skip


def make(tree: Tree = TREE, launch: Launch = LAUNCH, profile: str = "p") -> Release:
    return release.make(
        service="s", profile=profile, engine="sglang==0.5.11", patchsets=[("x/1", "d")], tree=tree, launch=launch
    )


def test_same_declaration_same_id() -> None:
    assert make().id == make().id
    assert make(profile="another name for people").id == make().id


@pytest.mark.parametrize(
    "changed",
    [
        make(dataclasses.replace(TREE, tree="d" * 40)),
        make(dataclasses.replace(TREE, manifest="d" * 64)),
        make(launch=dataclasses.replace(LAUNCH, args=("--model-path", "/n", "--port", "1"))),
        make(launch=dataclasses.replace(LAUNCH, env={"A": "2"})),
        make(launch=dataclasses.replace(LAUNCH, runtime={"key": "other"})),
        make(launch=dataclasses.replace(LAUNCH, front=Front("none", "127.0.0.1", 2, 3))),
    ],
)
def test_any_change_is_another_release(changed: Release) -> None:
    assert changed.id != make().id


def test_document_reads_back() -> None:
    assert release.read(make().as_document()) == make()


def test_arguments() -> None:
    args = {"model-path": "/m", "tp-size": 8, "sleep-on-idle": True, "off": False, "gone": None, "sizes": [1, 2]}
    argv = release.server_args(args, 99)
    assert argv == (
        *("--model-path", "/m", "--tp-size", "8", "--sleep-on-idle", "--sizes", "1", "2"),
        *("--host", "127.0.0.1", "--port", "99"),
    )
    assert release.flags(argv) == {
        "model-path": "/m", "tp-size": "8", "sleep-on-idle": True, "sizes": ["1", "2"], "host": "127.0.0.1",
        "port": "99",
    }  # fmt: skip


def test_runtime_key_covers_all_that_decides() -> None:
    keys = {
        release.runtime_key(*one)
        for one in [("a==1", "3.11", ["a"]), ("a==2", "3.11", ["a"]), ("a==1", "3.12", ["a"]), ("a==1", "3.11", [])]
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("front", "url"),
    [
        (Front("router", "127.0.0.1", 2, 3), "http://127.0.0.1:2"),
        (Front("router", "::", 2, 3), "http://[::]:2"),
        (Front("none", "127.0.0.1", 2, None), "http://127.0.0.1:9"),
    ],
)
def test_where_clients_go(front: Front, url: str) -> None:
    assert front.url(9) == url


def test_a_front_at_every_address_is_named_by_one_that_clients_can_use() -> None:
    assert Front("router", "0.0.0.0", 2, 3).url(9, "gpu-1") == "http://gpu-1:2"
    assert Front("socket", "::", 2, None).url(9, "2001:db8::1") == "http://[2001:db8::1]:2"
    assert Front("router", "127.0.0.1", 2, 3).url(9, "gpu-1") == "http://127.0.0.1:2"
