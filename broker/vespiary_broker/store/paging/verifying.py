"""`vespiary page`: every byte of a page looked at, and its records as data.

Owns: what is said of a page file on disk. Must never write, and never stop at the first problem.
Called by the CLI; a start looks at less (`page_recovery`), and the loader at each block it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.listing import Entry, entries_of
from vespiary_broker.store.lock import LOCK_NAME
from vespiary_broker.store.paging.folders import ADDRESS_FILE, PageFolders, read_page_name
from vespiary_broker.store.paging.page_files import PagePart
from vespiary_codec.journal.block import FIRST_OFFSET, BlockHeader, walk_blocks
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.page import (
    ADDRESS_BYTES_MAX,
    HEADER_BYTES,
    TRAILER_BYTES,
    PageHeader,
    PageIndex,
    PagePlace,
    PageRecord,
    block_file_id,
    decode_footer,
    decode_page_header,
    decode_trailer,
)
from vespiary_codec.journal.page import HEADER as PAGE_HEADER
from vespiary_codec.journal.page_sketch import SKETCH_VERSION, sketch_room
from vespiary_codec.journal.record import AddRecord, decode_record, walk_records
from vespiary_native.memory import AlignedBuffer
from vespiary_native.page_sketch import page_sketch
from vespiary_spec.errors import VespiaryError


@dataclass(frozen=True, slots=True, kw_only=True)
class PageProblem:
    """Something in a page that is not as it was written.

    Attributes:
        offset: Where in the file.
        what: What is wrong.
    """

    offset: int
    what: str


@dataclass(slots=True, kw_only=True)
class PageReport:
    """What a page holds.

    Attributes:
        path: The file.
        size_bytes: Its size.
        address: Its address; empty where the header can't be read.
        page_id: Its id, 0 likewise.
        journal_id: The journal that names it, in hexadecimal.
        created_ms: When it was made, milliseconds since 1970.
        blocks: Valid blocks, the seal included.
        records: Messages in them.
        places: Places by queue id, as the index says.
        problems: All that is wrong.
    """

    path: str
    size_bytes: int = 0
    address: str = ""
    page_id: int = 0
    journal_id: str = ""
    created_ms: int = 0
    blocks: int = 0
    records: int = 0
    places: dict[int, int] = field(default_factory=dict)
    problems: list[PageProblem] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(slots=True)
class _Found:
    """What stands in the blocks: records, places by queue, and the checksum of the last block."""

    records: list[PageRecord] = field(default_factory=list)
    places: dict[int, list[PagePlace]] = field(default_factory=dict)
    crc: int = 0


def find_pages(place: Path, disk: DiskLike) -> list[Path]:
    """Return the pages in a paging folder, in the folder of an address, or the file itself."""
    if place.is_file():
        return [place]
    folders = [place, *PageFolders(place, disk).walk()]
    return [
        folder / name
        for folder in folders
        for name in disk.names(folder)
        if (read := read_page_name(name)) is not None and not read[1]
    ]


def is_paging_folder(place: Path, disk: DiskLike) -> bool:
    """Return whether a folder can be a paging folder, or the folder of an address in one.

    An empty one can: nothing has been paged. Stamps of volumes, the broker's lock and `lost+found`
    do not count.

    Args:
        place: The folder.
        disk: The file system.
    """
    others = (LOCK_NAME, "lost+found")
    names = [name for name in disk.names(place) if name[0] != "." and name not in others]
    has_pages = any(read_page_name(name) is not None for name in names)
    return not names or has_pages or ADDRESS_FILE in names or bool(PageFolders(place, disk).walk())


def verify_page(path: Path, disk: DiskLike) -> PageReport:
    """Look at every byte of a page.

    Args:
        path: The file.
        disk: The file system.
    """
    report = PageReport(path=str(path))
    try:
        data = _read(path, disk)
    except VespiaryError as error:
        report.problems.append(PageProblem(offset=0, what=str(error)))
        return report
    report.size_bytes = len(data)
    try:
        header = decode_page_header(data)
    except JournalFormatError as error:
        _note(report, error)
        return report
    report.address, report.page_id = header.address, header.page_id
    report.journal_id, report.created_ms = header.journal_id.hex(), header.created_ms
    found = _Found()
    _check_blocks(data, header, report, found)
    index = _check_footer(data, header, report)
    if index is not None:
        report.places = {queue.queue_id: len(queue.places) for queue in index.queues}
        _compare(found, index, report)
        _check_sketch(data, header, index, report)
    return report


def list_page(path: Path, disk: DiskLike, *, is_safe: bool = False) -> Iterator[Entry]:
    """Yield the records of a page, as `list_journal` does those of a journal.

    Args:
        path: The file.
        disk: The file system.
        is_safe: Leave content out.

    Raises:
        NativeError: The file can't be read.
    """
    data = _read(path, disk)
    try:
        header = decode_page_header(data)
    except JournalFormatError as error:
        yield Entry(
            event="refused", file=path.name, offset=0, block=0, time_ms=0, operation=str(error)
        )
        return
    yield Entry(
        event="file",
        file=path.name,
        offset=0,
        block=0,
        time_ms=header.created_ms,
        operation=f"page {header.page_id} of {header.address!a}, {len(data)} bytes",
    )
    for offset, block, payload in _walk(data, header):
        yield from entries_of(path.name, offset, block, payload, is_safe=is_safe)


def _read(path: Path, disk: DiskLike) -> memoryview:
    file = disk.open(path, is_direct=False, is_readonly=True)
    try:
        size_bytes = file.size_bytes()
        buffer = AlignedBuffer(max(size_bytes, 1)).memoryview
        count = file.read_into(buffer, 0)
    finally:
        file.close()
    return buffer[:count]


def _note(report: PageReport, error: JournalFormatError) -> None:
    report.problems.append(PageProblem(offset=error.offset, what=str(error)))


def _walk(data: memoryview, header: PageHeader) -> Iterator[tuple[int, BlockHeader, memoryview]]:
    return walk_blocks(
        data[FIRST_OFFSET:],
        offset=FIRST_OFFSET,
        salt=header.salt,
        file_id=block_file_id(header.page_id),
    )


def _check_blocks(data: memoryview, header: PageHeader, report: PageReport, found: _Found) -> None:
    """Walk the blocks, count them, and note what stands in them."""
    end, is_sealed = HEADER_BYTES, False
    for offset, block, payload in _walk(data, header):
        report.blocks += 1
        if (block.sequence, block.previous_crc) != (report.blocks, found.crc):
            what = f"block {block.sequence} does not follow the one before"
            report.problems.append(PageProblem(offset=offset, what=what))
        end, found.crc, is_sealed = offset + block.length, block.crc, block.is_seal
        try:
            for raw in walk_records(payload, block.records, offset=offset + 64):
                record = decode_record(raw)
                if isinstance(record, AddRecord):
                    for queue_id, sequence in record.places:
                        place = PagePlace(sequence, len(found.records))
                        found.places.setdefault(queue_id, []).append(place)
                    found.records.append(_fields(raw.offset, raw.flags, record))
        except JournalFormatError as error:
            _note(report, error)
    report.records = len(found.records)
    if not is_sealed:
        what = "no valid block stands here, and the blocks have no seal yet"
        report.problems.append(PageProblem(offset=end, what=what))


def _fields(offset: int, flags: int, record: AddRecord) -> PageRecord:
    return PageRecord(
        offset,
        len(record.body),
        len(record.properties),
        len(record.places),
        flags,
        record.priority,
        record.protocol,
    )


def _check_footer(data: memoryview, header: PageHeader, report: PageReport) -> PageIndex | None:
    size_bytes = len(data)
    try:
        trailer = decode_trailer(
            data[-TRAILER_BYTES:], page_id=header.page_id, salt=header.salt, size_bytes=size_bytes
        )
        index = decode_footer(
            data[trailer.footer_offset :], page_id=header.page_id, salt=header.salt
        )
    except JournalFormatError as error:
        _note(report, error)
        return None
    return index


def _check_sketch(
    data: memoryview, header: PageHeader, index: PageIndex, report: PageReport
) -> None:
    """Make the sketch again, if this version makes such, and compare."""
    if not header.sketch or header.sketch[0] != SKETCH_VERSION or report.problems:
        return
    at = index.trailer.footer_offset
    parts = [PagePart(data[HEADER_BYTES:at], HEADER_BYTES), PagePart(data[at:], at)]
    room = sketch_room(len(header.address.encode()), ADDRESS_BYTES_MAX)
    if page_sketch(parts, room) != header.sketch:
        what = "the sketch does not fit the headers of the messages"
        offset = PAGE_HEADER.size + len(header.address.encode())
        report.problems.append(PageProblem(offset=offset, what=what))


def _compare(found: _Found, index: PageIndex, report: PageReport) -> None:
    """Compare what the index says with what stands in the blocks."""
    trailer = index.trailer
    if (trailer.blocks, trailer.seal_crc) != (report.blocks, found.crc):
        what = f"the trailer ends {trailer.blocks} other blocks; {report.blocks} are valid"
        report.problems.append(PageProblem(offset=report.size_bytes - TRAILER_BYTES, what=what))
    if list(index.records) != found.records:
        both = zip(index.records, found.records, strict=False)
        at = next((b.offset for a, b in both if a != b), trailer.footer_offset)
        what = "the index does not fit the records in the blocks"
        report.problems.append(PageProblem(offset=at, what=what))
    places = {queue.queue_id: list(queue.places) for queue in index.queues}
    if places != {queue_id: sorted(held) for queue_id, held in found.places.items()}:
        what = "the index does not fit the places of the records"
        report.problems.append(PageProblem(offset=trailer.footer_offset, what=what))
