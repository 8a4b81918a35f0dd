"""Units that cannot be had, masked or of another service: refused before anything stops, with what mends it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import systemctl
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import detach, unit_drift, unit_files
from kdeploy_agent.keeping.systemd import Systemd
from kdeploy_agent.keeping.units import Spec

UNIT = "kdeploy-qwen-server.service"


def masked(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"LoadState": "masked", "FragmentPath": "", "DropInPaths": ""}
    monkeypatch.setattr(systemctl, "show_all", lambda units: dict.fromkeys(units, shown))


def test_a_masked_unit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masked(monkeypatch)
    spec = Spec(name="server", release="r", argv=("x",), env={}, cwd="/", scratch="/tmp", ports=(1,), grace_s=1.0)
    with pytest.raises(AgentError) as error:
        Systemd(Layout(tmp_path, "qwen")).check(spec)
    assert error.value.kind == "preflight" and error.value.hint == f"systemctl unmask {UNIT}"


def test_verify_names_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masked(monkeypatch)
    (told,) = unit_drift.compare({tmp_path / UNIT: "text"})
    assert told["found"] == "masked" and told["fix"] == f"systemctl unmask {UNIT}"
    monkeypatch.setattr(systemctl, "enabled", lambda unit: "masked")
    (told,) = unit_drift.enabled(UNIT)
    assert told["fix"].startswith(f"systemctl unmask {UNIT}")


@pytest.mark.parametrize(("mine", "other"), [("x", "x-server"), ("x-server", "x"), ("x", "x-front"), ("x-drain", "x")])
def test_two_services_whose_units_have_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: str, other: str
) -> None:
    shown = {"LoadState": "not-found", "FragmentPath": "", "DropInPaths": ""}
    monkeypatch.setattr(systemctl, "show_all", lambda units: dict.fromkeys(units, shown))
    spec = Spec(name="server", release="r", argv=("x",), env={}, cwd="/", scratch="/tmp", ports=(1,), grace_s=1.0)
    for name in (mine, "y", "x-serve"):
        (tmp_path / name / "current").mkdir(parents=True)
    Systemd(Layout(tmp_path, mine)).check(spec)
    (tmp_path / other / "current").mkdir(parents=True)
    with pytest.raises(AgentError) as error:
        Systemd(Layout(tmp_path, mine)).check(spec)
    assert error.value.kind == "preflight" and other in error.value.message
    assert error.value.hint == "name this service differently"


@pytest.mark.parametrize("digits", [16, 64])
def test_an_agent_file_that_is_not_whole_is_told(tmp_path: Path, digits: int) -> None:
    (tmp_path / "100% $HOME é").mkdir()
    agent = tmp_path / "100% $HOME é" / f"agent-{hashlib.sha256(b'zip').hexdigest()[:digits]}.pyz"
    unit = tmp_path / "kdeploy-qwen.service"
    unit.write_text(unit_files.boot(Layout(tmp_path, "qwen"), ["/usr/bin/python3", str(agent), "boot"], {}))
    found = []
    for content in (b"zip", b"", None):
        agent.unlink(missing_ok=True)
        if content is not None:
            agent.write_bytes(content)
        found.append([(one["what"], one["found"]) for one in unit_drift.agent(unit)])
    assert found == [[], [(str(agent), "another content")], [(str(agent), "nothing")]]


def test_an_agent_file_that_was_emptied_is_written_again(tmp_path: Path) -> None:
    zipped, kept = tmp_path / "pushed.pyz", tmp_path / "agent"
    zipped.write_bytes(b"zip")
    copy = detach._copy(zipped, kept)
    copy.write_bytes(b"")
    assert detach._copy(zipped, kept) == copy and copy.read_bytes() == b"zip"
