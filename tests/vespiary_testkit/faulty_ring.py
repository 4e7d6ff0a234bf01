"""Rings that fail on purpose, and one over a `MemoryDisk`.

`MemoryRing` keeps `vespiary_native.abc_ring.Ring` over the files of a `MemoryDisk`: a write reaches
the file when it is submitted, and is durable when its completion is taken. `FaultyRing` stands
before any ring and makes up the result of the k-th write.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any

from vespiary_native.abc_ring import Ring
from vespiary_spec.errors import NativeError
from vespiary_testkit.faulty_disk import MemoryDisk, Op


class MemoryRing:
    """A ring over a `MemoryDisk`; requests finish when `completions` is called.

    Args:
        disk: The files that its descriptors belong to.
        is_forgetful: Every write is made without its flush, whatever was asked for: the mutation
            that the crash tests have to find.
    """

    name = "MEMORY"
    depth = 64

    def __init__(self, disk: MemoryDisk, *, is_forgetful: bool = False) -> None:
        self.disk = disk
        self.is_forgetful = is_forgetful
        self.held = False
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waiting: list[tuple[int, int, int, bool]] = []  # token, result, write, durable
        self._writes = 0

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    def fileno(self) -> int:
        return self._fd

    def submit_write(
        self,
        fd: int,
        buffer_address: int,
        length: int,
        offset: int,
        token: int,
        *,
        durable: bool = True,
    ) -> None:
        self._writes += 1
        data = ctypes.string_at(buffer_address, length)
        self.disk.store(self.disk.open_files[fd].inode, offset, data, token=self._writes)
        self._finish(token, length, self._writes, durable and not self.is_forgetful)

    def submit_read(
        self, fd: int, buffer_address: int, length: int, offset: int, token: int
    ) -> None:
        memory = (ctypes.c_char * length).from_address(buffer_address)
        count = self.disk.open_files[fd].read_into(memoryview(memory).cast("B"), offset)
        self._finish(token, count, 0, False)

    def submit_write_buffer(self, *_args: Any, **_names: Any) -> None:
        raise NotImplementedError

    def submit_sync(self, fd: int, token: int) -> None:
        raise NotImplementedError

    def _finish(self, token: int, result: int, write: int, is_durable: bool) -> None:
        self._waiting.append((token, result, write, is_durable))
        if not self.held:
            os.eventfd_write(self._fd, 1)

    def hold(self) -> None:
        """Finish nothing until `release`."""
        self.held = True

    def release(self) -> None:
        """Finish what was held."""
        self.held = False
        os.eventfd_write(self._fd, 1)

    def completions(self) -> list[tuple[int, int]]:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return []
        taken, self._waiting = self._waiting, []
        for _, _, write, is_durable in taken:
            if is_durable:
                self.disk.log.append(Op("done", token=write))
        return [(token, result) for token, result, _, _ in taken]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FaultyRing:
    """A ring whose k-th write ends badly.

    Args:
        inner: The ring that does the work.
        fail_at: Number of the write, from 1.
        result: What its completion says: -errno, or bytes fewer than asked for (as a function of
        the
            length); None lets it succeed.
        failures: How many writes from that one on end so.
        refusal: errno with which the k-th `submit_write` itself is refused, 0 not at all.
        refusals: How often it is.
        drops_flush: Make every write without its flush.
    """

    def __init__(
        self,
        inner: Ring,
        *,
        fail_at: int = 0,
        result: Callable[[int], int] | None = None,
        failures: int = 1,
        refusal: int = 0,
        refusals: int = 1,
        drops_flush: bool = False,
    ) -> None:
        self.inner = inner
        self.fail_at = fail_at
        self.result = result
        self.failures = failures
        self.refusal = refusal
        self.refusals = refusals
        self.drops_flush = drops_flush
        self.writes = 0
        self.durable_flags: list[bool] = []
        self._made_up: dict[int, int] = {}

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def depth(self) -> int:
        return self.inner.depth

    @property
    def outstanding(self) -> int:
        return self.inner.outstanding

    def fileno(self) -> int:
        return self.inner.fileno()

    def submit_write(
        self,
        fd: int,
        buffer_address: int,
        length: int,
        offset: int,
        token: int,
        *,
        durable: bool = True,
    ) -> None:
        if self.refusal and self.writes + 1 == self.fail_at and self.refusals:
            self.refusals -= 1
            raise NativeError("the ring refused a request", self.refusal)
        self.writes += 1
        self.durable_flags.append(durable)
        is_failing = self.fail_at <= self.writes < self.fail_at + self.failures
        if is_failing and self.result is not None:
            self._made_up[token] = self.result(length)
        self.inner.submit_write(
            fd, buffer_address, length, offset, token, durable=durable and not self.drops_flush
        )

    def submit_read(
        self, fd: int, buffer_address: int, length: int, offset: int, token: int
    ) -> None:
        self.inner.submit_read(fd, buffer_address, length, offset, token)

    def submit_write_buffer(self, *args: Any, **names: Any) -> None:
        self.inner.submit_write_buffer(*args, **names)

    def submit_sync(self, fd: int, token: int) -> None:
        self.inner.submit_sync(fd, token)

    def completions(self) -> list[tuple[int, int]]:
        return [
            (token, self._made_up.pop(token, result)) for token, result in self.inner.completions()
        ]

    def close(self) -> None:
        self.inner.close()


ERRNOS = (
    errno.EIO,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EINVAL,
    errno.EINTR,
    errno.EROFS,
    errno.EBADF,
)
"""What a write may end with."""
