"""Questions to a release that is open already, a few a minute, where its clients ask theirs."""

from __future__ import annotations

import time
from typing import Any, Dict, Optional

from kdeploy_agent.asking.answers import CHAT, GENERATE, chat, generate, read_answers, read_chat
from kdeploy_agent.asking.client import Json, request
from kdeploy_agent.asking.ready import differs

EVERY_S = 5.0  # between two questions, where the plan does not say


class Wrong(Exception):
    """A soak that failed at once: an answer is another one than it must be, or none came in time."""


class Soak:
    """Asks what the plan's `soak` says at `base_url`, one question after the other, and from the first again."""

    def __init__(self, base_url: str, probes: Dict[str, Any]) -> None:
        plan = probes.get("soak") or {}
        self.asked = 0
        self._base_url, self._probes = base_url, probes
        self._asks = list(plan.get("asks", []))
        self._every_s = float(plan.get("every-s", EVERY_S))
        self._next = time.monotonic()

    def look(self) -> Optional[str]:
        """Ask the next question when it is due; gives what ails when no answer came, which counts only if it stays so.

        Raises Wrong for an answer that is not the one its question knows, and for a hang.
        """
        if not self._asks or time.monotonic() < self._next:
            return None
        ask = self._asks[self.asked % len(self._asks)]
        answer = self._answer(ask)
        error = answer["error"]
        wrong = error if error and error.startswith(("hang", "malformed", "too large", "not UTF-8")) else None
        if wrong is None and error is None:
            wrong = differs(ask, answer)
        if wrong is not None:
            raise Wrong("soak: %s, asked while it was open: %s" % (ask["name"], wrong))
        if error is not None:
            return "soak: %s: %s" % (ask["name"], error)
        self.asked += 1
        self._next = time.monotonic() + self._every_s
        return None

    def _answer(self, ask: Json) -> Json:
        room = float(self._probes["request-s"])
        if ask.get("text") is not None:
            return read_answers([ask], request(self._base_url, GENERATE, room, generate([ask])), 0.0)[0]
        payload = chat(ask, self._probes["model"], self._probes.get("chat-options", {}))
        return read_chat(ask, request(self._base_url, CHAT, room, payload), 0.0)
