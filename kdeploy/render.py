"""What people see: tables on a terminal, plain lines in a pipe, one JSON envelope with --json."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from kdeploy.errors import ExitCode, KdeployError
from kdeploy.secrecy import conceal

ENVELOPE = 1
"""Version of the JSON envelope: `{"kdeploy": 1, "verb", "exit", "result" | "error"}`."""


class Progress:
    """Notes on long work, on stderr, each with the seconds since the start; silent with --json or --quiet.

    A passing note is overwritten by the next one on a terminal; in a pipe there is one at most every ten seconds.
    """

    def __init__(self, quiet: bool, stream: IO[str] | None = None) -> None:
        self._started = time.monotonic()
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._passed = 0.0
        self._width = shutil.get_terminal_size().columns - 1 if self._stream.isatty() else 0

    def __call__(self, text: str, /, *, passing: bool = False) -> None:
        """Write one note."""
        now = time.monotonic()
        if self._quiet or (passing and not self._width and now - self._passed < 10):
            return
        line = f"{now - self._started:7.1f}s  {clean(text, 14)}"
        erase = f"\r{' ' * self._width}\r" if self._width and self._passed else ""
        self._passed = now if passing else 0.0 if self._width else self._passed
        if passing and self._width:
            print(erase + line[: self._width].replace("\n", " "), end="", file=self._stream, flush=True)
        else:
            print(erase + line, file=self._stream, flush=True)


def clean(text: object, indent: int = 4) -> str:
    """Text from elsewhere made safe to show: control characters (escape sequences) as text, secrets not at all.

    Lines after the first are indented by so many columns: what a host says cannot pass for a line of ours.
    """
    shown = conceal(str(text)).replace("\n", "\n" + " " * indent)
    return "".join(char if char.isprintable() or char in "\t\n" else f"\\x{ord(char):02x}" for char in shown)


def _cell(value: object) -> str:
    """A cell of a table: one line, and no tab, which is what parts cells in a pipe."""
    return clean(value, 0).replace("\n", "\\n").replace("\t", "\\t")


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = (), stream: IO[str] | None = None) -> None:
    """Rows in columns: with a head and wrapped on a terminal, plain and tab-separated in a pipe."""
    out = stream or sys.stdout
    texts = [[_cell(cell) for cell in row] for row in rows]
    if not out.isatty():
        for row in texts:
            print("\t".join(row), file=out)
        return
    from rich.console import Console
    from rich.table import Table

    made = Table(*head, box=None, pad_edge=False, show_header=bool(head), header_style="bold")
    for row in texts:
        made.add_row(*(cell.replace("[", "\\[") for cell in row))
    Console(file=out, highlight=False).print(made)


def lines(texts: Iterable[str], stream: IO[str] | None = None) -> None:
    """Plain lines on stdout."""
    for text in texts:
        print(clean(text), file=stream or sys.stdout)


def envelope(verb: str, result: object = None, error: BaseException | None = None, code: ExitCode = ExitCode.OK) -> str:
    """One JSON document for a whole command. `result` may hold dataclasses, mappings, sequences and paths.

    A result may come with a `code` that is not 0: the command did its work, and the answer is a no.
    """
    if error is not None:
        code = error.code if isinstance(error, KdeployError) else ExitCode.FAULT
    document: dict[str, Any] = {"kdeploy": ENVELOPE, "verb": verb, "exit": int(code)}
    if error is None:
        document["result"] = plain(result)
    else:
        document["error"] = {
            "kind": code.name.lower().replace("_", "-"),
            "message": plain(error.message if isinstance(error, KdeployError) else str(error)),
            "where": plain(error.where) if isinstance(error, KdeployError) else None,
            "hint": plain(error.hint) if isinstance(error, KdeployError) else None,
            "details": plain(error.details) if isinstance(error, KdeployError) else [],
        }
    return json.dumps(document, indent=2, ensure_ascii=False)


def plain(value: object) -> Any:
    """A value as JSON has it, without the secrets that this process has read."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {conceal(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return conceal(str(value))
    if isinstance(value, bytes):
        return conceal(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, int | float | bool | None):
        return value
    return conceal(str(value))


def error(fault: KdeployError) -> None:
    """An error for people, on stderr: where, what, the evidence, and what to do."""
    place = f"{clean(fault.where)}: " if fault.where else ""
    print(f"{place}error: {clean(fault.message)}", file=sys.stderr)
    for detail in fault.details:
        print(f"    {clean(detail, 6)}", file=sys.stderr)
    if fault.hint:
        print(f"  hint: {clean(fault.hint)}", file=sys.stderr)


def when(at: float | None) -> str:
    """Seconds since the epoch as local time, to the second; `-` when unknown."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "-"
