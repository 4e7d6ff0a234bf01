"""The values that the core's contract speaks in: sizes, answers, requests, counters.

Owns plain values only; what they mean stands with the methods that give and take them, in
`vespiary_native.abc`, which exports them all. Used by both implementations of the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from vespiary_codec.journal.record_types import SEQUENCE_MAX

SLAB_BYTES = 2 * 1024 * 1024
BLOCK_BYTES = 256 * 1024
WRITE_BYTES = 1024 * 1024


class ScanStatus(IntEnum):
    """Why `Core.scan_stomp` came back."""

    NEED_DATA = 0  # all complete frames were taken; detail = bytes of the next, 0 unknown
    FRAME = 1  # a complete frame that the fast path leaves to Python; detail = its length
    ODD = 2  # not a frame, or beyond a limit: let the codec say why, then close
    BLOCKED = 3  # no room for a SEND or ACK: stop reading, try again after space is made
    SWITCHED = 4  # SENDs to a switch wait for `send_switched`; detail = the switch


class DeliverStatus(IntEnum):
    """Why `Core.deliver` stopped."""

    DRAINED = 0  # nothing (more) to deliver
    LIMIT = 1  # max_messages, max_bytes or the consumer's credit reached
    ABSENT = 2  # the next message's slab is not in memory: load it (`absent_slab`)
    LARGE = 3  # the next message's body is in a file: give it by itself (`take_large`)
    SPECIAL = 4  # Python looks at the next message first (`next_deliverable`, `give`)
    PAGED = 5  # the next message stands in a page: enter its extent (`page_wanted`)
    WORN = 6  # the next message was given out too often (`abc_counts`)
    STORED = 7  # the core does not encode the next message: `deliver_stored` gives it (`abc_mqtt`)


class AckMode(IntEnum):
    """Acknowledgement mode of a consumer (STOMP 1.2 SUBSCRIBE)."""

    AUTO = 0
    CLIENT = 1  # cumulative
    INDIVIDUAL = 2


class NoRoom(Exception):  # noqa: N818  (a state of the image, not a fault)
    """The image has no slab or no file for this record now; nothing was changed."""


class NoSequenceLeft(ValueError):  # noqa: N818  (a state of a queue)
    """A queue has had its highest sequence, so it takes no message any more."""

    def __init__(self) -> None:
        super().__init__(
            f"a queue has had its highest sequence, {SEQUENCE_MAX}: delete the queue and create it"
            " again"
        )


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One contiguous run of sealed blocks, to be written as it stands.

    Attributes:
        file_id: The journal file.
        offset: Byte offset in the file, a multiple of 4096.
        address: Memory address of the bytes, aligned to 4096; valid until `write_done`.
        length: Bytes, a multiple of 4096, at most `WRITE_BYTES` unless one block alone is larger.
        sequence: Sequence of the last block in the run.
    """

    file_id: int
    offset: int
    address: int
    length: int
    sequence: int


@dataclass(frozen=True, slots=True)
class LargeBody:
    """A body that stands in a file of its own (journal-format.md §3.5).

    Attributes:
        large_id: Its id, which is the file's name.
        size_bytes: Its length.
        crc: CRC-32C of its bytes.
    """

    large_id: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class LargeDelivery:
    """A large message that a consumer was given.

    Attributes:
        sequence: Its sequence in the consumer's queue.
        head: Its MESSAGE frame up to the body; behind the body comes a NUL.
        body: Where the body is.
    """

    sequence: int
    head: bytes
    body: LargeBody


class QueueStatistics(NamedTuple):
    """A queue's counters, in the order of the C struct: they are read for every queue at times.

    `ready` = deliverable now, `delivering` = given out and not yet acknowledged, `prepared` = held
    by prepared branches (added, or acknowledged, and not committed), `aside` = set aside,
    `live_bytes` = properties and bodies of all that is live, of large messages the reference.
    `paged` = in closed extents of pages: counted in none of these; `paged_prepared` = those of them
    that prepared branches acknowledge.
    `added`, `acknowledged`, `redelivered` (given back), `put_back` (after they were set aside) and
    `resolved` (left there by branches that ended) count from the end of the recovery on. The last
    two tell whoever keeps an index that there are messages before the place it has reached.
    """

    head: int
    next: int
    available: int
    tail: int
    ready: int
    delivering: int
    prepared: int
    aside: int
    added: int
    acknowledged: int
    redelivered: int
    put_back: int
    resolved: int
    live_bytes: int
    paged: int
    paged_prepared: int


class AccountLimits(NamedTuple):
    """What an account may hold; None: as much as there is.

    It is full from `max_bytes` or `max_messages` on, until it holds at most `low_bytes` and at most
    `low_messages`, which are not above them, and less than these; so with 0 it is always full.
    `is_holding`: while it is full, the scanner leaves SENDs that lead to it to Python.
    """

    max_bytes: int | None = None
    low_bytes: int | None = None
    max_messages: int | None = None
    low_messages: int | None = None
    is_holding: bool = False


class AccountStatistics(NamedTuple):
    """What an account holds, and whether that is too much."""

    bytes: int
    messages: int
    is_full: bool


class ImageStatistics(NamedTuple):
    """The image's counters (bytes and numbers of slabs, blocks, files).

    `blocks_unwritten` and `unwritten_bytes` count closed blocks that are not durable;
    `records_added` and `payload_bytes` what was staged, without padding, seals and gaps;
    `live_bytes` is the sum of `Core.live_bytes` over all files.
    """

    slabs_total: int
    slabs_free: int
    slabs_max: int
    files_ahead: int
    blocks_unwritten: int
    unwritten_bytes: int
    sequence_sealed: int
    sequence_durable: int
    records_added: int
    payload_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """What one call of `Core.relocate` did.

    Attributes:
        next_offset: File offset of the block to go on with; 0 when the slab was walked to its end,
            or nothing is live in it.
        next_record: Records of that block that were looked at already.
        moved_bytes: Bytes of the records that were staged, counts included.
        moved_places: Places whose message was moved.
        is_absent: The slab is not in memory (any more): load it and go on.
    """

    next_offset: int
    next_record: int
    moved_bytes: int
    moved_places: int
    is_absent: bool


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """What a valid block says of itself.

    `offset` is in the file; `length` reaches to the next block, padding included.
    """

    offset: int
    length: int
    sequence: int
    watermark: int
    previous_crc: int
    crc: int
    records: int
    is_seal: bool
    time_ms: int


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """A prepared branch.

    `block` = sequence of the block of its PREPARE, 0 if it was restored; of its COMMIT or ROLLBACK
    once `outcome` is 1 (committing) or 2 (rolling back): it goes when that block is durable.
    `records` = member records; `places` = what they hold in queues, of which `missing` were not
    found when it was restored. `is_whole` is False when number or digest did not fit then.
    """

    transaction: int
    block: int
    records: int
    places: int
    missing: int
    is_whole: bool
    outcome: int


class BranchMember(NamedTuple):
    """A message that a prepared branch added to a queue, or acknowledged there."""

    queue_id: int
    sequence: int
    is_acknowledgement: bool
    is_missing: bool
