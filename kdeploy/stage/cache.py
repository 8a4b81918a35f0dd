"""What the cache's folder says no to, told in one sentence."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from kdeploy import places
from kdeploy.errors import PreflightError

_REFUSALS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST,
     errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.EMFILE, errno.ENFILE)
)  # fmt: skip


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Around what writes to the cache: raises PreflightError when its file system is full or does not let us.

    Also a decorator. Anything else that goes wrong is left as it is.
    """
    try:
        yield
    except OSError as fault:
        if fault.errno not in _REFUSALS:
            raise
        raise refused(f"{fault.strerror}: {fault.filename}" if fault.filename else str(fault.strerror)) from fault


def refused(reason: str) -> PreflightError:
    """The error for a cache that cannot be used, with the system's or git's own `reason`."""
    hint = "make room there, delete it, or let $KDEPLOY_CACHE name another folder; nothing on a host was begun"
    return PreflightError(f"the cache {places.cache()} cannot be used: {reason}", hint=hint)
