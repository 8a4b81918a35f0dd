"""Secrets on the operator's side: where their values come from, and that nothing shows them."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdeploy import ledger, plan, profile, render, secrecy
from kdeploy.cli import boundary
from kdeploy.errors import ExitCode, ProfileError, RemoteError
from kdeploy.plan import Facts
from kdeploy.secrecy import Digests, Secrets
from tests import making
from tests.conftest import REPOSITORY
from tests.test_plan import RELEASE, RIGHT

VALUE = "hf_Qd7\"w\\mR'0 über"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return making.small_project(tmp_path)


def declare(project: Path, secrets: Any = None, env: Any = None) -> Path:
    serve = {key: value for key, value in (("secrets", secrets), ("env", env)) if value is not None}
    return making.profile(project, "p", "base.yaml", [], serve=serve)


@pytest.mark.parametrize("name", ["HF_TOKEN", "API_KEY", "MY_SECRET_1", "DB_PASSWORD", "aws_credentials", "KEY"])
def test_a_name_that_looks_secret_does_not_go_into_env(project: Path, name: str) -> None:
    with pytest.raises(ProfileError, match=f"'{name}' looks like a secret") as caught:
        profile.load(declare(project, env={name: "x"}))
    assert caught.value.where is not None and caught.value.where.line == 5
    assert caught.value.hint and f"{name}: {{env: {name}}}" in caught.value.hint


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "MONKEY_PATCH"])
def test_a_name_that_only_sounds_so_does(project: Path, name: str) -> None:
    assert profile.load(declare(project, env={name: "x"})).file.serve.env == {name: "x"}


def test_values_come_from_the_environment_or_a_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", VALUE)
    (project / "profiles/token").write_text("from the file\n\n")
    path = declare(project, {"HF_TOKEN": {"env": "MINE"}, "OTHER": {"file": "token"}})
    values = profile.read_secrets(profile.load(path))
    assert values.names == ("HF_TOKEN", "OTHER")
    assert values.reveal() == {"HF_TOKEN": VALUE, "OTHER": "from the file\n"}  # one newline is dropped, no more


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ({"env": "UNSET_HERE"}, 6, "the variable UNSET_HERE of your environment is not set"),
        ({"env": "EMPTY_HERE"}, 6, "is empty"),
        ({"env": "SHORT_HERE"}, 6, "has fewer than 8 characters"),
        ({"env": "BYTES_HERE"}, 6, "cannot be passed"),
        ({"file": "nowhere"}, 6, "nowhere does not exist"),
        ({"file": "."}, 6, "is not a plain file"),
        ({"file": "binary"}, 6, "is not UTF-8 text"),
        ({"file": "blank"}, 6, "is empty"),
        ({"file": "large"}, 6, "is larger than 64 KiB"),
    ],
)
def test_a_value_that_is_not_there(
    project: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, str], line: int, message: str
) -> None:
    monkeypatch.setenv("EMPTY_HERE", "")
    monkeypatch.setenv("SHORT_HERE", "seven77")
    monkeypatch.setenv("BYTES_HERE", os.fsdecode(b"not-utf-8-\xff"))
    (project / "profiles/binary").write_bytes(b"secretish \xff\xfe bytes")
    (project / "profiles/blank").write_text(" \n")
    (project / "profiles/large").write_text("x" * 70_000)
    with pytest.raises(ProfileError, match=re.escape(message)) as caught:
        profile.read_secrets(profile.load(declare(project, {"HF_TOKEN": source})))
    where = caught.value.where
    assert where is not None and where.path.endswith("p.yaml") and abs(where.line - line) <= 1
    assert "seven77" not in str(caught.value) and "secretish" not in str(caught.value)


def test_one_name_has_one_value(project: Path) -> None:
    with pytest.raises(ProfileError, match="as well"):
        profile.load(declare(project, {"PLAIN": {"env": "A"}}, {"PLAIN": "x"}))
    with pytest.raises(ProfileError, match="kdeploy itself sets"):
        profile.load(declare(project, {"PYTHONPATH": {"env": "A"}}))
    with pytest.raises(ProfileError, match="give either"):
        profile.load(declare(project, {"TWO": {"env": "A", "file": "b"}}))


def test_what_shows_secrets_shows_their_names() -> None:
    values = Secrets({"A": VALUE})
    for shown in (repr(values), str(values), f"{values}", json.dumps(render.plain({"x": values}))):
        assert "hf_Qd7" not in shown and "A" in shown
    with pytest.raises(TypeError):
        pickle.dumps(values)
    for said in (VALUE, json.dumps(VALUE), json.dumps(VALUE, ensure_ascii=False), repr(VALUE)):
        assert "hf_Qd7" not in secrecy.conceal(f"the server said {said}!")
        assert "hf_Qd7" not in render.clean(said)
        assert "hf_Qd7" not in render.envelope("x", error=RemoteError(said, hint=said, details=(said,)))
        assert "hf_Qd7" not in render.envelope("x", {"a": [said, {said: said}, said.encode()]})


def test_the_ledger_and_the_log_of_faults_hold_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Secrets({"A": VALUE})
    ledger.add("apply", Path("/p.yaml"), "s", "h", "r", f"RemoteError: {VALUE}")
    fault = boundary._our_fault("apply", ValueError(VALUE))
    try:
        raise ValueError(VALUE)
    except ValueError as inner:
        fault = boundary._our_fault("apply", inner)
    render.error(fault)
    written = [path for path in (home / "state").rglob("*") if path.is_file()]
    assert len(written) >= 2
    texts = [path.read_text() for path in written] + [capsys.readouterr().err]
    assert all("hf_Qd7" not in text and "***" in text for text in texts), texts


def digests(**values: str) -> Digests:
    import hashlib
    import hmac

    made = {name: hmac.new(b"salt", value.encode(), hashlib.sha256).hexdigest() for name, value in values.items()}
    return Digests("salt", made)


def test_a_changed_value_is_a_change() -> None:
    values = Secrets({"A": VALUE, "B": "the other one"})
    assert values.changed(digests(A=VALUE, B="the other one")) == ()
    assert values.changed(digests(A=VALUE)) == ("B",)
    assert values.changed(digests(A=VALUE + "x", C="gone")) == ("A", "B")
    assert "hf" not in repr(digests(A=VALUE)) and "A" in repr(digests(A=VALUE))
    facts = Facts.read(RIGHT)
    assert plan.make(facts, RELEASE).steps == ()
    made = plan.make(facts, RELEASE, values)
    assert made.kinds == ("precheck", "switch", "gate", "open", "confirm")
    assert made.reason == "secret A, B changes"
    assert "hf_Qd7" not in render.envelope("plan", facts)


def test_apply_and_plan_say_what_is_missing_before_anything_happens(project: Path, home: Path) -> None:
    path = declare(project, {"HF_TOKEN": {"env": "NOT_SET_ANYWHERE"}})
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PIP_NO_INDEX": "1"}
    for verb in ("apply", "plan"):
        done = subprocess.run(
            [sys.executable, "-m", "kdeploy", verb, str(path)],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == ExitCode.PROFILE, done.stderr
        assert f"{path}:" in done.stderr and "NOT_SET_ANYWHERE" in done.stderr and "export" in done.stderr
    assert not (home / "cache/store.git").exists() and not (home / "root/small").exists()


def test_schema_names_secrets() -> None:
    text = yaml.safe_dump(profile.ProfileFile.model_json_schema())
    assert "HF_TOKEN" in text
