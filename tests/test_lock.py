"""The lock: what it pins, what it refuses, and what freeze writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdeploy import lock
from kdeploy.errors import ConflictError, PatchSetError, ProfileError
from kdeploy.lock import Lock

SHA = "a" * 64
TEXT = f"""\
engines:
  sglang==0.5.11:
    '3.11': {{file: a.whl, sha256: {SHA}, size: 3, platform: any}}
patchsets:
  x/1: {SHA}
trees:
  sglang==0.5.11 py3.11 + x/1: {"b" * 40}
"""


@pytest.fixture
def pins(tmp_path: Path) -> Lock:
    (tmp_path / lock.FILE).write_text(TEXT)
    return lock.load(tmp_path)


def test_wheel(pins: Lock) -> None:
    assert pins.wheel("sglang==0.5.11", "3.11").file == "a.whl"
    assert pins.versions() == ("0.5.11",)
    with pytest.raises(ProfileError, match=r"sglang==0\.5\.12 is not in kdeploy\.lock") as caught:
        pins.wheel("sglang==0.5.12", "3.11")
    assert "0.5.11" in (caught.value.hint or "")
    with pytest.raises(ProfileError, match=r"no wheel of sglang==0\.5\.11 for Python 3\.9"):
        pins.wheel("sglang==0.5.11", "3.9")


def test_a_frozen_set_that_changed(pins: Lock) -> None:
    pins.check_digest("x/1", SHA)
    pins.check_digest("not-frozen/1", "c" * 64)
    with pytest.raises(PatchSetError, match="is frozen and has changed") as caught:
        pins.check_digest("x/1", "c" * 64)
    assert str(caught.value.where) == f"{pins.path}:5:3"


def test_a_tree_that_differs(pins: Lock) -> None:
    pins.check_tree("sglang==0.5.11", ["x/1"], "3.11", "b" * 40)
    pins.check_tree("sglang==0.5.11", ["y/1"], "3.11", "d" * 40)
    with pytest.raises(ConflictError, match="gave tree dddd") as caught:
        pins.check_tree("sglang==0.5.11", ["x/1"], "3.11", "d" * 40)
    assert str(caught.value.where) == f"{pins.path}:7:3"


def test_frozen_text_reads_back_with_all_that_was_there(pins: Lock, tmp_path: Path) -> None:
    (tmp_path / lock.FILE).write_text(lock.frozen(pins, {"a/1": "e" * 64}, {"t": "f" * 40}))
    again = lock.load(tmp_path)
    assert again.file.engines == pins.file.engines
    assert again.file.patchsets == {"a/1": "e" * 64, "x/1": SHA}
    assert list(again.file.trees) == ["sglang==0.5.11 py3.11 + x/1", "t"]


def test_a_lock_that_is_not_there_or_not_right(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="does not exist"):
        lock.load(tmp_path)
    (tmp_path / lock.FILE).write_text(TEXT.replace(SHA, "short", 1))
    with pytest.raises(ProfileError, match="sha256") as caught:
        lock.load(tmp_path)
    assert (caught.value.where or pytest.fail()).line == 3


def test_a_runtimes_lock() -> None:
    text = "# why\n\nTorch == 2.13.0+cpu  # build\n  my_pkg.x==1!2.0\n\t# note\n"
    assert lock.requirements(text, "r.txt") == {"torch": "2.13.0+cpu", "my-pkg-x": "1!2.0"}


@pytest.mark.parametrize(
    "line",
    ["-r other.txt", "numpy>=1", "numpy", "https://x.test/a.whl", "a @ https://x.test/a.whl", "--index-url x",
     "a==1,<2", "a==1; python_version<'3'", "a[extra]==1", "a==*", "a==1 --hash=sha256:00", "-e .", "a==1 \\",
     "a==1#x"],
)  # fmt: skip
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(ProfileError, match="pins nothing") as caught:
        lock.requirements(f"# head\nok==1\n{line}\n", "r.txt")
    assert str(caught.value.where) == "r.txt:3:1"
    assert line.strip() in caught.value.message


def test_a_package_pinned_twice() -> None:
    with pytest.raises(ProfileError, match="'A_b' is pinned twice") as caught:
        lock.requirements("a-b==1\nA_b==2\n", "r.txt")
    assert str(caught.value.where) == "r.txt:2:1"
