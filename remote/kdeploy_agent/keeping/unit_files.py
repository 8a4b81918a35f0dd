"""What is written into systemd's unit files. Pure: text from a spec."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping.units import RESTARTS, WINDOW_S, Spec

NOT_STARTED = 78  # exit status of `exec`: what it was to start is not what was declared; no restart makes that better
_COMPARE = (
    'n=${0##*/agent-}; case $(sha256sum < "$0") in "${n%.pyz}"*) ;; '
    '*) echo "kdeploy: $0 is not the agent that was pushed; apply the profile again" >&2; exit 1;; esac'
)
_KEEP = f'[ "$EXIT_STATUS" = {NOT_STARTED} ] || echo "$SERVICE_RESULT $EXIT_CODE $EXIT_STATUS" > "$0"'
OWNER = "X-Kdeploy"  # a section that systemd passes over

_UNLIMITED = (
    "LimitNOFILE=1048576",  # each connection of a front takes six handles
    "LimitMEMLOCK=infinity",  # pinned host memory, RDMA
    "TasksMax=infinity",
)


@dataclass(frozen=True)
class Names:
    """The names of a service's units. A name of a service has no character that systemd would have escaped."""

    service: str

    @property
    def boot(self) -> str:
        """What brings the service back after a reboot; it alone is enabled."""
        return f"kdeploy-{self.service}.service"

    def unit(self, name: str) -> str:
        """The service unit of `server` or `front`."""
        return f"kdeploy-{self.service}-{name}.service"

    @property
    def socket(self) -> str:
        """The public port, where systemd owns it."""
        return f"kdeploy-{self.service}-front.socket"

    @property
    def kept(self) -> List[str]:
        """Every unit that serves: who starts and stops them must end before them when the machine goes down."""
        return [self.unit("server"), self.unit("front"), self.socket]

    @property
    def drain(self) -> str:
        """What makes the public port deaf while its last requests are answered."""
        return f"kdeploy-{self.service}-drain.service"

    def clashes(self, other: str) -> str:
        """The name of a unit that this service and the service `other` would both have; empty when there is none."""
        mine, theirs = ({one.boot, *one.kept, one.drain} for one in (self, Names(other)))
        return next(iter(sorted(mine & theirs)), "") if other != self.service else ""


def server(layout: Layout, spec: Spec, run: Sequence[str], env: Dict[str, str]) -> str:
    """A unit whose process is the agent's `exec` (`run`) and then the spec's command.

    The text is the same for every release, so that systemd need not read its units again at each change. A candidate is
    not restarted since `exec` says no; how it ended is kept by the unit itself, as systemd then knows of that no alone.
    """
    keep = ["/bin/sh", "-c", _KEEP, str(ended(layout, spec.name))]
    return _text(
        _unit(layout, spec, f"StartLimitIntervalSec={WINDOW_S:.0f}", f"StartLimitBurst={RESTARTS}"),
        [
            "[Service]",
            "Type=exec",
            f"ExecStart={command(run)}",
            *_environment(env),
            # A server that ended serves nobody, whatever its exit status says.
            "Restart=always",
            "RestartSec=1",
            f"RestartPreventExitStatus={NOT_STARTED}",
            f"ExecStopPost={command(keep)}",
            *_ends(spec),
            *_UNLIMITED,
            "StandardInput=null",
            "StandardOutput=journal",
            "StandardError=journal",
            "LogRateLimitIntervalSec=0",  # the gate looks for signatures in the log: none may be dropped
        ],
        _owner(layout),
    )


def proxy(layout: Layout, spec: Spec) -> str:
    """The unit that systemd starts with the public port's first connection: it passes bytes on to the server."""
    return _text(
        _unit(layout, spec, "StartLimitIntervalSec=0"),  # the socket has a limit of its own
        [
            "[Service]",
            f"ExecStart={command(spec.argv)}",
            *_ends(spec),
            *_UNLIMITED,
            "LogRateLimitIntervalSec=0",
        ],
        _owner(layout),
    )


def socket(layout: Layout, spec: Spec) -> str:
    """The public port: systemd listens, and closes it when the unit is stopped."""
    return _text(
        _unit(layout, spec),
        ["[Socket]", f"ListenStream={spec.listen}", "Backlog=4096", "NoDelay=true"],
        _owner(layout),
    )


def drain(layout: Layout, run: Sequence[str], env: Dict[str, str]) -> str:
    """A short-lived unit that is given the listening socket: nobody else but its owners can get hold of it."""
    names = Names(layout.service)
    return _text(
        ["[Unit]", f"Description={_plain(f'kdeploy service {layout.service}: let no new client in')}"],
        ["[Service]", "Type=oneshot", f"Sockets={names.socket}", f"ExecStart={command(run)}", *_environment(env)],
        _owner(layout),
    )


