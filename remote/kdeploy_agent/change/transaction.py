"""The state machine that changes what a host serves: forward step by step, or back to what served before.

Each step writes its intent, does its effect, writes that it is done; each may be repeated. Whatever happens after the
first effect ends in one of three lines: CONFIRMED, ROLLED_BACK (what served before serves again) or NEEDS_OPERATOR.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from kdeploy_agent.asking import probe
from kdeploy_agent.asking.ready import First
from kdeploy_agent.change import evidence, inspection, way_back
from kdeploy_agent.change.switch import POLL_S, Failed, Switch
from kdeploy_agent.errors import AgentError
from kdeploy_agent.ground import files, secrets
from kdeploy_agent.ground.journal import DONE, INTENT, Journal, Transaction
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.order import Order
from kdeploy_agent.keeping import adopted
from kdeploy_agent.keeping.keeper import of as keeper_of
from kdeploy_agent.keeping.units import Units
from kdeploy_agent.trees import retention, runtimes, serving, store

NOTHING_STOPPED = "nothing was stopped"
NOTHING_BEFORE = "nothing was serving before"
STAYS_STOPPED = "the service had been stopped before; it stays stopped"
STOPPED = "the service was stopped before it could go back"

_RESERVE = 8 * 1024 * 1024  # bytes; a way back writes a few journal lines, notes and a rejected server's last words
_TOLD = 200  # characters of a reason that is told in passing: all of it is in the journal
_WORDS_KEPT = 400  # lines of a rejected server's log


class Run:
    """One transaction, carried out or healed by the process that holds the service's lock."""

    def __init__(self, layout: Layout, order: Order, units: Optional[Units] = None) -> None:
        secrets.hide(layout)
        self.layout = layout
        self.order = order
        self.release = order.release
        self.units = units or keeper_of(layout)
        self.journal = Journal(layout.journal)
        self._at: Optional[Transaction] = None  # as we wrote it: somebody may cut the journal meanwhile
        self._stopped = self.journal.stopped()
        self.switch = Switch(layout, self.units, self.note)

    def forward(self) -> None:
        """Carry the order out to CONFIRMED, or back; returns when a terminal line is written."""
        order, layout = self.order, self.layout
        before = {"previous": layout.live(), "known_good": layout.good()}
        said = {"goal": order.goal, "by": order.by, "release": self.release["id"], **before}
        try:
            with self._step("PREPARED", **said):
                self._prepare()
            with self._step("DRAINED", served=layout.live() is not None and not self.journal.stopped()):
                self.switch.close()
            with self._step("CANDIDATE"):
                first = self.switch.start(self.release, order.start_s, self._refused)
            with self._step("PROBED") as done:
                self._probe(first)
                done["until"] = round(time.time() + order.decide_s, 3)
            verdict = self._decision()
            with self._step("GATED"):
                evidence.judged(layout, self.release["id"], verdict)
            with self._step("OPEN"):
                files.point(layout.current, layout.release(self.release["id"]))
                self.switch.open(self.release)
            self.note(f"open; watching it for {order.soak_s:.0f} s")
            self.switch.soak(self.release, order.soak_s, order.probes)
        except Exception as fault:
            self.back(way_back.reason(fault))
        else:
            self.confirm()

    def heal(self, start: bool = True) -> None:
        """Bring a transaction whose process was killed to an end: the host serves something proven, or says why not.

        Without `start` what serves is stopped instead, unless the release was proven already.
        """
        self._make_room()
        at = self._now()
        if at.state == "ROLLING_BACK" and at.phase == DONE:
            self._end("ROLLED_BACK", at.reason)
        elif at.state == "CONFIRMED" and "launch" in self.release and self.switch.serves(self.release):
            self.confirm()  # it was proven and watched; only its name as known-good was missing
        elif not start:
            self._halt(at)
        elif at.state == "ROLLING_BACK":
            self.back(at.reason)
        else:
            said = files.read_json(self.layout.ended(at.txn))
            by = said.get("by") if isinstance(said, dict) else None
            what = f"ended by unlock of {by}" if by else "the transaction's process was killed"
            self.back(f"{what} at {at.state} ({at.phase})")

    def confirm(self) -> None:
        """Make the release, which serves, known-good; what hinders that on a full disk is tried again, with room."""
        try:
            self._confirm()
        except OSError:
            self._make_room()
            try:
                self._confirm()
            except Exception as fault:
                self.back(f"it could not be marked known-good: {way_back.reason(fault)}")
                return
        with contextlib.suppress(OSError):  # what is installed is compared later (verify); nothing else needs it
            runtimes.remember(self.layout, self.release)
        try:
            retention.prune(self.layout, self.note)
        except (OSError, AgentError) as fault:  # untidy, but what serves is right
            self.note(f"old releases could not be removed: {fault}")

    def _confirm(self) -> None:
        with self._step("CONFIRMED"):
            # Those of an adopted one were recorded when it was found; of an order that is lost none are known.
            if self.order.probes and not adopted.is_adopted(self.release):
                evidence.confirmed(self.layout, self.order)
            files.point(self.layout.known_good, self.layout.release(self.release["id"]))
            self.switch.allow_restarts(self.release)
            told = way_back.survive(self.units)
            if told:
                self.note(told)

    def back(self, reason: str) -> None:
        """Undo: what served before serves again, or known-good; nothing, when nothing did."""
        self._make_room()
        self._take_secrets_back()
        at = self._now()
        if not at.touched:
            self._end("ROLLED_BACK", reason, NOTHING_STOPPED)
            return
        self._write("ROLLING_BACK", INTENT, reason=reason)
        first = reason.partition("\n")[0]
        told = f"going back: {first}"
        self.note(told if len(told) <= _TOLD else f"{secrets.cut(told, _TOLD - 1)}…")
        evidence.rejected(self.layout, self.order, reason, self._last_words())
        stays_stopped = self._stopped
        wanted = [] if stays_stopped else way_back.releases(self.layout, self.release, at.previous, at.known_good)
        problems: List[str] = []
        for release in wanted:
            try:
                self._restore(release, at.known_good)
            except Exception as fault:
                if self.units.going_down():
                    raise  # it goes on when the host is back
                problems.append(f"{release}: {way_back.reason(fault)}")
                self.note(f"the way back failed: {problems[-1]}")
                continue
            self._write("ROLLING_BACK", DONE)
            self._end("ROLLED_BACK", reason, "; ".join([f"{release} serves again", *problems]))
            return
        problems.extend(self._shut(at))
        if wanted or problems:
            hint = "see the log of unit 'server', mend the host, then run: kdeploy apply or kdeploy rollback"
            self._end("NEEDS_OPERATOR", f"{reason}; and the way back failed: {'; '.join(problems)}", hint)
        else:
            self._write("ROLLING_BACK", DONE)
            self._end("ROLLED_BACK", reason, STAYS_STOPPED if stays_stopped else NOTHING_BEFORE)

    def _halt(self, at: Transaction) -> None:
        self._take_secrets_back()
        reason = at.reason or f"the transaction's process was killed at {at.state} ({at.phase})"
        problems = self._shut(at) if at.touched else []
        self._end("NEEDS_OPERATOR" if problems else "ROLLED_BACK", "; ".join([reason, *problems]), STOPPED)

    def note(self, text: str) -> None:
        """Tell whoever watches; not synced, nothing depends on it: on a full disk it is not said."""
        folder = self.layout.transaction(self.order.txn)
        line = {"at": round(time.time(), 3), "note": secrets.mask(self.layout, text)}
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with open(str(folder / "notes.jsonl"), "a", encoding="utf-8", opener=files.private) as file:
                file.write(json.dumps(line) + "\n")

    def _prepare(self) -> None:
        release, layout = self.release, self.layout
        files.reserve(layout.reserve, _RESERVE)
        try:
            stored = serving.read_release(layout, release["id"])
        except AgentError:  # not here, or edited: the request's document is the one its id stands for
            files.write(layout.release(release["id"]) / "release.json", files.canonical(release))
        else:
            if stored["version"] != release["version"]:
                raise AgentError("integrity", f"release {release['id']} is here already, with other content")
        store.ensure(layout, release, self.note)
        python = serving.python_of(layout, release)
        if not python.exists() and not adopted.is_adopted(release):
            raise AgentError("runtime", f"the runtime has no {python}", "make it first (verb runtime)")
        self.switch.check_ports(release)
        way_back.check(layout, self.units, release, self.note)
        way_back.survive(self.units)  # before anything is stopped: a host that loses its power now heals when it boots

    def _probe(self, first: First) -> None:
        if adopted.is_adopted(self.release):
            evidence.seen(self.layout, self.release["id"], self.switch.ask_again(self.release))
            return
        deadline = time.monotonic() + self.order.probe_s
        transcript = probe.run(serving.server_url(self.release), self.order.probes, deadline, self.note)
        transcript["first"] = first.told()
        transcript.update(inspection.inspect(self.units, self.release, self.order.probes))
        evidence.seen(self.layout, self.release["id"], transcript)

    def _refused(self) -> bool:
        """Whether the operator has said no already: a Ctrl-C need not wait until a large model has loaded."""
        verdict = files.read_json(self._decision_path)
        return verdict is not None and not verdict["accept"]

    @property
    def _decision_path(self) -> Path:
        return self.layout.transaction(self.order.txn) / "decision.json"

    def _decision(self) -> Dict[str, Any]:
        """Wait for the operator's verdict; silence is a no, and so is a server that ends meanwhile."""
        path = self._decision_path
        end = time.monotonic() + self.order.decide_s
        while not path.exists():
            if time.monotonic() >= end:
                raise Failed(f"no decision within {self.order.decide_s:.0f} s: the operator is gone")
            if not self.switch.server_alive():
                raise Failed("the server ended while it waited for a decision")
            time.sleep(POLL_S)
        verdict: Dict[str, Any] = files.read_json(path)
        if not verdict["accept"]:
            evidence.judged(self.layout, self.release["id"], verdict)
            raise Failed("the gate said no: " + "; ".join(verdict["reasons"] or ["no reason given"]))
        return verdict

    def _take_secrets_back(self) -> None:
        """What served before is started with the values it had; without a disk to write them on, with what is there."""
        with contextlib.suppress(OSError):
            secrets.take_back(self.layout, self.order.txn)

    def _make_room(self) -> None:
        """A full disk is one of the reasons for going back; the journal needs a disk for that."""
        with contextlib.suppress(OSError):
            self.layout.reserve.unlink()

    def _last_words(self) -> List[str]:
        try:
            return self.units.words("server", _WORDS_KEPT)
        except OSError:  # a full disk must not keep us from going back
            return []

    def _restore(self, release: str, known_good: Optional[str]) -> None:
        document = serving.read_release(self.layout, release)
        store.ensure(self.layout, document, self.note)
        self.switch.close()
        files.point(self.layout.current, self.layout.release(release))
        self._keep_known_good(known_good)
        self.switch.serve(document, self.order.start_s)

    def _shut(self, at: Transaction) -> List[str]:
        """Leave nothing running; gives what did not go."""
        if at.previous is None:
            files.remove_link(self.layout.current)
        else:
            files.point(self.layout.current, self.layout.release(at.previous))
        self._keep_known_good(at.known_good)
        try:
            self.switch.shut()
        except AgentError as fault:
            return [fault.message]
        return []

    def _keep_known_good(self, known_good: Optional[str]) -> None:
        if known_good is None:
            files.remove_link(self.layout.known_good)
        elif self.layout.good() != known_good:
            files.point(self.layout.known_good, self.layout.release(known_good))

    @contextlib.contextmanager
    def _step(self, state: str, **fields: Any) -> Iterator[Dict[str, Any]]:
        self._write(state, INTENT, **fields)
        done: Dict[str, Any] = {}
        yield done
        self._write(state, DONE, **done)

    def _end(self, state: str, reason: str, note: str = "") -> None:
        self._write(state, DONE, reason=reason, note=note)

    def _write(self, state: str, phase: str, **fields: Any) -> None:
        at = self._now()
        told = secrets.mask_all(self.layout, {**at.origin, **fields})
        self._at = at.after(self.journal.append(txn=self.order.txn, state=state, phase=phase, **told))

    def _now(self) -> Transaction:
        txn = self.order.txn
        return self._at or self.journal.transactions().get(txn, Transaction(txn))
