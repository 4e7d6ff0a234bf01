"""Files of journals and pages, opened for reading only: headers, blocks, the places of damage.

Owns reading by offset. Must never write, never create a file, and never decide what a hole means
(`plan`, `sources`). Called by `plan` on the driver and by `sources` on executors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal import file_header
from vespiary_codec.journal.block import (
    ALIGNMENT,
    CRC_AT,
    FIRST_OFFSET,
    MAGIC,
    SEED,
    BlockHeader,
    decode_block,
    decode_block_header,
)
from vespiary_codec.journal.block import HEADER_BYTES as BLOCK_HEADER_BYTES
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import FileHeader, FileState, JournalKind
from vespiary_codec.journal.record import FileRun, decode_file_runs
from vespiary_codec.journal.record_types import RecordType
from vespiary_codec.journal.verdicts import FileFacts, FileVerdict, judge_file
from vespiary_native.columns import scan
from vespiary_spec.errors import (
    CorruptRecord,
    ForeignJournal,
    JournalError,
    NativeError,
    SourceChanged,
)

WINDOW_BYTES: Final = 4 * 1024 * 1024
_MAGIC: Final = MAGIC.to_bytes(4, "little")
_LOCKS: Final = {"message": "server.lock", "bindings": "server.lock", "jms": "jms.lock"}
_CURES: Final = {
    errno.EACCES: "run as a user who may read it; nothing is ever written there",
    errno.EPERM: "run as a user who may read it; nothing is ever written there",
    errno.EIO: "look at the disk and the kernel log, then read a copy",
    errno.ENOENT: "has something removed it meanwhile? Look at the path, and at what is mounted",
}
_LOOK: Final = "look at what lies there, and at how it is mounted"
_READ_COPY: Final = "read a copy (`vespiary journal snapshot`), or say consistency=best-effort"
_KEEP_COPY: Final = (
    "keep a copy of the folder, run `vespiary journal verify`, then restore the volume"
)


class JournalFile(NamedTuple):
    """A file of a journal, by its header.

    Attributes:
        path: The file.
        header: What it says; without one a header that says nothing.
        has_header: Whether it has one.
        state: `active`, `free` or `unfinished`.
        size_bytes: Its size on the disk.
    """

    path: Path
    header: FileHeader
    has_header: bool
    state: str
    size_bytes: int


class Walk(NamedTuple):
    """What a walk over following blocks found.

    Attributes:
        offset: Behind the last block.
        blocks: How many there were.
        sequence: Of the last; 0 if there was none.
        crc: Its checksum.
        watermark: Highest of theirs.
        is_sealed: The last one is a seal.
        runs: What the last FILES record among them lists; None if there was none.
        found: What stands behind the last block.
    """

    offset: int
    blocks: int
    sequence: int
    crc: int
    watermark: int
    is_sealed: bool
    runs: tuple[FileRun, ...] | None
    found: str


class Valid(NamedTuple):
    """A valid block and where it stands."""

    offset: int
    header: BlockHeader


class CheckedBlock(NamedTuple):
    """A valid block that was not read at once.

    Attributes:
        header: Its header.
        record_crc: CRC-32C of its first record.
    """

    header: BlockHeader
    record_crc: int


def unreadable(what: str, error: OSError, where: object) -> NativeError:
    """Return what is said of a path that can't be read.

    Args:
        what: What was attempted.
        error: Why it failed.
        where: The path.
    """
    number = error.errno or 0
    return NativeError(what, number, where=str(where), cure=_CURES.get(number, _LOOK))


def open_file(path: Path) -> int:
    """Open a file for reading.

    Raises:
        NativeError: It can't be opened, or is no file: which one, why.
    """
    try:
        # Of a pipe that nobody writes to, an open that waits would never end.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable("the file can't be opened", error, path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NativeError(
            "this has the name of a broker's file and is none", where=str(path),
            cure="move it out of the folder",
        )  # fmt: skip
    return descriptor


def read_at(descriptor: int, size_bytes: int, offset: int, path: Path) -> bytes:
    """Read so many bytes, or fewer at the file's end.

    Raises:
        NativeError: It can't be read: which file, where, why.
    """
    parts = []
    while size_bytes:
        try:
            part = os.pread(descriptor, size_bytes, offset)
        except OSError as error:
            raise unreadable("the file can't be read", error, f"{path}:{offset}") from error
        if not part:
            break
        parts.append(part)
        size_bytes -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def is_locked(folder: Path, journal: str) -> bool:
    """Return whether a broker on this machine has a journal open.

    The lock is asked for as one of many readers and given back at once. A folder without a lock
    file, or with one that may not be opened, is nobody's: a copy, or a volume that is mounted here
    for reading.

    Args:
        folder: The journal's folder.
        journal: Its kind.
    """
    try:
        descriptor = os.open(folder / _LOCKS[journal], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False


# --- headers --------------------------------------------------------------------------------------


def read_journal_file(path: Path, kind: JournalKind, first: JournalFile | None) -> JournalFile:
    """Read and judge the header of a file (docs/internals/recovery.md, table 1).

    Args:
        path: The file.
        kind: Kind of its journal.
        first: A file whose journal it has to belong to; None if there is none yet.

    Raises:
        CorruptRecord: The header is damaged, or the file was cut off.
        ForeignJournal: It is of another journal, another system, or a newer version.
        NativeError: It can't be read.
    """
    descriptor = open_file(path)
    try:
        size = os.fstat(descriptor).st_size
        sector = read_at(descriptor, file_header.CHECKED_BYTES, 0, path)
    finally:
        os.close(descriptor)
    if path.name.endswith(".tmp"):
        return JournalFile(path, _no_header(kind), False, "unfinished", size)
    header, problem = None, None
    try:
        header = file_header.decode_file_header(sector)
    except JournalFormatError as error:
        problem = error
    is_own = header is None or (
        header.kind is kind and (first is None or header.journal_id == first.header.journal_id)
    )
    facts = FileFacts(
        is_unfinished=False,
        is_zero=not any(sector),
        has_magic=sector.startswith(file_header.MAGIC),
        is_intact=problem is None or "format" in problem.what,
        is_readable_version=problem is None,
        is_own=is_own,
        is_whole=_is_whole(size, header),
        is_active=header is not None and header.state is FileState.ACTIVE,
    )
    verdict = judge_file(facts)
    if verdict in (FileVerdict.FOREIGN, FileVerdict.CORRUPT):
        raise _refusal(verdict, path, size, header, problem, first, kind) from problem
    state = "active" if verdict is FileVerdict.ACTIVE else "free"
    return JournalFile(path, header or _no_header(kind), header is not None, state, size)


def _no_header(kind: JournalKind) -> FileHeader:
    return FileHeader(
        state=FileState.FREE, kind=kind, journal_id=bytes(16), file_id=0, salt=0, size_bytes=0,
        activated_ms=0,
    )  # fmt: skip


def _is_whole(size_bytes: int, header: FileHeader | None) -> bool:
    if header is not None and header.is_growing:
        return file_header.HEADER_BYTES <= size_bytes <= header.size_bytes
    if header is not None and header.size_bytes != size_bytes:
        return False
    return size_bytes >= file_header.FILE_BYTES_MIN and not size_bytes % file_header.ALIGNMENT


def _refusal(
    verdict: FileVerdict,
    path: Path,
    size_bytes: int,
    header: FileHeader | None,
    problem: JournalFormatError | None,
    first: JournalFile | None,
    kind: JournalKind,
) -> JournalError:
    if verdict is FileVerdict.CORRUPT and problem is not None:
        return CorruptRecord(
            "the file header is damaged",
            where=f"{path}:{problem.offset}",
            measured=problem.found,
            allowed=str(problem.expected),
            cure=_KEEP_COPY,
        )
    if verdict is FileVerdict.CORRUPT:
        return CorruptRecord(
            "the file's size is not the one in its header",
            where=str(path),
            measured=f"{size_bytes} bytes",
            allowed=f"{header.size_bytes} bytes" if header else "",
            cure=_KEEP_COPY,
        )
    if problem is not None:
        return ForeignJournal(
            f"this is no journal file that this version can read ({problem.what})",
            where=f"{path}:{problem.offset}",
            measured=problem.found,
            allowed=str(problem.expected),
            cure="read it with the version that wrote it, or move it out of the folder",
        )
    if header is not None and header.kind is not kind:
        return ForeignJournal(
            "the file belongs to a journal of another kind",
            where=f"{path}:11",
            measured=header.kind.name,
            allowed=kind.name,
            cure="move it to the folder that it belongs to",
        )
    return ForeignJournal(
        f"the file belongs to another journal than {first.path.name if first else 'the others'}",
        where=f"{path}:16",
        measured=header.journal_id.hex() if header else None,
        allowed=first.header.journal_id.hex() if first else "",
        cure="files of two brokers lie in this folder: move those of one of them elsewhere",
    )


# --- blocks ---------------------------------------------------------------------------------------


class BlockFile:
    """The blocks of one file. Owner: whoever opened it, as a context.

    Args:
        path: The file.
        file_id: Id in its blocks' headers.
        salt: Salt of its life.
    """

    def __init__(self, path: Path, file_id: int, salt: int) -> None:
        self.path = path
        self.file_id = file_id
        self.salt = salt
        self._descriptor = -1

    @classmethod
    def of(cls, file: JournalFile) -> BlockFile:
        """Return the blocks of a file whose header was read."""
        return cls(file.path, file.header.file_id, file.header.salt)

    def __enter__(self) -> Self:
        """Open it."""
        self._descriptor = open_file(self.path)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; it was only read, so an error of close(2) says nothing."""
        os.close(self._descriptor)

    @property
    def size_bytes(self) -> int:
        """Its size now."""
        return os.fstat(self._descriptor).st_size

    def check_life(self) -> None:
        """Refuse a file that is not the one that was planned any more.

        Raises:
            SourceChanged: Its broker used it again.
        """
        try:
            header = file_header.decode_file_header(self.read(file_header.CHECKED_BYTES, 0))
        except JournalFormatError:
            header = None
        if header is None or (header.salt, header.file_id) != (self.salt, self.file_id):
            raise SourceChanged(
                "the broker used this file again while it was read",
                where=str(self.path),
                cure=_READ_COPY,
            )

    def read(self, size_bytes: int, offset: int) -> bytes:
        """Read so many bytes, or fewer at the file's end."""
        return read_at(self._descriptor, size_bytes, offset, self.path)

    def read_into(self, room: memoryview, offset: int) -> memoryview:
        """Read as many bytes as there is room for, or fewer at the file's end.

        Whoever reads much does it into the same memory again: what is fresh has to be cleared page
        by page first, which takes longer than to read it.

        Args:
            room: Where to.
            offset: Where from.
        """
        used = 0
        while used < len(room):
            try:
                read = os.preadv(self._descriptor, [room[used:]], offset + used)
            except OSError as error:
                where = f"{self.path}:{offset + used}"
                raise unreadable("the file can't be read", error, where) from error
            if not read:
                break
            used += read
        return room[:used]

    def header_at(self, offset: int) -> BlockHeader | None:
        """Return the header of a block of this file at a place, unchecked; None if none is there.

        Args:
            offset: Of the place.
        """
        try:
            header = decode_block_header(self.read(BLOCK_HEADER_BYTES, offset), offset=offset)
        except JournalFormatError:
            return None
        return header if header.file_id == self.file_id else None

    def headers(self, begin: int, end: int) -> Iterator[Valid]:
        """Yield the headers of following blocks, unchecked, up to a seal, a hole or `end`.

        Args:
            begin: Offset of the first block.
            end: Offset at which no block begins any more.
        """
        offset, last = begin, None
        while offset < end:
            header = self.header_at(offset)
            is_next = last is None or (
                header is not None
                and (header.sequence, header.previous_crc) == (last.sequence + 1, last.crc)
            )
            if header is None or not is_next:
                return
            yield Valid(offset, header)
            if header.is_seal:
                return
            offset, last = offset + header.length, header

    def walk(self, begin: int = FIRST_OFFSET, room: bytearray | None = None) -> Walk:
        """Walk the valid blocks from a place on, while each follows the one before.

        Args:
            begin: Offset of the first block.
            room: `WINDOW_BYTES` to read into, for whoever walks many files.
        """
        room = bytearray(WINDOW_BYTES) if room is None else room
        offset, runs = begin, None
        previous: tuple[int, int] | None = None
        blocks = watermark = 0
        while True:
            window = self.read_into(memoryview(room), offset)
            found = scan(
                window, offset=offset, salt=self.salt, file_id=self.file_id, previous=previous,
                kinds={RecordType.FILES}, members=False,
            )  # fmt: skip
            if found.columns.rows:
                at = memoryview(found.columns.record_at).cast("B").cast("q")[-1]
                length = memoryview(found.columns.length).cast("B").cast("q")[-1]
                runs = decode_file_runs(bytes(window[at + 8 : at + length]), offset=offset + at + 8)
            if found.blocks:
                previous = (found.sequence, found.crc)
            blocks += found.blocks
            watermark = max(watermark, found.watermark)
            stop = found.stop
            is_at_end = len(window) < WINDOW_BYTES
            why = stop.found or "the end of the file"
            if stop.reason == "window" and not is_at_end:
                offset = stop.offset
                if stop.needed_bytes <= WINDOW_BYTES:
                    continue
                large = self.check_block(offset, previous)  # one record, and none of FILES
                if isinstance(large, CheckedBlock):
                    previous = (large.header.sequence, large.header.crc)
                    watermark = max(watermark, large.header.watermark)
                    offset, blocks = offset + large.header.length, blocks + 1
                    continue
                why = large
            sequence, crc = previous or (0, 0)
            return Walk(
                stop.offset, blocks, sequence, crc, watermark, stop.reason == "end", runs, why
            )

    def next_valid(self, begin: int) -> Valid | None:
        """Return the first valid block at or behind a place, whatever stands before it.

        Args:
            begin: Where to begin, a multiple of 4096.
        """
        offset = begin
        while window := self.read(WINDOW_BYTES, offset):
            for at in range(0, len(window), ALIGNMENT):
                if window[at : at + 4] == _MAGIC and (valid := self._valid_at(offset + at)):
                    return valid
            offset += len(window)
        return None

    def _valid_at(self, offset: int) -> Valid | None:
        header = self.header_at(offset)
        if header is None:
            return None
        if header.length > WINDOW_BYTES:
            checked = self.check_block(offset, None)
            return Valid(offset, header) if isinstance(checked, CheckedBlock) else None
        data = self.read(header.length, offset)
        try:
            header, _ = decode_block(data, offset=offset, salt=self.salt, file_id=self.file_id)
        except JournalFormatError:
            return None
        return Valid(offset, header)

    def check_block(self, offset: int, previous: tuple[int, int] | None) -> CheckedBlock | str:
        """Check a block that is too large to be read at once; return what is wrong with it.

        Args:
            offset: Of the block.
            previous: Sequence and checksum of the block before; None: not known.
        """
        header = self.header_at(offset)
        if header is None:
            return "no block of this file"
        if previous is not None and (header.sequence, header.previous_crc) != (
            previous[0] + 1,
            previous[1],
        ):
            return f"block {header.sequence}, which does not follow block {previous[0]}"
        if offset + header.length > self.size_bytes:
            return f"a block of {header.length} bytes, which the file cuts off"
        block_crc, record_crc = self._checksums(offset, header)
        if block_crc != header.crc:
            return f"bad checksum of a block ({header.crc:#010x})"
        return CheckedBlock(header, record_crc)

    def _checksums(self, offset: int, header: BlockHeader) -> tuple[int, int]:
        """Return the checksums of a block and of its first record, read piece by piece."""
        blanked = bytearray(self.read(BLOCK_HEADER_BYTES, offset))
        blanked[CRC_AT : CRC_AT + 4] = bytes(4)
        value = crc32c(blanked, crc32c(SEED.pack(self.salt, offset)))
        start = offset + BLOCK_HEADER_BYTES
        record_left = int.from_bytes(self.read(4, start), "little")
        record_crc = done = 0
        while done < header.payload_bytes:
            size = min(WINDOW_BYTES, header.payload_bytes - done)
            piece = self.read(size, start + done)
            value = crc32c(piece, value)
            record_crc = crc32c(piece[:record_left], record_crc) if record_left else record_crc
            record_left = max(record_left - size, 0)
            done += size
        return value, record_crc


@contextmanager
def planned_file(path: Path, file_id: int, salt: int) -> Iterator[BlockFile]:
    """Open a file that was planned before.

    Args:
        path: The file.
        file_id: Id in its blocks' headers.
        salt: Salt of its life.

    Raises:
        SourceChanged: It is gone.
        NativeError: It can't be opened.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(BlockFile(path, file_id, salt))
        except NativeError as error:
            if error.errno != errno.ENOENT:
                raise
            raise SourceChanged(
                "the broker removed this file after the read was planned",
                where=str(path),
                cure=_READ_COPY,
            ) from error
        yield file
