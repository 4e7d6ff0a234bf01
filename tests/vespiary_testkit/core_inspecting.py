"""A core rig filled with messages, and what tests of the inspection calls ask of it.

Owns helpers only. Used by the tests of `vespiary_native.abc_inspection`.
"""

from __future__ import annotations

from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference
from vespiary_codec.journal.record import AckRecord
from vespiary_native.abc import DeliverStatus, NoRoom
from vespiary_testkit.core_rig import KIB, CoreRig, ids

REFERENCE = encode_large_reference(LargeReference(77, 5_000_000, 0xABCD))
PLENTY = 10**6


def filled(rig: CoreRig, count: int = 6) -> CoreRig:
    """Publish messages with their number as body, durably."""
    for number in range(1, count + 1):
        rig.publish(b"%d" % number)
    rig.flush()
    return rig


def seen(rig: CoreRig, sequence: int = 0, max_messages: int = 100, **named: bool) -> list[int]:
    """Look until the end; return the sequences."""
    found: list[int] = []
    while True:
        look = rig.core.look(1, sequence, max_messages, **named)
        assert look.absent is None
        found += [view.sequence for view in look.messages]
        if look.next_sequence >= rig.core.queue_statistics(1).available:
            return found
        sequence = look.next_sequence


def give(
    rig: CoreRig, consumer: int, *sequences: int, max_bytes: int = PLENTY
) -> tuple[DeliverStatus, list[int], int]:
    status, count, passed, frames = rig.core.give(consumer, list(sequences), max_bytes)
    given = ids(frames.split(b"MESSAGE\n")[1:])
    assert len(given) == count
    return status, given, passed


def ended(rig: CoreRig) -> list[tuple[int, int]]:
    """Return the ranges of all ACK records."""
    return [
        tuple(one)
        for file_id in rig.files
        for record in rig.records(file_id)
        if isinstance(record, AckRecord)
        for one in record.ranges
    ]


def exhaust(rig: CoreRig) -> None:
    """Fill the journal's last file to its last page."""
    for size in (15 * KIB, 3000, 0):
        try:
            while True:
                rig.core.append_record(40, bytes(size))
                rig.flush()
        except NoRoom:
            pass
