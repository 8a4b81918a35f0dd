"""The values of a profile's secrets, read on this machine at the moment they are needed."""

from __future__ import annotations

import os
from pathlib import Path

from kdeploy.errors import ProfileError
from kdeploy.profile.model import Secret
from kdeploy.profile.read import Profile
from kdeploy.secrecy import Secrets

LEAST = 8
"""Characters: a shorter value is guessed at once, and hiding it would hide half of every message."""

_MOST = 64 * 1024  # bytes; an environment variable cannot be much longer


def read_secrets(read: Profile) -> Secrets:
    """The value of every secret that a profile declares; raises ProfileError with its place for one that is not there.

    Messages name variables and files, never what is in them.
    """
    return Secrets({name: _value(read, name, secret) for name, secret in read.file.serve.secrets.items()})


def _value(read: Profile, name: str, secret: Secret) -> str:
    where = read.where("serve", "secrets", name)
    if secret.env is not None:
        source, hint = f"the variable {secret.env} of your environment", f"export {secret.env}=…"
        value = os.environ.get(secret.env)
        if value is None:
            raise ProfileError(f"secret {name}: {source} is not set", where=where, hint=hint)
    else:
        assert secret.file is not None
        path = read.beside(str(Path(secret.file).expanduser()), "serve", "secrets", name, "file")
        source, hint = str(path), "put the value into that file, for nobody but you to read: chmod 600"
        value = _text(path, name, read)
    wrong = _wrong(value)
    if wrong:
        raise ProfileError(f"secret {name}: {source} {wrong}", where=where, hint=hint)
    return value


def _text(path: Path, name: str, read: Profile) -> str:
    where = read.where("serve", "secrets", name, "file")
    try:
        if not path.is_file():
            what = "is not a plain file" if path.exists() else "does not exist"
            raise ProfileError(f"secret {name}: {path} {what}", where=where)
        if path.stat().st_size > _MOST:
            raise ProfileError(f"secret {name}: {path} is larger than {_MOST >> 10} KiB", where=where)
        return path.read_bytes().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise ProfileError(f"secret {name}: {path} is not UTF-8 text", where=where) from None  # it quotes the bytes
    except OSError as fault:
        raise ProfileError(f"secret {name}: {path} cannot be read: {fault.strerror}", where=where) from None


def _wrong(value: str) -> str:
    if not value.strip():
        return "is empty"
    if len(value) < LEAST:
        return f"has fewer than {LEAST} characters: too few for a secret, and too few to be kept out of logs"
    if "\0" in value or not _encodable(value):
        return "holds what cannot be passed to a program"
    return ""


def _encodable(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # bytes of the environment that are no UTF-8
        return False
    return True
