"""The agent on this machine: installed by content, spoken to line by line, its errors by kind."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kdeploy import agent
from kdeploy.errors import RemoteError, UsageError
from kdeploy.host import Ask, Host
from kdeploy.plan import Facts
from kdeploy.session import AgentGone
from kdeploy.transport.local import LocalTransport, Pipes


@pytest.fixture
def here(home: Path) -> Iterator[Host]:
    with Host(LocalTransport("here"), str(home / "root"), "test") as host:
        yield host


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the agent another program, for what a real one never does."""

    def become(source: str) -> None:
        hello = 'import os, sys, time\nif "session" not in sys.argv: sys.exit()\n'
        hello += 'print(\'{"event": "hello", "root": "/r"}\', flush=True)\n'
        monkeypatch.setattr(agent, "archive", lambda: (hello + source).encode())

    return become


def test_archive_is_the_same_twice() -> None:
    first = agent.archive()
    agent.archive.cache_clear()
    assert agent.archive() == first
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert "__main__.py" in names
    assert "kdeploy_agent/asking/probe.py" in names


def test_the_command_that_starts_it_is_one_line_without_words_of_ours() -> None:
    """Login shells differ in what they make of a line's end; what varies comes as arguments."""
    words = agent.start("/some $(root)", "python3")
    assert words[0] == "sh"
    assert "\n" not in words[2]
    assert "some" not in words[2]
    assert words[4:6] == ["/some $(root)", "python3"]


def test_facts_of_an_empty_host_install_the_agent_and_write_nothing_else(here: Host, home: Path) -> None:
    facts = Facts.read(here.call("facts", {"rehash": None}))
    assert facts.current is None
    assert facts.transaction is None
    assert not facts.server.alive
    made = {str(path.relative_to(home / "root")) for path in (home / "root").rglob("*") if path.is_file()}
    bytecode = f"agent/{agent.name().removesuffix('.pyz')}."
    assert all(name.startswith(("runtimes/", bytecode)) for name in made) and f"agent/{agent.name()}" in made


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        Host(LocalTransport("here"), str(tmp_path / "file/root"), "test") as host,
        pytest.raises(RemoteError, match="cannot be written"),
    ):
        host.call("facts")


def test_what_the_agent_refuses(here: Host) -> None:
    with pytest.raises(UsageError, match="unknown verb"):
        here.call("dance")
    assert here.call("history") == {"transactions": []}


def test_what_was_sent_ahead_of_an_error_is_not_done(here: Host, home: Path) -> None:
    """The second fails, so the third, which would write, is not begun."""
    receive = {"tree": "a" * 40, "commit": "b" * 40, "manifest": "c" * 64}
    answers = here.ask([Ask("history", {}), Ask("evidence", {"release": "none"}), Ask("receive", receive, b"x")])
    assert next(answers) == {"transactions": []}
    with pytest.raises(UsageError, match="no release none"):
        next(answers)
    assert not (home / "root/test").exists()


