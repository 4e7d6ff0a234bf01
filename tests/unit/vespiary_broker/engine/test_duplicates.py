"""Duplicate ids over an engine: atomic with their message, counted by file, cleared, restored."""

from __future__ import annotations

import ctypes
import logging
from itertools import pairwise
from typing import Any

import pytest

import vespiary_broker.engine.duplicates as duplicates_module
from vespiary_broker.engine.core import AckMode, NoRoom
from vespiary_broker.engine.duplicates import CACHES_MAX, DuplicateIds
from vespiary_broker.engine.publishing import find_target, make_target
from vespiary_broker.engine.transactions import (
    Outgoing,
    Transaction,
    find_duplicate,
    stage,
    stage_once,
)
from vespiary_codec.journal.block import walk_blocks
from vespiary_codec.journal.duplicate import DuplicateId, DuplicateRecord, duplicate_body
from vespiary_codec.journal.record import (
    CommitRecord,
    RawRecord,
    RecordType,
    decode_record,
    digest_members,
    walk_records,
)
from vespiary_spec.errors import LimitExceeded
from vespiary_testkit.engine_rig import Rig, destination, do
from vespiary_testkit.memory_journal import MemoryJournal

DUPLICATE = int(RecordType.DUPLICATE)
COMMIT = int(RecordType.COMMIT)


def message(text: str, *, to: str = "/queue/q", body: bytes = b"x", keep: bool = True) -> Outgoing:
    return Outgoing(
        destination=destination(to),
        properties=b"destination:q\n",
        body=body,
        is_persistent=keep,
        duplicate_id=text.encode(),
    )


def send(rig: Rig, text: str, **named: Any) -> bool:
    one = message(text, **named)
    target = find_target(rig.registry, one.destination)
    target = target or do(make_target(rig.registry, one.destination))
    return stage_once(rig.core, rig.registry, rig.duplicates, one, target) is not None


def number_in(rig: Rig, name: str = "q") -> int:
    return rig.core.queue_statistics(rig.registry.queues[name].id).added


def test_a_message_that_comes_again_is_discarded_also_before_the_first_is_durable(
    caplog: pytest.LogCaptureFixture,
):
    rig = Rig()
    with caplog.at_level(logging.WARNING):
        assert [send(rig, t) for t in ("a", "b", "a", "a")] == [True, True, False, False]
    assert number_in(rig) == 2
    assert rig.duplicates.discarded == 2
    assert rig.duplicates.state("q", 5).newest == ("b", "a")
    assert len([r for r in caplog.records if "duplicate id" in r.message]) == 1, "once an address"
    assert "address=q" in caplog.text


def test_another_address_has_ids_of_its_own():
    rig = Rig()
    assert send(rig, "a")
    assert send(rig, "a", to="/queue/other")


def _send_until_full(rig: Rig) -> int:
    """Return the number of messages that there was room for."""
    for n in range(100):
        try:
            send(rig, f"{n}", body=bytes(5000))
        except NoRoom:
            return n
    raise AssertionError("it never gets full")


def test_a_message_without_room_leaves_no_id():
    rig = Rig(journal=MemoryJournal(files=1, file_bytes=64 * 1024))
    refused = _send_until_full(rig)
    assert refused == number_in(rig)
    assert not rig.duplicates.is_seen("q", b"%d" % refused)
    rig.journal.add_file()
    assert send(rig, f"{refused}", body=bytes(5000))


def test_a_message_that_is_too_large_leaves_no_open_transaction():
    rig = Rig(journal=MemoryJournal(record_bytes_max=10_000))
    send(rig, "small")
    with pytest.raises(LimitExceeded, match="too large for the journal"):
        send(rig, "large", body=bytes(10_000))
    with pytest.raises(LimitExceeded):
        stage(
            rig.core,
            rig.registry,
            rig.duplicates,
            Transaction([message("large", body=bytes(10_000))]),
        )
    assert not rig.duplicates.is_seen("q", b"large")
    assert send(rig, "next"), "nothing was left open in the core"


def test_a_transaction_with_an_id_that_was_seen_is_found():
    rig = Rig()
    send(rig, "a")
    again = message("a")
    twice = [message("b"), message("c"), message("b")]
    fine = [message("b"), message("b", to="/queue/other"), message("")]
    assert find_duplicate(rig.duplicates, Transaction([message("b"), again])) is again
    assert find_duplicate(rig.duplicates, Transaction(twice)) is twice[2]
    assert find_duplicate(rig.duplicates, Transaction(fine)) is None


