"""The folder of kept copies: which there are, making one, and which may go.

Owns: the names of copies, their making (temporary name, read back, flushed, renamed, folder
flushed) and the removal of those that are too old or too many, together with the kept bodies. Must
never touch a file of the journal but to read it, and never count a copy that was not read back
whole. All of it blocks; called by `retention` in its thread, and by the replay, which only reads.

A copy is the journal file byte for byte, named `activemq-data-YYYYMMDDhhmmss-ID.hq`: the time (UTC)
of its last block and the file's id.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path

from vespiary_broker.store.disk import DiskFile, DiskLike
from vespiary_broker.store.files import MESSAGE_FORM, StoredFile
from vespiary_broker.store.options import RetentionOptions
from vespiary_broker.store.retained import Copy, choose_expired, parse_time, time_text
from vespiary_broker.store.retention_bodies import KeptBodies
from vespiary_broker.store.survey import BlockReader
from vespiary_codec.journal.block import FIRST_OFFSET
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_forms import copy_parts
from vespiary_codec.journal.file_header import HEADER_BYTES, FileHeader, decode_file_header
from vespiary_native.abc import BlockFacts, BlockVerifier
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import CorruptRecord, NativeError, VespiaryError

logger = logging.getLogger(__name__)

_PRUNE_PERIODS_S = (60.0, 1.0)
_UNFINISHED = ".tmp"
_COPY_BYTES = 1024 * 1024


def copy_name(time_ms: int, file_id: int) -> str:
    """Return the name of a copy."""
    return f"{MESSAGE_FORM.prefix}-{time_text(time_ms)}-{file_id}.{MESSAGE_FORM.extension}"


def parse_name(name: str) -> tuple[int, int] | None:
    """Return time in milliseconds and file id of a copy's name; None if it is no such name."""
    parts = copy_parts(name)
    time_ms = None if parts is None else parse_time(parts[0])
    return None if parts is None or time_ms is None else (time_ms, parts[1])


def read_header(handle: DiskFile) -> FileHeader | None:
    """Return the header of a file; None if it has none.

    Raises:
        JournalFormatError: It is damaged, or of a newer version.
        NativeError: It can't be read.
    """
    buffer = AlignedBuffer(HEADER_BYTES).memoryview
    count = handle.read_into(buffer, 0)
    return decode_file_header(bytes(buffer[:count]))


