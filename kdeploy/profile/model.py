"""The shape of a profile and of the hosts file: the one source of what is allowed, its schema and its words."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from kdeploy.document import Model
from kdeploy.profile.gate import Gate
from kdeploy.profile.values import NAME, Argument, Flag, Port, Value, Variable

RESERVED = ("agent", "runtimes")
"""Folders beside the services' own on a host: no service can be called so."""

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"(?:{_LABEL}\.)*(?!\d+$){_LABEL}")  # a last part of digits alone would be half an address


class Runtime(Model):
    """The Python the engine runs in: a virtual environment that is there, or one made from a lock file."""

    python: Annotated[str, Field(pattern=r"^3\.\d+$")] = Field(
        default="3.11", description="Python version, which also selects the engine's wheel"
    )
    venv: Value | None = Field(default=None, description="absolute path of a virtual environment on the host")
    lock: Value | None = Field(default=None, description="requirements file, every line pinned with ==")
    with_deps: list[str] = Field(
        default=["torch"], description="pins that bring their own dependencies, which differ between builds"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Runtime:
        if (self.venv is None) == (self.lock is None):
            raise ValueError("give either 'venv' (a path on the host) or 'lock' (a requirements file)")
        if self.venv is not None and not self.venv.startswith("/"):
            raise ValueError(f"'venv' must be an absolute path on the host, not {self.venv!r}")
        return self


class Secret(Model):
    """Where the value of a secret is found on the operator's machine; it is sent on stdin and kept 0600 on the host."""

    env: Variable | None = Field(default=None, description="an environment variable of yours")
    file: Value | None = Field(default=None, description="a file of yours; one newline at its end is dropped")

    @model_validator(mode="after")
    def _one_source(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError("give either 'env' (a variable of yours) or 'file' (a path on this machine)")
        return self


class Machine(Model):
    """What the host must be; compared with nvidia-smi before anything is stopped."""

    gpus: Annotated[int, Field(ge=1, le=64)] = Field(description="how many GPUs")
    gpu: Value = Field(description="part of their name as nvidia-smi says it: B300, RTX PRO 6000")
    compute_capability: Annotated[str, Field(pattern=r"^[1-9][0-9]?\.[0-9]$")] = Field(description="10.3, 12.0")
    nvlink: bool = Field(default=False, description="they are joined by NVLink: the fabric manager must be done")


class Serve(Model):
    """How the engine is launched, and where clients find it."""

    host: str = Field(default="127.0.0.1", description="address of the public port; 0.0.0.0 lets others in")
    port: Port = Field(description="the public port: closed until the gate has passed")
    private_port: Port = Field(description="loopback port of the server itself")
    front: Literal["socket", "router", "none"] = Field(
        default="router", description="what owns the public port; socket is systemd's own, for one server behind it"
    )
    metrics_port: Port | None = Field(default=None, description="loopback port of the router's metrics")
    args: dict[Flag, Argument] = Field(
        description="SGLang's own flags without the leading dashes; true is a bare flag, false or null leaves it out"
    )
    env: dict[Variable, Value] = Field(
        default={}, description="environment of the server; a name that looks like a secret's is refused: see secrets"
    )
    secrets: dict[Variable, Secret] = Field(
        default={}, description="environment whose values stay out of releases, logs and evidence: HF_TOKEN: {env: …}"
    )

    @field_validator("host")
    @classmethod
    def _address(cls, host: str) -> str:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if len(host) > 253 or not _HOST_NAME.fullmatch(host):
                raise ValueError(f"{host!r} is neither an IP address nor a host name") from None
        return host

    @model_validator(mode="after")
    def _distinct(self) -> Serve:
        ports = [self.port, self.private_port, *([self.metrics_port] if self.metrics_port else [])]
        if len(set(ports)) != len(ports):
            raise ValueError(f"port, private-port and metrics-port must differ, got {ports}")
        if self.front == "router" and self.metrics_port is None:
            raise ValueError("front 'router' needs a 'metrics-port'")
        for taken in ("host", "port"):
            if taken in self.args:
                raise ValueError(f"'args.{taken}' is set by kdeploy: use 'serve.{taken}' and 'serve.private-port'")
        if "model-path" not in self.args:
            raise ValueError("'args.model-path' is required")
        return self


class ProfileFile(Model):
    """A deployment: engine + patch sets + launch configuration + hosts + gate."""

    extends: str | None = Field(default=None, description="another profile whose keys this one overrides")
    summary: str = Field(default="", description="one line for people")
    service: Annotated[str, Field(pattern=NAME)] = Field(description="name of the deployment on its hosts")
    engine: Annotated[str, Field(pattern=r"^sglang==[0-9][0-9A-Za-z.]*$")] = Field(
        description="the upstream release, pinned in kdeploy.lock: sglang==VERSION"
    )
    patchsets: list[str] = Field(description="NAME/VERSION, applied in this order")
    hosts: Annotated[list[str], Field(min_length=1)] = Field(description="names from hosts.yaml")
    machine: Machine | None = Field(default=None, description="what each host must be; not looked at when left out")
    runtime: Runtime
    prove: Literal["host"] | Runtime | None = Field(
        default=None,
        description="where proofs run: in a runtime of this machine (the engine's when it is a lock), or 'host': on "
        "each host in the engine's own",
    )
    serve: Serve
    gate: Gate = Gate()

    @field_validator("prove", mode="before")
    @classmethod
    def _where(cls, given: object) -> object:
        if given is None or given == "host" or isinstance(given, dict):
            return given
        raise ValueError(f"either 'host' or a runtime of this machine, {{lock: PATH}} or {{venv: PATH}}, not {given!r}")

    @field_validator("service")
    @classmethod
    def _free(cls, service: str) -> str:
        if service in RESERVED:
            raise ValueError(f"'{service}' is a folder of kdeploy's own on every host: choose another name")
        return service

    @model_validator(mode="after")
    def _whole_names(self) -> ProfileFile:
        for ref in self.patchsets:
            if not re.fullmatch(r"[^/\s]+/[^/\s]+", ref):
                raise ValueError(f"patch set '{ref}' needs its version: NAME/VERSION, such as cpu/1.0.0")
        return self


def _brackets(text: str) -> str:
    """`::1` for `[::1]`: brackets part an address from a port, and here the port has a key of its own."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else ""
    try:
        return str(ipaddress.IPv6Address(inner)) if inner else text
    except ValueError:
        return text


def _word(text: str) -> str:
    """What ssh is given as one word: an alias may hold most characters."""
    if not text:
        raise ValueError("is empty: give a name or an address, or leave the key out where it may be")
    right = "".join(char for char in text if char.isprintable() and char != " ").lstrip("-")
    if right != text:
        nearest = f": write {right!r}" if right else ""
        raise ValueError(f"{text!r} holds blanks or control characters, or starts with '-'{nearest}")
    return text


def _address(text: str) -> str:
    text = _brackets(_word(text))
    if text.startswith("[") or re.fullmatch(r"[^:]+:\d+", text):
        host, _, port = text.rpartition(":")
        found = port.isdigit() and host
        nearest = f"write 'address: {_brackets(host)}' and 'port: {port}'" if found else "write ::1 for [::1]"
        raise ValueError(f"{text!r} is neither a name nor an address: {nearest}")
    if "@" in text:
        user, _, host = text.rpartition("@")
        raise ValueError(f"{text!r} names a user: write 'address: {host}' and 'user: {user}'")
    return text


def _jump(text: str) -> str:
    for hop in text.split(","):  # blanks around commas are a list's
        _word(hop.strip(" "))
    return text


Word = Annotated[str, AfterValidator(_word)]


class SSH(Model):
    """How a host is reached by SSH. What is left out comes from ssh_config(5), ProxyJump included."""

    address: Annotated[str, AfterValidator(_address)] = Field(
        description="host name or address; an alias of ssh_config works"
    )
    port: Port | None = None
    user: Word | None = None
    key: Value | None = Field(default=None, description="private key file; the agent's keys and ssh_config's else")
    jump: Annotated[str, AfterValidator(_jump)] | None = Field(
        default=None, description="another host to go through: USER@HOST:PORT"
    )


class HostEntry(Model):
    """One host: this machine, or one reached by SSH."""

    local: bool = Field(default=False, description="this machine")
    ssh: SSH | None = None
    root: str | None = Field(default=None, description="kdeploy's folder there; /opt/kdeploy, or in the home folder")
    python: Value = Field(default="python3", description="the host's own Python that runs the agent: 3.8 or newer")
    sudo: bool = Field(default=False, description="run the agent by `sudo -n`: it never asks for a password")

    @field_validator("root")
    @classmethod
    def _absolute(cls, root: str | None) -> str | None:
        if root is not None and (not root.startswith("/") or ".." in root.split("/") or "\0" in root):
            raise ValueError(f"must be an absolute path without '..', not {root!r}")
        if root is not None and ("\\" in root or not root.isprintable()):
            # systemd's RequiresMountsFor= and ConditionPathExists= have no way to say every one of them
            raise ValueError(f"must have no backslash and no control character in it, not {root!r}")
        return root

    @model_validator(mode="after")
    def _one_way(self) -> HostEntry:
        if self.local == (self.ssh is not None):
            raise ValueError("give either 'local: true' or 'ssh: {address: …}'")
        return self


class HostsFile(Model):
    """profiles/hosts.yaml: every host by name."""

    hosts: dict[str, HostEntry]
