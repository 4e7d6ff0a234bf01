"""All that can be read of a journal, damaged or not: files, blocks, and the holes between them.

Owns: the walk for tools, which goes on behind damage. It decides nothing: what a hole means is for
`verdicts`, and whether a broker starts is for `recovery`. Must never write. Called by `verifying`,
`listing` and `salvage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.files import FileForm
from vespiary_broker.store.survey import BlockReader, SurveyedFile, read_header
from vespiary_codec.journal.block import FIRST_OFFSET, HEADER, MAGIC
from vespiary_codec.journal.file_header import HEADER_BYTES as FILE_HEADER_BYTES
from vespiary_codec.journal.file_header import FileState
from vespiary_native.abc import BlockFacts, BlockVerifier
from vespiary_spec.errors import JournalError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedFolder:
    """The files of a folder, each judged on its own.

    Attributes:
        active: Files with an active header, by id.
        free: Files that hold nothing now; their blocks may be of an earlier life.
        unfinished: Files that were being made.
        refused: Files whose header is not good, and why.
    """

    active: list[SurveyedFile]
    free: list[SurveyedFile]
    unfinished: list[Path]
    refused: list[tuple[Path, JournalError]]


class Block(NamedTuple):
    """A valid block.

    Attributes:
        file: Its file.
        facts: What its header says.
        data: Header and payload; good until the next step of the walk.
        padding: What stands behind it up to the next block.
    """

    file: SurveyedFile
    facts: BlockFacts
    data: memoryview
    padding: memoryview


class Hole(NamedTuple):
    """A place of a file where a block ought to stand, or might.

    Attributes:
        file: The file.
        offset: Where it begins.
        end: Where the next valid block begins; the file's size if there is none.
        before: The block before it; None at the file's start.
        after: The block behind it; None if there is none.
        found: What stands there, as a clause.
        is_ours: The place bears marks of a block of this life of the file. False behind the last
            block is the usual end of a file that is not full.
    """

    file: SurveyedFile
    offset: int
    end: int
    before: BlockFacts | None
    after: BlockFacts | None
    found: str
    is_ours: bool


def scan_folder(folder: Path, form: FileForm, disk: DiskLike) -> ScannedFolder:
    """Judge the header of each file of a journal, whatever the others are like.

    Args:
        folder: The journal's folder.
        form: Names and kind of its files.
        disk: The file system.

    Raises:
        NativeError: A file cannot be read.
    """
    active: list[SurveyedFile] = []
    free: list[SurveyedFile] = []
    unfinished: list[Path] = []
    refused: list[tuple[Path, JournalError]] = []
    first: SurveyedFile | None = None
    for name in disk.names(folder):
        number = form.number(name)
        if number is None:
            continue
        path = folder / name
        if name.endswith(".tmp"):
            unfinished.append(path)
            continue
        try:
            file = read_header(path, number, form, disk, first, is_direct=False)
        except JournalError as error:
            refused.append((path, error))
            continue
        if file.header is None or file.header.state is not FileState.ACTIVE:
            free.append(file)
        else:
            active.append(file)
        first = first or (file if file.header else None)
    active.sort(key=lambda file: (file.file_id, file.path))
    return ScannedFolder(active=active, free=free, unfinished=unfinished, refused=refused)


@contextmanager
def opened_reader(
    file: SurveyedFile, disk: DiskLike, verify: BlockVerifier
) -> Iterator[BlockReader]:
    """Open a file for reading its blocks."""
    handle = disk.open(file.path, is_direct=False, is_readonly=True)
    try:
        yield BlockReader(
            handle,
            file_id=file.file_id,
            salt=file.salt,
            size_bytes=file.size_bytes,
            verify=verify,
        )
    finally:
        handle.close()


def scan_file(
    file: SurveyedFile,
    disk: DiskLike,
    verify: BlockVerifier,
    previous: BlockFacts | None = None,
) -> Iterator[Block | Hole]:
    """Yield the valid blocks of a file in order, and the holes between and behind them.

    Args:
        file: The file.
        disk: The file system.
        verify: The walk over valid blocks.
        previous: The block before the file's first one, if it is known.

    Raises:
        NativeError: The file cannot be read.
    """
    with opened_reader(file, disk, verify) as reader:
        offset = FIRST_OFFSET
        last: BlockFacts | None = None
        while offset < file.size_bytes:
            is_sealed = False
            for facts, data in reader.walk(offset):
                yield Block(file, facts, data, reader.padding(facts, len(data)))
                last = facts
                offset = facts.offset + facts.length
                is_sealed = facts.is_seal
            if is_sealed or offset >= file.size_bytes:
                return
            later = next(reader.later_blocks(offset), None)
            yield Hole(
                file,
                offset,
                later.offset if later else file.size_bytes,
                last,
                later,
                reader.describe(offset),
                _is_ours(reader, offset, file, last or previous),
            )
            if later is None:
                return
            offset = later.offset


def _is_ours(
    reader: BlockReader, offset: int, file: SurveyedFile, before: BlockFacts | None
) -> bool:
    """Whether a place bears marks of the block that would follow `before`.

    Two of its numbers stand nowhere else: the checksum of the block before it, and the file's id,
    which is never used twice. One damaged byte can spoil but one of them.
    """
    window = reader.read(offset, HEADER.size)
    if len(window) < HEADER.size:
        return False
    magic, _, _, sequence, file_id, _, _, _, previous_crc, *_ = HEADER.unpack_from(window)
    if before is not None and previous_crc == before.crc and before.crc:
        return True
    is_next = before is not None and sequence == before.sequence + 1
    return bool(file_id == file.file_id and (magic == MAGIC or is_next))


def stray_header_bytes(file: SurveyedFile, disk: DiskLike) -> int:
    """Return the offset of a byte behind a header's fields that is not zero, 0 if there is none.

    Args:
        file: A file that has a header.
        disk: The file system.

    Raises:
        NativeError: The file cannot be read.
    """
    handle = disk.open(file.path, is_direct=False, is_readonly=True)
    try:
        buffer = memoryview(bytearray(FILE_HEADER_BYTES))
        count = handle.read_into(buffer, 0)
    finally:
        handle.close()
    return first_nonzero(buffer[512:count], 512)


def first_nonzero(data: memoryview, offset: int) -> int:
    """Return the offset of the first byte that is not zero, 0 if there is none.

    Args:
        data: The bytes.
        offset: Offset of the first of them.
    """
    octets = bytes(data)
    stripped = octets.lstrip(b"\0")
    return offset + len(octets) - len(stripped) if stripped else 0
