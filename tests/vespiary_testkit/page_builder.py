"""`build_page`: the bytes of a page file, made with the codec alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from vespiary_broker.store.paging.page_files import PagePart
from vespiary_codec.journal.block import FIRST_OFFSET, FLAG_SEAL, BlockHeader, encode_block
from vespiary_codec.journal.page import (
    HEADER_BYTES,
    TRAILER_BYTES,
    PagePlace,
    PageQueue,
    PageRecord,
    block_file_id,
    encode_footer,
)
from vespiary_codec.journal.record import (
    AddRecord,
    Place,
    SealRecord,
    align8,
    encode_record,
)
from vespiary_codec.journal.record_types import RecordFlag

SALT = 0x1122334455667788
JOURNAL_ID = b"j" * 16


class Message(NamedTuple):
    """What a test puts into a page."""

    body: bytes
    places: tuple[tuple[int, int], ...] = ((1, 1),)
    properties: bytes = b"destination:orders\n"
    flags: int = 8
    priority: int = 4
    arrival_ms: int = 1
    protocol: int = 1


def messages(number: int, *, queue_id: int = 1, first: int = 1) -> list[Message]:
    """Return messages of one queue, with bodies that differ."""
    return [
        Message(f"body {sequence}".encode() * 20, ((queue_id, sequence),))
        for sequence in range(first, first + number)
    ]


def _record(message: Message) -> AddRecord:
    return AddRecord(
        places=tuple(Place(*place) for place in message.places),
        properties=message.properties,
        body=message.body,
        arrival_ms=message.arrival_ms,
        protocol=message.protocol,
        priority=message.priority,
        has_escapes=bool(message.flags & RecordFlag.ESCAPED),
        is_special=bool(message.flags & RecordFlag.SPECIAL),
        is_large=bool(message.flags & RecordFlag.LARGE),
        is_moved=True,
    )


def build_page(
    content: Sequence[Message], *, page_id: int = 1, salt: int = SALT, per_block: int = 10
) -> bytes:
    """Return a page behind its header: blocks, seal, footer.

    Args:
        content: Its messages.
        page_id: Its id.
        salt: Its salt.
        per_block: Messages in a block.
    """
    data = bytearray()
    records: list[PageRecord] = []
    queues: dict[int, list[PagePlace]] = {}
    crc = sequence = 0

    def add_block(payload: bytes, count: int, *, flags: int = 0) -> None:
        nonlocal crc, sequence
        sequence += 1
        header = BlockHeader(
            sequence=sequence,
            file_id=block_file_id(page_id),
            watermark=0,
            payload_bytes=len(payload),
            records=count,
            previous_crc=crc,
            time_ms=1,
            flags=flags,
        )
        block = encode_block(header, payload, salt=salt, offset=FIRST_OFFSET + len(data))
        crc = int.from_bytes(block[44:48], "little")
        data.extend(block)

    for start in range(0, len(content), per_block):
        payload = bytearray()
        for message in content[start : start + per_block]:
            record = _record(message)
            at = FIRST_OFFSET + len(data) + 64 + len(payload)
            for queue_id, number in message.places:
                queues.setdefault(queue_id, []).append(PagePlace(number, len(records)))
            records.append(
                PageRecord(
                    at,
                    len(record.body),
                    len(record.properties),
                    len(message.places),
                    message.flags,
                    message.priority,
                    message.protocol,
                )
            )
            encoded = encode_record(record)
            payload += encoded.ljust(align8(len(encoded)), b"\0")
        add_block(bytes(payload), len(content[start : start + per_block]))
    add_block(encode_record(SealRecord()), 1, flags=FLAG_SEAL)
    footer = encode_footer(
        page_id=page_id,
        salt=salt,
        footer_offset=FIRST_OFFSET + len(data),
        queues=[PageQueue(queue_id, tuple(queues[queue_id])) for queue_id in sorted(queues)],
        records=records,
        blocks=sequence,
        seal_crc=crc,
    )
    return bytes(data) + footer


def parts_of(page: bytes, piece_bytes: int = 8192) -> list[PagePart]:
    """Return a page behind its header in pieces, as the core hands it over: the footer last."""
    blocks, footer = whole_parts_of(page)
    return [
        *(
            PagePart(blocks.data[at : at + piece_bytes], blocks.offset + at)
            for at in range(0, len(blocks.data), piece_bytes)
        ),
        footer,
    ]


def whole_parts_of(page: bytes) -> list[PagePart]:
    """Return a page behind its header in two pieces: its blocks, and its footer."""
    (footer_offset,) = struct.unpack_from("<Q", page, len(page) - TRAILER_BYTES + 16)
    at = footer_offset - HEADER_BYTES
    return [
        PagePart(memoryview(page)[:at], HEADER_BYTES),
        PagePart(memoryview(page)[at:], footer_offset),
    ]
