"""Who we are to a host: the agent's keys and the key files, in ssh's order. Never a password, never a prompt."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentSSH
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey

from kdeploy.transport.settings import Settings

_AGENT_WITHIN_S = 10.0


class Agent(AgentSSH):  # type: ignore[misc]
    """The ssh-agent behind a socket; one that does not answer has no keys."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        if path is None:
            return
        try:
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(_AGENT_WITHIN_S)
            link.connect(path)
            self._connect(link)
        except (OSError, paramiko.SSHException):
            self._close()

    def close(self) -> None:
        """Let go of the socket."""
        self._close()


class Keys(AuthStrategy):  # type: ignore[misc]
    """The keys to try; `tried` tells afterwards which, by name only."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(ssh_config=None)
        self._settings = settings
        self._agent: Agent | None = None
        self.tried: list[str] = []
        self.skipped: list[str] = []

    def get_sources(self) -> Iterator[AuthSource]:
        """Key files that the agent holds too, other keys of the agent, then key files."""
        self._agent = Agent(self._settings.agent)
        held = {key.asbytes(): key for key in self._agent.get_keys()}
        files = [path for path in self._settings.keys if Path(path).is_file()]
        named = {path: _public(path) for path in files}
        for path, blob in named.items():
            if blob in held:
                yield self._source(f"{path} (by the agent)", held.pop(blob))
                files.remove(path)
        if not self._settings.only_keys:
            for key in held.values():
                yield self._source(f"{getattr(key, 'comment', '') or 'a key'} (by the agent)", key)
        for path in files:
            try:
                yield self._source(path, paramiko.PKey.from_path(path))
            except Exception as fault:  # whatever the key library says of a file
                self.skipped.append(f"{path}: {_why_not(fault)}")

    def authenticate(self, transport: Any) -> Any:
        """Try one key after the other; see AuthStrategy."""
        try:
            return super().authenticate(transport)
        finally:
            if self._agent is not None:
                self._agent.close()

    def told(self) -> tuple[str, ...]:
        """What was tried, a line each, for people."""
        agent = self._settings.agent
        about = "no agent" if agent is None else f"agent {agent}" if Path(agent).exists() else f"no agent at {agent}"
        return (f"tried: {', '.join(self.tried) or 'no key'}; {about}", *self.skipped)

    def _source(self, name: str, key: Any) -> AuthSource:
        self.tried.append(name)
        return InMemoryPrivateKey(username=self._settings.user, pkey=key)


def _public(path: str) -> bytes:
    """The public half beside a key file: an encrypted key that the agent holds need not be opened."""
    try:
        return base64.b64decode(Path(path + ".pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        pass
    try:
        return bytes(paramiko.PKey.from_path(path).asbytes())
    except Exception:  # told when it is tried
        return b""


def _why_not(fault: Exception) -> str:
    text = str(fault).lower()
    if isinstance(fault, paramiko.PasswordRequiredException) or "password" in text or "encrypted" in text:
        return "it is encrypted, and the agent does not hold it: `ssh-add` it"
    return f"it cannot be read: {fault}"
