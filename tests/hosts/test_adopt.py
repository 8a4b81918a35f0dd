"""A server that systemd kept before kdeploy came: adopted, replaced, gone back to, and found again after a reboot."""

from __future__ import annotations

import time
from pathlib import Path

from kdeploy.errors import ExitCode
from tests import making

from .bed import Host
from .fleet import Home, Operator, engine, version_at

SECRET = "hf_kept-by-systemd-1"


def serve_by_systemd(host: Host, port: int) -> None:
    """A unit somebody wrote: the stand-in engine from a folder of their own, started at boot."""
    folder = host.root / "srv/hand"
    for name, data in {**engine(), "sglang/_version.py": making.VERSION_FILE}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    command = f"/usr/bin/python3 -m sglang.launch_server --model-path m --served-model-name pocket --port {port}"
    lines = [
        "[Service]", "WorkingDirectory=/srv/hand", f"Environment=HF_TOKEN={SECRET}", f"ExecStart={command}",
        "Restart=always", "RestartSec=1", "[Install]", "WantedBy=multi-user.target", "",
    ]  # fmt: skip
    (host.root / "etc/systemd/system/serving.service").write_text("\n".join(lines))
    host.sh("systemctl daemon-reload && systemctl enable --now serving.service")
    wait_for(port, "0.0.1")


def wait_for(port: int, version: str, seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while version_at("127.0.0.1", port) != version:
        assert time.monotonic() < end, version_at("127.0.0.1", port)
        time.sleep(0.1)


def state(host: Host) -> tuple[str, str]:
    """Whether the unit runs, and whether it does after a reboot."""
    ask = "(systemctl is-active serving.service || true) && (systemctl is-enabled serving.service || true)"
    told = host.sh(ask).split()
    return told[0], told[1]


def test_a_unit_is_adopted_replaced_and_gone_back_to(debian: Host, tmp_path: Path) -> None:
    operator = Operator(tmp_path, debian)
    port, home = operator.public, Home(debian)
    serve_by_systemd(debian, port)
    told = [operator.run("apply", "profiles/one.yaml", code=ExitCode.PREFLIGHT)]
    assert "kdeploy adopt PROFILE" in told[-1]
    told.append(operator.run("adopt", "profiles/one.yaml"))
    assert "kept by systemd serving.service" in told[-1]
    adopted = home.live()
    assert adopted is not None and adopted.startswith("adopted-") and state(debian) == ("active", "enabled")

    bad = operator.profile("bad", ["one/1.0.0"], env={"STANDIN": "garbled"})
    told.append(operator.run("apply", bad, code=ExitCode.GATE))
    assert state(debian) == ("active", "enabled") and home.live() == adopted
    wait_for(port, "0.0.1")

    told.append(operator.run("apply", "profiles/one.yaml"))
    assert state(debian) == ("inactive", "disabled")
    assert str(version_at(debian.address, port)).startswith("0.0.1+kd.")
    told.append(operator.run("verify", "profiles/one.yaml"))
    debian.reboot()
    end = time.monotonic() + 60
    while not str(version_at(debian.address, port)).startswith("0.0.1+kd."):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert state(debian) == ("inactive", "disabled")  # no two servers after a reboot

    told.append(operator.run("rollback", "profiles/one.yaml"))
    assert state(debian) == ("active", "enabled") and home.live() == adopted
    wait_for(port, "0.0.1")
    debian.reboot()
    wait_for(port, "0.0.1")
    told += [operator.run("status", "profiles/one.yaml", "--json"), operator.run("logs", "profiles/one.yaml")]
    assert not any(SECRET in text for text in told)


def test_drift_of_units(debian: Host, tmp_path: Path) -> None:
    operator = Operator(tmp_path, debian)
    operator.run("apply", "profiles/one.yaml")
    operator.run("verify", "profiles/one.yaml")
    unit = "/run/systemd/system/kdeploy-small-server.service"
    debian.sh(f"sed -i s/Restart=always/Restart=no/ {unit} && systemctl daemon-reload")
    said = operator.run("verify", "profiles/one.yaml", code=ExitCode.DRIFT)
    assert "kdeploy-small-server.service" in said and "Restart" in said
    debian.sh(f"sed -i s/Restart=no/Restart=always/ {unit} && systemctl daemon-reload")
    operator.run("verify", "profiles/one.yaml")
    debian.sh("systemctl disable kdeploy-small.service")
    assert "kdeploy-small.service" in operator.run("verify", "profiles/one.yaml", code=ExitCode.DRIFT)


def test_a_transient_unit_is_gone_back_to_as_a_process(debian: Host, tmp_path: Path) -> None:
    """systemd-run's unit is gone once it stops: nobody but kdeploy could start that server again."""
    operator = Operator(tmp_path, debian)
    port = operator.public
    serve_by_systemd(debian, port)
    debian.sh("systemctl disable --now serving.service")
    words = f"/usr/bin/python3 -m sglang.launch_server --model-path m --served-model-name pocket --port {port}"
    debian.sh(f"systemd-run --unit=passing --working-directory=/srv/hand {words}")
    wait_for(port, "0.0.1")
    assert "passing.service does not last" in operator.run("adopt", "profiles/one.yaml")
    bad = operator.profile("bad", ["one/1.0.0"], env={"STANDIN": "garbled"})
    operator.run("apply", bad, code=ExitCode.GATE)
    wait_for(port, "0.0.1")
    assert str(Home(debian).live()).startswith("adopted-")
