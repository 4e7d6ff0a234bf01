"""What the C core's answers mean in Python.

Owns the translation of results and numbers. Never calls into C. Used by `vespiary_native.core` and
its mix-ins.
"""

from __future__ import annotations

import errno
import os

from vespiary_native.values import DeliverStatus, NoRoom

DELIVER_STATUS = [*DeliverStatus]


def check(result: int, what: str) -> int:
    """Return the result of a C call, or raise what its negative errno means."""
    if result >= 0:
        return result
    code = -result
    if code == errno.ENOSPC:
        raise NoRoom(f"{what}: no slab or no journal file for it now")
    if code == errno.ENOMEM:
        raise MemoryError(f"{what}: no memory")
    raise ValueError(f"{what}: {os.strerror(code)}")
