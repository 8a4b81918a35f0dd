"""One transaction on a host: begun, watched and decided, also when the connection breaks or somebody says Ctrl-C.

The host owns the transaction and goes back by itself when nobody decides in time. So a broken connection is taken up
again for a while, and whoever gives up only says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kdeploy.errors import InterruptedByUser, KdeployError, RemoteError, UnreachableError, UsageError
from kdeploy.host import Ask, Host, telling
from kdeploy.progress import Note
from kdeploy.session import AgentGone
from kdeploy.transport import ConnectionLost

RECONNECTS_WITHIN_S = 120.0
"""How long a broken connection is tried anew, seconds."""

_PAUSE_S = 1.0
_TIMES = 30  # that a change is taken up again
_BEGINS_WITHIN_S = 5.0  # between a request to begin and the first line in the host's journal


@dataclass(frozen=True)
class Step:
    """A request with what people are told when its turn comes; nothing when it tells of itself."""

    note: str | None
    ask: Ask
    keep: Callable[[dict[str, Any]], None] | None = None
    """Is given the result, where somebody wants it."""


class Change:
    """A transaction on `host`, known there by its name `txn`.

    A context: Ctrl-C within becomes a no to the host, and an InterruptedByUser that says how that ended.
    """

    def __init__(self, host: Host, txn: str, note: Note, patience_s: float) -> None:
        """`patience_s` bounds each of the host's answers."""
        self.tell = telling(host.name, note)
        self._host = host
        self._txn = txn
        self._note = note
        self._patience_s = patience_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, KeyboardInterrupt):
            raise self._interrupted() from None

    def begin(self, before: Sequence[Step], request: dict[str, Any]) -> dict[str, Any]:
        """Send what comes `before` and the request to begin at once; gives where the transaction stands at its end.

        Raises what a step raises: then nothing was begun. Raises UnreachableError when the connection is lost for good.
        """
        begin = Step(None, Ask("begin", request, on_event=self.tell, timeout_s=self._patience_s))
        return self._insist([*before, begin])

    def decide(self, accept: bool, reasons: Sequence[str], evidence: dict[str, Any]) -> dict[str, Any]:
        """Tell the host yes or no; gives where the transaction ended.

        Raises UnreachableError when the connection is lost for good.
        """
        return self._insist([Step(None, self._decision(accept, reasons, evidence))])

    def _decision(self, accept: bool, reasons: Sequence[str], evidence: dict[str, Any]) -> Ask:
        request = {"txn": self._txn, "accept": accept, "reasons": list(reasons), "evidence": evidence}
        return Ask("decide", request, on_event=self.tell, timeout_s=self._patience_s)

    def _insist(self, steps: list[Step]) -> dict[str, Any]:
        for _ in range(_TIMES):
            try:
                return self._take(steps)
            except (ConnectionLost, AgentGone) as fault:
                lost = fault
                self._reconnect(fault, steps)
        raise lost

    def _take(self, steps: list[Step]) -> dict[str, Any]:
        """Send all steps at once; each is taken from the list when it is answered, but for the last."""
        self._say(steps[0])
        results = []
        for result in self._host.ask([step.ask for step in steps]):
            results.append(result)
            if len(steps) > 1:
                if steps[0].keep is not None:
                    steps[0].keep(result)
                del steps[0]
                self._say(steps[0])
        return results[-1]

    def _say(self, step: Step) -> None:
        if step.note is not None:
            self._note(step.note)

    def _reconnect(self, fault: KdeployError, steps: list[Step]) -> None:
        """Come back to the host and leave in `steps` what is still to be asked; raises when that takes too long."""
        name, end = self._host.name, time.monotonic() + RECONNECTS_WITHIN_S
        self._note(f"{fault.message}; connecting again")
        while True:
            try:
                self._host.reconnect()
                if self._begun():
                    del steps[:-1]
                return
            except (UnreachableError, RemoteError) as again:  # a host that boots answers, and then does not
                if time.monotonic() >= end:
                    raise UnreachableError(
                        f"{name}: the connection was lost and does not come back: {again.message}",
                        where=again.where,
                        hint="the host goes back to known-good by itself, by its own clock, if a change had begun; "
                        "`kdeploy status` shows it when the host can be reached",
                        details=again.details,
                    ) from fault
                time.sleep(_PAUSE_S)

    def _begun(self) -> bool:
        """Whether the host knows the transaction."""
        service = self._host.call("facts")["service"]
        return self._txn in [(service[key] or {}).get("txn") for key in ("transaction", "lock")]

    def _interrupted(self) -> InterruptedByUser:
        name = self._host.name
        self._note(f"{name}: interrupted; telling the host no (Ctrl-C again to leave it alone)")
        try:
            state = self._refuse()
        except (KeyboardInterrupt, KdeployError):
            return InterruptedByUser(
                f"{name}: interrupted; the host goes back to known-good by itself",
                hint="`kdeploy status` shows when it has; the same command run again continues",
            )
        if state is None:
            return InterruptedByUser(f"{name}: interrupted; nothing was stopped")
        if state == "CONFIRMED":
            return InterruptedByUser(f"{name}: interrupted too late: the release had been accepted, and it is live")
        return InterruptedByUser(f"{name}: interrupted; the host ended {state}", hint="`kdeploy status` shows it")

    def _refuse(self) -> str | None:
        """Say no over a session of its own, of the same connection; gives how it ended, None when nothing was begun."""
        self._host.hang_up()
        end = time.monotonic() + _BEGINS_WITHIN_S
        while True:
            try:
                ask = self._decision(False, ["interrupted by the operator"], {})
                (result,) = self._host.ask([ask])
                return str(result["state"])
            except UsageError:  # it knows no such transaction: not begun, or just about to be
                if not self._begun() or time.monotonic() >= end:
                    return None
                time.sleep(0.2)
