"""Questions to an SGLang server and its answers, over HTTP bounded in time and size.

Nothing here raises: what went wrong is the `error` of a reply or of an answer.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

Json = Dict[str, Any]

LIMIT = 8 * 1024 * 1024  # bytes of one response; an answer is a few KB
TOKEN = 200  # characters: no token is longer, so a text of more than this a token is not worth carrying
KEPT = 2000  # characters of such a text


class Reply(NamedTuple):
    """What came back. `status` is 0 when nothing did; `error` is None only for a 2xx whose body could be read."""

    status: int
    body: Any  # parsed when it is JSON, else text, else None
    seconds: float
    error: Optional[str]

    @property
    def silent(self) -> bool:
        """Whether the server did not answer at all (refused, hung up, or hung)."""
        return self.status == 0


def request(base_url: str, path: str, timeout: float, payload: Any = None) -> Reply:
    """GET `path`, or POST `payload` as JSON; everything together takes at most about `timeout` seconds."""
    began = time.monotonic()
    if timeout <= 0:
        return Reply(0, None, 0.0, "hang: no time was left to ask")
    target = urlsplit(base_url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=timeout)
    expired = threading.Event()
    watch: Optional[threading.Timer] = None
    try:
        connection.connect()
        # A socket's timeout starts again with every byte; a server that dribbles would never be given up.
        watch = threading.Timer(timeout, _expire, (connection.sock, expired))
        watch.daemon = True
        watch.start()
        status, raw = _exchange(connection, target.path.rstrip("/") + path, payload)
        if expired.is_set():  # then what was read may be a part only
            raise socket.timeout()
    except (OSError, http.client.HTTPException, ValueError) as fault:
        seconds = time.monotonic() - began
        hung = expired.is_set() or isinstance(fault, socket.timeout)
        error = "hang: no complete answer within %.1f s" % timeout if hung else "broken: %s" % _describe(fault)
        return Reply(0, None, seconds, error)
    finally:
        if watch is not None:
            watch.cancel()
        connection.close()
    seconds = time.monotonic() - began
    if len(raw) > LIMIT:
        return Reply(status, None, seconds, "too large: more than %d bytes" % LIMIT)
    return _read(status, raw, seconds)


def generate(asks: List[Json]) -> Json:
    """The payload of /generate for one question, or for several different ones in one batch; greedy."""
    greedy = [{"temperature": 0, "max_new_tokens": a["max_tokens"], "skip_special_tokens": False} for a in asks]
    if len(asks) == 1:
        return {"text": asks[0]["text"], "sampling_params": greedy[0]}
    return {"text": [ask["text"] for ask in asks], "sampling_params": greedy}


def read_answers(asks: List[Json], reply: Reply, at: float) -> List[Json]:
    """One answer a question from a reply of /generate, which is an object for one and a list for several."""
    answers = [_blank(ask, reply, at) for ask in asks]
    if reply.error is not None:
        return answers
    rows = [reply.body] if len(asks) == 1 else reply.body
    if not isinstance(rows, list) or len(rows) != len(asks):
        got = "%d answers" % len(rows) if isinstance(rows, list) else type(rows).__name__
        return [dict(answer, error="malformed: %s for %d questions" % (got, len(asks))) for answer in answers]
    for answer, row in zip(answers, rows):
        try:
            meta = row["meta_info"]
            answer.update(
                text=str(row["text"]), ids=[int(i) for i in row["output_ids"]],
                finish=str(meta["finish_reason"]["type"]), n=int(meta["completion_tokens"]), meta=_meta(meta),
            )  # fmt: skip
            _bound(answer)
        except (KeyError, TypeError, ValueError, IndexError) as fault:
            answer["error"] = "malformed: %s: %s" % (type(fault).__name__, fault)
    return answers


def read_chat(ask: Json, reply: Reply, at: float) -> Json:
    """The answer in a reply of /v1/chat/completions."""
    answer = _blank(ask, reply, at)
    if reply.error is not None:
        return answer
    try:
        choice, usage = reply.body["choices"][0], reply.body["usage"]
        message = choice["message"]
        answer.update(
            text=str(message["content"] or ""), reasoning=str(message.get("reasoning_content") or ""),
            finish=str(choice["finish_reason"]), n=int(usage["completion_tokens"]), meta=_meta(usage),
        )  # fmt: skip
        _bound(answer)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as fault:
        answer["error"] = "malformed: %s: %s" % (type(fault).__name__, fault)
    return answer


def _blank(ask: Json, reply: Reply, at: float) -> Json:
    return {
        "ask": ask, "name": ask.get("name"), "kind": ask.get("kind"), "at": at, "seconds": reply.seconds,
        "status": reply.status, "error": reply.error, "text": "", "reasoning": "", "ids": None, "finish": None,
        "n": 0, "meta": {},
    }  # fmt: skip


def _bound(answer: Json) -> None:
    """Cut an answer that is larger than what was asked for can be: the transcript carries dozens of them."""
    asked = int(answer["ask"].get("max_tokens", 1))
    size, ids = len(answer["text"]) + len(answer["reasoning"]), answer["ids"] or []
    if size <= asked * TOKEN and len(ids) <= asked * TOKEN:
        return
    answer.update(
        error="too large: %d characters and %d ids for at most %d tokens" % (size, len(ids), asked),
        text=answer["text"][:KEPT], reasoning=answer["reasoning"][:KEPT], ids=ids[:KEPT] or None,
    )  # fmt: skip


def _meta(meta: Json) -> Json:
    wanted = ("prompt_tokens", "cached_tokens", "total_retractions")
    chosen = {key: value for key, value in meta.items() if key in wanted or key.startswith("spec_")}
    return {key: value for key, value in chosen.items() if len(str(value)) <= KEPT}


def _expire(sock: socket.socket, expired: threading.Event) -> None:
    expired.set()
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # it ended by itself in this very moment
        pass


def _exchange(connection: http.client.HTTPConnection, path: str, payload: Any) -> Tuple[int, bytes]:
    if payload is None:
        connection.request("GET", path)
    else:
        body = json.dumps(payload, ensure_ascii=False).encode("utf-8")
        connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    raw = response.read(LIMIT + 1)
    if len(raw) <= LIMIT and response.length:  # read(n) does not complain about a body that ends early
        raise http.client.IncompleteRead(raw, response.length)
    return response.status, raw


def _read(status: int, raw: bytes, seconds: float) -> Reply:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        return Reply(status, None, seconds, "not UTF-8: byte %d" % fault.start)
    try:
        body = json.loads(text) if text.strip() else None
    except ValueError:  # /flush_cache answers in words
        body = text[:2000]
    error = None if 200 <= status < 300 else "HTTP %d: %s" % (status, text[:300].strip() or "no body")
    return Reply(status, body, seconds, error)


def _describe(fault: Exception) -> str:
    return "%s: %s" % (type(fault).__name__, fault) if str(fault) else type(fault).__name__