def boot(layout: Layout, run: Sequence[str], env: Dict[str, str]) -> str:
    """The enabled unit that serves again what was served before the machine went down."""
    return _text(
        [
            "[Unit]",
            f"Description={_plain(f'kdeploy service {layout.service}: serve again what was proven')}",
            "Wants=network-online.target",
            "After=network-online.target remote-fs.target nvidia-persistenced.service nvidia-fabricmanager.service",
            f"After={' '.join(Names(layout.service).kept)}",  # so it ends before them
            f"RequiresMountsFor={word(str(layout.root))}",
            # One of them is enough: what was confirmed is served again though its journal is lost.
            f"ConditionPathExists=|{_plain(str(layout.journal))}",
            f"ConditionPathExists=|{_plain(str(layout.known_good))}",
        ],
        [
            "[Service]",
            # Not oneshot: the machine would be `starting` for as long as a large model loads.
            "Type=exec",
            *_compared(run),
            f"ExecStart={command(run)}",
            *_environment(env),
            "Restart=on-abnormal",  # killed: it goes on where it was; failed: it has tried often enough
            "RestartSec=5",
        ],
        ["[Install]", "WantedBy=multi-user.target"],
        _owner(layout),
    )


def _compared(run: Sequence[str]) -> List[str]:
    """What compares the agent's file with the sha256 in its name: Python says nothing of one that is empty."""
    return [f"ExecStartPre={command(['/bin/sh', '-c', _COMPARE, run[1]])}"] if run[1].endswith(".pyz") else []


def ended(layout: Layout, name: str) -> Path:
    """Where a unit keeps how its process ended last: systemd's SERVICE_RESULT, EXIT_CODE and EXIT_STATUS."""
    return layout.units / f"{name}.ended"


def owner(text: str) -> str:
    """Whose unit a file is, as `owned` says it; empty when it is not one of kdeploy's."""
    _, _, section = text.partition(f"[{OWNER}]\n")
    return section


def root_of(text: str, service: str) -> str:
    """The root of the unit's service, when that has this name; else nothing."""
    root, _, rest = owner(text).partition("\n")
    told = root.partition("Root=")[2] if rest == f"Service={service}\n" else ""
    return re.sub(r"\\\\|%%", lambda match: match[0][0], told)


def owned(layout: Layout) -> str:
    """What `owner` gives for a unit of this service."""
    return f"Root={_plain(str(layout.root))}\nService={layout.service}\n"


def command(argv: Sequence[str]) -> str:
    """A command line for ExecStart; `$` begins a variable in its arguments, but not in its first word, a path."""
    return " ".join([word(argv[0]), *(word(one).replace("$", "$$") for one in argv[1:])])


def word(text: str) -> str:
    """One word, whatever is in it: blanks, quotes, backslashes, % (which begins a specifier), control characters."""
    told = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return (
        '"' + "".join(one if one.isprintable() else "".join(f"\\x{b:02x}" for b in one.encode()) for one in told) + '"'
    )


def said(text: str) -> str:
    """What an argument of `command` stands for: its text between the quotes, read as systemd reads it."""
    bare = text.replace("%%", "%").replace("$$", "$").encode()
    bare = re.sub(rb"\\(x[0-9a-f]{2}|.)", lambda m: bytes.fromhex(m[1][1:].decode()) if m[1][1:] else m[1], bare)
    return bare.decode("utf-8", "replace")


def _unit(layout: Layout, spec: Spec, *more: str) -> List[str]:
    told = f"kdeploy service {layout.service}: {spec.name}"
    return [
        "[Unit]",
        f"Description={_plain(told)}",
        "IgnoreOnIsolate=yes",
        f"RequiresMountsFor={word(str(layout.root))}",
        *more,
    ]


def _ends(spec: Spec) -> List[str]:
    return [
        "KillMode=mixed",  # the leader is asked and ends its children; what is left of them is killed
        f"TimeoutStopSec={max(1, int(spec.grace_s * 1000))}ms",  # 0 would be for ever
        "OOMPolicy=stop",  # an engine of which the kernel took a part serves nobody
    ]


def _environment(env: Dict[str, str]) -> List[str]:
    return [f"Environment={word(f'{key}={value}')}" for key, value in sorted(env.items())]


def _owner(layout: Layout) -> List[str]:
    return [f"[{OWNER}]", *owned(layout).splitlines()]


def _plain(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "%%").replace("\n", " ")


def _text(*sections: List[str]) -> str:
    return "\n\n".join("\n".join(section) for section in sections) + "\n"
