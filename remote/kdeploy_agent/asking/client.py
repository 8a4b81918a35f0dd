"""One request to an HTTP server, bounded in time and size as a whole.

Nothing here raises: what went wrong is the `error` of a reply.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from kdeploy_agent.ground import secrets

Json = Dict[str, Any]

LIMIT = 8 * 1024 * 1024  # bytes of one response, or of one event of a stream; an answer is a few KB


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

    @property
    def hung(self) -> bool:
        """Whether it took the request and did not answer it in time."""
        return (self.error or "").startswith("hang")


Read = Callable[[http.client.HTTPResponse], Tuple[Any, Optional[str]]]


def request(base_url: str, path: str, timeout: float, payload: Any = None) -> Reply:
    """GET `path`, or POST `payload` as JSON; everything together takes at most about `timeout` seconds."""
    return exchange(base_url, path, timeout, payload, read_whole)


def exchange(base_url: str, path: str, timeout: float, payload: Any, read: Read) -> Reply:
    """The same with a `read` of your own, which gives body and error from a response that has just begun.

    The connection is closed when `read` returns, whether or not everything was read.
    """
    began = time.monotonic()
    if timeout <= 0:
        return Reply(0, None, 0.0, "hang: no time was left to ask")
    target = urlsplit(base_url)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.hostname or "", target.port, timeout=timeout)
    expired = threading.Event()
    watch: Optional[threading.Timer] = None
    response: Optional[http.client.HTTPResponse] = None
    try:
        connection.connect()
        # A socket's timeout starts again with every byte; a server that dribbles would never be given up.
        watch = threading.Timer(max(0.0, timeout - (time.monotonic() - began)), _expire, (connection.sock, expired))
        watch.daemon = True
        watch.start()
        _send(connection, target.path.rstrip("/") + path, payload)
        response = connection.getresponse()
        body, error = read(response)
        if expired.is_set():  # then what was read may be a part only
            raise socket.timeout()
    except (OSError, http.client.HTTPException, ValueError) as fault:
        hung = expired.is_set() or isinstance(fault, socket.timeout)
        said = "hang: no complete answer within %.1f s" % timeout if hung else "broken: %s" % _describe(fault)
        return Reply(0, None, time.monotonic() - began, said)
    finally:
        if watch is not None:
            watch.cancel()
        if response is not None:  # of one without a length the connection knows nothing any more
            response.close()
        connection.close()
    return Reply(response.status, body, time.monotonic() - began, error)


def read_whole(response: http.client.HTTPResponse) -> Tuple[Any, Optional[str]]:
    """The whole body, parsed where it is JSON, and what is wrong with the response; raises what reading raises."""
    raw = response.read(LIMIT + 1)
    if len(raw) > LIMIT:
        return None, "too large: more than %d bytes" % LIMIT
    if response.length:  # read(n) does not complain about a body that ends early
        raise http.client.IncompleteRead(raw, response.length)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        return None, "not UTF-8: byte %d" % fault.start
    try:
        body = json.loads(text) if text.strip() else None
    except ValueError:  # /flush_cache answers in words
        body = secrets.cut(text, 2000)
    if 200 <= response.status < 300:
        return body, None
    return body, "HTTP %d: %s" % (response.status, secrets.cut(text, 300).strip() or "no body")


def _send(connection: http.client.HTTPConnection, path: str, payload: Any) -> None:
    if payload is None:
        connection.request("GET", path)
        return
    body = json.dumps(payload, ensure_ascii=False).encode("utf-8")
    connection.request("POST", path, body, {"Content-Type": "application/json"})


def _expire(sock: socket.socket, expired: threading.Event) -> None:
    expired.set()
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # it ended by itself in this very moment
        pass


def _describe(fault: Exception) -> str:
    return "%s: %s" % (type(fault).__name__, fault) if str(fault) else type(fault).__name__
