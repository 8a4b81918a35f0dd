"""Documents: every fault of a YAML file is found, at its line and column, with the remedy where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from kdeploy import document
from kdeploy.document import Model
from kdeploy.errors import ProfileError
from kdeploy.strict_yaml import MAX_DEPTH


class Probe(Model):
    kind: Literal["probe"]
    path: str


class Port(Model):
    kind: Literal["port"]
    number_of: int


class Host(Model):
    address: str
    wait_s: int = 5
    labels: dict[str, str] = Field(default={})


class Plan(Model):
    name: str = Field(description="what it is called")
    front: Literal["router", "none"] = "router"
    hosts: list[Host] = Field(default=[])
    checks: list[Probe | Port] = Field(default=[])
    limit: int | None = None
    venv: Host | None = None
    size: int | list[int] = 1


GOOD = "name: x\n"

FAULTS = [
    # id, text, line:column, message, hint
    ("unknown key", "name: x\nhost: []\n", "2:1", "unknown key 'host'", "did you mean 'hosts'?"),
    ("unknown, nothing near", "name: x\nzzzzz: 1\n", "2:1", "unknown key 'zzzzz'",
     "known keys here: checks, front, hosts, limit, name, size, venv"),
    ("unknown in a list", "name: x\nhosts:\n  - address: a\n    wait: 3\n", "4:5", "unknown key 'hosts.0.wait'",
     "did you mean 'wait-s'?"),
    ("unknown in an optional", "name: x\nvenv:\n  address: a\n  adress: b\n", "4:3", "unknown key 'venv.adress'",
     "did you mean 'address'?"),
    ("unknown in a union", "name: x\nchecks:\n  - kind: port\n    number-of: 3\n    numberof: 4\n", "5:5",
     "unknown key 'checks.0.numberof'", "did you mean 'number-of'?"),
    ("underscore for dash", "name: x\nhosts:\n  - address: a\n    wait_s: 3\n", "4:5", "unknown key 'hosts.0.wait_s'",
     "did you mean 'wait-s'?"),
    ("misspelt is not missing too", "nane: x\n", "1:1", "unknown key 'nane'", "did you mean 'name'?"),
    ("twice", "name: x\nlimit: 1\nname: y\n", "3:1", "key 'name' is given twice (first at f.yaml:1:1)", None),
    ("twice, nested", "name: x\nvenv: {address: a, address: b}\n", "2:20",
     "key 'address' is given twice (first at f.yaml:2:8)", None),
    ("wrong type", "name: x\nlimit: soon\n", "2:1", "'limit': input should be a valid integer, not 'soon'", None),
    ("wrong type in a list", "name: x\nhosts:\n  - address: a\n  - address: [b]\n", "4:5",
     "'hosts.1.address': input should be a valid string", None),
    ("a version that is a number", "name: 0.10\n", "1:1", "'name': input should be a valid string, not 0.1",
     "put it in quotes"),
    ("wrong word", "name: x\nfront: ruter\n", "2:1", "'front': input should be 'router' or 'none', not 'ruter'",
     "did you mean 'router'?"),
    ("missing", "limit: 1\n", "1:1", "'name' is required", None),
    ("missing in a list", "name: x\nhosts:\n  - wait-s: 1\n", "3:5", "'hosts.0.address' is required", None),
    ("deepest member of a union", "name: x\nsize: [1, b]\n", "2:11",
     "'size.1': input should be a valid integer, not 'b'", None),
    ("not a mapping", "- a\n", "1:1", "expected a mapping of keys, found list", None),
    ("nothing", "# only a comment\n", "1:1", "expected a mapping of keys, found nothing", None),
    ("recursive alias", "name: &a [*a]\n", "1:11", "the alias '*a' is inside of what it repeats", None),
    ("unknown alias", "name: *a\n", "1:7", "the alias '*a' is not defined above", None),
    ("merge key", "name: x\nvenv:\n  <<: {address: a}\n", "3:3", "merge keys (<<) are not supported",
     "write the keys out, or use 'extends' in a profile"),
    ("too deep", "name: " + "[" * 200 + "\n", f"1:{6 + MAX_DEPTH + 1}", "nested more than 64 levels deep", None),
    ("far too deep", "name: " + "[" * 200_000 + "\n", None, "nest", None),
    ("tab", "name: x\nvenv:\n\taddress: a\n", "3:1", "not valid YAML: found character that cannot start any token",
     "indent with blanks; a tab is not allowed there"),
    ("second document", "name: x\n---\nname: y\n", "2:1", "a second YAML document begins here; one is expected", None),
    ("large number", "name: x\nlimit: 9223372036854775808\n", "2:8", "this number does not fit into 64 bits",
     "quote it if it is text"),
    ("huge number", "name: x\nlimit: " + "9" * 10_000, "2:8", "this number does not fit into 64 bits",
     "quote it if it is text"),
    ("infinite float", "limit: 1e999\n", "1:8", "this number is too large", "quote it if it is text"),
    ("number as key", "name: x\n8: y\n", "2:1", "a key must be text, and 8 is not", "write it in quotes: '8'"),
    ("true as key", "true: y\n", "1:1", "a key must be text, and true is not", "write it in quotes: 'true'"),
    ("list as key", "? [a]\n: y\n", "1:3", "a key must be plain text", None),
    ("tag", "name: !!python/name:os.system x\n", "1:7", "tags are not used here", "leave the tag out"),
    ("control character", "name: x\nlimit: \x07\n", "2:8", "not valid YAML: the character U+0007 is not allowed", None),
    ("unclosed", 'name: "x\n', None, "not valid YAML: found unexpected end of stream", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"), [case[1:] for case in FAULTS], ids=[c[0] for c in FAULTS]
)
def test_fault_is_found_at_its_place(tmp_path: Path, monkeypatch, text, place, message, hint) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        document.load(Path("f.yaml"), Plan, ProfileError)
    assert message in caught.value.message
    assert caught.value.where is not None
    if place is not None:
        assert str(caught.value.where) == f"f.yaml:{place}"
    assert (hint is None) == (caught.value.hint is None)
    assert hint is None or hint in caught.value.hint


def test_all_faults_are_told_in_the_order_of_their_places() -> None:
    text = "limit: soon\nhosts:\n  - adress: a\nfront: nobody\nname: x\n"
    read = document.parse(text, "f.yaml", ProfileError)
    with pytest.raises(ProfileError) as caught:
        document.check(read, Plan, ProfileError)
    assert str(caught.value.where) == "f.yaml:1:1"
    assert [detail.split(": ")[0] for detail in caught.value.details] == ["f.yaml:3:5", "f.yaml:4:1"]


def test_aliases_repeat_values_but_not_without_end() -> None:
    assert document.parse("a: &x {b: 1}\nc: *x\n", "f", ProfileError).values == {"a": {"b": 1}, "c": {"b": 1}}
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    with pytest.raises(ProfileError, match="more than 100000 values, aliases written out"):
        document.parse(bomb, "f", ProfileError)


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "local.yaml").write_text(GOOD)
    with pytest.raises(ProfileError, match="does not exist") as caught:
        document.read(tmp_path / "locl.yaml", ProfileError)
    assert caught.value.hint == f"did you mean {tmp_path / 'local.yaml'}?"
    with pytest.raises(ProfileError, match="does not exist") as caught:
        document.read(tmp_path / "no" / "local.yaml", ProfileError)
    assert caught.value.hint == f"the folder {tmp_path / 'no'} does not exist either"


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"name: \xe9\n")
    with pytest.raises(ProfileError, match=r"not UTF-8 text \(byte 6\)"):
        document.read(tmp_path / "latin", ProfileError)
    with pytest.raises(ProfileError, match="is a folder"):
        document.read(tmp_path, ProfileError)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("12:30:45", "12:30:45"), ("2020-01-01", "2020-01-01"), ("0o17", 15), ("0x1F", 31), ("-7", -7),
        ("1e3", 1000.0), (".5", 0.5), ("~", None), ("", None), ("true", True), ("'true'", "true"), ("'7'", "7"),
        ("|\n  a\n", "a\n"), ("1_000", "1_000"), ("0.5.11", "0.5.11"), ("-9223372036854775808", -(2**63)),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text, value) -> None:
    found = document.parse(f"a: {text}\n", "f", ProfileError).values["a"]
    assert found == value
    assert type(found) is type(value)


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    read = document.parse("\ufeffname: x\n", "f.yaml", ProfileError)
    assert read.values == {"name": "x"}
    assert str(read.where(("name",))) == "f.yaml:1:1"


def test_where_falls_back_to_the_nearest_parent() -> None:
    read = document.parse("a:\n  b: 1\n", "f.yaml", ProfileError)
    assert str(read.where(("a", "b"))) == "f.yaml:2:3"
    assert str(read.where(("a", "c", 0))) == "f.yaml:1:1"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="ascii")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_json_is_read_as_json(value) -> None:
    import json

    assert document.parse(json.dumps({"a": value}), "f", ProfileError).values == {"a": value}


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_at_a_place(text) -> None:
    try:
        document.parse(text, "f.yaml", ProfileError)
    except ProfileError as fault:
        assert fault.where is not None
        assert fault.where.line >= 1
        assert fault.where.column >= 1


def test_aliases_do_not_nest_without_end_either() -> None:
    deep = f"name: x\na: &a {'[' * 40}{']' * 40}\nb: {'[' * 40}*a{']' * 40}\n"
    with pytest.raises(ProfileError, match=f"nested more than {MAX_DEPTH} levels deep, aliases written out") as caught:
        document.parse(deep, "d.yaml", ProfileError)
    assert (caught.value.where or pytest.fail()).line == 2
