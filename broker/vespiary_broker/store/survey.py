"""What lies in a journal's folder: headers read and judged, blocks walked, nothing changed.

Owns: reading. `survey_folder` reads every header and refuses what is not this journal's;
`BlockReader` walks the valid blocks of one file and finds those behind a hole. Must never write,
and never decide what a hole means (`verdicts`). Called by `recovery`, `reader` and `bindings`, in
the worker thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from vespiary_broker.store.disk import DiskFile, DiskLike
from vespiary_broker.store.files import FileForm
from vespiary_broker.store.read_ahead import ReadAhead
from vespiary_codec.checksum import crc32c
from vespiary_codec.journal import block as block_codec
from vespiary_codec.journal import file_header
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import FileHeader, FileState
from vespiary_codec.journal.verdicts import FileFacts, FileVerdict, judge_file
from vespiary_native.abc import BlockFacts, BlockVerifier
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import CorruptRecord, ForeignJournal, JournalError

WINDOW_BYTES = 4 * 1024 * 1024
_BLOCKS_PER_CALL = 4096
_MAGIC = struct.pack("<I", block_codec.MAGIC)
_KEEP_COPY = "keep a copy of the folder, run `vespiary journal verify`, then restore the volume"


@dataclass(frozen=True, slots=True)
class SurveyedFile:
    """A file of the folder by its header; `header` is None when it was never written.

    `size_bytes` is the one that the journal goes by: that of the header, also where the file
    itself is shorter because it grows.
    """

    path: Path
    number: int
    size_bytes: int
    header: FileHeader | None

    @property
    def file_id(self) -> int:
        """The id in the header, 0 if there is none: the name does not decide."""
        return self.header.file_id if self.header else 0

    @property
    def salt(self) -> int:
        """The salt in the header, 0 if there is none."""
        return self.header.salt if self.header else 0

    @property
    def watermark(self) -> int:
        """The watermark in the header: blocks up to it were durable when it was activated."""
        return self.header.watermark if self.header else 0

    @property
    def is_growing(self) -> bool:
        """Whether the file may be shorter than `size_bytes`."""
        return self.header is not None and self.header.is_growing


@dataclass(frozen=True, slots=True)
class FolderSurvey:
    """The files of one journal.

    Attributes:
        folder: Where they lie.
        journal_id: Their common id; None if no file has a header.
        active: Files with an active header, by file id.
        free: Files that hold nothing, by number.
        unfinished: Files that were being made.
    """

    folder: Path
    journal_id: bytes | None
    active: list[SurveyedFile]
    free: list[SurveyedFile]
    unfinished: list[Path]

    @property
    def highest_id(self) -> int:
        """Highest id that any header bears, 0 if none."""
        return max((file.file_id for file in (*self.active, *self.free)), default=0)


# --- headers -------------------------------------------------------------------------------------


def survey_folder(folder: Path, form: FileForm, disk: DiskLike, *, is_direct: bool) -> FolderSurvey:
    """Read the headers of all files of a journal.

    Args:
        folder: The journal's folder.
        form: Names and kind of the files.
        disk: The file system.
        is_direct: Read with O_DIRECT: after a failed flush the page cache may show what the disk
            lacks.

    Raises:
        ForeignJournal: A file is of another journal, another system, or a newer version.
        CorruptRecord: A header is damaged, a file was cut off, or two files have one id.
        NativeError: A file cannot be read.
    """
    active: list[SurveyedFile] = []
    free: list[SurveyedFile] = []
    unfinished: list[Path] = []
    first: SurveyedFile | None = None
    for name in disk.names(folder):
        number = form.number(name)
        if number is None:
            continue
        path = folder / name
        if name.endswith(".tmp"):
            unfinished.append(path)
            continue
        file = read_header(path, number, form, disk, first, is_direct=is_direct)
        if file.header is not None and first is None:
            first = file
        is_active = file.header is not None and file.header.state is FileState.ACTIVE
        (active if is_active else free).append(file)
    active.sort(key=lambda file: file.file_id)
    for older, newer in pairwise(active):
        if older.file_id == newer.file_id:
            raise CorruptRecord(
                f"this file and {older.path.name} both say that they are file {newer.file_id}",
                where=f"{newer.path}:0",
                cure="one of them is a copy: move the copy elsewhere",
            )
    free.sort(key=lambda file: file.number)
    journal_id = first.header.journal_id if first and first.header else None
    return FolderSurvey(folder, journal_id, active, free, unfinished)


def read_header(
    path: Path,
    number: int,
    form: FileForm,
    disk: DiskLike,
    first: SurveyedFile | None,
    *,
    is_direct: bool,
) -> SurveyedFile:
    """Read and judge the header of one file.

    Args:
        path: The file.
        number: The number in its name.
        form: Names and kind of the journal's files.
        disk: The file system.
        first: A file whose journal it has to belong to; None if there is none yet.
        is_direct: Read with O_DIRECT.

    Raises:
        ForeignJournal: It is of another journal, another system, or a newer version.
        CorruptRecord: Its header is damaged, or it was cut off.
        NativeError: It cannot be read.
    """
    handle = disk.open(path, is_direct=is_direct, is_readonly=True)
    try:
        size = handle.size_bytes()
        buffer = AlignedBuffer(file_header.HEADER_BYTES)
        count = handle.read_into(buffer.memoryview, 0)
        sector = bytes(buffer.memoryview[: min(count, file_header.CHECKED_BYTES)])
    finally:
        handle.close()
    problem: JournalFormatError | None = None
    header: FileHeader | None = None
    try:
        header = file_header.decode_file_header(sector)
    except JournalFormatError as error:
        problem = error
    is_own = header is None or (
        header.kind is form.kind
        and (first is None or first.header is None or header.journal_id == first.header.journal_id)
    )
    facts = _facts(sector, size, header, problem, is_own=is_own)
    verdict = judge_file(facts)
    if verdict in (FileVerdict.FOREIGN, FileVerdict.CORRUPT):
        raise _refusal(verdict, path, size, header, problem, first, form) from problem
    return SurveyedFile(path, number, header.size_bytes if header else size, header)


def _facts(
    sector: bytes,
    size_bytes: int,
    header: FileHeader | None,
    problem: JournalFormatError | None,
    *,
    is_own: bool,
) -> FileFacts:
    """Say of a header what the table of `judge_file` asks for."""
    is_complete = len(sector) == file_header.CHECKED_BYTES
    checked, crc = sector[:508], sector[508:512]
    return FileFacts(
        is_unfinished=False,
        is_zero=not any(sector),
        has_magic=sector.startswith(file_header.MAGIC),
        # A newer format may keep its checksum elsewhere, so its version is looked at first.
        is_intact=is_complete and (_is_newer(problem) or crc == struct.pack("<I", crc32c(checked))),
        is_readable_version=problem is None,
        is_own=is_own,
        is_whole=_is_whole(size_bytes, header),
        is_active=header is not None and header.state is FileState.ACTIVE,
    )


def _is_whole(size_bytes: int, header: FileHeader | None) -> bool:
    """Whether a file has the size that it ought to have; one that grows may be shorter."""
    if header is not None and header.is_growing:
        return file_header.HEADER_BYTES <= size_bytes <= header.size_bytes
    if header is not None and header.size_bytes != size_bytes:
        return False
    return size_bytes >= file_header.FILE_BYTES_MIN and not size_bytes % file_header.ALIGNMENT


def _is_newer(problem: JournalFormatError | None) -> bool:
    return problem is not None and "format" in problem.what


def _refusal(
    verdict: FileVerdict,
    path: Path,
    size_bytes: int,
    header: FileHeader | None,
    problem: JournalFormatError | None,
    first: SurveyedFile | None,
    form: FileForm,
) -> JournalError:
    """Return the error for a file that stops the reader."""
    if verdict is FileVerdict.CORRUPT:
        what, offset = "the file header is damaged", problem.offset if problem else 0
        measured: object = problem.found if problem else None
        allowed = str(problem.expected) if problem else ""
        if problem is None:
            what, measured = "the file's size is not the one in its header", f"{size_bytes} bytes"
            if header is not None:
                most = "at most " if header.is_growing else ""
                allowed = f"{most}{header.size_bytes} bytes"
        return CorruptRecord(
            what, where=f"{path}:{offset}", measured=measured, allowed=allowed, cure=_KEEP_COPY
        )
    if problem is not None:
        return ForeignJournal(
            f"this is no journal file that this version can read ({problem.what})",
            where=f"{path}:{problem.offset}",
            measured=problem.found,
            allowed=str(problem.expected),
            cure="give the broker its own folder, or the version that wrote the file",
        )
    if header is not None and header.kind is not form.kind:
        return ForeignJournal(
            "the file belongs to a journal of another kind",
            where=f"{path}:11",
            measured=header.kind.name,
            allowed=form.kind.name,
            cure="move it to the folder that it belongs to",
        )
    other = first.path.name if first else "the others"
    return ForeignJournal(
        f"the file belongs to another journal than {other}",
        where=f"{path}:16",
        measured=header.journal_id.hex() if header else None,
        allowed=first.header.journal_id.hex() if first and first.header else "",
        cure="files of two brokers lie in this folder: move those of one of them elsewhere",
    )


# --- blocks --------------------------------------------------------------------------------------


def verify_blocks_python(
    data: memoryview, offset: int, salt: int, file_id: int, limit: int
) -> list[BlockFacts]:
    """Walk blocks with the codec alone: a `BlockVerifier` for tools without the native part."""
    found = []
    walk = block_codec.walk_blocks(data, offset=offset, salt=salt, file_id=file_id)
    for place, header, _ in walk:
        found.append(
            BlockFacts(
                offset=place,
                length=header.length,
                sequence=header.sequence,
                watermark=header.watermark,
                previous_crc=header.previous_crc,
                crc=header.crc,
                records=header.records,
                is_seal=header.is_seal,
                time_ms=header.time_ms,
            )
        )
        if len(found) == limit:
            break
    return found


class BlockReader:
    """Reads the blocks of one file through a window of memory. Owner: the thread that made it."""

    def __init__(
        self,
        handle: DiskFile,
        *,
        file_id: int,
        salt: int,
        size_bytes: int,
        verify: BlockVerifier,
        buffer: AlignedBuffer | None = None,
        ahead: ReadAhead | None = None,
    ) -> None:
        """Prepare to read a file.

        Args:
            handle: The open file; the caller closes it.
            file_id: Id of its life.
            salt: Salt of its life.
            size_bytes: Its size.
            verify: The walk over valid blocks.
            buffer: Memory to use again; None makes some.
            ahead: May have read what `walk` asks for.
        """
        self._handle = handle
        self._file_id = file_id
        self._salt = salt
        self._size = size_bytes
        self._verify = verify
        self._buffer = buffer or AlignedBuffer(min(WINDOW_BYTES, size_bytes))
        self._ahead = ahead
        self._window = memoryview(b"")
        self._window_offset = 0
        self._asked = 0

    def walk(self, offset: int) -> Iterator[tuple[BlockFacts, memoryview]]:
        """Yield (facts, header and payload) of block after block while they are valid.

        The walk ends with a seal, with the file, or at the first thing that is no valid block of
        this life of the file. The memory of a block is good until the next one is asked for.
        """
        least = 0
        while offset + block_codec.HEADER_BYTES <= self._size:
            window = self._read_next(offset, least)
            if not window:  # the end of a file that grows
                return
            found = self._verify(window, offset, self._salt, self._file_id, _BLOCKS_PER_CALL)
            least = 0 if found else self._widened(window, offset)
            if not found and not least:
                return
            for facts in found:
                start = facts.offset - offset
                (payload,) = struct.unpack_from("<I", window, start + 32)
                yield facts, window[start : start + block_codec.HEADER_BYTES + payload]
                if facts.is_seal:
                    return
                if facts is found[-1]:
                    offset = facts.offset + facts.length

    def padding(self, facts: BlockFacts, block_bytes: int) -> memoryview:
        """Return what stands between a block and the next one; it ought to be zeros.

        Args:
            facts: The block that `walk` yielded last.
            block_bytes: Its header and payload.
        """
        start = facts.offset - self._window_offset
        return self._window[start + block_bytes : start + facts.length]

    def read(self, offset: int, length: int) -> memoryview:
        """Return what stands at a multiple of 4096, up to `length` bytes of it.

        The memory is good until the next call.
        """
        return self._read(offset)[:length]

    def later_blocks(self, offset: int) -> Iterator[BlockFacts]:
        """Yield the valid blocks at any multiple of 4096 from `offset` on: those behind a hole."""
        while offset + block_codec.HEADER_BYTES <= self._size:
            window = self._read(offset)
            if not window:  # the end of a file that grows
                return
            at = 0
            while at < len(window):
                if not self._is_candidate(window, at):
                    at += block_codec.ALIGNMENT
                    continue
                found = self._verify(window[at:], offset + at, self._salt, self._file_id, 1)
                if found:
                    yield found[0]
                    at += found[0].length
                elif at and self._claimed(window, at) > len(window) - at:
                    break  # it may go on behind the window: look again from its start
                elif not at and self._widened(window, offset):
                    break
                else:
                    at += block_codec.ALIGNMENT
            offset += at

    def has_header(self, offset: int) -> bool:
        """Whether the header of a block of this life of the file stands at `offset`."""
        return self._is_candidate(self._read(offset), 0)

    def describe(self, offset: int) -> str:
        """Return a clause that says what stands at `offset`, for an error."""
        window = self._read(offset)
        try:
            header, _ = block_codec.decode_block(
                window, offset=offset, salt=self._salt, file_id=self._file_id
            )
        except JournalFormatError as error:
            return f"{error.what} ({error.found})"
        return f"the block with sequence {header.sequence}"

    def _read_next(self, offset: int, least: int) -> memoryview:
        """Read on to a multiple of the window's size, where by rule a block ends, too.

        Args:
            offset: Where to begin.
            least: So many bytes at least, at most the buffer's size.
        """
        size = self._buffer.size_bytes
        length = min(size - offset % size, self._size - offset)
        if least > length:
            return self._read(offset)
        ahead = self._ahead.take(self._handle.path, offset, length) if self._ahead else None
        if ahead is None:
            return self._read(offset, length)
        self._window, self._window_offset, self._asked = ahead, offset, length
        return ahead

    def _read(self, offset: int, length: int | None = None) -> memoryview:
        length = min(length or self._buffer.size_bytes, self._size - offset)
        self._asked = length
        count = self._handle.read_into(self._buffer.memoryview[:length], offset)
        self._window, self._window_offset = self._buffer.memoryview[:count], offset
        return self._window

    def _is_candidate(self, window: memoryview, at: int) -> bool:
        if window[at : at + 4] != _MAGIC or len(window) - at < block_codec.HEADER_BYTES:
            return False
        (owner,) = struct.unpack_from("<Q", window, at + 16)
        return bool(owner == self._file_id)

    def _claimed(self, window: memoryview, at: int) -> int:
        """Return the length that a header claims, 0 if it would pass the file's end."""
        (payload,) = struct.unpack_from("<I", window, at + 32)
        length = block_codec.align4k(block_codec.HEADER_BYTES + payload)
        return length if length <= self._size else 0

    def _widened(self, window: memoryview, offset: int) -> int:
        """Return the length that the block at the window's start claims, if that is more.

        There is memory for it then. 0 if it would not help to read more.
        """
        if not self._is_candidate(window, 0):
            return 0
        claimed = self._claimed(window, 0)
        # What was asked for and not the window is what could be too small: a file that grows may
        # end before the block that its last write was cut in.
        if claimed <= self._asked or offset + claimed > self._size:
            return 0
        if claimed > self._buffer.size_bytes:
            self._buffer = AlignedBuffer(claimed)
        return claimed
