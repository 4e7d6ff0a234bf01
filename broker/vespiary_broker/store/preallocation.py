"""Giving journal files their size before they are used, by the strategy that was asked for.

Owns: the four strategies, the template of `os-kernel-copy`, and the fallback when the filesystem
refuses one. Must never name a finished file or flush it into use: `files` writes the header and
flushes what is made here. Called by `files`, in the worker thread.

Whatever the strategy, a reader sees a file of full length that reads as zeros. What differs is who
pays for the blocks: with `zeros`, `chunked-zeros` and `os-kernel-copy` they are written here, so
that a durable write later costs one write and one flush; with `sparse-file` each write allocates.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from vespiary_broker.store.disk import DiskFile, DiskLike
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import NativeError
from vespiary_spec.settings import PreallocationStrategy

logger = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
WRITE_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of one write of `zeros`. The memory is never touched, so it takes none: the kernel
writes its one page of zeros over and over. With its huge one a file of 10 MiB costs 5 page faults
and not 2560, a seventh of the system time and two thirds of the time."""

FALLBACK = PreallocationStrategy.CHUNKED_ZEROS
_REFUSED = frozenset(
    {
        errno.EINVAL,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
        errno.EXDEV,
        errno.ENOMEM,
        errno.EPERM,
        errno.EACCES,
        errno.ENOENT,
    }
)
"""What says that this way does not work here, rather than that the disk is full or broken."""


class Preallocator:
    """Fills new files. Owner: the journal's worker thread.

    Attributes:
        strategy: The one in use: the one asked for, or `FALLBACK` once that was refused.
        fallbacks: Files that were made by another strategy than the one asked for.
    """

    def __init__(
        self,
        template: Path,
        disk: DiskLike,
        strategy: PreallocationStrategy,
        *,
        is_direct: bool,
    ) -> None:
        """Prepare; nothing is written yet.

        Args:
            template: Where `os-kernel-copy` keeps its file of zeros; must be no journal file's
                name.
            disk: The file system.
            strategy: As asked for.
            is_direct: Open with O_DIRECT.
        """
        self._template = template
        self._disk = disk
        self._asked = strategy
        self._is_direct = is_direct
        self.strategy = strategy
        self.fallbacks = 0

    def make(self, path: Path, size_bytes: int) -> DiskFile:
        """Make a file of that size that reads as zeros, and return it open for writing.

        Args:
            path: A name that is not taken.
            size_bytes: A multiple of 4096.

        Raises:
            NativeError: The disk is full, or a call failed that no other strategy could do
                without. What was made stays under that name.

        Durability: none before the caller flushes the file.
        """
        try:
            handle = self._make(path, size_bytes)
        except NativeError as error:
            if error.errno not in _REFUSED or self.strategy is FALLBACK:
                raise
            logger.warning(
                "journal-preallocation-strategy %s does not work here, %s is used: %s",
                self.strategy,
                FALLBACK,
                error,
            )
            self.strategy = FALLBACK
            handle = self._make(path, size_bytes)
        self.fallbacks += self.strategy is not self._asked
        return handle

    def _make(self, path: Path, size_bytes: int) -> DiskFile:
        if self.strategy is PreallocationStrategy.OS_KERNEL_COPY:
            return self._copy(path, size_bytes)
        handle = self._disk.create(path, is_direct=self._is_direct)
        try:
            self.extend(handle, 0, size_bytes)
        except NativeError:
            handle.close()
            raise
        return handle

    def extend(self, handle: DiskFile, start: int, size_bytes: int) -> None:
        """Give a file its full size from `start` on: for new files, and for those that grew.

        Args:
            handle: Open for writing.
            start: Its size now, a multiple of 4096.
            size_bytes: Its size to be, a multiple of 4096.

        Raises:
            NativeError: A call failed.

        Durability: none before the caller flushes the file.
        """
        if self.strategy is PreallocationStrategy.SPARSE_FILE:
            handle.set_size(size_bytes)
            return
        is_whole = self.strategy is PreallocationStrategy.ZEROS
        step = min(WRITE_BYTES_MAX if is_whole else CHUNK_BYTES, size_bytes - start)
        if step <= 0:
            return
        zeros = AlignedBuffer(step, huge_pages=True).memoryview
        for offset in range(start, size_bytes, step):
            handle.write(zeros[: size_bytes - offset], offset)

    def _copy(self, path: Path, size_bytes: int) -> DiskFile:
        """Have the kernel copy the template, which is made when it is not there or too short."""
        if not self._is_template_good(size_bytes):
            template = self._disk.create(self._template, is_direct=self._is_direct)
            try:
                zeros = AlignedBuffer(min(CHUNK_BYTES, size_bytes)).memoryview
                for offset in range(0, size_bytes, len(zeros)):
                    template.write(zeros[: size_bytes - offset], offset)
                template.flush()
            finally:
                template.close()
        self._disk.create(path, is_direct=False).close()
        self._disk.copy_file(self._template, path, size_bytes)
        return self._disk.open(path, is_direct=self._is_direct, is_readonly=False)

    def _is_template_good(self, size_bytes: int) -> bool:
        """Whether the template is there in full; what it holds is nobody's data."""
        if self._template.name not in self._disk.names(self._template.parent):
            return False
        handle = self._disk.open(self._template, is_direct=self._is_direct, is_readonly=True)
        try:
            return handle.size_bytes() >= size_bytes
        finally:
            handle.close()
