"""The effects of a switch: close the front, stop the server, start another, see it answer, open the front."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List

from kdeploy_agent.asking import client, ready, soaking
from kdeploy_agent.asking.ready import First
from kdeploy_agent.change import evidence
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import processes
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.keeping import adopted
from kdeploy_agent.keeping.units import NAMES, Status, Units, name_holders
from kdeploy_agent.trees import caches, serving

Note = Callable[[str], None]

OPENS_WITHIN_S = 60.0
_BRIEF_WITHIN_S = 120.0
POLL_S = 0.02  # between looks at a file that another process of ours writes
_SAID_WITHIN_S = 2.0
_WORDS = 400  # lines of a server that ended: each of its processes may have a traceback of its own
_ASK_S = 0.5  # the router logs an error for each request it cannot pass on: do not ask faster
_STRIKES = 3  # SGLang 0.5.11 leaves a /health unanswered now and then: one silence proves nothing


class Failed(Exception):
    """The release does not serve as it must; the text is the reason people read."""


class Switch:
    """What can be done to the units of one service. Every method may be repeated after any interruption."""

    def __init__(self, layout: Layout, units: Units, note: Note) -> None:
        self._layout = layout
        self._units = units
        self._note = note
        self._seen = (0, "")  # the server's process and its identity

    def close(self) -> None:
        """Let no client in, then stop the server. Raises AgentError naming what does not go."""
        self._units.stop(*NAMES)

    def shut(self) -> None:
        """The same, for good: nothing is to be started after it."""
        self.close()
        self._units.tidy(*NAMES)

    def check_ports(self, release: Dict[str, Any]) -> None:
        """Raise `preflight` when a port of the release cannot be had; our own units will give theirs up."""
        for spec in (serving.server(self._layout, release), serving.front(self._layout, release)):
            if spec is not None:
                self._units.check(spec)
        for what, port in serving.ports(release).items():
            self.check_port(what, port)

    def check_port(self, what: str, port: int) -> None:
        """The same for one port; `what` says what it is for."""
        strangers = [one for one in processes.holders(port) if not self._units.owns(one.pid, port)]
        if strangers:
            message = f"the {what} port {port} is held by {name_holders(strangers)}"
            hint = "stop that process, or choose another port; kdeploy adopt PROFILE if it serves what this replaces"
            raise AgentError("preflight", message, hint)

    def start(self, release: Dict[str, Any], seconds: float, refused: Callable[[], bool] = lambda: False) -> First:
        """Start the server on its private port and wait for its first completion; gives when it was first heard.

        Raises Failed when it ends or takes too long, and as soon as it is `refused`.
        """
        ails = serving.make_room(self._layout, release)
        if ails:
            self._note(f"{ails}: {release['id']} is started all the same, and may have to compile anew")
        self._units.start(serving.server(self._layout, release))
        deadline = time.monotonic() + seconds
        if adopted.is_adopted(release):
            return self._wait_as_before(release, deadline, refused)
        try:
            return ready.wait_ready(
                serving.server_url(release), lambda: self.server_alive() and not refused(), deadline, self._note
            )
        except ready.NotReady as fault:
            if refused():
                raise Failed("the operator said no before it was ready") from fault
            raise Failed(f"the server did not become ready: {fault}{self._last_words('server')}") from fault

    def open(self, release: Dict[str, Any]) -> None:
        """Start the front and wait until a client would be answered through it."""
        if adopted.is_adopted(release):
            self._units.tidy("front")
            return  # it has no front of ours, and is as open as it ever was
        front = serving.front(self._layout, release)
        if front is not None:
            self._units.start(front)
        else:
            self._units.tidy("front")
        end = time.monotonic() + OPENS_WITHIN_S
        while True:
            reply = client.request(serving.public_url(release), "/v1/models", 5.0)
            if reply.status == 200:
                return
            self.must_live(release)
            if time.monotonic() > end:
                raise Failed(f"the public port does not answer: {reply.error}{self._last_words('front')}")
            time.sleep(_ASK_S)

    def serve(self, release: Dict[str, Any], start_s: float = 0.0) -> None:
        """Serve a release that was proven here before: start it, ask the brief questions of its plan, let clients in.

        `start_s` is how long the start may take at least. Raises Failed when it is not what it was.
        """
        plan = evidence.plan(self._layout, release["id"])
        if not plan.whole:
            self._note(f"the plan that {release['id']} was confirmed with is gone or damaged: any answer of it will do")
        within_s = max(plan.start_s, start_s)
        try:
            self.start(release, within_s)
        except Failed as fault:  # what started before and ends now may have compiled on a full disk, or lost power
            alive = self.server_alive() or adopted.is_adopted(release)
            torn = caches.torn("\n".join(self._units.words("server", _WORDS)))
            if alive or not torn or not caches.drop_bytecode(self._layout, release["tree"]):
                raise
            self._note(f"{fault}\n{release['id']} is started once more, without its bytecode: that may be damaged")
            self._units.stop("server")
            self.start(release, within_s)
        self.ask_again(release)
        self.open(release)
        self.allow_restarts(release)

    def ask_again(self, release: Dict[str, Any]) -> Dict[str, Any]:
        """Ask the brief questions of the release's plan; gives how many were answered as before, raises Failed if not.

        An adopted server that answered none when it was found is asked none.
        """
        asks = list(evidence.plan(self._layout, release["id"]).brief)
        if not asks and adopted.is_adopted(release):
            return {"adopted": True, "asked": 0}
        try:
            ready.brief(serving.server_url(release), asks, time.monotonic() + _BRIEF_WITHIN_S)
        except ready.NotReady as fault:
            raise Failed(f"it started, but {fault}") from fault
        return {"adopted": adopted.is_adopted(release), "asked": len(asks)}

    def _wait_as_before(self, release: Dict[str, Any], deadline: float, refused: Callable[[], bool]) -> First:
        """Wait until an adopted server says what it said when it was found to be ready."""
        began = time.monotonic()
        while True:
            held = any(self._units.owns(one.pid, release["launch"]["port"]) for one in self._holders(release))
            ails = adopted.ails(release) if held else "nobody of it listens yet"
            if not ails:
                return First(None, time.monotonic() - began)
            if refused():
                raise Failed("the operator said no before it was ready")
            if not self.server_alive():
                raise Failed(f"{release['id']} ended: {self._units.status('server').note}{self._last_words('server')}")
            if time.monotonic() > deadline:
                raise Failed(f"{release['id']} did not become ready: {ails}{self._last_words('server')}")
            time.sleep(_ASK_S)

    def _holders(self, release: Dict[str, Any]) -> List[processes.Holder]:
        return processes.holders(release["launch"]["port"])

    def soak(self, release: Dict[str, Any], seconds: float, probes: Dict[str, Any]) -> None:
        """Watch the open release for `seconds`, and ask it what its `probes` say, where clients ask.

        Raises Failed when a process ends, an answer is wrong or hangs, or answers stay away.
        """
        end, strikes = time.monotonic() + seconds, 0
        asking = soaking.Soak(serving.public_url(release), {} if adopted.is_adopted(release) else probes)
        while True:
            self.must_live(release)
            try:
                bad = self._ails(release) or asking.look()
            except soaking.Wrong as fault:
                raise Failed(f"{fault}{self._last_words('server')}") from fault
            strikes = strikes + 1 if bad else 0
            if strikes >= _STRIKES:
                raise Failed(f"while it was watched: {bad}{self._last_words('server')}")
            if not bad and time.monotonic() >= end:
                if asking.asked:
                    self._note(f"asked {asking.asked} times while it was watched; every answer was as it must be")
                return
            time.sleep(max(0.0, min(1.0, end - time.monotonic())) if not bad else 1.0)

    def must_live(self, release: Dict[str, Any]) -> None:
        """Raise Failed when a process the release needs has ended."""
        for name in NAMES:
            if name == "front" and release["launch"]["front"]["kind"] == "none":
                continue
            status = self._told(name, release["id"])
            if not status.alive or status.release != release["id"]:
                raise Failed(f"the {name} ended ({status.note or 'it is gone'}){self._last_words(name)}")

    def _told(self, name: str, release: str) -> Status:
        """What a unit of the release does; of one that has just ended its keeper may have yet to say how."""
        end = time.monotonic() + _SAID_WITHIN_S
        while True:
            status = self._units.status(name)
            if status.alive or status.note or status.release != release or time.monotonic() >= end:
                return status
            time.sleep(POLL_S)

    def serves(self, release: Dict[str, Any]) -> bool:
        """Whether this release serves clients at this moment."""
        try:
            self.must_live(release)
        except Failed:
            return False
        return self._ails(release) is None

    def server_alive(self) -> bool:
        """Whether the server's process lives. While the one that was seen does, its keeper is not asked."""
        if processes.is_same(*self._seen):
            return True
        status = self._units.status("server")
        self._seen = (status.pid, processes.identity(status.pid) or "") if status.alive else (0, "")
        return status.alive

    def allow_restarts(self, release: Dict[str, Any]) -> None:
        """The release is trusted: its processes may be started again when they end."""
        for spec in (serving.server(self._layout, release), serving.front(self._layout, release)):
            if spec is not None:
                self._units.allow_restarts(spec.name)

    def _ails(self, release: Dict[str, Any]) -> "str | None":
        if adopted.is_adopted(release):
            return adopted.ails(release) or None
        for url, path in ((serving.server_url(release), "/health"), (serving.public_url(release), "/v1/models")):
            reply = client.request(url, path, 8.0)
            if reply.status != 200:
                return f"{path} at {url}: {reply.error}"
        return None

    def _last_words(self, name: str) -> str:
        lines = self._units.words(name, 12)
        note = self._units.status(name).note
        told = f" ({note})" if note else ""
        return f"{told}; last lines of its log:\n" + "\n".join(lines) if lines else told
