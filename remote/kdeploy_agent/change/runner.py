"""Who carries a transaction out: a runner, and its parent the guardian, which heals the host when the runner is killed.

Both hold the service's lock (the guardian hands its handle down by fork), so nobody comes between the death of one and
the healing by the other. When both are dead the kernel frees the lock, and the next command starts a healer, detached
like them: the connection that asked for it may be cut as well.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from typing import Optional

from kdeploy_agent.change.transaction import Run
from kdeploy_agent.ground import locking, secrets
from kdeploy_agent.ground.journal import Journal, Transaction
from kdeploy_agent.ground.layout import Layout
from kdeploy_agent.ground.locking import Lock
from kdeploy_agent.ground.order import Order
from kdeploy_agent.keeping import detach
from kdeploy_agent.trees import serving


def launch(layout: Layout, order: Order, lock: Lock) -> None:
    """Start the detached guardian of `order`, which takes over the held `lock`."""
    order.write(layout)
    log = layout.transaction(order.txn) / "runner.log"
    arguments = ["guard", str(layout.root), layout.service, order.txn, str(lock.handle)]
    detach.spawn(arguments, log, detach.environment(), pass_fds=(lock.handle,))
    lock.release()


def guard(layout: Layout, txn: str, handle: int) -> int:
    """Heal what an earlier one left, fork the runner, outlive it, heal again; gives the guardian's exit status."""
    os.set_inheritable(handle, False)  # the servers that are started from here must not keep the lock
    _make_room(layout)
    order = Order.read(layout, txn)
    with contextlib.suppress(OSError):
        Lock(layout.lock, handle).name(order.by, order.goal, txn)
    sys.stdout.flush()
    if "KDEPLOY_CRASH_GUARDIAN" in os.environ:
        os.environ["KDEPLOY_CRASH_GUARDIAN"] = str(os.getpid())
    healed = heal(layout)
    if healed:
        Run(layout, order).note(f"transaction {healed.txn} of {healed.by} was cut off; it is {healed.state} now")
    child = os.fork()
    if child == 0:
        os._exit(_run(layout, order))
    os.waitpid(child, 0)  # no other: supervisors that healing started are our children too
    for name in [name for name in os.environ if name.startswith("KDEPLOY_CRASH_")]:
        del os.environ[name]  # the test hook is for the runner
    heal(layout)
    if txn not in Journal(layout.journal).transactions():  # killed before its first line: nothing goes back for it
        secrets.take_back(layout, txn)
    return 0


def heal(layout: Layout) -> Optional[Transaction]:
    """Bring the last transaction to an end if it has none; gives it, or None when there was nothing to heal.

    The caller holds the lock.
    """
    journal = Journal(layout.journal)
    last = journal.last()
    if last is None or last.finished:
        return None
    _make_room(layout)
    with contextlib.suppress(OSError):  # a full disk keeps nobody from going back
        print(f"{time.ctime()}: healing {last.txn}, which stands at {last.state} ({last.phase})", file=sys.stderr)
    _recalled(layout, last).heal()
    return journal.transactions()[last.txn]


def launch_healer(layout: Layout, by: str) -> Optional[str]:
    """Start a detached healer of the last transaction, unless somebody holds the lock and so cares already.

    Gives the transaction; None when there was nothing to start.
    """
    last = Journal(layout.journal).last()
    lock = None if last is None or last.finished else locking.try_lock(layout.lock)
    if last is None or lock is None:
        return None
    _make_room(layout)
    with contextlib.suppress(OSError):
        lock.name(by, "recover", last.txn)
    log = layout.transaction(last.txn) / "runner.log"
    arguments = ["heal", str(layout.root), layout.service, by, str(lock.handle)]
    detach.spawn(arguments, log, detach.environment(), pass_fds=(lock.handle,))
    lock.release()
    return last.txn


def healer(layout: Layout, by: str, handle: int) -> int:
    """Heal with the inherited lock; gives the healer's exit status."""
    os.set_inheritable(handle, False)
    last = Journal(layout.journal).last()
    with contextlib.suppress(OSError):
        Lock(layout.lock, handle).name(by, "recover", last.txn if last else "")
    heal(layout)
    return 0


def end_stopped(layout: Layout) -> None:
    """Like `heal`, for somebody who wants the service stopped: nothing is started for it. The caller holds the lock."""
    last = Journal(layout.journal).last()
    if last is not None and not last.finished:
        _make_room(layout)
        _recalled(layout, last).heal(start=False)


def _make_room(layout: Layout) -> None:
    """Give the reserve up when a transaction is to be healed: before anything is written, be it our own log."""
    last = Journal(layout.journal).last()
    if last is not None and not last.finished:
        with contextlib.suppress(OSError):
            layout.reserve.unlink()


def _recalled(layout: Layout, at: Transaction) -> Run:
    """A transaction to be ended by what is known of it: an order that cannot be read bars no way back."""
    release = serving.find_release(layout, at.release) if at.release else None
    return Run(layout, Order.recall(layout, at, release))


def _run(layout: Layout, order: Order) -> int:
    try:
        Run(layout, order).forward()
        return 0
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
