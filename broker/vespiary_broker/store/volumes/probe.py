"""Trying a volume out: direct writes, Linux AIO, io_uring, and how long a flush takes.

Owns one temporary file in the volume: hidden, made with O_EXCL under a random name, and unlinked
as soon as it is open, so that nothing is left however this process ends. Reads and writes that
file alone. Must never run on a volume whose filesystem was refused. Called by `verification`.

What is tried is what the journal does: 4 KiB writes, aligned, into a zero-filled file, with
O_DIRECT and flushed before they count (RWF_DSYNC, else fdatasync). A read-back compare follows
each trial, since a filesystem may accept O_DIRECT or AIO and do neither.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from vespiary_spec.errors import VespiaryError

BLOCK_BYTES = 4096
PROBE_BLOCKS = 64
PROBE_BYTES = BLOCK_BYTES * PROBE_BLOCKS
PROBE_PREFIX = ".vespiary-probe-"
FLUSH_SAMPLES = 50
FLUSH_BUDGET_S = 2.0
AIO_TIMEOUT_S = 5.0

# One number each trial writes where nobody else does; all others belong to the flush samples.
_DIRECT_BLOCK = 0
_AIO_BLOCK = 1
_URING_BLOCK = 2
_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


class Ring(Protocol):
    """The part of `vespiary_native`'s ring that the trial needs."""

    def submit_write(
        self,
        fd: int,
        buffer_address: int,
        length: int,
        offset: int,
        token: int,
        /,
        *,
        durable: bool = ...,
    ) -> None:
        """Start one write; its completion carries the token."""

    def fileno(self) -> int:
        """Return the eventfd that becomes readable with completions."""

    def completions(self) -> list[tuple[int, int]]:
        """Return (token, bytes or -errno) of what has ended."""

    def close(self) -> None:
        """Wait for what is under way and give everything back."""


OpenRing = Callable[[int], Ring]
"""Opens a ring of that depth, or raises OSError or ImportError with the reason."""