def test_who_hangs_up_is_not_served_further(here: Host, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent ahead behind a request that goes on for ever is not begun when somebody has left."""
    receive = {"tree": "a" * 40, "commit": "b" * 40, "manifest": "c" * 64}
    follow = Ask("logs", {"unit": "server", "follow": True}, timeout_s=1)
    close = Pipes.close

    def hang_up(pipes: Pipes) -> None:
        """Leave, as a connection does that breaks, and only later end what is left."""
        pipes._stdout.close()
        time.sleep(1)
        close(pipes)

    monkeypatch.setattr(Pipes, "close", hang_up)
    with pytest.raises(RemoteError, match="no answer within 1 s"):
        list(here.ask([follow, Ask("receive", receive, b"x")]))
    assert not (home / "root/test").exists()


def test_many_requests_ahead_and_a_long_one(here: Host) -> None:
    """More than a pipe holds, in both directions at once; a long request is packed on the way."""
    many = [Ask("history", {"filler": os.urandom(3000).hex()}) for _ in range(300)]
    assert list(here.ask(many)) == [{"transactions": []}] * 300


def test_what_is_not_the_protocol(here: Host, pretend: Callable[[str], None]) -> None:
    pretend("print('Welcome to this machine!')\n")
    with pytest.raises(RemoteError, match="not a line of the agent's protocol"):
        here.call("facts")
    pretend("raise SystemExit('the disk ate me')\n")
    with pytest.raises(RemoteError, match="ended without an answer") as caught:
        here.call("facts")
    assert caught.value.details == ("the disk ate me",)
    pretend("print('x' * 10_000)\n")
    with pytest.raises(RemoteError, match="not a line"):
        here.call("facts")


STRAY = [
    "'[' * 200_000",
    """'{"error": "no"}'""",
    """'{"error": {"kind": ["x"], "message": "m"}}'""",
    """'{"error": {"kind": "fault", "message": {"m": 1}}}'""",
    """'{"error": {"kind": "fault", "message": "m", "hint": 3}}'""",
    """'{"error": {"kind": "fault", "message": "m", "details": "lines"}}'""",
    """'{"error": {"kind": "fault", "message": "m", "details": [1]}}'""",
    """'{"event": {"a": 1}}'""",
    """'{"event": "note", "text": [1]}'""",
]


@pytest.mark.parametrize("line", STRAY)
def test_lines_of_another_shape(here: Host, pretend: Callable[[str], None], line: str) -> None:
    pretend(f"print({line})\n")
    with pytest.raises(RemoteError, match="not a line of the agent's protocol"):
        here.call("facts")


@pytest.mark.parametrize(
    "says", ['\'{"event": "beat"}\\n\' * 500', '\'{"event": "note", "text": "x"}\\n\' * 500', "'x'"]
)
def test_who_never_stops_talking_is_left_at_the_deadline(here: Host, pretend: Callable[[str], None], says: str) -> None:
    pretend(f"import threading\nthreading.Thread(target=sys.stdin.read, daemon=True).start()\n"
            f"while True: sys.stdout.write({says}); sys.stdout.flush(); time.sleep(0.001)\n")  # fmt: skip
    started = time.monotonic()
    with pytest.raises(RemoteError, match="no answer within 1 s"):
        here.call("facts", timeout_s=1)
    assert time.monotonic() - started < 10


def test_events_are_bounded(here: Host, pretend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdeploy.session.SAID_LIMIT", 1 << 20)
    pretend('while True: print(\'{"event": "note", "text": "%s"}\' % (\'x\' * 1000))\n')
    with pytest.raises(RemoteError, match="more than 1 MB were said"):
        here.call("facts", timeout_s=30)


def test_half_an_answer_is_none(here: Host, pretend: Callable[[str], None]) -> None:
    """A number cut short is a number as well."""
    pretend('sys.stdout.write(\'{"result": {"a": 1}}\')\nsys.stdout.flush()\nos.kill(os.getpid(), 9)\n')
    with pytest.raises(AgentGone, match="ended without an answer"):
        here.call("facts")


def test_an_agent_that_is_wanted_again_and_again(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = """while :; do echo '{"kdeploy": "agent-wanted"}'; done"""
    monkeypatch.setattr(agent, "start", lambda root, python: ["sh", "-c", f"exec 3<&0; cat <&3 > /dev/null & {wanted}"])
    with pytest.raises(RemoteError, match="did not start: agent-wanted"):
        here.call("facts", timeout_s=20)


def test_an_agent_that_is_killed_before_its_first_word(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "start", lambda root, python: ["sh", "-c", "kill -9 $$"])
    with pytest.raises(RemoteError, match=r"was killed before it had started \(signal 9\)") as caught:
        here.call("facts")
    assert "login shell" not in (caught.value.hint or "")


def test_a_line_without_end(here: Host, pretend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdeploy.transport.LINE_LIMIT", 1 << 20)
    pretend("while True: sys.stdout.write('x' * 65536)\n")
    with pytest.raises(RemoteError, match="is longer than 1 MB"):
        here.call("facts")


def test_a_command_that_hangs_is_ended(here: Host, home: Path, pretend: Callable[[str], None]) -> None:
    marker = home / "pid"
    pretend(f"open({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    with pytest.raises(RemoteError, match="no answer within 1 s"):
        here.call("facts", timeout_s=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_beats_are_answered_and_no_news(here: Host, pretend: Callable[[str], None]) -> None:
    """An agent that works says so; whoever listens answers with an empty line."""
    pretend(
        "sys.stdin.readline()\n"
        'for _ in range(3): print(\'{"event": "beat"}\', flush=True)\n'
        "said = [sys.stdin.readline() for _ in range(3)]\n"
        "print('{\"result\": {\"blank\": %d}}' % said.count('\\n'), flush=True)\n"
    )
    heard: list[object] = []
    assert here.call("facts", on_event=heard.append) == {"blank": 3}
    assert not heard


def test_wheel_carries_the_agent(tmp_path: Path) -> None:
    """A built wheel, unpacked elsewhere, finds the agent that travels in it."""
    repository = Path(__file__).resolve().parent.parent
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=repository, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(tmp_path / done.stdout.strip().splitlines()[-1]) as zipped:
        zipped.extractall(tmp_path / "site")
    code = "from kdeploy import agent; print(agent.__file__, agent.name())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, digest = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert digest == agent.name()
