"""The agent's probes against servers that misbehave in every way we heard of: real sockets, a stand-in engine."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))

from kdeploy_agent.asking import client, logs, probe, ready

from kdeploy.verdict import transcript

from .scripted import ANSWERS, Engine, Respond, free_port, host_half, only, plan, quiet, sleeping, soon


def always() -> bool:
    return True


def row(text: str) -> dict[str, Any]:
    meta = {"finish_reason": {"type": "stop"}, "completion_tokens": 3, "cached_tokens": 0}
    return {"text": text, "output_ids": [1, 2, 3], "meta_info": meta}


# ---- run


def test_a_whole_run_is_a_transcript_that_the_judge_can_read(engine: Any) -> None:
    server, notes = engine(), []
    told = probe.run(server.url, plan(), soon(20), notes.append)
    read = transcript.read(json.loads(json.dumps(told | host_half())))
    assert all(answer.error is None and answer.status == 200 for _, answer in read.answers)
    assert [answer.text for answer in read.alone] == [ANSWERS[answer.ask["text"]] for answer in read.alone]
    assert {key: read.alone[0].meta[key] for key in ("cached_tokens", "spec_verify_ct")} == {
        "cached_tokens": 0, "spec_verify_ct": 2,
    }  # fmt: skip
    assert read.chat[0].text == "Hello!"
    assert read.health[0].status == 200
    assert len(notes) >= 5


def test_company_is_one_post_of_different_texts_after_a_flush(engine: Any) -> None:
    server = engine()
    told = probe.run(server.url, plan(), soon(20), quiet)
    batches = [payload["text"] for payload in server.payloads("/generate") if _is_list(payload)]
    assert [len(batch) for batch in batches] == [2, 4, 4, 4, 4]
    assert all(len(set(batch)) == len(batch) for batch in batches)
    order = [path.partition("?")[0] for path in server.paths()]
    assert order.count("/flush_cache") == len(told["together"]) + len(told["pace"]) + 1  # and before asking again
    first = next(i for i, (path, payload) in enumerate(server.asked) if path == "/generate" and _is_list(payload))
    assert order[first - 1] == "/flush_cache"
    assert all(group["flushed"] for group in told["together"])
    assert order[-1] == "/health"  # after the work, not before


def _is_list(payload: Any) -> bool:
    return isinstance(payload.get("text"), list)


def test_greedy_and_with_special_tokens_shown(engine: Any) -> None:
    server = engine()
    probe.run(server.url, plan(), soon(20), quiet)
    asked = [payload["sampling_params"] for payload in server.payloads("/generate") if "text" in payload]
    flat = [one for params in asked for one in (params if isinstance(params, list) else [params])]
    assert {(one["temperature"], one["skip_special_tokens"]) for one in flat} == {(0, False)}
    chats = server.payloads("/v1/chat/completions")
    assert {chat["temperature"] for chat in chats} == {0}
    assert sum("response_format" in chat for chat in chats) == 1


def test_chats_are_really_in_flight_at_once(engine: Any) -> None:
    server = engine(only("/v1/chat/completions", sleeping(0.2)))
    told = probe.run(server.url, plan(pace=None), soon(20), quiet)
    assert server.most == 4
    chats = told["together"][-1]
    assert chats["how"] == "threads"
    assert max(a["at"] for a in chats["answers"]) - min(a["at"] for a in chats["answers"]) < 0.15


def test_a_refused_flush_is_written_down(engine: Any) -> None:
    refuse: Respond = lambda _, path, __: (400, b"pending requests") if path.startswith("/flush_cache") else None  # noqa: E731
    told = probe.run(engine(refuse).url, plan(), soon(20), quiet)
    assert not any(group["flushed"] for group in told["together"])


def test_secrets_stay_on_the_host(engine: Any) -> None:
    told = probe.run(engine().url, plan(), soon(20), quiet)
    assert "hush" not in json.dumps(told)
    assert told["server_info"]["body"]["internal_states"][0]["admin_api_key"] == "(withheld)"


def test_a_hang_is_written_down_with_its_name_and_the_rest_is_not_asked(engine: Any) -> None:
    server = engine(only("/generate", sleeping(30)))
    began = time.monotonic()
    told = probe.run(server.url, plan(request_s=0.3), soon(20), quiet)
    assert time.monotonic() - began < 3
    errors = [answer["error"] for answer in told["alone"]]
    assert errors[:2] == ["hang: no complete answer within 0.3 s"] * 2
    assert set(errors[2:]) == {"not asked: the server had stopped answering"}
    assert told["health"][-1]["error"]
    assert server.paths().count("/generate") == 2  # nothing is piled up on a server that hangs
    transcript.read(told | host_half())


def test_one_hang_does_not_end_the_run(engine: Any) -> None:
    def once(server: Engine, path: str, payload: Any) -> None:
        if server.paths().count("/generate") == 3:
            time.sleep(2)

    told = probe.run(engine(only("/generate", once)).url, plan(request_s=0.3), soon(20), quiet)
    assert [answer["error"] is None for answer in told["alone"]] == [True, True, False] + [True] * 9


def test_the_deadline_holds_for_the_whole_run(engine: Any) -> None:
    server = engine(only("/generate", sleeping(0.25)))
    began = time.monotonic()
    told = probe.run(server.url, plan(request_s=5), soon(1.0), quiet)
    assert time.monotonic() - began < 2
    assert told["alone"][-1]["error"]


def test_a_server_that_is_gone_gives_a_whole_transcript_of_errors() -> None:
    told = probe.run(f"http://127.0.0.1:{free_port()}", plan(), soon(5), quiet)
    read = transcript.read(told | host_half())
    assert all(answer.error for _, answer in read.answers)
    assert "refused" in (read.server_info.error or "").lower()


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((500, b'{"error": "boom"}'), "HTTP 500"),
        ((200, b"[]"), "malformed"),
        ((200, b"{}"), "malformed"),
        ((200, b"null"), "malformed"),
        ((200, b"<html>"), "malformed"),
        ((200, b"\xff\xfe"), "not UTF-8: byte 0"),
        ((200, json.dumps({"text": "x", "output_ids": ["a"], "meta_info": {}}).encode()), "malformed"),
        ((200, json.dumps({**row("x"), "meta_info": {"finish_reason": None}}).encode()), "malformed"),
    ],
)
def test_a_broken_answer_is_an_error_with_its_name(engine: Any, reply: tuple[int, bytes], said: str) -> None:
    told = probe.run(engine(only("/generate", lambda *_: reply)).url, plan(), soon(20), quiet)
    for answer in [*told["alone"], *told["together"][0]["answers"]]:
        assert answer["error"].startswith(said), answer
    transcript.read(told | host_half())


def test_fewer_rows_than_questions(engine: Any) -> None:
    def short(_: Engine, path: str, payload: Any) -> tuple[int, bytes] | None:
        return (200, json.dumps([row("x")]).encode()) if _is_list(payload) else None

    told = probe.run(engine(only("/generate", short)).url, plan(), soon(20), quiet)
    assert told["together"][1]["answers"][0]["error"] == "malformed: 1 answers for 4 questions"


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"choices": []}', b'{"choices": [{}], "usage": {}}', b"[1]"])
def test_a_broken_chat_answer_is_an_error(engine: Any, body: bytes) -> None:
    told = probe.run(engine(only("/v1/chat/completions", lambda *_: (200, body))).url, plan(), soon(20), quiet)
    assert all(answer["error"].startswith("malformed") for answer in told["chat"])


# ---- one request


def test_a_body_without_end_is_given_up(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LIMIT", 1000)
    reply = client.request(engine(lambda *_: (200, b"x" * 5000)).url, "/", 5)
    assert (reply.status, reply.body) == (200, None)
    assert reply.error == "too large: more than 1000 bytes"


def raw_server(*chunks: bytes, pause: float = 0.0, leave_open: bool = True) -> str:
    """A listener that answers one connection with `chunks`, one every `pause` seconds."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with listener, connection:
            connection.recv(65536)
            try:
                for chunk in chunks:
                    connection.sendall(chunk)
                    time.sleep(pause)
                if leave_open:
                    time.sleep(3)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("chunks", "pause", "leave_open", "said"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", *[b"x"] * 40), 0.1, True, "hang"),  # dribbles the body
        ((b"HTTP/1.1 200 OK\r\n", *[b"X-A: b\r\n"] * 40), 0.1, True, "hang"),  # dribbles the head
        ((b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", *[b"x"] * 40), 0.1, True, "hang"),  # a body without a length
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nxyz",), 0.0, False, "broken: IncompleteRead"),
        ((b"nonsense\r\n\r\n",), 0.0, False, "broken: BadStatusLine"),
        ((), 0.0, False, "broken"),
        ((), 0.0, True, "hang"),
    ],
)
def test_a_request_is_bounded_as_a_whole(chunks: Any, pause: float, leave_open: bool, said: str) -> None:
    began = time.monotonic()
    reply = client.request(raw_server(*chunks, pause=pause, leave_open=leave_open), "/", 0.6)
    assert time.monotonic() - began < 1.2
    assert reply.silent
    assert (reply.error or "").startswith(said)


def test_no_time_left_is_said_without_asking() -> None:
    assert client.request("http://127.0.0.1:1", "/", -1.0).error == "hang: no time was left to ask"


# ---- wait_ready


def test_ready_when_a_completion_is_answered(engine: Any) -> None:
    server = engine()
    assert ready.wait_ready(server.url, always, soon(5), quiet).answered_s < 1
    assert server.paths() == ["/health", "/generate"]


def test_green_health_alone_is_not_ready(engine: Any) -> None:
    server = engine(only("/generate", lambda *_: (503, b"warming up")))
    with pytest.raises(ready.NotReady, match="HTTP 503: warming up"):
        ready.wait_ready(server.url, always, soon(2.5), quiet)
    assert server.most == 1


def test_an_answer_without_a_token_is_not_ready(engine: Any) -> None:
    empty = {**row("x"), "output_ids": [], "meta_info": {"finish_reason": {"type": "stop"}, "completion_tokens": 0}}
    server = engine(only("/generate", lambda *_: (200, json.dumps(empty).encode())))
    with pytest.raises(ready.NotReady, match="without a token"):
        ready.wait_ready(server.url, always, soon(1.5), quiet)


def test_starting_is_waited_for_and_said_once(engine: Any) -> None:
    def starting(server: Engine, *_: Any) -> tuple[int, bytes] | None:
        return (503, b"") if server.paths().count("/health") < 3 else None

    server, notes = engine(only("/health", starting)), []
    assert 1.5 < ready.wait_ready(server.url, always, soon(10), notes.append).answered_s < 4
    assert notes == ["HTTP 503: no body"]
    assert server.paths() == ["/health"] * 3 + ["/generate"]


def test_one_health_without_answer_rejects_nothing(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "HEALTH_S", 0.3)
    server = engine(only("/health", sleeping(20)))
    assert ready.wait_ready(server.url, always, soon(10), quiet).answered_s < 3


def test_a_dead_process_ends_the_waiting_at_once(engine: Any) -> None:
    dies = soon(0.5)
    server = engine(only("/health", sleeping(20)))
    began = time.monotonic()
    with pytest.raises(ready.NotReady, match="process ended"):
        ready.wait_ready(server.url, lambda: time.monotonic() < dies, soon(60), quiet)
    assert time.monotonic() - began < 1.5


def test_a_dead_process_that_never_listened(engine: Any) -> None:
    dies = soon(0.3)
    with pytest.raises(ready.NotReady, match="process ended"):
        ready.wait_ready(f"http://127.0.0.1:{free_port()}", lambda: time.monotonic() < dies, soon(60), quiet)


def test_the_deadline_is_kept_when_nobody_listens() -> None:
    began = time.monotonic()
    with pytest.raises(ready.NotReady, match="not listening yet"):
        ready.wait_ready(f"http://127.0.0.1:{free_port()}", always, soon(1.2), quiet)
    assert time.monotonic() - began < 2


def test_the_deadline_is_kept_when_completions_hang(engine: Any) -> None:
    began = time.monotonic()
    with pytest.raises(ready.NotReady, match="hang"):
        ready.wait_ready(engine(only("/generate", sleeping(20))).url, always, soon(1.2), quiet)
    assert time.monotonic() - began < 2.5


# ---- brief


def test_brief_passes_on_right_answers(engine: Any) -> None:
    server = engine()
    ready.brief(server.url, plan()["brief"], soon(5))
    assert len(server.asked) == 1
    assert len(server.asked[0][1]["text"]) == 2


@pytest.mark.parametrize(
    ("text", "said"), [("!!!!", "answered '!!!!'"), ("", "an empty answer"), ("  ", "an empty answer")]
)
def test_brief_says_what_is_wrong(engine: Any, text: str, said: str) -> None:
    rows = [{**row("x"), "text": text}] * 2
    server = engine(lambda *_: (200, json.dumps(rows).encode()))
    with pytest.raises(ready.NotReady, match=said):
        ready.brief(server.url, plan()["brief"], soon(5))


@pytest.mark.parametrize(("least", "passes"), [(0.5, True), (0.51, False), (1.0, False)])
def test_brief_leaves_room_for_near_ties_late_in_an_answer(engine: Any, least: float, passes: bool) -> None:
    """Greedy answers of a large model on a GPU part now and then; a garbled one parts at its first character."""
    asks = [{**ask, "answer": "0123456789", "least": least} for ask in plan()["brief"]]
    rows = [{**row("x"), "text": "01234xxxxx"}] * 2
    server = engine(lambda *_: (200, json.dumps(rows).encode()))
    if passes:
        ready.brief(server.url, asks, soon(5))
    else:
        with pytest.raises(ready.NotReady, match="answered '01234xxxxx'"):
            ready.brief(server.url, asks, soon(5))


def test_brief_without_known_answers_wants_some_text(engine: Any) -> None:
    asks = [{**ask, "answer": None, "text": "?"} for ask in plan()["brief"][:1]]
    ready.brief(engine().url, asks, soon(5))
    ready.brief(engine().url, [], soon(5))
    with pytest.raises(ready.NotReady, match="HTTP 500"):
        ready.brief(engine(lambda *_: (500, b"")).url, [], soon(5))


# ---- scan_log


def test_the_log_is_searched_bounded_and_without_secrets(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = [f"line {number} Traceback" for number in range(500)]
    lines += ["args(api_key='hush', hf_token=\"hush\", max_total_tokens=7)", "x" * 5000, "bytes \udcff"]
    log.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    told = logs.scan_log(logs.lines([(str(log), 0)]), ["Traceback", "never"])
    assert told["bytes"] == log.stat().st_size
    assert told["lines"] == 503
    assert len(told["matches"]) == logs.MATCHES
    assert told["matches"][0] == {"line": 1, "text": "line 0 Traceback"}
    assert len(told["tail"]) == logs.TAIL
    assert max(map(len, told["tail"])) == logs.LINE
    assert "args(api_key=(withheld), hf_token=(withheld), max_total_tokens=7)" in told["tail"]


def test_only_what_came_after_the_start_counts(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("Traceback old\nfine\n", encoding="utf-8")
    told = logs.scan_log(logs.lines([(str(log), len("Traceback old\n"))]), ["Traceback"])
    assert told == {"bytes": 5, "lines": 1, "matches": [], "tail": ["fine"]}
    assert logs.scan_log(logs.lines([(str(log), 0)]), ["Traceback"])["matches"] == [
        {"line": 1, "text": "Traceback old"}
    ]


def test_no_log_is_an_empty_log(tmp_path: Path) -> None:
    assert logs.scan_log(logs.lines([(str(tmp_path / "none"), 0)]), []) == {
        "bytes": 0,
        "lines": 0,
        "matches": [],
        "tail": [],
    }
