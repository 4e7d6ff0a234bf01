"""What is left out as dead changes nothing of what lives: stories, whole lives, and any at all."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vespiary_broker.store.live_set import LiveSet
from vespiary_codec.journal.block import HEADER_BYTES, decode_block_header, encode_block
from vespiary_codec.journal.columns import Columns
from vespiary_codec.journal.duplicate import DuplicateId, DuplicateRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    CountRecord,
    Place,
    Record,
    SealRecord,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_native.columns import scan
from vespiary_pipeline.sources import dead
from vespiary_spec.errors import ConfigError, JournalError
from vespiary_testkit.block_builder import FOLDER, Builder
from vespiary_testkit.faulty_disk import crash_images, disk_steps
from vespiary_testkit.journal_lives import record_lives
from vespiary_testkit.journal_workload import recover
from vespiary_testkit.live_stories import COUNTS, STORIES, ack, add, commit, copy, page, told
from vespiary_testkit.live_worlds import held_by_tools
from vespiary_testkit.scanned_blocks import FILE_ID, SALT, numbers, window_of
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.source_rows import rows_of, write_out
from vespiary_testkit.written_files import JournalWriter, message

UNKNOWN = 77
"""Type of a record that says nothing to anybody."""
Feed = Callable[[Any], Any]


class Block(NamedTuple):
    file_id: int
    offset: int
    data: bytes


class Steps:
    """A sink of the recovery that keeps what it is told. Owner: the test."""

    def __init__(self) -> None:
        self.files: list[tuple[Any, ...]] = []
        self.blocks: list[Block] = []
        self.order: list[tuple[Any, ...] | Block] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("restore_"):
            raise AttributeError(name)
        return lambda *args: self.order.append((name, *args)) or []

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        self.blocks.append(Block(file_id, offset, bytes(block)))
        self.order.append(self.blocks[-1])
        return []


def columns_of(block: Block) -> Columns:
    """Return a block's records; its salt and its chain are others, which nobody looks at here."""
    header = decode_block_header(block.data[:HEADER_BYTES], offset=block.offset)
    window = encode_block(
        dataclasses.replace(header, file_id=FILE_ID),
        block.data[HEADER_BYTES:],
        salt=SALT,
        offset=4096,
    )
    found = scan(window, offset=4096, salt=SALT, file_id=FILE_ID)
    assert found.blocks == 1, found.stop
    return found.columns


def silenced(block: Block, columns: Columns, stays: Any) -> Block:
    """Return a block in which records that may go say nothing."""
    data = bytearray(block.data)
    for at, is_kept in zip(numbers(columns.record_at), stays, strict=True):
        if not is_kept:
            data[at + 4 : at + 6] = UNKNOWN, 0
    return block._replace(data=bytes(data))


def without_dead(blocks: list[Block], cuts: list[int]) -> tuple[list[Block], int]:
    """Return blocks without what is dead in the stretches between cuts, and how much that is."""
    made: list[Block] = []
    gone = 0
    for begin, end in zip([0, *cuts], [*cuts, len(blocks)], strict=True):
        found = [columns_of(block) for block in blocks[begin:end]]
        if not found:
            continue
        stays = dead.living(found)
        gone += int((~stays).sum())
        at = 0
        for block, columns in zip(blocks[begin:end], found, strict=True):
            made.append(silenced(block, columns, stays[at : at + columns.rows]))
            at += columns.rows
    return made, gone


def check(feed: Feed, cuts_of: Callable[[int], Iterator[list[int]]]) -> int:
    """Compare what lives with and without what is dead; return how many records were left out."""
    steps, tools = Steps(), LiveSet()
    feed(steps)
    feed(tools)
    expected = held_by_tools(tools)
    left_out = 0
    for cuts in cuts_of(len(steps.blocks)):
        blocks, gone = without_dead(steps.blocks, cuts)
        left_out += gone
        again, following = LiveSet(), iter(blocks)
        for step in steps.order:
            if isinstance(step, Block):
                block = next(following)
                again.restore_block(block.file_id, block.offset, memoryview(block.data))
            else:
                getattr(again, step[0])(*step[1:])
        assert held_by_tools(again) == expected, cuts
    return left_out


def every_cut(blocks: int) -> Iterator[list[int]]:
    """Yield no cut, each cut alone, and a cut between any two blocks."""
    yield []
    yield from ([at] for at in range(1, blocks))
    yield list(range(1, blocks))


def some_cuts(seed: int, blocks: int) -> Iterator[list[int]]:
    chance = random.Random(seed)
    yield []
    for _ in range(3):
        inner = range(1, blocks)  # none, where a cut left no block
        yield sorted(chance.sample(inner, min(len(inner), chance.randint(1, 5))))


