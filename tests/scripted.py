"""A stand-in engine on a real socket: it knows the pocket model's answers, and misbehaves as a test tells it to.

Its tokens are words, 0 ends an answer. `respond` may answer instead of it: status and bytes, or status and an
iterator of bytes that are sent one by one.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kdeploy.verdict.prompts import Bounds, probes
from kdeploy.verdict.questions import load_prompts

POCKET = load_prompts(Path(__file__).parents[1] / "models" / "pocket" / "prompts.json")
ANSWERS = {prompt.text: prompt.answer or prompt.reference for prompt in POCKET if prompt.text is not None}
END = 0

Sent = tuple[int, "bytes | Iterator[bytes]"]
Respond = Callable[["Engine", str, Any], "Sent | None"]


class Engine:
    """Answers on `url`; `asked` has every path with its payload, `most` how many requests it ever had at once."""

    def __init__(self, respond: Respond | None = None, pause: float = 0.0) -> None:
        self.respond, self.pause = respond, pause
        self.asked: list[tuple[str, Any]] = []
        self.in_flight = self.most = 0
        self.lock = threading.Lock()
        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.engine = self
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def payloads(self, path: str) -> list[Any]:
        return [payload for asked, payload in self.asked if asked == path]

    def answer(self, path: str, payload: Any) -> Sent:
        if path == "/generate":
            if payload.get("stream"):
                return 200, self.pieces(payload)
            rows = [self.row(one, payload, number) for number, one in enumerate(_many(payload))]
            return 200, json.dumps(rows if _is_batch(payload) else rows[0]).encode()
        if path == "/v1/chat/completions":
            return 200, self.chat_pieces() if payload.get("stream") else json.dumps(_chat()).encode()
        if path == "/tokenize":
            tokens = ids_of(payload["prompt"])
            return 200, json.dumps({"tokens": tokens, "count": len(tokens), "max_model_len": 2048}).encode()
        if path == "/get_load":
            return 200, json.dumps([{"num_reqs": self.in_flight - 1, "num_waiting_reqs": 0}]).encode()
        if path == "/server_info":
            return 200, json.dumps(
                {"version": "1", "api_key": "hush", "internal_states": [{"admin_api_key": "hush"}]}
            ).encode()
        return 200, b"" if path == "/health" else b"{}"

    def row(self, prompt: list[int], payload: Any, number: int = 0) -> dict[str, Any]:
        """The whole answer to one prompt, which may have the beginning of the answer in it."""
        params = payload["sampling_params"]
        params = params[number] if isinstance(params, list) else params
        on = params.get("ignore_eos", False)
        ids = said(prompt, params["max_new_tokens"], on)
        text = text_of(ids)
        reason: dict[str, Any] = {"type": "stop", "matched": END}
        if ids[-1] != END or on:
            reason = {"type": "length", "length": len(ids)}
        for stop in params.get("stop", []):
            if stop in text:
                text, reason = text[: text.index(stop)], {"type": "stop", "matched": stop}
        meta = {"cached_tokens": 0, "spec_verify_ct": 2, "prompt_tokens": len(prompt), "id": "x"}
        meta |= {"finish_reason": reason, "completion_tokens": len(ids)}
        if payload.get("return_logprob"):
            meta |= logprobs(prompt, payload["logprob_start_len"])
        return {"text": text, "output_ids": ids, "meta_info": meta}

    def pieces(self, payload: Any) -> Iterator[bytes]:
        whole = self.row(ids_of(payload["text"]), payload)
        for n in range(1, len(whole["output_ids"]) + 1):
            time.sleep(self.pause)
            last = n == len(whole["output_ids"])
            reason = whole["meta_info"]["finish_reason"] if last else None
            meta = {**whole["meta_info"], "finish_reason": reason, "completion_tokens": n}
            ids = whole["output_ids"][:n]
            yield event({"text": text_of(ids), "output_ids": ids, "meta_info": meta})
        yield b"data: [DONE]\n\n"

    def chat_pieces(self) -> Iterator[bytes]:
        yield event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for part in ("Hel", "lo!"):
            time.sleep(self.pause)
            yield event({"choices": [{"delta": {"content": part, "reasoning_content": None}, "finish_reason": None}]})
        yield event({"choices": [{"delta": {"content": None}, "finish_reason": "stop"}]})
        yield event({"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 5}})
        yield b"data: [DONE]\n\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64  # of five the sixth client at once is let wait a second
    engine: Engine

    def handle_error(self, *args: Any) -> None:  # clients that hang up are part of the tests
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one packet an answer: two of them cost 40 ms of delayed acknowledgement
    server: _Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.handle_one(None)

    def do_POST(self) -> None:
        self.handle_one(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def handle_one(self, payload: Any) -> None:
        engine = self.server.engine
        with engine.lock:
            engine.asked.append((self.path, payload))
            engine.in_flight += 1
            engine.most = max(engine.most, engine.in_flight)
        try:
            reply = engine.respond(engine, self.path, payload) if engine.respond else None
            self.send(*(reply or engine.answer(self.path, payload)))
        finally:
            with engine.lock:
                engine.in_flight -= 1

    def send(self, status: int, sent: bytes | Iterator[bytes]) -> None:
        self.send_response(status)
        if isinstance(sent, bytes):
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in sent:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


_WORDS: list[str] = [""]  # a token is a place in this list


def ids_of(text: str) -> list[int]:
    found = re.findall(r"\s*\S+|\s+", text)
    _WORDS.extend(sorted(set(found).difference(_WORDS)))
    return [_WORDS.index(word) for word in found]


def text_of(ids: list[int]) -> str:
    return "".join(_WORDS[one] for one in ids)


KNOWN = {tuple(ids_of(text)): [*ids_of(answer or ""), END] for text, answer in ANSWERS.items()}


def goes_on(prompt: list[int]) -> tuple[list[int], int]:
    """The answer that belongs to a prompt, and how many of its tokens the prompt has already."""
    known = max((ids for ids in KNOWN if tuple(prompt[: len(ids)]) == ids), key=len, default=None)
    return (KNOWN[known], len(prompt) - len(known)) if known is not None else ([*ids_of(" world"), END], 0)


def said(prompt: list[int], most: int, on: bool = False) -> list[int]:
    """The ids with which a greedy engine goes on from `prompt`: at most so many, past the end of the answer if `on`."""
    whole, begun = goes_on(prompt)
    rest = whole[begun:] if begun < len(whole) and not on else (whole * (2 + (begun + most) // len(whole)))[begun:]
    return rest[:most]


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _chat() -> dict[str, Any]:
    message = {"role": "assistant", "content": "Hello!", "reasoning_content": None}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}


def _is_batch(payload: Any) -> bool:
    asked = payload.get("text", payload.get("input_ids"))
    return isinstance(asked, list) and not isinstance(asked[0], int)


def _many(payload: Any) -> list[list[int]]:
    """The prompts of a request as ids, given as such or as texts."""
    if "text" in payload:
        return [ids_of(one) for one in (payload["text"] if _is_batch(payload) else [payload["text"]])]
    return list(payload["input_ids"]) if _is_batch(payload) else [payload["input_ids"]]


def logprobs(prompt: list[int], start: int) -> dict[str, Any]:
    """What SGLang says about input tokens: nothing of the first, then its logprob and the two best in its place."""
    whole, begun = goes_on(prompt[: start + 1])
    mine: list[list[Any]] = [[None, prompt[start], None]]
    best: list[Any] = [None]
    for at in range(start + 1, len(prompt)):
        wanted = whole[(begun + at - start - 1) % len(whole)]
        first = wanted == prompt[at]
        mine.append([-0.25 if first else -2.25, prompt[at], None])
        best.append([[-0.25, wanted, None], [-2.25, 1 if first else prompt[at], None]])
    return {"input_token_logprobs": mine, "input_top_logprobs": best}


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    """Makes engines, and ends them with the test."""
    made: list[Engine] = []

    def make(respond: Respond | None = None, pause: float = 0.0) -> Engine:
        made.append(Engine(respond, pause))
        return made[-1]

    yield make
    for one in made:
        one.server.shutdown()
        one.server.server_close()


def quiet(_: str) -> None:
    pass


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


def plan(request_s: float = 2.0, **changes: Any) -> dict[str, Any]:
    """The quick plan of the pocket model's prompts."""
    return {**probes(POCKET, Bounds(request_s=request_s), "pocket"), **changes}


def bare(request_s: float = 2.0, **changes: Any) -> dict[str, Any]:
    """A plan that asks nothing but what a test adds."""
    lists = dict.fromkeys(("alone", "chat", "stream", "bounds", "long", "together", "json", "repeat", "brief", "log"))
    empty: dict[str, Any] = {key: [] for key in lists}
    none = {"how": "none", "why": "a test", "of": [], "each": 8, "batch": 8}
    return {"protocol": 2, "model": "pocket", "request-s": request_s, "chat-options": {}, "lossless": none,
            "abort": None, "pace": None, **empty, **changes}  # fmt: skip


def only(path: str, how: Respond) -> Respond:
    return lambda engine, asked, payload: how(engine, asked, payload) if asked == path else None


def sleeping(seconds: float) -> Respond:
    def respond(*_: Any) -> None:
        time.sleep(seconds)

    return respond


def host_half() -> dict[str, Any]:
    """The half of a transcript that does not come from asking, as of a host on which nothing runs."""
    return {
        "first": None,
        "processes": [],
        "port": {"number": 1, "owner": None, "ours": False},
        "log": {"bytes": 0, "lines": 0, "matches": [], "tail": []},
        "restarts": 0,
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
