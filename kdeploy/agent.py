"""The agent that runs on hosts: one file, named by its content, and the command that starts it there."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

from kdeploy.errors import RemoteError

PACKAGE = "kdeploy_agent"

_TOO_OLD = "this host's Python is %d.%d: the agent needs 3.8 or newer"

# Read by any Python, also by those that cannot read the rest.
_MAIN = f"""import sys

if sys.version_info < (3, 8):
    sys.stdout.write('\\n{{"kdeploy": "python-too-old"}}\\n')
    sys.exit("{_TOO_OLD}" % sys.version_info[:2])

from {PACKAGE} import compiled

compiled.use()

from {PACKAGE}.__main__ import main

sys.exit(main())
"""

# What varies comes as arguments: a root (empty: by our rights), a Python, the agent's sha256 and its length. When the
# agent is not there as it must be, what was sent ahead is dropped up to an empty line, and the agent read from stdin.
_START = r"""
r=$1 py=$2 sum=$3 size=$4;
say() { printf "\n{\"kdeploy\": \"%s\"}\n" "$1"; };
right() { [ -f "$1" ] && [ "$(sha256sum < "$1")" = "$sum  -" ]; };
if [ -z "$r" ]; then if [ "$(id -u)" = 0 ]; then r=/opt/kdeploy; else r=$HOME/.local/share/kdeploy; fi; fi;
if ! command -v "$py" >/dev/null; then say no-python; exit 127; fi;
f=$r/agent/agent-$(printf %.16s "$sum").pyz;
if ! right "$f"; then
  say agent-wanted;
  while read -r line && [ -n "$line" ]; do :; done;
  if ! (umask 077 && mkdir -p "$r/agent" && head -c "$size" > "$f.$$"); then say agent-refused; exit 1; fi;
  if ! right "$f.$$"; then rm -f "$f.$$"; say agent-damaged; exit 1; fi;
  mv "$f.$$" "$f";
  ("$py" -X utf8 "$f" compile </dev/null >/dev/null 2>&1 &);
fi;
exec "$py" -X utf8 "$f" session
"""


def start(root: str, python: str) -> list[str]:
    """The command that starts the agent's session on a host, by way of a POSIX shell.

    It says `{"kdeploy": "agent-wanted"}` when the host needs the agent first: an empty line, then `archive()`.
    """
    content = archive()
    script = " ".join(line.strip() for line in _START.strip().splitlines())  # csh ends a quoted word at a line's end
    return ["sh", "-c", script, "sh", root, python, hashlib.sha256(content).hexdigest(), str(len(content))]


def name() -> str:
    """The agent's file name on hosts."""
    return f"agent-{hashlib.sha256(archive()).hexdigest()[:16]}.pyz"


@cache
def archive() -> bytes:
    """The agent: one zip file that Python runs. Same source, same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as zipped:
        _add(zipped, "__main__.py", _MAIN.encode())
        folder = _folder()
        for source in sorted(folder.rglob("*.py")):
            _add(zipped, f"{PACKAGE}/{source.relative_to(folder).as_posix()}", source.read_bytes())
    return buffer.getvalue()


def _add(zipped: zipfile.ZipFile, entry_name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(entry_name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_STORED
    zipped.writestr(entry, content)


def _folder() -> Path:
    here = Path(__file__).resolve().parent
    for folder in (here / "_remote" / PACKAGE, here.parent / "remote" / PACKAGE):  # in a wheel; in a checkout
        if folder.is_dir():
            return folder
    raise RemoteError("this installation of kdeploy has lost its agent", hint="install kdeploy again")