class Capability(msgspec.Struct, frozen=True):
    """Outcome of one trial.

    Attributes:
        works: True or False; None when it was not tried.
        reason: Why it does not work or was not tried; empty when it works.
    """

    works: bool | None
    reason: str = ""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What the trial found.

    Attributes:
        direct: O_DIRECT.
        aio: Linux AIO with an eventfd.
        uring: io_uring with an eventfd; tried only where it is asked for.
        flush_us: Duration of each durable 4 KiB write, in microseconds, ascending.
        flush_method: How the samples were flushed: `O_DIRECT+RWF_DSYNC`, `RWF_DSYNC`,
            `fdatasync`, …
    """

    direct: Capability
    aio: Capability
    uring: Capability = Capability(None, "io_uring was not asked for")
    flush_us: tuple[int, ...] = ()
    flush_method: str = ""

    @property
    def flush_us_p50(self) -> int | None:
        """Median of the samples (nearest rank); None without samples."""
        return _percentile(self.flush_us, 50)

    @property
    def flush_us_p99(self) -> int | None:
        """99th percentile of the samples (nearest rank); None without samples."""
        return _percentile(self.flush_us, 99)


def _percentile(ascending: tuple[int, ...], percent: int) -> int | None:
    if not ascending:
        return None
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]


def open_native_ring(depth: int) -> Ring:
    """Open the broker's own AIO ring.

    Args:
        depth: Operations in flight; counts against `fs.aio-max-nr`.

    Raises:
        ImportError: The native part is not built, or switched off.
        OSError: The kernel refuses AIO.
    """
    # Imported here: the verification also runs where only Python is, and says so in its report.
    from vespiary_native.ring import open_ring

    ring, _ = open_ring("ASYNCIO", depth, strict=True)
    return ring


def open_native_uring(depth: int) -> Ring:
    """Open the broker's own io_uring ring; as `open_native_ring`.

    Args:
        depth: Operations in flight.

    Raises:
        ImportError: The native part is not built, or switched off.
        OSError: The kernel refuses io_uring.
    """
    from vespiary_native.ring import open_ring

    ring, _ = open_ring("IO_URING", depth, strict=True)
    return ring


def run(
    directory: str,
    *,
    open_ring: OpenRing = open_native_ring,
    open_uring: OpenRing | None = None,
    flush_samples: int = FLUSH_SAMPLES,
    flush_budget_s: float = FLUSH_BUDGET_S,
    aio_depth: int = 1,
    aio_timeout_s: float = AIO_TIMEOUT_S,
) -> Probe:
    """Try direct writes, AIO and flushes in a temporary file of the volume.

    Args:
        directory: The volume's folder.
        open_ring: Opens the AIO ring.
        open_uring: Opens the io_uring ring; None does not try it.
        flush_samples: Durable writes to time, 0 or more.
        flush_budget_s: Seconds after which no further sample is taken.
        aio_depth: Operations in flight to reserve for the trial, 1 or more: the broker's real
            demand proves that it can be had.
        aio_timeout_s: Seconds to wait for the one write of each ring.

    Returns:
        What works, and why what does not work doesn't.

    Raises:
        OSError: The file can't be made, filled or flushed: read-only, no permission, full, quota,
            or an error of the device. EIO also when other bytes come back than were written,
            since a disk that does that is no place for a journal. Nothing is left behind.

    Durability: every sample was flushed to the device when it was timed; the file itself is
        temporary.
    """
    descriptor, direct = _open(directory)
    # Page-aligned, as O_DIRECT wants it. Left to the garbage collector: closing it while a failed
    # write's traceback still holds a view of it would hide that failure behind a BufferError.
    buffer = mmap.mmap(-1, PROBE_BYTES)
    try:
        # Filled through the same descriptor: a full disk shows here, not later in a flush.
        _write_all(descriptor, memoryview(buffer), 0)
        os.fsync(descriptor)
        if direct.works:
            direct = _try_direct(descriptor, buffer)
        aio = uring = Capability(False, "it needs O_DIRECT, which does not work here")
        if direct.works:
            asked = _RingTrial("AIO", "io_submit", _AIO_BLOCK, aio_depth, aio_timeout_s)
            aio = _try_ring(descriptor, buffer, open_ring, asked)
        if open_uring is None:
            uring = Capability(None, "io_uring was not asked for")
        elif direct.works:
            asked = _RingTrial("io_uring", "io_uring_enter", _URING_BLOCK, aio_depth, aio_timeout_s)
            uring = _try_ring(descriptor, buffer, open_uring, asked)
        samples, method = _time_flushes(
            descriptor, buffer, flush_samples, flush_budget_s, is_direct=bool(direct.works)
        )
    finally:
        os.close(descriptor)
    return Probe(
        direct=direct,
        aio=aio,
        uring=uring,
        flush_us=tuple(sorted(samples)),
        flush_method=method,
    )


def _open(directory: str) -> tuple[int, Capability]:
    path = os.path.join(directory, PROBE_PREFIX + secrets.token_hex(8))  # noqa: PTH118
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    direct = Capability(True)
    try:
        descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        # Filesystems without O_DIRECT may make the file and then fail; the name is ours alone.
        _unlink(path)
        direct = Capability(False, f"open with O_DIRECT: {os.strerror(error.errno)}")
        descriptor = os.open(path, flags, 0o600)
    try:
        _unlink(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, direct


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def _pattern(block: int) -> bytes:
    return secrets.token_bytes(16) * (BLOCK_BYTES // 16 - 1) + block.to_bytes(16, "little")


def _compare(descriptor: int, buffer: mmap.mmap, block: int, expected: bytes, how: str) -> None:
    """Read a block back; other bytes than were written are an error of the device."""
    view = memoryview(buffer)[:BLOCK_BYTES]
    # Not what is still in memory by chance: the buffer is overwritten before it is read into.
    view[:] = bytes(BLOCK_BYTES)
    read = os.preadv(descriptor, [view], block * BLOCK_BYTES)
    if read != BLOCK_BYTES or view != expected:
        raise OSError(errno.EIO, f"other bytes were read back than were written with {how}")


def _try_direct(descriptor: int, buffer: mmap.mmap) -> Capability:
    expected = _pattern(_DIRECT_BLOCK)
    buffer[:BLOCK_BYTES] = expected
    try:
        _write_all(descriptor, memoryview(buffer)[:BLOCK_BYTES], _DIRECT_BLOCK * BLOCK_BYTES)
        _compare(descriptor, buffer, _DIRECT_BLOCK, expected, "O_DIRECT")
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return Capability(False, f"aligned 4 KiB O_DIRECT write: {os.strerror(error.errno)}")
    return Capability(True)


class _RingTrial(NamedTuple):
    """How one ring is tried: its name, the call that submits, and which block it writes."""

    name: str
    call: str
    block: int
    depth: int
    timeout_s: float


def _try_ring(
    descriptor: int, buffer: mmap.mmap, open_ring: OpenRing, asked: _RingTrial
) -> Capability:
    try:
        ring = open_ring(asked.depth)
    except (ImportError, OSError) as error:
        return Capability(False, _words(error))
    expected = _pattern(asked.block)
    buffer[:BLOCK_BYTES] = expected
    token = 1
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    offset = asked.block * BLOCK_BYTES
    try:
        ring.submit_write(descriptor, address, BLOCK_BYTES, offset, token, durable=True)
        reason = _await(ring, token, asked)
    except OSError as error:
        reason = f"{asked.call}: {_words(error)}"
    finally:
        # Waits for a write still under way, so that its memory is not taken away from under it.
        ring.close()
    if reason:
        return Capability(False, reason)
    _compare(descriptor, buffer, asked.block, expected, asked.name)
    return Capability(True)


def _await(ring: Ring, token: int, asked: _RingTrial) -> str:
    deadline = time.monotonic() + asked.timeout_s
    poller = select.poll()
    poller.register(ring.fileno(), select.POLLIN)
    while (left_s := deadline - time.monotonic()) > 0:
        poller.poll(left_s * 1000)
        for done, result in ring.completions():
            if done != token:
                continue
            if result < 0:
                return f"{asked.name} write: {os.strerror(-result)}"
            if result == BLOCK_BYTES:
                return ""
            return f"{asked.name} wrote {result} of {BLOCK_BYTES} bytes"
    return f"{asked.name} write: no completion within {asked.timeout_s:g} s"


def _words(error: Exception) -> str:
    if isinstance(error, VespiaryError):
        return f"{error.what}; {error.cure}" if error.cure else error.what
    number = getattr(error, "errno", None)
    name = errno.errorcode.get(number, "") if isinstance(number, int) else ""
    text = str(error) or type(error).__name__
    return text if not name or name in text else f"{text} ({name})"


def _time_flushes(
    descriptor: int, buffer: mmap.mmap, samples: int, budget_s: float, *, is_direct: bool
) -> tuple[list[int], str]:
    view = memoryview(buffer)[:BLOCK_BYTES]
    deadline_ns = time.perf_counter_ns() + int(budget_s * 1e9)
    flags = os.RWF_DSYNC
    taken: list[int] = []
    while len(taken) < samples:
        view[:16] = secrets.token_bytes(16)
        block = len(taken) % PROBE_BLOCKS
        before_ns = time.perf_counter_ns()
        try:
            os.pwritev(descriptor, [view], block * BLOCK_BYTES, flags)
            if not flags:
                os.fdatasync(descriptor)
        except OSError as error:
            if not flags or error.errno not in _UNSUPPORTED:
                raise
            flags = 0
            continue
        after_ns = time.perf_counter_ns()
        taken.append((after_ns - before_ns) // 1000)
        if after_ns >= deadline_ns:
            break
    method = "RWF_DSYNC" if flags else "fdatasync"
    return taken, f"O_DIRECT+{method}" if is_direct else method
