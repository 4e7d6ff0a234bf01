"""Bytes where a file holds nothing, and the ends of pages: what no read of records looks at.

Owns looking at one file, in a task. A byte that is not zero behind the fields of a file's header or
behind a block does no harm; it says that something else writes to the disk, or that the disk is
failing. Called by `verifying`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from vespiary_codec.journal.block import FIRST_OFFSET, HEADER_BYTES
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import CHECKED_BYTES, decode_file_header
from vespiary_codec.journal.page import (
    TRAILER_BYTES,
    decode_footer,
    decode_page_header,
    decode_trailer,
)
from vespiary_pipeline.files import BlockFile
from vespiary_spec.errors import VespiaryError

SCHEMA: Final = "path string, what string"


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what is wrong with files, for `mapInArrow`.

    Args:
        batches: `path`, `journal` and `used_bytes` of files that have a header.
    """
    for batch in batches:
        found = [
            (row["path"], what)
            for row in batch.to_pylist()
            for what in looked_at(Path(row["path"]), row["journal"], row["used_bytes"] or 0)
        ]
        if found:
            paths, sentences = zip(*found, strict=True)
            columns = [pa.array(paths, pa.string()), pa.array(sentences, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, names=["path", "what"])


def looked_at(path: Path, journal: str, used_bytes: int) -> Iterator[str]:
    """Yield what is wrong with a file, in sentences; its blocks were looked at before.

    Args:
        path: The file.
        journal: `page` for a page.
        used_bytes: Bytes of its blocks that count.
    """
    try:
        if journal == "page":
            yield from _page(path.read_bytes())
        else:
            yield from _journal_file(path, used_bytes)
    except JournalFormatError as error:
        yield f"{path}:{error.offset}: {error}"
    except FileNotFoundError:
        return  # its broker freed it meanwhile
    except (OSError, VespiaryError) as error:
        yield f"the file can't be read: {error}"


def _journal_file(path: Path, used_bytes: int) -> Iterator[str]:
    with path.open("rb") as file:
        start = file.read(FIRST_OFFSET)
    if stray := _first_byte(start[CHECKED_BYTES:], CHECKED_BYTES):
        yield f"{path}:{stray}: a byte is not zero behind the fields of the file header"
    header = decode_file_header(start[:CHECKED_BYTES])
    if header is None:  # a file that holds nothing
        return
    with BlockFile(path, header.file_id, header.salt) as blocks:
        yield from _padding(blocks, FIRST_OFFSET + used_bytes)


def _padding(blocks: BlockFile, end: int) -> Iterator[str]:
    for offset, header in blocks.headers(FIRST_OFFSET, end):
        if offset >= end:
            return
        begin = offset + HEADER_BYTES + header.payload_bytes
        rest = blocks.read(offset + header.length - begin, begin)
        if stray := _first_byte(rest, begin):
            yield f"{blocks.path}:{stray}: a byte is not zero behind block {header.sequence}"


def _page(data: bytes) -> Iterator[str]:
    """Look at header, padding, footer and trailer of a page."""
    header = decode_page_header(data)
    names = {"page_id": header.page_id, "salt": header.salt}
    trailer = decode_trailer(data[-TRAILER_BYTES:], size_bytes=len(data), **names)
    index = decode_footer(data[trailer.footer_offset :], **names)
    if len(index.records) != trailer.records:
        yield f"the index of the page has {len(index.records)} of {trailer.records} messages"


def _first_byte(data: bytes, offset: int) -> int:
    """Return where the first byte stands that is not zero, 0 if there is none."""
    stripped = data.lstrip(b"\0")
    return offset + len(data) - len(stripped) if stripped else 0
