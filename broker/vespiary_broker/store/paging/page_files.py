"""Page files: written whole and flushed before they get their name, read back, removed.

Owns every call on a page file but the reads of its blocks, which go through the journal's ring.
Must never give a page its name before all of it is flushed, and never write to one that has a name.
All calls block; made from paging's thread by `pager` and by `page_recovery`.

A page that could not be written leaves nothing: its messages are still in the journal.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from vespiary_broker.store.disk import DiskFile, DiskLike
from vespiary_broker.store.files import NO_LIMITS, SpaceLimits
from vespiary_broker.store.paging.folders import PageFolders, page_name, unfinished_name
from vespiary_broker.store.paging.sketches import PageSketches
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.page import (
    ADDRESS_BYTES_MAX,
    ALIGNMENT,
    HEADER_BYTES,
    SKETCH_FORMAT_VERSION,
    TRAILER_BYTES,
    PageHeader,
    PageTrailer,
    check_footer,
    decode_page_header,
    decode_trailer,
    encode_page_header,
    highest_priority,
)
from vespiary_codec.journal.page_sketch import sketch_room
from vespiary_native.memory import AlignedBuffer
from vespiary_native.page_arrange import ArrangedPage, page_arrange
from vespiary_native.page_sketch import PageMemory, page_sketch
from vespiary_spec.errors import DiskFull, ForeignJournal, NativeError, PageDamaged, VespiaryError

WRITE_BYTES_MAX: Final = 1024 * 1024
"""One write to the disk: the journal's writes, which others wait for, get their turn between."""

CURE: Final = (
    "keep a copy of the paging folder and the journal, then restore the file from a backup of the"
    " same moment; `vespiary page verify` lists all that is wrong"
)
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL: Final = "the disk for pages is full"

log = logging.getLogger(__name__)


class PagePart(NamedTuple):
    """A part of a page as it stands in memory, both multiples of 4096."""

    data: memoryview
    offset: int


@dataclass(frozen=True, slots=True)
class PageFile:
    """A page that has its name.

    Attributes:
        page_id: The page.
        salt: The seed of its checksums.
        address: Its address.
        size_bytes: Size of the file.
        highest_priority: Of its messages; None: not known.
    """

    page_id: int
    salt: int
    address: str
    size_bytes: int
    highest_priority: int | None = field(default=None, compare=False)