def test_ids_of_a_transaction_enter_together():
    rig = Rig()
    send(rig, "made")
    send(rig, "made", to="/queue/other")
    members = [
        message("a"),
        message("b", keep=False),
        message("c"),
        message("a", to="/queue/other"),
    ]
    stage(rig.core, rig.registry, rig.duplicates, Transaction(members))
    assert rig.duplicates.state("q", 9).newest == ("c", "b", "a", "made")
    assert rig.duplicates.state("other", 9).newest == ("a", "made")
    assert not send(rig, "c")


def test_detection_can_be_off_for_an_address():
    rig = Rig(duplicates=DuplicateIds(lambda a: 0 if a == "q" else 5, is_persistent=True))
    assert not rig.duplicates.is_on("q")
    assert rig.duplicates.is_on("other")
    assert find_duplicate(rig.duplicates, Transaction([message("a"), message("a")])) is None


# --- records ------------------------------------------------------------------------------------


def restored(*records: tuple[int, DuplicateRecord | int], size: int = 100) -> DuplicateIds:
    """Return caches made of (file, record); a number stands for the COMMIT of a transaction."""
    ids = DuplicateIds(lambda _: size, is_persistent=True)
    for file_id, record in records:
        if isinstance(record, int):
            ids.restore(file_id, COMMIT, record.to_bytes(8, "little") + bytes(8))
        else:
            ids.restore(file_id, DUPLICATE, duplicate_body(record))
    ids.start(MemoryJournal().core, lambda _: True)
    return ids


def one(number: int, text: bytes, transaction: int = 0, address: str = "q") -> DuplicateRecord:
    return DuplicateRecord(address, (DuplicateId(number, text),), transaction)


def test_ids_of_a_transaction_count_with_its_commit():
    ids = restored((1, one(1, b"a", 7)), (1, one(2, b"b", 8)), (2, 7))
    assert ids.is_seen("q", b"a")
    assert not ids.is_seen("q", b"b")
    assert (ids.live_records(1), ids.live_records(2)) == (1, 0)


def test_the_order_of_records_does_not_matter():
    ids = restored((5, one(1, b"a")), (2, one(3, b"c")), (9, one(2, b"b")), size=2)
    assert ids.state("q", 9).newest == ("c", "b")
    assert [ids.live_records(n) for n in (2, 5, 9)] == [1, 0, 1]
    assert ids.live_bytes(5) == 0
    assert ids.live_bytes(9) > 0


def test_a_record_that_was_moved_counts_once_where_it_stands_last():
    ids = restored((1, one(1, b"a")), (3, one(1, b"a")))
    assert (ids.live_records(1), ids.live_records(3)) == (0, 1)


def test_a_mark_clears_what_is_below_it_wherever_that_stands():
    ids = restored((1, one(1, b"a")), (4, one(3, b"c")), (3, one(2, b"")), (3, one(1, b"x")))
    assert ids.state("q", 9).newest == ("c",)


def test_numbers_go_on_behind_those_that_were_found():
    ids = restored((1, one(41, b"a")))
    ((record, stays),) = ids.numbered([("q", b"b", True)])
    assert (record.ids, stays) == ((DuplicateId(42, b"b"),), True)
    gone = restored((1, one(41, b"a")), size=0)
    ((record, _),) = gone.numbered([("q", b"b", True)])
    assert record.ids[0].number == 42, "also when none of them is remembered"


def test_ids_that_are_not_kept_in_the_journal_are_not_read_back():
    ids = DuplicateIds(lambda _: 9, is_persistent=False)
    ids.restore(1, DUPLICATE, duplicate_body(one(1, b"a")))
    ids.start(MemoryJournal().core, lambda _: True)
    assert not ids.is_seen("q", b"a")
    assert ids.live_records(1) == 0
    ((_, stays),) = ids.numbered([("q", b"b", True)])
    assert not stays


def test_a_message_that_is_not_journalled_takes_its_id_along():
    rig = Rig()
    before = rig.core.image_statistics().records_added
    send(rig, "a", keep=False)
    staged = rig.core.image_statistics().records_added - before
    assert staged == 1, "its COMMIT, which says nothing"
    assert rig.duplicates.live_records(1) == 0
    assert not send(rig, "a", keep=False)


# --- files --------------------------------------------------------------------------------------


