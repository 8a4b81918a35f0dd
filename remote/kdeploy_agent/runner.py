"""Who carries a transaction out: a runner, and its parent the guardian, which heals the host when the runner is killed.

Both hold the service's lock (the guardian hands its handle down by fork), so nobody comes between the death of one and
the healing by the other. When both are dead the kernel frees the lock, and the next command heals.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Optional

from kdeploy_agent import detach, locking
from kdeploy_agent.journal import Journal, Transaction
from kdeploy_agent.layout import Layout
from kdeploy_agent.locking import Lock
from kdeploy_agent.transaction import Order, Run


def launch(layout: Layout, order: Order, lock: Lock) -> None:
    """Start the detached guardian of `order`, which takes over the held `lock`."""
    order.write(layout)
    log = layout.transaction(order.txn) / "runner.log"
    arguments = ["guard", str(layout.root), layout.service, order.txn, str(lock.handle)]
    detach.spawn(arguments, log, detach.environment(), pass_fds=(lock.handle,))
    lock.release()


def guard(layout: Layout, txn: str, handle: int) -> int:
    """Fork the runner, outlive it, heal what it left; gives the guardian's exit status."""
    os.set_inheritable(handle, False)  # the servers that are started from here must not keep the lock
    order = Order.read(layout, txn)
    Lock(layout.lock, handle).name(order.by, order.goal, txn)
    sys.stdout.flush()
    if "KDEPLOY_CRASH_GUARDIAN" in os.environ:
        os.environ["KDEPLOY_CRASH_GUARDIAN"] = str(os.getpid())
    if os.fork() == 0:
        os._exit(_run(layout, order))
    os.wait()
    for name in [name for name in os.environ if name.startswith("KDEPLOY_CRASH_")]:
        del os.environ[name]  # the test hook is for the runner
    heal(layout)
    return 0


def heal(layout: Layout) -> Optional[Transaction]:
    """Bring the last transaction to an end if it has none; gives it, or None when there was nothing to heal.

    The caller holds the lock.
    """
    journal = Journal(layout.journal)
    last = journal.last()
    if last is None or last.finished:
        return None
    print(f"{time.ctime()}: healing {last.txn}, which stands at {last.state} ({last.phase})", file=sys.stderr)
    Run(layout, Order.read(layout, last.txn)).heal()
    return journal.transactions()[last.txn]


def heal_if_abandoned(layout: Layout, by: str) -> Optional[Transaction]:
    """Heal, unless somebody holds the lock and so cares already; gives what was healed."""
    last = Journal(layout.journal).last()
    if last is None or last.finished:
        return None
    lock = locking.try_lock(layout.lock)
    if lock is None:
        return None
    with lock:
        lock.name(by, "recover", last.txn)
        return heal(layout)


def _run(layout: Layout, order: Order) -> int:
    try:
        Run(layout, order).forward()
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
