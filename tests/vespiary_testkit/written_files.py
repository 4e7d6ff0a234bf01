"""Files of journals and pages written block by block into real folders, with the codec alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import FIRST_OFFSET
from vespiary_codec.journal.file_forms import FORMS
from vespiary_codec.journal.file_header import FileHeader, FileState, encode_file_header
from vespiary_codec.journal.large_reference import (
    LargeReference,
    body_name,
    encode_large_reference,
)
from vespiary_codec.journal.page import PageHeader, encode_page_header
from vespiary_codec.journal.record import (
    AddRecord,
    Place,
    SealRecord,
)
from vespiary_testkit.journal_blocks import BlockChain
from vespiary_testkit.page_builder import JOURNAL_ID, SALT, Message, build_page

FILE_SALT = 77


class JournalWriter:
    """Writes the files of one journal, one after the other. Owner: the test.

    Args:
        folder: Where they go; it is made.
        journal: `message`, `bindings` or `jms`.
        journal_id: Its id.
    """

    def __init__(
        self, folder: Path, journal: str = "message", journal_id: bytes = JOURNAL_ID
    ) -> None:
        self.folder = folder
        self.journal_id = journal_id
        self.form = FORMS[journal]
        self._chain = BlockChain()
        folder.mkdir(parents=True, exist_ok=True)

    def file(
        self,
        file_id: int,
        *blocks: Sequence[Any],
        name: str = "",
        salt: int = FILE_SALT,
        is_sealed: bool = False,
        watermark: int | None = None,
    ) -> Path:
        """Write a file; return its path.

        Args:
            file_id: Its id.
            blocks: The records of each block.
            name: Its name; empty: the one of its id.
            salt: Its salt.
            is_sealed: A seal goes behind them.
            watermark: Of the last block; None: all before it are durable. Those before have 0.
        """
        data = bytearray()
        every = [*blocks, [SealRecord()]] if is_sealed else list(blocks)
        for number, records in enumerate(every):
            is_last = number == len(every) - 1
            mark = self._chain.sequence if watermark is None else watermark
            block = self._chain.block(
                records,
                file_id=file_id,
                offset=FIRST_OFFSET + len(data),
                salt=salt,
                time_ms=1000 + number,
                watermark=mark if is_last else 0,
                is_seal=is_sealed and is_last,
            )
            data += block
        size = max(65536, FIRST_OFFSET + len(data) + 4096)
        head = FileHeader(
            state=FileState.ACTIVE, kind=self.form.kind, journal_id=self.journal_id,
            file_id=file_id, salt=salt, size_bytes=size, activated_ms=1,
        )  # fmt: skip
        path = self.folder / (name or self.form.name(file_id))
        path.write_bytes((encode_file_header(head) + data).ljust(size, b"\0"))
        return path


def message(sequence: int, body: bytes = b"body", queue_id: int = 1, **fields: Any) -> AddRecord:
    """Return a message to `/queue/orders`."""
    properties = fields.pop("properties", b"destination:/queue/orders\n")
    return AddRecord((Place(queue_id, sequence),), properties, body, 1000 + sequence, **fields)


def large_message(folder: Path, sequence: int, body: bytes, name: str = "") -> AddRecord:
    """Return a message whose body goes into a file of its own, of this name or its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (name or body_name(sequence))).write_bytes(body)
    reference = LargeReference(sequence, len(body), crc32c(body))
    return message(sequence, encode_large_reference(reference), is_large=True)


def write_page(folder: Path, page_id: int, content: Sequence[Message]) -> Path:
    """Write a page of the address orders into the folder of its address; return its path."""
    inner = folder / "0123456789abcdef0123456789abcdef"
    inner.mkdir(parents=True, exist_ok=True)
    header = PageHeader(
        page_id=page_id, salt=SALT, journal_id=JOURNAL_ID, address="orders", created_ms=1
    )
    path = inner / f"{page_id:016x}.page"
    path.write_bytes(encode_page_header(header) + build_page(content, page_id=page_id))
    return path
