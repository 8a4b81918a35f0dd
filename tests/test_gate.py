"""`kdeploy gate`: what serves is asked, judged and shown, and nothing is changed. Only the engine is a stand-in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdeploy.api.recording import as_file, with_references
from kdeploy.errors import ExitCode
from kdeploy.verdict.prompts import load_prompts
from kdeploy.verdict.thresholds import load_thresholds
from tests.conftest import REPOSITORY
from tests.test_care import Here

UNSEEN = {"identity.processes", "identity.port", "log", "restarts"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """A host that serves `one`; no test here changes anything on it."""
    made = Here(tmp_path_factory.mktemp("served"))
    told = made.run("apply", made.profile("one"))
    assert "  page      " in told
    before = (made.service / "journal.jsonl").read_bytes()
    yield made
    assert (made.service / "journal.jsonl").read_bytes() == before
    made.close()


def profile(served: Here, name: str, **gate: Any) -> str:
    """The profile that is live under another name, with another gate."""
    text = yaml.safe_load((served.project / "profiles/one.yaml").read_text())
    text["gate"].update(gate)
    (served.project / f"profiles/{name}.yaml").write_text(yaml.safe_dump(text, sort_keys=False))
    return f"profiles/{name}.yaml"


def drifted(served: Here) -> str:
    """A profile that declares an argument which the live server was not started with."""
    path = served.project / "profiles/drifted.yaml"
    path.write_text(yaml.safe_dump({"extends": "one.yaml", "serve": {"args": {"max-total-tokens": 4096}}}))
    return "profiles/drifted.yaml"


def outcomes(server: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["outcome"] for check in server["verdict"]["checks"]}


def test_what_serves_passes_and_has_a_page(served: Here) -> None:
    told = served.run("gate", "profiles/one.yaml", "--quiet").splitlines()
    rows = [line.split("\t") for line in told if "\t" in line]
    assert ["answers.exact", "passed"] in [row[:2] for row in rows]
    assert {row[1] for row in rows} == {"passed", "-"}
    assert told[-2].startswith(f"here: {served.live()}: {len(rows)} checks passed in ")
    page = Path(told[-1].split(maxsplit=1)[1])
    assert page == served.home / f"state/reports/small/here/{served.live()}-gate.html"
    text = page.read_text(encoding="utf-8")
    assert "<strong>Accepted</strong>" in text
    assert f"beside known-good {served.live()}" in text  # what it said when it was confirmed
    assert "as known-good" in text


def test_the_verdict_as_json(served: Here) -> None:
    (server,) = served.json("gate", "profiles/one.yaml")["servers"]
    assert (server["host"], server["live"], server["url"]) == ("here", served.live(), None)
    assert server["verdict"]["accepted"] is True
    assert outcomes(server)["speed"] == "passed"  # there is a known-good to compare with
    assert outcomes(server)["start.first-answer"] == "not applicable"
    assert Path(server["page"]).is_file()


def test_a_no_changes_nothing_and_says_so(served: Here) -> None:
    told = served.run("gate", drifted(served), code=ExitCode.GATE)
    assert "the gate says no (identity.args); nothing was changed" in told
    assert "max_total_tokens: declared" in told, told
    assert f"{served.live()} serves, the profile declares" in told
    (server,) = served.json("gate", drifted(served), code=ExitCode.GATE)["servers"]
    assert [name for name, outcome in outcomes(server).items() if outcome == "failed"] == ["identity.args"]
    text = Path(server["page"]).read_text()
    assert "<strong>Rejected</strong>: identity.args" in text
    assert "<dt>declared</dt>" in text


def test_any_url(served: Here, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{served.port}"
    page = tmp_path / "page.html"
    (server,) = served.json("gate", "profiles/one.yaml", "--url", url + "/", "--html", str(page))["servers"]
    assert (server["host"], server["url"], server["live"]) == (f"127.0.0.1:{served.port}", url, None)
    assert {name for name, outcome in outcomes(server).items() if outcome == "not applicable"} >= UNSEEN
    assert server["page"] == str(page)
    assert f"small on 127.0.0.1:{served.port}" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--host", "there"], ExitCode.USAGE, "one has no host 'there'"),
        (["--url", "nonsense"], ExitCode.USAGE, "'nonsense' is no URL of a server"),
        (["--url", "http://me:pw@127.0.0.1"], ExitCode.USAGE, "is no URL of a server"),
        (["--url", "http://127.0.0.1:9", "--host", "here"], ExitCode.USAGE, "name two servers"),
        (["--url", "http://127.0.0.1:9"], ExitCode.PREFLIGHT, "nothing answers at http://127.0.0.1:9"),
        (["--runs", "3"], ExitCode.USAGE, "--runs is of --calibrate"),
        (["--calibrate", "--record", "x.json"], ExitCode.USAGE, "are three things"),
        (["--html", "/proc/none/x.html"], ExitCode.PREFLIGHT, "/proc/none/x.html cannot be written"),
    ],
)
def test_what_cannot_be_asked(served: Here, arguments: list[str], code: ExitCode, message: str) -> None:
    assert message in served.json("gate", "profiles/one.yaml", *arguments, code=code)["message"]


def test_where_nothing_serves(served: Here) -> None:
    text = yaml.safe_load((served.project / "profiles/one.yaml").read_text())
    (served.project / "profiles/none.yaml").write_text(yaml.safe_dump({**text, "service": "none"}))
    error = served.json("gate", "profiles/none.yaml", code=ExitCode.PREFLIGHT)
    assert "nothing serves on this host" in error["message"]
    assert not (served.home / "root/none").exists()


def test_calibrating_writes_what_the_gate_then_uses(served: Here) -> None:
    path = profile(served, "calm")
    told = served.run("gate", path, "--calibrate", "--runs", "2")
    file = served.project / "profiles/calm.thresholds.yaml"
    made = load_thresholds(file)
    assert (made.made.runs, made.made.host, made.made.release) == (2, "here", served.live())
    assert made.agreement == 1.0
    assert "the profile does not name it yet:  gate: {thresholds: calm.thresholds.yaml}" in told
    assert "agreement\t1\t100.0% of leading tokens stayed at least" in told
    path = profile(served, "calm", thresholds="calm.thresholds.yaml")
    again = served.json("gate", path, "--calibrate", "--runs", "2")
    assert (again["file"], again["line"]) == (str(file), None)
    assert served.json("gate", path)["servers"][0]["verdict"]["accepted"] is True


def test_a_server_that_is_wrong_is_not_calibrated(served: Here) -> None:
    error = served.json("gate", drifted(served), "--calibrate", "--runs", "2", code=ExitCode.GATE)
    assert "in run 1 the gate says no (identity.args), whatever noise is allowed for" in error["message"]
    assert error["details"][-1] == "nothing was written, and nothing was changed"
    assert not (served.project / "profiles/drifted.thresholds.yaml").exists()


def test_recording_makes_references(served: Here, tmp_path: Path) -> None:
    """Prompts of which only a pattern, or nothing, is known, get what the server says."""
    asked = json.loads((served.project / "prompts.json").read_text())["prompts"]
    truth = {one["name"]: one.get("answer") for one in asked}
    for one in asked[:8]:
        one.pop("answer", None)
    (served.project / "bare.json").write_text(json.dumps({"prompts": asked}))
    file = tmp_path / "recorded.json"
    told = served.run("gate", profile(served, "bare", prompts="../bare.json"), "--record", str(file))
    recorded = {prompt.name: prompt for prompt in load_prompts(file)}
    assert set(recorded) == set(truth)
    assert {one["name"]: recorded[one["name"]].reference for one in asked[:8]} == {
        one["name"]: truth[one["name"]] for one in asked[:8]
    }
    assert all(prompt.reference is None for prompt in recorded.values() if prompt.answer is not None)
    assert f"of {len(asked)} prompts with what here answers" in told
    (served.project / "recorded.json").write_bytes(file.read_bytes())
    (server,) = served.json("gate", profile(served, "judged", prompts="../recorded.json"))["servers"]
    assert outcomes(server)["reference"] == "passed"


def test_what_speculates_is_no_reference(served: Here, tmp_path: Path) -> None:
    path = served.project / "profiles/fast.yaml"
    path.write_text("extends: one.yaml\nserve:\n  args:\n    speculative-algorithm: DFLASH\n")
    error = served.json("gate", "profiles/fast.yaml", "--record", str(tmp_path / "x.json"), code=ExitCode.PROFILE)
    assert "a reference is recorded from a server without speculation" in error["message"]
    assert (error["where"]["path"], error["where"]["line"]) == (str(path), 4)
    assert not (tmp_path / "x.json").exists()


def test_a_server_that_is_wrong_is_not_recorded(served: Here, tmp_path: Path) -> None:
    error = served.json("gate", drifted(served), "--record", str(tmp_path / "x.json"), code=ExitCode.GATE)
    assert "the gate says no (identity.args), so its answers are no reference" in error["message"]
    assert not (tmp_path / "x.json").exists()


def test_a_candidate_that_is_rejected_leaves_a_page(served: Here, tmp_path: Path) -> None:
    other = Here(tmp_path / "other")
    try:
        error = other.json("apply", other.profile("bad", {"STANDIN": "garbled"}), code=ExitCode.GATE)
        (path,) = [line.removeprefix("page: ") for line in error["details"] if line.startswith("page: ")]
        text = Path(path).read_text(encoding="utf-8")
        assert "<strong>Rejected</strong>: answers.exact" in text
        assert "parts from declared at character 0" in text
        assert "!!!!!!!!" in text
    finally:
        other.close()


def test_a_page_that_cannot_be_kept_does_not_stop_an_apply(tmp_path: Path) -> None:
    other = Here(tmp_path / "other")
    try:
        (other.home / "state").mkdir(parents=True)
        (other.home / "state/reports").write_text("in the way")
        told = other.run("apply", other.profile("one"))
        assert f"{other.home}/state/reports/small/here/" in told and "cannot be written" in told
        assert "is live and known-good" in told
    finally:
        other.close()


def test_references_are_of_what_was_answered() -> None:
    prompts = load_prompts(REPOSITORY / "models/pocket/prompts.json")
    bare = [prompt.model_copy(update={"answer": None}) for prompt in prompts[:3]]
    said = {"name": bare[0].name, "text": "yes", "error": None}
    hung = {"name": bare[1].name, "text": "", "error": "hang"}
    made = with_references(bare, {"alone": [said, hung], "chat": [], "long": []})
    assert [prompt.reference for prompt in made] == ["yes", None, None]
    exact = with_references(prompts[:1], {"alone": [said], "chat": [], "long": []})
    assert exact == tuple(prompts[:1])


def test_a_recorded_file_is_read_as_it_was(tmp_path: Path) -> None:
    prompts = load_prompts(REPOSITORY / "models/pocket/prompts.json")
    (tmp_path / "p.json").write_text(as_file(prompts), encoding="utf-8")
    assert load_prompts(tmp_path / "p.json") == prompts