def rolled(rig: Rig, to_file: int) -> None:
    """Fill files with messages without ids."""
    while rig.core.current_file() < to_file:
        rig.send("/queue/fill", bytes(30_000))


def test_displaced_ids_let_their_file_go():
    rig = Rig(
        journal=MemoryJournal(file_bytes=256 * 1024),
        duplicates=DuplicateIds(lambda _: 2, is_persistent=True),
    )
    for text in ("a", "b"):
        send(rig, text)
    assert rig.duplicates.live_records(1) == 2
    rolled(rig, 2)
    send(rig, "c")
    assert (rig.duplicates.live_records(1), rig.duplicates.live_records(2)) == (1, 1)
    send(rig, "d")
    assert (rig.duplicates.live_records(1), rig.duplicates.live_bytes(1)) == (0, 0)


def test_a_rewrite_moves_ids_in_pieces_under_their_numbers():
    rig = Rig(
        journal=MemoryJournal(file_bytes=256 * 1024),
        duplicates=DuplicateIds(lambda _: 1000, is_persistent=True),
    )
    texts = [f"{n:0200}" for n in range(200)]
    for text in texts:
        send(rig, text, body=b"")
    send(rig, "other", to="/queue/other")
    assert rig.core.current_file() == 1
    rolled(rig, 2)
    assert not rig.duplicates.rewrite(1, 20_000), "there are more"
    left = rig.duplicates.live_records(1)
    assert 0 < left < 200
    assert rig.duplicates.live_records(2) == 201 - left
    while not rig.duplicates.rewrite(1, 20_000):
        pass
    assert rig.duplicates.live_records(1) == 0
    assert rig.duplicates.live_bytes(1) == 0
    assert rig.duplicates.live_records(2) == 201
    assert rig.duplicates.state("q", 1).newest == (texts[-1],)
    rig.duplicates.forget_file(1)
    assert not send(rig, texts[0])


def test_a_rewrite_looks_at_a_part_of_a_large_cache_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duplicates_module, "_REWRITE_LOOKED_AT", 50)
    rig = Rig(
        journal=MemoryJournal(file_bytes=256 * 1024),
        duplicates=DuplicateIds(lambda _: 1000, is_persistent=True),
    )
    for number in range(200):
        send(rig, str(number), body=b"")
    rolled(rig, 2)
    assert not rig.duplicates.rewrite(1, 1_000_000), "there are more numbers to look at"
    assert rig.duplicates.live_records(1) == 150
    calls = [rig.duplicates.rewrite(1, 1_000_000) for _ in range(3)]
    assert calls == [False, False, True], "each goes on where the one before stopped"
    assert rig.duplicates.live_records(1) == 0
    rig.duplicates.forget_file(1)
    assert all(not send(rig, str(number)) for number in range(200))


