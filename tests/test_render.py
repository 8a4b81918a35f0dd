"""What people and programs see; and the operator's ledger."""

from __future__ import annotations

import io
import json
import resource
import threading
from pathlib import Path

import pytest

from kdeploy import ledger, render
from kdeploy.errors import AnchorError, Location, PatchSetError
from kdeploy.render import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_lines() -> None:
    out = io.StringIO()
    render.table([("a", "\x1b[31mred"), ("c", "d")], head=("x", "y"), stream=out)
    assert out.getvalue() == "a\t\\x1b[31mred\nc\td\n"


def test_a_terminal_gets_a_table() -> None:
    out = Terminal()
    render.table([("a[0]", "b")], head=("first", "second"), stream=out)
    assert "first" in out.getvalue()
    assert "a[0]" in out.getvalue()


def test_progress_of_passing_notes() -> None:
    piped, shown, silent = io.StringIO(), Terminal(), io.StringIO()
    for stream, quiet in ((piped, False), (shown, False), (silent, True)):
        note = Progress(quiet, stream)
        note("start")
        for number in range(5):
            note(f"line {number}", passing=True)
        note("end")
    assert [line.split("s  ")[1] for line in piped.getvalue().splitlines()] == ["start", "line 0", "end"]
    assert "line 4" in shown.getvalue()
    assert shown.getvalue().count("\n") == 2
    assert silent.getvalue() == ""


def test_envelope_of_an_error() -> None:
    fault = AnchorError("lost", where=Location("a.py", 3, 4), hint="look", details=("-x", "+y"))
    assert json.loads(render.envelope("stage", error=fault)) == {
        "kdeploy": 1, "verb": "stage", "exit": 20,
        "error": {"kind": "anchor", "message": "lost", "where": {"path": "a.py", "line": 3, "column": 4},
                  "hint": "look", "details": ["-x", "+y"]},
    }  # fmt: skip


def test_error_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    render.error(PatchSetError("bad", where=Location("p.yaml", 1, 2), hint="mend it", details=("seen",)))
    assert capsys.readouterr().err == "p.yaml:1:2: error: bad\n    seen\n  hint: mend it\n"


def test_no_line_of_a_host_passes_for_ours(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "no\nerror: all is well\r\x1b[2K\u2028"
    render.error(PatchSetError(forged, hint="a\nb", details=("c\nd",)))
    shown = "error: no\n    error: all is well\\x0d\\x1b[2K\\x2028\n"
    assert capsys.readouterr().err == f"{shown}    c\n      d\n  hint: a\n    b\n"
    out = io.StringIO()
    render.table([("a\nb\tc", 1)], stream=out)
    render.lines(["one\ntwo"], stream=out)
    assert out.getvalue() == "a\\nb\\tc\t1\none\n    two\n"


def test_what_is_no_text_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.clean(3) == "3" and render.clean(None) == "None"


def test_ledger_survives_torn_lines_and_many_writers(home: Path, tmp_path: Path) -> None:
    profile = tmp_path / "project/profiles/p.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("")
    assert ledger.last_profile(tmp_path) is None

    def write() -> None:
        for number in range(20):
            ledger.add("apply", profile, "s", "h", f"r{number}", "ok")

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with (home / "state/ledger.jsonl").open("a") as file:
        file.write('{"torn": ')
    assert len(list(ledger.entries())) == 80
    assert ledger.last_profile(tmp_path / "project") == profile
    assert ledger.last_profile(tmp_path / "other") is None
    better = profile.with_name("q.yaml")
    better.write_text("")
    ledger.add("apply", better, "s", "h", "r", "GateError: no")
    assert ledger.last_profile(tmp_path / "project") == profile, "what was rejected is not what serves"
    better.unlink()
    profile.unlink()
    assert ledger.last_profile(tmp_path / "project") is None


@pytest.mark.parametrize("verb", ["add", "entries"])
def test_a_ledger_that_cannot_be_kept_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KDEPLOY_STATE", str(tmp_path / "file"))
    for _ in range(2):
        if verb == "add":
            ledger.add("apply", tmp_path / "p.yaml", "s", "h", "r", "ok")
        assert ledger.last_profile(tmp_path) is None
    said = capsys.readouterr().err.splitlines()
    assert f"note: the ledger {tmp_path}/file/ledger.jsonl could not be read: Not a directory" in said
    assert len(said) == (2 if verb == "add" else 1)


def test_a_full_disk_leaves_no_half_line_in_the_ledger(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "p.yaml"
    ledger.add("apply", profile, "s", "h", "first", "ok")
    size = (home / "state/ledger.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        ledger.add("apply", profile, "s", "h", "lost", "ok")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "could not be written" in capsys.readouterr().err
    ledger.add("apply", profile, "s", "h", "second", "ok")
    assert [entry.release for entry in ledger.entries()] == ["first", "second"]