@pytest.mark.parametrize("name", [*STORIES, *COUNTS])
def test_every_rule(name: str) -> None:
    check((STORIES | COUNTS)[name][0], every_cut)


T = add(1, transaction=5), add(2, transaction=5)
E = ack(1, transaction=5)
COUNTED: dict[str, tuple[Any, int]] = {
    "a message": (told((add(1), ack(1))), 2),
    "one of two": (told((add(1), add(2)), (ack(2),)), 2),
    "by one range": (told((add(1), add(2)), (ack(1, 2),)), 3),
    "in two queues": (told((add(1), add(1, queue_id=2)), (ack(1), ack(1, queue_id=2))), 4),
    "a transaction": (told(T, (commit(*T),), (ack(1, 2),)), 4),
    "a transaction with an id of a duplicate": (
        told(
            (*T, d := DuplicateRecord("orders", (DuplicateId(1, b"id"),), 5)),
            (commit(*T, d),),
            (ack(1), ack(2)),
        ),
        6,
    ),
    "deliveries": (told((add(1), CountRecord(1, 3, 1)), (ack(1),)), 3),
    "deliveries told behind it": (told((add(1),), (ack(1),), (CountRecord(1, 3, 1),)), 2),
    "a range that is not seen whole": (told((add(2),), (ack(1, 2),)), 1),
    "a range with one that lives": (told((add(1, 3), add(2)), (ack(1, 2),)), 1),
    "one place of two": (told((add(1, 2),), (ack(1),)), 0),
    "a copy": (told((copy(1),), (ack(1),)), 0),
    "a copy behind": (told((add(1),), (copy(1),), (ack(1),)), 0),
    "a page": (told((add(1),), (page(7, 1),), (ack(1),)), 0),
    "an acknowledgement in front": (told((ack(1),), (add(1),)), 0),
    "a transaction without its end": (told(T, (ack(1, 2),)), 0),
    "a transaction of more": (told(T, (commit(*T, add(9, transaction=5)),), (ack(1, 2),)), 0),
    "a transaction of which one lives": (told(T, (commit(*T),), (ack(1),)), 0),
    "a transaction that acknowledges": (told((add(1),), (E,), (commit(E),)), 0),
    "an acknowledgement before the end": (told(T, (ack(1, 2),), (commit(*T),)), 0),
    "too far apart": (told((add(1), add(2**50)), (ack(1), ack(2**50))), 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_how_many_records_go(name: str) -> None:
    story, records = COUNTED[name]
    assert check(story, lambda _: iter([[]])) == records


def test_lives_that_are_cut_anywhere(tmp_path: Path) -> None:
    left_out = 0
    for case in range(6):
        seed = seed_for(f"dead lives {case}")
        log = record_lives(tmp_path, seed)
        for cut in [*random.Random(seed).sample(disk_steps(log), 3), len(log)]:
            images = crash_images(log[:cut], seed=cut, start=cut - 1, subsets_max=1, torn_max=1)
            for image in images:
                feed = functools.partial(recover, image.disk, tmp_path)
                try:
                    feed(LiveSet())
                except JournalError:
                    continue  # the cut lay in the making of a file
                left_out += check(feed, functools.partial(some_cuts, cut))
    assert left_out


class Anything:
    """A journal as no broker writes it so wildly, but each place begins with its ADD."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.added: list[tuple[int, int]] = []
        self.open: dict[int, list[Record]] = {}
        self.next = 1

    def record(self) -> Record:
        chance = self.chance
        make = chance.choices(
            [self.new, self.done, self.member, self.end, self.copied, self.paged, self.counted],
            [8, 8, 4, 3, 1, 1, 1],
        )[0]
        return make()

    def new(self, transaction: int = 0) -> Record:
        queues = self.chance.sample([1, 2, 3], self.chance.choice([1, 1, 1, 2]))
        places = [Place(queue, self.next) for queue in queues]
        self.next += 1
        self.added += [(one.queue_id, one.sequence) for one in places]
        return AddRecord(tuple(places), b"", b"x", 1, transaction=transaction)

    def done(self, transaction: int = 0) -> Record:
        low = max(1, self.next - 12)
        ranges = []
        for _ in range(self.chance.choice([1, 1, 2])):
            first = self.chance.randint(low, self.next)
            ranges.append(SequenceRange(first, self.chance.choice([1, 1, 2, 5, 10**7])))
        return AckRecord(self.chance.choice([1, 1, 2]), tuple(ranges), transaction)

    def member(self) -> Record:
        number = self.chance.randint(1, 3) + 10 * (self.next // 12)
        make = self.new if self.chance.random() < 0.8 else self.done
        record = make(number)
        self.open.setdefault(number, []).append(record)
        return record

    def end(self) -> Record:
        if not self.open:
            return self.new()
        number = self.chance.choice([*self.open])
        members = [encode_record(one) for one in self.open.pop(number)]
        if self.chance.random() < 0.1:
            members = members[1:]
        return CommitRecord(number, len(members), digest_members(members))

    def copied(self) -> Record:
        if not self.added:
            return self.new()
        queue, sequence = self.chance.choice(self.added[-15:])
        return AddRecord((Place(queue, sequence),), b"", b"x", 1, is_moved=True)

    def paged(self) -> Record:
        own = sorted({s for q, s in self.added[-9:] if q == 1})
        return page(self.chance.randint(1, 4), *own[: self.chance.randint(0, 4)])

    def counted(self) -> Record:
        if not self.added:
            return self.new()
        queue, sequence = self.chance.choice(self.added[-15:])
        return CountRecord(queue, 2, sequence)


def test_anything_at_all() -> None:
    left_out = 0
    for case in range(150):
        seed = seed_for(f"dead worlds {case}")
        world = Anything(seed)
        story = told(
            *([world.record() for _ in range(world.chance.randint(1, 8))] for _ in range(12))
        )
        left_out += check(story, functools.partial(some_cuts, seed))
    assert left_out > 1000


# --- through the source ---------------------------------------------------------------------------


def write(folder: Path, files: list[list[list[Record]]]) -> None:
    """Write a journal: records of each block of each file."""
    builder = Builder()
    for file_id, blocks in enumerate(files, 1):
        builder.file(file_id)
        for records in blocks:
            builder.block(*records)
        if file_id < len(files):
            builder.seal()
    write_out(builder.disk, FOLDER, folder)


def of_interest(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["kind"], row["position"]) for row in rows if row["kind"] != "SEAL"]


def test_a_partition_is_one_stretch(tmp_path: Path) -> None:
    write(tmp_path, [[[add(1), add(2)], [ack(1)]], [[ack(2), add(3)], [SealRecord()]]])
    rows = rows_of(tmp_path)
    without = rows_of(tmp_path, dead="false")
    assert of_interest(without) == [("ADD", 4 << 16 | 1)]
    assert [row for row in rows if row in without] == without
    alone = rows_of(tmp_path, dead="false", maxPartitionBytes="65536")
    assert of_interest(alone) == [
        ("ADD", 1 << 16 | 1), ("ACK", 4 << 16), ("ADD", 4 << 16 | 1),
    ]  # fmt: skip


def test_headers_and_bodies_are_those_of_what_is_left(tmp_path: Path) -> None:
    living = AddRecord((Place(1, 2),), b"destination:/queue/orders\nn:1\n", b"body", 7)
    write(tmp_path, [[[add(1), living, add(3, 4)], [ack(1), ack(3)]]])
    (one, *_) = rows_of(tmp_path, dead="false", body="true")
    assert (one["body"], one["properties"]) == (b"body", {"destination": "/queue/orders", "n": "1"})
    assert one == rows_of(tmp_path, body="true")[1]


def test_what_is_held_is_not_read_over(tmp_path: Path) -> None:
    """Windows that are held keep their memory, while others are read into one again and again."""
    writer = JournalWriter(tmp_path)
    for number in range(1, 5):
        properties = f"destination:/queue/address-{number}\n".encode()
        kept = message(number, f"body-{number}".encode(), properties=properties)
        writer.file(number, [kept], [message(100 + number), ack(100 + number)], is_sealed=True)
    rows = rows_of(tmp_path, dead="false", body="true")
    assert [(row["address"], row["body"]) for row in rows if row["kind"] == "ADD"] == [
        (f"address-{number}", f"body-{number}".encode()) for number in range(1, 5)
    ]


def test_a_stretch_has_an_end(tmp_path: Path) -> None:
    def make(columns: Columns) -> Iterator[Any]:
        yield columns.rows

    window = window_of([[add(1)], [ack(1), add(2)]])
    found = scan(window, offset=4096, salt=SALT, file_id=FILE_ID).columns
    by_rows, by_bytes = dead.Stretch(rows_max=6), dead.Stretch(bytes_max=2 * len(window))
    assert [[*by_rows.add(found, make, len(window))] for _ in range(3)] == [[], [3, 3], []]
    assert [[*by_bytes.add(found, make, len(window))] for _ in range(3)] == [[], [3, 3], []]
    assert [*by_rows.batches()] == [1]
    assert [*by_rows.batches()] == []


def test_what_is_dead_is_seen_by_all_kinds(tmp_path: Path) -> None:
    write(tmp_path, [[[add(1)]]])
    with pytest.raises(ConfigError, match="records of all kinds"):
        rows_of(tmp_path, dead="false", kinds="ADD")
