"""`UringRing`: the ring over io_uring (`native/src/uring.c`).

Owns: which functions of C these are, and what a refusal means. See `native_ring` for the rest.
Called by: `ring.open_ring`. Needs the native part.
"""

from __future__ import annotations

import errno
from pathlib import Path

from vespiary_native.loader import lib
from vespiary_native.native_ring import NativeRing, RingCalls
from vespiary_spec.errors import NativeError

DEPTH_MAX = 65_536  # VESPIARY_URING_DEPTH_MAX
_SWITCH = Path("/proc/sys/kernel/io_uring_disabled")
_CALLS = RingCalls(
    "vespiary_uring",
    lib.vespiary_uring_create,
    lib.vespiary_uring_destroy,
    lib.vespiary_uring_eventfd,
    lib.vespiary_uring_outstanding,
    lib.vespiary_uring_submit_one,
    lib.vespiary_uring_completions,
)


class UringRing(NativeRing):
    """A ring on io_uring; `abc_ring.Ring` is its contract.

    Owner: the thread that uses it, in the process that made it. That thread must not end while
    requests are outstanding.
    """

    name = "IO_URING"

    def __init__(self, depth: int, *, write_then_sync: bool = False) -> None:
        """Make the kernel's queues.

        Args:
            depth: Requests outstanding at once, 1 to `abc_ring.DEPTH_MAX`; above DEPTH_MAX the
                kernel has no room and the ring is refused.
            write_then_sync: See `NativeRing`.

        Raises:
            ValueError: `depth` is out of range.
            NativeError: The kernel refused; errno says why (EPERM: a container's profile or
                kernel.io_uring_disabled forbids it).
        """
        super().__init__(_CALLS, depth, write_then_sync=write_then_sync, refusal=_creation_error)


def _creation_error(depth: int, errno_value: int) -> NativeError:
    """Return the error for queues that the kernel did not make, with what to do."""
    if errno_value == errno.EPERM:
        return forbidden()
    if errno_value == errno.ENOSYS:
        return NativeError(
            "the kernel has no io_uring, or a filter hides it",
            errno_value,
            cure="use a kernel with CONFIG_IO_URING and a seccomp profile that allows io_uring_*",
        )
    if errno_value == errno.EOPNOTSUPP:
        return NativeError(
            "the kernel's io_uring is too old", errno_value, cure="use Linux 5.6 or newer"
        )
    if errno_value == errno.ENOMEM:
        return NativeError(
            f"there is no memory for io_uring with {depth} requests",
            errno_value,
            cure="raise the memory limit (before Linux 5.12 RLIMIT_MEMLOCK), or lower "
            "journal-max-io",
        )
    if errno_value == errno.EINVAL:
        return NativeError(
            f"io_uring takes {DEPTH_MAX} requests at most, not {depth}",
            errno_value,
            cure="lower journal-max-io",
        )
    return NativeError(f"io_uring_setup for {depth} requests failed", errno_value)


def forbidden(switch: Path = _SWITCH) -> NativeError:
    """Return the error for EPERM: the kernel's own switch and a filter look alike but for this.

    Args:
        switch: The file of the kernel's switch.
    """
    try:
        value = switch.read_text(encoding="ascii").strip()
    except OSError:  # before Linux 6.6, or hidden
        value = ""
    if value in ("1", "2"):
        return NativeError(
            f"kernel.io_uring_disabled = {value} forbids io_uring",
            errno.EPERM,
            cure="set it to 0 on the node (sysctl -w kernel.io_uring_disabled=0)",
        )
    return NativeError(
        "a filter forbids io_uring_setup",
        errno.EPERM,
        cure="allow the io_uring_* calls in the seccomp profile (most container runtimes' default "
        "does not)",
    )