class RetentionFolder:
    """Copies of one journal's files, and of its large bodies. Owner: the retention's thread.

    Args:
        options: Where and how long.
        disk: The file system.
        verify: The walk over valid blocks.
        is_direct: The journal's files are read with O_DIRECT; copies never are, since their
            folder may lie on any file system.
        clock_ms: Milliseconds since 1970.

    Attributes:
        copies: Copies of files.
        bodies: Copies of bodies.
    """

    def __init__(
        self,
        options: RetentionOptions,
        disk: DiskLike,
        verify: BlockVerifier,
        *,
        is_direct: bool,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._options = options
        self._disk = disk
        self._verify = verify
        self._is_direct = is_direct
        self._clock_ms = clock_ms
        self.copies: list[Copy] = []
        self.bodies = KeptBodies(options.directory, disk, clock_ms)

    def survey(self, journal_id: bytes) -> set[int]:
        """Find the copies and remove what a crash left half made; make the folder if need be.

        A copy whose header is damaged is put aside under `NAME.damaged`.

        Args:
            journal_id: The journal's.

        Returns:
            Ids of this journal's files that have a copy.

        Raises:
            NativeError: The folder can't be made or read.
        """
        folder = self._options.directory
        self._disk.make_folder(folder)
        found: set[int] = set()
        self.copies = []
        for name in self._disk.names(folder):
            path = folder / name
            if name.endswith(_UNFINISHED) and parse_name(name.removesuffix(_UNFINISHED)):
                self._disk.remove(path)
                continue
            parsed = parse_name(name)
            if parsed is None:
                continue
            header = self._header_of(path)
            if header is None:
                logger.error("a kept copy is damaged and is put aside: %s", path)
                self._disk.rename(path, path.with_name(name + ".damaged"))
                continue
            self.copies.append(Copy(*parsed, header.size_bytes, path))
            if header.journal_id == journal_id:
                found.add(header.file_id)
        self._disk.flush_folder(folder)
        self.bodies.survey()
        return found

    def _remove(self, path: Path) -> None:
        try:
            self._disk.remove(path)
        except NativeError as error:
            if error.errno != errno.ENOENT:
                raise

    def _header_of(self, path: Path) -> FileHeader | None:
        handle = self._disk.open(path, is_direct=False, is_readonly=True)
        try:
            return read_header(handle)
        except JournalFormatError:
            return None
        finally:
            handle.close()

    def copy(self, file: StoredFile) -> Copy | None:
        """Make the copy of a sealed file; None if it would be too old to be kept.

        Raises:
            CorruptRecord: The file, or what was read back of the copy, is not whole.
            NativeError: A call failed.

        Durability: on return the copy survives a power cut.
        """
        last, _ = self._walk(file.path, file, is_direct=self._is_direct)
        period_ms = self._options.period_ms
        if period_ms is not None and self._clock_ms() - last.time_ms > period_ms:
            return None
        path = self._options.directory / copy_name(last.time_ms, file.file_id)
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            self._write(file, unfinished)
            found, header = self._walk(unfinished, file, is_direct=False)
            if found != last or header is None or header.file_id != file.file_id:
                raise CorruptRecord(
                    "a copy of a journal file reads back other than it was written",
                    where=str(unfinished),
                    measured=f"block {found.sequence}",
                    allowed=f"block {last.sequence}",
                    cure="look at the disk of journal-retention-directory",
                )
            self._disk.rename(unfinished, path)
        except VespiaryError:
            self._drop(unfinished)  # gives the space back that it took
            raise
        self._disk.flush_folder(self._options.directory)
        made = Copy(last.time_ms // 1000 * 1000, file.file_id, file.size_bytes, path)
        self.copies.append(made)
        return made

    def _write(self, file: StoredFile, target: Path) -> None:
        """Copy all bytes and flush them."""
        source = self._disk.open(file.path, is_direct=self._is_direct, is_readonly=True)
        try:
            handle = self._disk.create(target, is_direct=False)
            try:
                buffer = AlignedBuffer(_COPY_BYTES).memoryview
                for offset in range(0, file.size_bytes, _COPY_BYTES):
                    count = source.read_into(buffer, offset)
                    handle.write(buffer[:count], offset)
                handle.set_size(file.size_bytes)  # one that grows may be shorter
                handle.flush()
            finally:
                handle.close()
        finally:
            source.close()

    def _walk(
        self, path: Path, file: StoredFile, *, is_direct: bool
    ) -> tuple[BlockFacts, FileHeader | None]:
        """Read all blocks of a file; return the seal and the header.

        Raises:
            CorruptRecord: A block is not valid before the seal.
        """
        handle = self._disk.open(path, is_direct=is_direct, is_readonly=True)
        try:
            header = read_header(handle)
            reader = BlockReader(
                handle,
                file_id=file.file_id,
                salt=file.salt,
                size_bytes=file.size_bytes,
                verify=self._verify,
            )
            end, last = FIRST_OFFSET, None
            for facts, _ in reader.walk(FIRST_OFFSET):
                is_next = last is None or (facts.sequence, facts.previous_crc) == (
                    last.sequence + 1,
                    last.crc,
                )
                if not is_next:
                    break
                end, last = facts.offset + facts.length, facts
        except JournalFormatError as error:
            raise CorruptRecord(f"the header is damaged ({error})", where=str(path)) from error
        finally:
            handle.close()
        if last is None or not last.is_seal:
            raise CorruptRecord(
                "a file that is to be kept does not end in a seal",
                where=f"{path}:{end}",
                cure="run `vespiary journal verify`",
            )
        return last, header

    @property
    def prune_period_s(self) -> float:
        """Seconds between two looks for copies that are too old: no copy stays twice its period."""
        period_ms = self._options.period_ms
        longest_s, shortest_s = _PRUNE_PERIODS_S
        if period_ms is None:
            return longest_s
        return min(longest_s, max(shortest_s, period_ms / 1000))

    def prune(self) -> int:
        """Remove the copies, also of bodies, that are too old or too many; return how many.

        One that somebody took out of the folder, such as a damaged one, is gone already.

        Raises:
            NativeError: One can't be removed.
        """
        gone = choose_expired(
            [*self.copies, *self.bodies.copies.values()],
            now_ms=self._clock_ms(),
            period_ms=self._options.period_ms,
            limit_bytes=self._options.storage_limit_bytes,
        )
        if not gone:
            return 0
        files = set(self.copies)
        for copy in gone:
            self._remove(copy.path)
            if copy in files:
                self.copies.remove(copy)
            else:
                self.bodies.forget(copy)
        if not files.isdisjoint(gone):
            self._disk.flush_folder(self._options.directory)
        if not files.issuperset(gone):
            self.bodies.flush()
        return len(gone)

    def _drop(self, path: Path) -> None:
        try:
            self._disk.remove(path)
        except VespiaryError as error:
            logger.debug("no half copy to remove: %s", error)
