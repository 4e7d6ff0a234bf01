"""`STORIES`: rules of journal-format §3.3, §3.8 and §4.6 as small journals, and what lives there.

Owns the stories, and short names for their records. `live_worlds` has the oracles.
"""

from __future__ import annotations

from typing import Any

from vespiary_codec.journal.branch import (
    BranchName,
    PrepareRecord,
    RollbackRecord,
    Xid,
    encode_branch,
)
from vespiary_codec.journal.page_record import PageDoneRecord, PagedQueue, PagedRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    CountRecord,
    Place,
    Record,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_pipeline.transform.live import WIDE
from vespiary_testkit.journal_blocks import Story

SALT = 5
NAME = encode_branch(BranchName(Xid(1, b"g", b"q"), 1, "amy"))
LAST = 2**63 - 1


def add(*sequences: int, transaction: int = 0, queue_id: int = 1, body: bytes = b"x") -> AddRecord:
    places = tuple(Place(queue_id, sequence) for sequence in sequences)
    return AddRecord(places, b"destination:/queue/orders\n", body, 1, transaction=transaction)


def copy(*sequences: int) -> AddRecord:
    """Return what compaction makes of an ADD: another one of some of its places."""
    return add(*sequences)._replace(is_moved=True)


def ack(first: int, number: int = 1, *, transaction: int = 0, queue_id: int = 1) -> AckRecord:
    return AckRecord(queue_id, (SequenceRange(first, number),), transaction)


def commit(*members: Record, transaction: int = 5) -> CommitRecord:
    return CommitRecord(transaction, *_summed(members))


def prepare(*members: Record, transaction: int = 5) -> PrepareRecord:
    return PrepareRecord(transaction, *_summed(members), NAME)


def rollback(*members: Record, transaction: int = 5) -> RollbackRecord:
    return RollbackRecord(transaction, *_summed(members))


def _summed(members: tuple[Record, ...]) -> tuple[int, int]:
    encoded = [encode_record(member) for member in members]
    return len(encoded), digest_members(encoded)


def page(page_id: int, *sequences: int, counts: tuple[tuple[int, int], ...] = ()) -> PagedRecord:
    queues = (PagedQueue(1, sequences, (), counts),) if sequences else ()
    return PagedRecord(page_id, SALT, 16384, queues)


def told(*blocks: tuple[Any, ...]) -> Story:
    """Return a journal of one file: a block for each tuple; a number first: so many are missing."""
    story = Story()
    story.file(1)
    for block in blocks:
        gap = block[0] if isinstance(block[0], int) else 0
        story.block(*(block[1:] if gap else block), gap=gap)
    return story


