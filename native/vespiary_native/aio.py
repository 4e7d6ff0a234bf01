"""`AioRing`: the ring over the kernel's AIO system calls (`native/src/aio.c`).

Owns: which functions of C these are, and what a refusal means. See `native_ring` for the rest.
Called by: `ring.open_ring`. Needs the native part.
"""

from __future__ import annotations

import errno
from pathlib import Path

from vespiary_native.loader import lib
from vespiary_native.native_ring import NativeRing, RingCalls
from vespiary_spec.errors import NativeError

_CALLS = RingCalls(
    "vespiary_ring",
    lib.vespiary_ring_create,
    lib.vespiary_ring_destroy,
    lib.vespiary_ring_eventfd,
    lib.vespiary_ring_outstanding,
    lib.vespiary_ring_submit_one,
    lib.vespiary_ring_completions,
)


class AioRing(NativeRing):
    """A ring on Linux AIO; `abc_ring.Ring` is its contract.

    Owner: the thread that uses it, in the process that made it.
    """

    name = "ASYNCIO"

    def __init__(self, depth: int, *, write_then_sync: bool = False) -> None:
        """Make the kernel's context.

        Args:
            depth: Requests outstanding at once, 1 to DEPTH_MAX; counts against fs.aio-max-nr.
            write_then_sync: See `NativeRing`.

        Raises:
            ValueError: `depth` is out of range.
            NativeError: The kernel refused; errno says why (EAGAIN: fs.aio-max-nr is exhausted).
        """
        super().__init__(_CALLS, depth, write_then_sync=write_then_sync, refusal=_creation_error)


def _creation_error(depth: int, errno_value: int) -> NativeError:
    """Return the error for a context that the kernel did not make, with its numbers."""
    if errno_value == errno.EAGAIN:
        maximum, taken = _kernel_setting("aio-max-nr"), _kernel_setting("aio-nr")
        return NativeError(
            f"AIO needs {depth} of fs.aio-max-nr = {maximum}; taken are fs.aio-nr = {taken}",
            errno_value,
            cure="raise fs.aio-max-nr on the node (a BrokerNodeTuning, or sysctl -w)",
        )
    if errno_value == errno.ENOSYS:
        return NativeError(
            "the kernel has no AIO", errno_value, cure="use a kernel with CONFIG_AIO, or NIO"
        )
    if errno_value == errno.EPERM:
        return NativeError(
            "a filter forbids io_setup",
            errno_value,
            cure="allow the io_* calls in the seccomp profile (RuntimeDefault does), or use NIO",
        )
    return NativeError(f"io_setup for {depth} requests failed", errno_value)


def _kernel_setting(name: str) -> str:
    """Return a number of /proc/sys/fs, or "unknown" where a container hides it."""
    try:
        return Path("/proc/sys/fs", name).read_text().strip()
    except OSError:
        return "unknown"
