"""Records as columns: one walk over blocks, one buffer for each field (journal-format §2 and §3).

Owns the form of the columns. They are laid out as Arrow wants them, so that a reader wraps them and
copies nothing. Must never read a file, and never judge what a block that is not valid means: a scan
stops there and says where. Called by the pipeline.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview

POSITION_BITS: Final = 16
"""A record's position is its block's sequence times 2**16 plus its number in the block."""


class Columns(NamedTuple):
    """Some records, in order: entry i of every buffer is of record i. Numbers are little-endian.

    Attributes:
        rows: Number of records.
        kind: Type, u8 each.
        flags: u8 each.
        protocol: Of an ADD, u8 each; else 0.
        priority: Of an ADD, u8 each; else 0.
        offset: Of the record in its file, i64.
        block: Sequence of its block, i64.
        block_time_ms: When that was closed, milliseconds since 1970, i64.
        position: Sequence of its block << 16 | number in the block, i64.
        length: Without padding, i64.
        transaction: Of a member or an end of one, i64; else 0.
        crc: CRC-32C of the record if it is a member of a transaction, i64; else 0.
        number: Of a PAGE or PAGE_DONE the page id, of COMMIT, PREPARE and ROLLBACK the members, of
            a COUNT the deliveries, i64; else 0.
        digest: Of COMMIT, PREPARE and ROLLBACK, i64; else 0.
        arrival_ms: Of an ADD, i64; else 0.
        properties_at: Of an ADD: where they begin in the window, i64; else 0. Of a PUT or REMOVE:
            where the key begins.
        properties_bytes: i64; else 0. Of a PUT or REMOVE: of the key.
        body_at: Of an ADD: where the body begins in the window, i64. Of a PUT: the value.
        body_bytes: Length of what stands there, i64 (of a large message 24: the reference).
        body_size: Of an ADD: size of the message's body, also of a large one, i64; else 0.
        record_at: Where the record begins in the window, i64.
        places_from: Index of a record's first place in the three buffers below, i32, rows + 1.
        place_queue: Queue id, i64.
        place_sequence: First sequence, i64.
        place_number: How many sequences from there on, i64: 1 for ADD and COUNT; ranges of an ACK;
            runs of following sequences of a PAGE.
    """

    rows: int
    kind: Buffer
    flags: Buffer
    protocol: Buffer
    priority: Buffer
    offset: Buffer
    block: Buffer
    block_time_ms: Buffer
    position: Buffer
    length: Buffer
    transaction: Buffer
    crc: Buffer
    number: Buffer
    digest: Buffer
    arrival_ms: Buffer
    properties_at: Buffer
    properties_bytes: Buffer
    body_at: Buffer
    body_bytes: Buffer
    body_size: Buffer
    record_at: Buffer
    places_from: Buffer
    place_queue: Buffer
    place_sequence: Buffer
    place_number: Buffer


class Stop(NamedTuple):
    """Where a scan ended, and why.

    Attributes:
        offset: In the file: where the next block stands or would stand.
        reason: `end` (a seal), `window` (the next block does not fit into the window, or the
            window's bytes are used up), `rows` (as many records as were asked for), `invalid` (what
            stands there is no valid block of this life of the file, or not the next one).
        needed_bytes: With `window`: bytes of the next block if its header says so, else 0.
        found: With `invalid`: what stands there, as a clause.
    """

    offset: int
    reason: str
    needed_bytes: int = 0
    found: str = ""


class Scan(NamedTuple):
    """What one call of `scan` gives.

    Attributes:
        columns: Records of the kinds asked for.
        stop: Where it ended.
        blocks: Valid blocks walked.
        records: Records in them, of all kinds.
        sequence: Of the last valid block; that of `previous` if there was none.
        crc: Its checksum.
        watermark: Highest watermark of these blocks.
        time_ms: When the last of them was closed, 0 if there was none.
    """

    columns: Columns
    stop: Stop
    blocks: int
    records: int
    sequence: int
    crc: int
    watermark: int
    time_ms: int


class Strings(NamedTuple):
    """A column of byte strings in Arrow's layout.

    Attributes:
        offsets: i32, rows + 1.
        data: The bytes.
        valid: Bitmap, bit i % 8 of byte i / 8 is set if entry i is there; empty: all are.
    """

    offsets: Buffer
    data: Buffer
    valid: Buffer = b""


class Maps(NamedTuple):
    """A column of maps in Arrow's layout: entries of record i stand from offsets[i] on."""

    offsets: Buffer
    keys: Strings
    values: Strings
