"""Units that somebody has masked: refused before anything stops, and named by verify with what mends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import systemctl
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import unit_drift
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