class PageFiles:
    """The files of pages. Owner: paging's thread; `path` may be called anywhere.

    They are flushed in class D1 as well: nobody waits for it.

    Args:
        folders: Where they lie.
        disk: The file system.
        journal_id: 16 bytes: the journal that names the pages.
        is_direct: Open with O_DIRECT.
        limits: When the disk counts as full.

    Attributes:
        sketches: What the headers of pages say that were written or looked at.
    """

    def __init__(
        self,
        folders: PageFolders,
        disk: DiskLike,
        *,
        journal_id: bytes,
        is_direct: bool = True,
        limits: SpaceLimits = NO_LIMITS,
    ) -> None:
        self.folders = folders
        self.disk = disk
        self.journal_id = journal_id
        self.sketches = PageSketches()
        self._is_direct = is_direct
        self._limits = limits

    def path(self, address: str, page_id: int) -> Path:
        """Return where a page lies."""
        return self.folders.path(address) / page_name(page_id)

    # --- writing ----------------------------------------------------------------------------------

    def write(
        self, address: str, page_id: int, salt: int, created_ms: int, parts: Sequence[PagePart]
    ) -> PageFile:
        """Write a page, flush it, and give it its name; messages of high priority come first.

        Args:
            address: Its address.
            page_id: Never used before.
            salt: The seed of its checksums.
            created_ms: Milliseconds since 1970.
            parts: All of the file behind the header, in order, without gaps.

        Raises:
            DiskFull: There is no room for it; nothing is left of it.
            NativeError: A call failed; nothing is left of it, or what is goes at the next start.

        Durability: on return the page and its name survive a power cut; only now may a record of
            the journal name it.
        """
        self._check_space()
        arranged = _by_priority(page_id, salt, parts)
        header = PageHeader(
            page_id=page_id,
            salt=salt,
            journal_id=self.journal_id,
            address=address,
            created_ms=created_ms,
            sketch=_sketch_of(page_id, address, parts if arranged is None else arranged.sketched),
        )
        path = self.path(address, page_id)
        unfinished = path.with_name(unfinished_name(page_id))
        try:
            folder = self.folders.make(address)
            pieces = parts if arranged is None else arranged.pieces()
            size_bytes = self._write(unfinished, encode_page_header(header), pieces)
            self.disk.rename(unfinished, path)
            self.disk.flush_folder(folder)
        except BaseException as error:
            # Whatever it was, memory too: each try would leave another file.
            self._throw_away(unfinished, path)
            self.folders.forget(address)
            if isinstance(error, NativeError) and error.errno in _NO_SPACE:
                raise DiskFull(
                    _FULL, where=str(path), cure="enlarge the volume, or consume messages"
                ) from error
            raise
        self.sketches.note(page_id, header.sketch)
        highest = highest_priority(parts[-1].data)
        return PageFile(page_id, salt, address, size_bytes, highest)

    def _write(self, path: Path, header: bytes, parts: Iterable[PageMemory]) -> int:
        """Write and flush all of a file; return its size."""
        file = self.disk.create(path, is_direct=self._is_direct)
        try:
            first = AlignedBuffer(HEADER_BYTES)
            first.memoryview[:] = header
            file.write(first.memoryview, 0)
            end = HEADER_BYTES
            for part in parts:
                assert part.offset == end, (part.offset, end)
                for at in range(0, len(part.data), WRITE_BYTES_MAX):
                    data = part.data[at : at + WRITE_BYTES_MAX]
                    file.write(data, end)
                    end += len(data)
            file.flush()
        except BaseException:
            self._close_failed(file)
            raise
        file.close()
        return end

    @staticmethod
    def _close_failed(file: DiskFile) -> None:
        """Close a file that is given up: what failed before is what counts."""
        try:
            file.close()
        except NativeError as error:
            log.warning("a page that could not be written was not closed reason=%r", str(error))

    def _throw_away(self, *paths: Path) -> None:
        for path in paths:
            error = self.folders.remove_quietly(path)
            if error is not None and error.errno != errno.ENOENT:
                log.warning("a page that could not be written stays reason=%r", str(error))

    def _check_space(self) -> None:
        if self._limits == NO_LIMITS:
            return
        usage = self.disk.usage(self.folders.directory)
        limits = self._limits
        if limits.min_free_bytes >= 0:
            is_full = usage.free < limits.min_free_bytes
            measured = f"{usage.free} bytes free"
            allowed = f"at least {limits.min_free_bytes} (min-disk-free)"
        else:
            used_percent = 100 * (usage.total - usage.free) / max(usage.total, 1)
            is_full = limits.max_usage_percent < 100 and used_percent > limits.max_usage_percent
            measured = f"{used_percent:.0f} % used"
            allowed = f"at most {limits.max_usage_percent} % (max-disk-usage)"
        if is_full:
            raise DiskFull(
                _FULL,
                where=str(self.folders.directory),
                measured=measured,
                allowed=allowed,
                cure="enlarge the volume, or consume messages",
            )

    # --- reading ----------------------------------------------------------------------------------

    def open(self, page: PageFile) -> DiskFile:
        """Open a page for reading, for a ring.

        Raises:
            PageDamaged: The file is missing.
            NativeError: It cannot be opened now.
        """
        return self._open(self.path(page.address, page.page_id))

    def _open(self, path: Path) -> DiskFile:
        try:
            return self.disk.open(path, is_direct=self._is_direct, is_readonly=True)
        except NativeError as error:
            if error.errno == errno.ENOENT:
                raise PageDamaged("a page is missing", where=str(path), cure=CURE) from error
            raise

    def read_footer(self, page: PageFile) -> bytes:
        """Return the index and the trailer of a page, after a look at their checksums.

        Raises:
            PageDamaged: The file is missing, or its footer is not what was written.
            NativeError: A read failed.
        """
        path = self.path(page.address, page.page_id)
        file = self._open(path)
        try:
            trailer = self._read_trailer(file, path, page.page_id, page.salt)
            at = trailer.footer_offset
            footer = self._read(file, path, at, trailer.size_bytes - at)
        finally:
            file.close()
        try:
            check_footer(footer, page_id=page.page_id, salt=page.salt)
        except JournalFormatError as error:
            raise _damaged(path, error) from error
        return footer

    def read_sketch(self, page: PageFile) -> None:
        """Have the sketch of a page among those that are kept.

        Raises:
            PageDamaged: Its header is damaged, or the file is missing.
            ForeignJournal: It is a newer format.
            NativeError: A read failed.
        """
        header = self.read_header(self.path(page.address, page.page_id))
        self.sketches.note(page.page_id, header.sketch)

    def read_header(self, path: Path) -> PageHeader:
        """Return what the header of a page says.

        Raises:
            PageDamaged: It is damaged, or missing.
            ForeignJournal: It is a newer format.
            NativeError: A read failed.
        """
        file = self._open(path)
        try:
            return self._read_header(file, path)
        finally:
            file.close()

    def look(self, path: Path, page_id: int, salt: int) -> PageFile:
        """Look at the two ends of a page that the journal names.

        Args:
            path: The file.
            page_id: Which page it must be.
            salt: The salt that the journal says.

        Raises:
            PageDamaged: It is missing, cut off, or not what was written.
            ForeignJournal: It is of another journal, or of a newer format.
            NativeError: A read failed.
        """
        file = self._open(path)
        try:
            header = self._read_header(file, path)
            if header.journal_id != self.journal_id:
                raise self.foreign(path, header)
            if (header.page_id, header.salt) != (page_id, salt):
                raise PageDamaged(
                    "a page is not the one that the journal names",
                    where=f"{path}:32",
                    measured=f"page {header.page_id}, salt {header.salt:#018x}",
                    allowed=f"page {page_id}, salt {salt:#018x}",
                    cure=CURE,
                )
            trailer = self._read_trailer(file, path, page_id, salt)
        finally:
            file.close()
        self.sketches.note(page_id, header.sketch)
        return PageFile(page_id, salt, header.address, trailer.size_bytes)

    def foreign(self, path: Path, header: PageHeader) -> ForeignJournal:
        """Return the error for a page that another journal has written."""
        return ForeignJournal(
            "the paging folder holds a page of another journal",
            where=f"{path}:16",
            measured=f"journal {header.journal_id.hex()}",
            allowed=f"journal {self.journal_id.hex()}",
            cure="restore the journal that the pages belong to, or move the paging folder's content"
            " elsewhere if its messages are not needed",
        )

    def _read_header(self, file: DiskFile, path: Path) -> PageHeader:
        data = self._read(file, path, 0, HEADER_BYTES)
        try:
            return decode_page_header(data)
        except JournalFormatError as error:
            if error.what.startswith("bad format version"):
                raise ForeignJournal(
                    "a page has another format version",
                    where=f"{path}:{error.offset}",
                    measured=error.found,
                    allowed=f"at most {SKETCH_FORMAT_VERSION}",
                    cure="start the version of the broker that wrote it",
                ) from error
            raise _damaged(path, error) from error

    def _read_trailer(self, file: DiskFile, path: Path, page_id: int, salt: int) -> PageTrailer:
        size_bytes = file.size_bytes()
        if size_bytes % ALIGNMENT or size_bytes < 2 * ALIGNMENT:
            raise PageDamaged(
                "a page is cut off",
                where=f"{path}:{size_bytes}",
                measured=f"{size_bytes} bytes",
                allowed=f"a multiple of {ALIGNMENT}",
                cure=CURE,
            )
        end = self._read(file, path, size_bytes - ALIGNMENT, ALIGNMENT)
        try:
            return decode_trailer(
                end[-TRAILER_BYTES:], page_id=page_id, salt=salt, size_bytes=size_bytes
            )
        except JournalFormatError as error:
            raise _damaged(path, error) from error

    @staticmethod
    def _read(file: DiskFile, path: Path, offset: int, size_bytes: int) -> bytes:
        # Not closed by hand: an error of the read would still hold a view of it.
        buffer = AlignedBuffer(size_bytes)
        count = file.read_into(buffer.memoryview, offset)
        if count < size_bytes:
            raise PageDamaged(
                "a page is cut off",
                where=f"{path}:{offset + count}",
                measured=f"{offset + count} bytes",
                allowed=f"at least {offset + size_bytes}",
                cure=CURE,
            )
        return bytes(buffer.memoryview)

    # --- removing ---------------------------------------------------------------------------------

    def remove(self, address: str, page_ids: Sequence[int]) -> list[VespiaryError]:
        """Remove pages of an address that no record names any more.

        Returns:
            What failed; such files go at the next start.

        Durability: none: a page that comes back after a power cut is found and removed.
        """
        failed: list[VespiaryError] = []
        for page_id in page_ids:
            self.sketches.forget(page_id)
            error = self.folders.remove_quietly(self.path(address, page_id))
            if error is not None and error.errno != errno.ENOENT:
                failed.append(error)
        return failed


def _by_priority(page_id: int, salt: int, parts: Sequence[PagePart]) -> ArrangedPage | None:
    """Return a page in order of priority; None: as it is, at the cost of more reading."""
    try:
        return page_arrange(parts, salt)
    except (ValueError, MemoryError, OSError) as error:
        log.warning("a page is in no order page=%d reason=%r", page_id, str(error))
        return None


def _sketch_of(page_id: int, address: str, parts: Sequence[PageMemory]) -> bytes:
    """Return the sketch of a page; empty: it gets none, and is read by whoever looks."""
    try:
        return page_sketch(parts, sketch_room(len(address.encode()), ADDRESS_BYTES_MAX))
    except (ValueError, MemoryError) as error:
        log.warning("a page has no sketch page=%d reason=%r", page_id, str(error))
        return b""


def _damaged(path: Path, error: JournalFormatError) -> PageDamaged:
    return PageDamaged(
        f"a page is damaged: {error.what}",
        where=f"{path}:{error.offset}",
        measured=error.found,
        allowed=str(error.expected),
        cure=CURE,
    )