class CountingCore:
    """The core of a rig, counting the records that are appended to it."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.records = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def append_record(self, *arguments: Any, **named: Any) -> Any:
        self.records += 1
        return self.core.append_record(*arguments, **named)


def test_a_rewrite_is_bounded_by_records_and_by_ids_looked_at():
    """Also where each id, or each mark, is a record of its own."""
    rig = Rig(
        journal=MemoryJournal(file_bytes=256 * 1024),
        duplicates=DuplicateIds(lambda _: 20_000, is_persistent=True),
    )
    ids = rig.duplicates
    for address in range(600):
        ids.enter([(r, 1) for r, _ in ids.numbered([(f"q{address}", b"an id", True)])])
    many = ids.numbered([("many", b"%d" % n, True) for n in range(5000)])
    ids.enter([(record, 1) for record, _ in many])
    rolled(rig, 2)
    core = CountingCore(rig.core)
    ids._core = core
    calls = []
    left = [ids.live_records(1)]
    while left[-1]:
        core.records = 0
        is_done = ids.rewrite(1, 1 << 20)
        calls.append(core.records)
        left.append(ids.live_records(1))
        assert is_done is (left[-1] == 0)
    assert sum(calls) >= 601
    assert max(calls) <= 50_000 // 250 + 1
    assert max(before - after for before, after in pairwise(left)) <= 50_000 // 50 + 1500, (
        "the last record may go over it"
    )
    assert len(calls) >= 5600 // 1000


def test_a_rewrite_without_room_goes_on_later():
    rig = Rig(journal=MemoryJournal(files=1, file_bytes=64 * 1024))
    send(rig, "a")
    with pytest.raises(NoRoom):
        rolled(rig, 2)
    while True:
        try:
            rig.core.append_record(100, bytes(1000))
        except NoRoom:
            break
    while True:
        try:
            rig.core.append_record(100, b"")
        except NoRoom:
            break
    assert not rig.duplicates.rewrite(1, 10_000)
    assert rig.duplicates.live_records(1) == 1
    rig.journal.add_file()
    assert rig.duplicates.rewrite(1, 10_000)


# --- clearing -----------------------------------------------------------------------------------


def test_cleared_ids_are_taken_again_and_their_mark_keeps_its_file_while_they_could_rise():
    rig = Rig(journal=MemoryJournal(file_bytes=256 * 1024))
    for text in ("a", "b"):
        send(rig, text)
    rolled(rig, 2)
    send(rig, "c")
    assert rig.duplicates.clear("q") == 3
    assert rig.duplicates.clear("q") == 0
    assert rig.duplicates.live_records(1) == 0
    assert rig.duplicates.live_records(2) == 1, "the mark, as long as file 1 is there"
    assert send(rig, "a")
    assert rig.duplicates.state("q", 9).newest == ("a",)
    rig.duplicates.forget_file(1)
    assert rig.duplicates.live_records(2) == 1, "the id alone"
    rolled(rig, 3)
    assert rig.duplicates.rewrite(2, 1000)
    rig.duplicates.forget_file(2)
    assert not send(rig, "a")


def test_a_mark_is_moved_with_the_rest():
    rig = Rig(journal=MemoryJournal(file_bytes=256 * 1024))
    send(rig, "a")
    rolled(rig, 2)
    send(rig, "b")
    rig.duplicates.clear("q")
    rolled(rig, 3)
    assert rig.duplicates.live_records(2) == 1
    assert rig.duplicates.rewrite(2, 1000)
    assert (rig.duplicates.live_records(2), rig.duplicates.live_records(3)) == (0, 1)
    rig.duplicates.forget_file(2)
    assert rig.duplicates.live_records(3) == 1, "file 1 still has the id"
    rig.duplicates.forget_file(1)
    assert rig.duplicates.live_records(3) == 0


def test_numbers_go_on_behind_a_mark():
    ids = restored((1, one(7, b"a")), (2, one(9, b"")))
    ((record, _),) = ids.numbered([("q", b"a", True)])
    assert record.ids[0].number == 10


def test_addresses_that_are_gone_are_forgotten_when_there_are_too_many():
    ids = DuplicateIds(lambda _: 3, is_persistent=False)
    ids.start(MemoryJournal().core, lambda name: name == "stays")
    for name in ("stays", *(f"gone-{n}" for n in range(CACHES_MAX + 5))):
        ids.enter([(record, 0) for record, _ in ids.numbered([(name, b"a", True)])])
    assert ids.count == CACHES_MAX
    assert ids.is_seen("stays", b"a")
    assert not ids.is_seen("gone-0", b"a")


def test_the_files_of_messages_and_ids_are_freed_in_the_right_order():
    """A message that is done frees its place; the id of it still holds the file."""
    rig = Rig(journal=MemoryJournal(file_bytes=256 * 1024))
    output = rig.output()
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    send(rig, "a")
    rig.turn()
    assert output.bodies() == [b"x"]
    assert rig.core.live_places(1) == 0
    assert rig.duplicates.live_records(1) == 1


def written(rig: Rig) -> list[RawRecord]:
    """Write what is staged; return its records."""
    found: list[RawRecord] = []
    while (request := rig.core.seal_write()) is not None:
        data = ctypes.string_at(request.address, request.length)
        for _, header, payload in walk_blocks(data, offset=request.offset, salt=7, file_id=1):
            found += walk_records(payload, header.records)
        rig.core.write_done(request.sequence)
    return found


def test_message_and_id_are_members_of_one_transaction_in_the_journal():
    """Whatever blocks they fall into, the COMMIT decides over both."""
    rig = Rig()
    send(rig, "made")
    written(rig)
    send(rig, "a")
    add, id_, commit = written(rig)
    assert (add.type, id_.type, commit.type) == (RecordType.ADD, DUPLICATE, COMMIT)
    record, end = decode_record(id_), decode_record(commit)
    assert isinstance(record, DuplicateRecord)
    assert record.ids == (DuplicateId(2, b"a"),)
    assert record.transaction
    assert end == CommitRecord(record.transaction, 2, digest_members([add.data, id_.data]))
