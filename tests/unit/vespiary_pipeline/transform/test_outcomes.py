"""What becomes of transactions: each rule of journal-format §3.3, in both ways that settle one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.branch import BranchName, PrepareRecord, Xid, encode_branch, encode_end
from vespiary_codec.journal.record_types import RecordType
from vespiary_pipeline.transform.digests import combine_crcs
from vespiary_pipeline.transform.outcomes import MEMBER, PAGE, TRANSACTION, Item, fold, settle

COMMIT, PREPARE, ROLLBACK = (
    int(kind) for kind in (RecordType.COMMIT, RecordType.PREPARE, RecordType.ROLLBACK)
)
BODIES = [b"one", b"", b"a longer one" * 30]
ITEM = pa.struct([(name, pa.int64()) for name in Item._fields])


def member(position: int, body: bytes = b"x", *, gaps: int = 1, after_gap: bool = False) -> Item:
    return Item(position, MEMBER, crc32c(body), len(body), gaps, int(after_gap), 0, 0)


def end(
    position: int,
    code: int,
    *bodies: bytes,
    gaps: int = 1,
    after_gap: bool = False,
    digest: int = 0,
) -> Item:
    whole = crc32c(b"".join(bodies)) ^ digest
    return Item(position, code, 0, 24, gaps, int(after_gap), len(bodies), whole)


def settle_all(*lists: list[Item], family: int = TRANSACTION) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict(
        {
            "family": pa.array([family] * len(lists), pa.int8()),
            "id": pa.array(range(len(lists)), pa.int64()),
            "items": pa.array(
                [[one._asdict() for one in items] for items in lists], pa.list_(ITEM)
            ),
            "prepare": pa.nulls(len(lists), pa.binary()),
        }
    )
    rows = [row for made in settle(iter([batch])) for row in made.to_pylist()]
    return sorted(rows, key=lambda row: (row["id"], row["begin_position"]))


A, B = b"first", b"second"
CASES: dict[str, tuple[list[Item], str]] = {
    "whole": ([member(1, A), member(2, B), end(3, COMMIT, A, B)], "committed"),
    "in the wrong order": ([member(1, B), member(2, A), end(3, COMMIT, A, B)], "void"),
    "one too few": ([member(2, B), end(3, COMMIT, A, B)], "void"),
    "one too many": ([member(1, A), member(2, B), end(3, COMMIT, A)], "void"),
    "one too many behind a gap": (
        [member(1, A), member(2, B, after_gap=True), end(3, COMMIT, A)],
        "void",
    ),
    "another digest": ([member(1, A), end(3, COMMIT, A, digest=1)], "void"),
    "fewer, right behind a gap": (
        [member(2, B, after_gap=True), end(3, COMMIT, A, B)],
        "committed",
    ),
    "fewer, a gap somewhere before": ([member(2, B, gaps=5), end(3, COMMIT, A, B, gaps=5)], "void"),
    "fewer, a gap before the COMMIT": (
        [member(2, B, gaps=1), end(9, COMMIT, A, B, gaps=2)],
        "committed",
    ),
    "a COMMIT alone": ([end(3, COMMIT, A, B)], "committed"),
    "no end": ([member(1, A)], "open"),
    "prepared": ([member(1, A), end(2, PREPARE, A)], "prepared"),
    "prepared of nothing": ([end(2, PREPARE)], "prepared"),
    "prepared and committed": (
        [member(1, A), end(2, PREPARE, A), end(3, COMMIT, A)],
        "committed",
    ),
    "its COMMIT is not compared again": (
        [member(1, A), end(2, PREPARE, A), end(3, COMMIT, B)],
        "committed",
    ),
    "prepared and rolled back": (
        [member(1, A), end(2, PREPARE, A), end(3, ROLLBACK, A)],
        "rolled_back",
    ),
    "rolled back, its PREPARE freed": ([member(1, A), end(3, ROLLBACK, A)], "rolled_back"),
    "prepared, does not fit": ([member(1, A), end(2, PREPARE, B)], "prepared"),
    "does not fit, and a COMMIT": (
        [member(1, A), end(2, PREPARE, B), end(3, COMMIT, A)],
        "prepared",
    ),
    "fewer, a gap right before the PREPARE": (
        [member(1, A), end(2, PREPARE, A, B, gaps=2, after_gap=True), end(3, COMMIT, A, B, gaps=2)],
        "committed",
    ),
    "fewer, a gap somewhere before the PREPARE": (
        [member(1, A), end(2, PREPARE, A, B, gaps=2), end(3, COMMIT, A, B, gaps=2)],
        "prepared",
    ),
    "a gap between PREPARE and COMMIT": (
        [member(1, A), end(2, PREPARE, A, B), end(3, COMMIT, A, B, gaps=2, after_gap=True)],
        "prepared",
    ),
    "prepared twice": (
        [member(1, A), end(2, PREPARE, A), end(3, PREPARE, B), end(4, COMMIT, A)],
        "committed",
    ),
    "a COMMIT that fits behind one that does not": (
        [member(1, A), end(2, COMMIT, A, B), member(3, B), end(4, COMMIT, A, B)],
        "committed",
    ),
    "a member behind the end": ([member(1, A), end(2, PREPARE, A), member(3, B)], "prepared"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule(name: str):
    items, outcome = CASES[name]
    (row,) = settle_all(items)
    assert row["outcome"] == outcome
    (folded,) = fold(iter(items))
    assert folded["outcome"] == outcome
    assert row["members_found"] == sum(item.code == MEMBER for item in items)


def test_where_it_stands_and_what_is_missing():
    (row,) = settle_all([member(7, B, after_gap=True), end(9, COMMIT, A, B)])
    assert row["incomplete"]
    assert (row["members_found"], row["members_named"]) == (1, 2)
    assert [row[f"{name}_position"] for name in ("begin", "first", "last", "end")] == [7, 7, 7, 9]
    (row,) = settle_all([member(7, A), end(8, PREPARE, B), end(9, COMMIT, A)])
    assert (row["outcome"], row["end_position"], row["incomplete"]) == ("prepared", 8, False)
    (row,) = settle_all([member(7, A)])
    assert (row["end_position"], row["members_named"]) == (None, None)


def test_an_id_that_comes_again_is_another_transaction():
    rows = settle_all(
        [member(1, A), end(2, COMMIT, A), member(3, B), end(4, ROLLBACK, B), member(5, A)]
    )
    assert [(r["outcome"], r["begin_position"], r["end_position"]) for r in rows] == [
        ("committed", 1, 2),
        ("rolled_back", 3, 4),
        ("open", 5, None),
    ]


@given(st.lists(st.lists(st.integers(0, 2**32), max_size=6), min_size=1, max_size=8))
def test_both_ways_settle_the_same(seeds: list[list[int]]):
    lists = [_made_up(seed) for seed in seeds if seed] or [[member(1)]]
    together = settle_all(*lists)
    for number, items in enumerate(lists):
        rows = [{name: row[name] for name in row} for row in together if row["id"] == number]
        expected = [
            {name: None if value == -1 else value for name, value in life.items()}
            for life in fold(iter(items))
        ]
        assert [{name: row[name] for name in expected[0]} for row in rows] == expected


def _made_up(seeds: list[int]) -> list[Item]:
    """Return the records of a transaction, often as a writer leaves them."""
    items: list[Item] = []
    bodies: list[bytes] = []
    gaps = 1
    for number, seed in enumerate(seeds, 1):
        chance = random.Random(seed)
        after_gap = chance.random() < 0.2
        gaps += after_gap or chance.random() < 0.1
        code = chance.choice((MEMBER, MEMBER, MEMBER, COMMIT, PREPARE, ROLLBACK))
        where = {"gaps": gaps, "after_gap": after_gap}
        if code == MEMBER:
            bodies.append(chance.choice(BODIES))
            items.append(member(number, bodies[-1], **where))
        else:
            named = bodies + [b"more"] * (chance.random() < 0.2)
            items.append(end(number, code, *named, digest=chance.random() < 0.1, **where))
    return items


@pytest.mark.parametrize(
    ("codes", "outcome", "latest"),
    [
        ([RecordType.PAGE, RecordType.PAGE], "current", 2),
        ([RecordType.PAGE, RecordType.PAGE_DONE], "done", 1),
        ([RecordType.PAGE, RecordType.PAGE_DONE, RecordType.PAGE], "current", 3),
        ([RecordType.PAGE_DONE], "done", None),
    ],
)
def test_the_latest_record_of_a_page_counts(codes: list[int], outcome: str, latest: int | None):
    items = [Item(at, int(code), 0, 0, 1, 0, 0, 0) for at, code in enumerate(codes, 1)]
    (row,) = settle_all(items, family=PAGE)
    assert (row["outcome"], row["end_position"]) == (outcome, latest)


def test_the_name_of_a_branch_is_read_from_its_prepare_record():
    xid = Xid(7, b"global", b"q")
    data = encode_end(PrepareRecord(5, 0, 0, encode_branch(BranchName(xid, 1, "amy"))))
    items = [end(1, PREPARE)._asdict()]
    batch = pa.RecordBatch.from_pydict(
        {
            "family": pa.array([TRANSACTION] * 2, pa.int8()),
            "id": pa.array([5, 6], pa.int64()),
            "items": pa.array([items, items], pa.list_(ITEM)),
            "prepare": pa.array([data, data[:30]], pa.binary()),
        }
    )
    names = [name for made in settle(iter([batch])) for name in made.column("branch").to_pylist()]
    assert names == [str(xid), None]


def test_a_slice_of_a_batch_and_an_empty_one():
    items = [[one._asdict() for one in CASES[name][0]] for name in CASES]
    batch = pa.RecordBatch.from_pydict(
        {
            "family": pa.array([TRANSACTION] * len(items), pa.int8()),
            "id": pa.array(range(len(items)), pa.int64()),
            "items": pa.array(items, pa.list_(ITEM)),
            "prepare": pa.nulls(len(items), pa.binary()),
        }
    )
    rows = [row for made in settle(iter([batch[3:7], batch[:0]])) for row in made.to_pylist()]
    assert {row["id"]: row["outcome"] for row in rows} == {
        number: outcome for number, (_, outcome) in enumerate(CASES.values()) if 3 <= number < 7
    }


@given(st.lists(st.lists(st.binary(max_size=70), max_size=9), max_size=9))
def test_checksums_of_strings_put_together(lists: list[list[bytes]]):
    flat = [one for strings in lists for one in strings]
    offsets = np.cumsum([0] + [len(strings) for strings in lists])
    crcs = np.array([crc32c(one) for one in flat], np.int64)
    lengths = np.array([len(one) for one in flat], np.int64)
    whole = [crc32c(b"".join(strings)) for strings in lists]
    assert combine_crcs(crcs, lengths, offsets).tolist() == whole


def test_checksums_of_long_strings():
    parts = [bytes(range(256)) * 300, b"", b"z" * 100_001]
    crcs, lengths = (np.array([f(one) for one in parts]) for f in (crc32c, len))
    whole = crc32c(b"".join(parts))
    assert combine_crcs(crcs, lengths, np.array([0, 3])).tolist() == [whole]