A, B = add(1, transaction=5), add(2, transaction=5)
ENDS = ack(9, transaction=5)
STORIES: dict[str, tuple[Story, dict[int, str]]] = {
    "added": (told((add(1), add(2))), {1: "live", 2: "live"}),
    "acknowledged": (told((add(1), add(2), ack(1))), {2: "live"}),
    "acknowledged in ranges": (
        told((add(*range(1, 9)), AckRecord(1, (SequenceRange(1, 3), SequenceRange(6, 2))))),
        {4: "live", 5: "live", 8: "live"},
    ),
    "acknowledged before it was there": (told((ack(1),), (add(1),)), {1: "live"}),
    "a copy": (told((add(1, 2),), (copy(1),)), {1: "live", 2: "live"}),
    "a copy, acknowledged": (told((add(1, 2),), (copy(1),), (ack(1),)), {2: "live"}),
    "acknowledged, then copied": (
        told((add(1, 2),), (ack(1),), (copy(1),)),
        {1: "live", 2: "live"},
    ),
    "a range of very many": (
        told((add(1, 2, 10**9),), (ack(2, 10**9),), (add(10**9 + 1),)),
        {1: "live", 10**9 + 1: "live"},
    ),
    "a range without end": (told((add(1, 7),), (ack(2, LAST - 1),)), {1: "live"}),
    "the longest range that is taken apart": (
        told((add(1, WIDE, WIDE + 1),), (ack(1, WIDE),)),
        {WIDE + 1: "live"},
    ),
    "the shortest range that is not": (
        told((add(1, WIDE + 1, WIDE + 2),), (ack(1, WIDE + 1),)),
        {WIDE + 2: "live"},
    ),
    "a wide range before it was there": (told((ack(1, 10**9),), (add(7),)), {7: "live"}),
    "wide ranges of two queues": (
        told((add(7), add(7, queue_id=2)), (ack(1, 10**9, queue_id=2),)),
        {7: "live"},
    ),
    "the last sequence": (
        told((add(LAST - 1), add(LAST - 2)), (ack(LAST - 1, 1),)),
        {LAST - 2: "live"},
    ),
    "committed": (told((A, B), (commit(A, B),)), {1: "live", 2: "live"}),
    "never committed": (
        told(
            (A, B),
        ),
        {},
    ),
    "another number of members": (told((A,), (commit(A, B),)), {}),
    "another digest": (told((add(1, transaction=5, body=b"y"),), (commit(A),)), {}),
    "fewer, right behind a gap": (told((add(8),), (1, B), (commit(A, B),)), {2: "live", 8: "live"}),
    "fewer, a gap before the COMMIT": (told((B,), (1, commit(A, B))), {2: "live"}),
    "fewer, a gap before the first member's block": (
        told((add(8),), (1, add(7)), (B,), (commit(A, B),)),
        {7: "live", 8: "live"},
    ),
    "acknowledged by a transaction": (told((add(9),), (ENDS,), (commit(ENDS),)), {}),
    "acknowledged by one that is open": (told((add(9),), (ENDS,)), {9: "live"}),
    "members count where the COMMIT stands": (told((A,), (ack(1),), (commit(A),)), {1: "live"}),
    "a wide range counts where its COMMIT stands": (
        told((w := ack(1, 10**9, transaction=5),), (add(7),), (commit(w),)),
        {},
    ),
    "added and acknowledged by one transaction": (
        told((A, e := ack(1, transaction=5)), (commit(A, e),)),
        {},
    ),
    "acknowledged and added by one transaction": (
        told((e, A), (commit(e, A),)),
        {1: "live"},
    ),
    "prepared": (told((add(9),), (A, ENDS), (prepare(A, ENDS),)), {1: "prepared", 9: "locked"}),
    "prepared, members do not fit": (told((A,), (prepare(A, B),)), {1: "prepared"}),
    "prepared and committed": (
        told((add(9),), (A, ENDS), (prepare(A, ENDS),), (commit(A, ENDS),)),
        {1: "live"},
    ),
    "prepared, members do not fit, committed": (
        told((A,), (prepare(A, B),), (commit(A),)),
        {1: "prepared"},
    ),
    "prepared and rolled back": (
        told((add(9),), (A, ENDS), (prepare(A, ENDS),), (rollback(A, ENDS),)),
        {9: "live"},
    ),
    "prepared, fewer behind a gap": (told((B,), (1, prepare(A, B)), (commit(A, B),)), {2: "live"}),
    "an id that comes again": (
        told((A,), (commit(A),), (ENDS,), (add(9),), (B,), (commit(ENDS, B),)),
        {1: "live", 2: "live"},
    ),
    "moved to a page": (
        told((add(1, 2, 3),), (page(7, 1, 3),)),
        {1: "paged", 2: "live", 3: "paged"},
    ),
    "acknowledged in a page": (told((add(1, 2),), (page(7, 1, 2),), (ack(1),)), {2: "paged"}),
    "acknowledged in a page by a wide range": (
        told((add(1, 2),), (page(7, 1, 2),), (ack(2, 10**9),)),
        {1: "paged"},
    ),
    "a later PAGE voids the one before": (
        told((add(1, 2, 3),), (page(7, 1, 2, 3),), (ack(2),), (page(7, 1, 3),)),
        {1: "paged", 3: "paged"},
    ),
    "a later PAGE voids acknowledgements": (
        told((add(1, 2),), (page(7, 1, 2),), (ack(1),), (page(7, 1, 2),)),
        {1: "paged", 2: "paged"},
    ),
    "a PAGE without the queue": (told((add(1, 2),), (page(7, 1, 2),), (page(7),)), {}),
    "a page that is done": (told((add(1, 2),), (page(7, 1),), (PageDoneRecord(7),)), {2: "live"}),
    "a page that comes again": (
        told((add(1),), (page(7, 1),), (PageDoneRecord(7),), (page(7, 1),)),
        {1: "paged"},
    ),
    "two pages": (
        told((add(1, 2),), (page(7, 1),), (page(8, 2),), (PageDoneRecord(7),)),
        {2: "paged"},
    ),
    "prepared, acknowledges what is in a page": (
        told((add(9),), (page(7, 9),), (ENDS,), (prepare(ENDS),)),
        {9: "paged and locked"},
    ),
}
COUNTS: dict[str, tuple[Story, dict[int, int | None]]] = {
    "given back": (told((add(1, 2), CountRecord(1, 3, 1))), {1: 3, 2: 0}),
    "the latest counts": (told((add(1), CountRecord(1, 3, 1)), (CountRecord(1, 2, 1),)), {1: 2}),
    "taken back": (told((add(1), CountRecord(1, 3, 1)), (CountRecord(1, 0, 1),)), {1: 0}),
    "behind a copy": (told((add(1),), (copy(1), CountRecord(1, 4, 1))), {1: 4}),
    "of a page nobody knows": (
        told((add(1), CountRecord(1, 3, 1)), (page(7, 1, counts=((1, 3),)),)),
        {1: None},
    ),
    "behind a PAGE": (told((add(1),), (page(7, 1),), (CountRecord(1, 6, 1),)), {1: 6}),
}
