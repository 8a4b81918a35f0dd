"""A wire between an operator and a host: it counts, delays, is cut, and goes dead without a word."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

CHUNK = 1 << 16


@dataclass
class Wire:
    """Passes on what comes to `address:port`.

    `delay_s` is one way. A turn begins when bytes go up after some came down; `watch` is called with its number before
    they are passed on, so what it does to the wire comes first.
    """

    address: str
    target: tuple[str, int]
    delay_s: float = 0.0
    watch: Callable[[int], None] = lambda turn: None
    flip_at: int = 0
    """The turn in whose first bytes one bit is flipped; none when 0."""
    flipped: bool = False
    port: int = 0
    connections: int = 0
    turns: int = 0
    up: int = 0
    down: int = 0
    dead: bool = False
    _pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = field(default_factory=list)
    _held: list[asyncio.StreamWriter] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    @contextlib.contextmanager
    def laid(self) -> Iterator[Wire]:
        """The wire while it is there, carried by a thread of its own."""
        ready = threading.Event()
        thread = threading.Thread(target=self._carry, args=(ready,), daemon=True)
        thread.start()
        assert ready.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)

    def reset(self) -> None:
        """Count from nothing."""
        self.connections = self.turns = self.up = self.down = 0

    def cut(self) -> None:
        """Close every connection at both ends; new ones are let through."""
        self._loop.call_soon_threadsafe(self._close_all)

    def die(self) -> None:
        """From now on nothing passes, and nobody is told; who connects waits without end."""
        self.dead = True

    def _carry(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, self.address, self.port))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        server.close()
        self._close_all()
        for writer in self._held:
            writer.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.dead:
            self._held.append(back)
            return
        try:
            far, forth = await asyncio.open_connection(*self.target)
        except OSError:
            back.close()
            return
        self._pairs.append((back, forth))
        last = [False]  # whether the last bytes went up
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(self._pass(near, forth, True, last), self._pass(far, back, False, last))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, up: bool, last: list[bool]) -> None:
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = self._loop.create_task(self._send(line, sink))
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if up and not last[0]:
                    self.turns += 1
                    self.watch(self.turns)
                    if self.turns == self.flip_at:
                        data, self.flipped = data[:-1] + bytes([data[-1] ^ 1]), True
                last[0] = up
                if up:
                    self.up += len(data)
                else:
                    self.down += len(data)
                if self.dead:
                    await asyncio.sleep(3600)
                line.put_nowait((self._loop.time() + self.delay_s, data))
        line.put_nowait((self._loop.time() + self.delay_s, b""))
        await sending

    async def _send(self, line: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await line.get()
                if (wait := due - self._loop.time()) > 0:
                    await asyncio.sleep(wait)
                if self.dead:
                    await asyncio.sleep(3600)
                if not data:
                    break
                sink.write(data)
                await sink.drain()
        sink.close()

    def _close_all(self) -> None:
        for pair in self._pairs:
            for writer in pair:
                writer.close()
        self._pairs.clear()
