"""The raw price of durability: 4 KiB writes of class D2 on a file of our own, one at a time.

Owns: one zero-filled file, removed at the end. Must never: write to a device or to a file that it
did not make. Called by `benchmarks.measurement`, next to the runs that it is compared with.
"""

import errno
import mmap
import os
import time
from pathlib import Path

import msgspec

_BLOCK_BYTES = 4096
_FILE_BYTES = 8 << 20


class DiskLatency(msgspec.Struct, frozen=True):
    """Latency of one 4 KiB write that is durable when it returns, in microseconds."""

    count: int
    p50_us: float
    p99_us: float
    max_us: float
    method: str


class DiskError(Exception):
    """The folder's filesystem can't write past the page cache."""


def _zero_filled(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for _ in range(_FILE_BYTES // (1 << 20)):
            os.write(descriptor, bytes(1 << 20))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def raw_write_latency(folder: Path, seconds: float = 1.0) -> DiskLatency:
    """Time O_DIRECT | O_DSYNC writes over an already allocated file for so many seconds.

    Args:
        folder: Where the store lies; the file is made and removed there.
        seconds: Length of the measurement, of which the first tenth is dropped.

    Raises:
        DiskError: The filesystem refuses O_DIRECT, as tmpfs may.

    Durability: each write is on the device, cache flushed or FUA, when it is counted.
    """
    path = folder / f"raw-write-{os.getpid()}.bin"
    block = mmap.mmap(-1, _BLOCK_BYTES)  # page aligned, as O_DIRECT demands
    block.write(b"\x5a" * _BLOCK_BYTES)
    samples: list[int] = []
    _zero_filled(path)
    try:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise DiskError(f"{folder}: its filesystem refuses O_DIRECT; choose another") from error
        try:
            end = time.perf_counter_ns() + int(seconds * 1e9)
            offset = 0
            while (begin := time.perf_counter_ns()) < end:
                os.pwrite(descriptor, block, offset)
                samples.append(time.perf_counter_ns() - begin)
                offset = (offset + _BLOCK_BYTES) % _FILE_BYTES
        finally:
            os.close(descriptor)
    finally:
        path.unlink()
        block.close()
    kept = sorted(samples[len(samples) // 10 :])
    return DiskLatency(
        count=len(kept),
        p50_us=kept[len(kept) // 2] / 1e3,
        p99_us=kept[len(kept) * 99 // 100] / 1e3,
        max_us=kept[-1] / 1e3,
        method="pwrite of 4096 bytes, O_DIRECT|O_DSYNC, zero-filled file of 8 MiB, one in flight",
    )
