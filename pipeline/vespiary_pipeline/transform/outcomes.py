"""What became of transactions and pages: batches of their records in, one row for each out.

Owns the rules of journal-format §3.3 (which members count) and of §3.8 (which PAGE record of a
page counts). Must never import Spark or read a file. Called by `settling`, in executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vespiary_codec.journal.branch import END, decode_branch
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.record_types import RecordType
from vespiary_pipeline.transform.digests import combine_crcs

MEMBER: Final = 0
"""Code of an ADD, ACK or DUPLICATE in a transaction; ends and pages have that of their type."""

TRANSACTION: Final = 1
PAGE: Final = 2
"""Families: an id is that of a transaction or of a page."""

OPEN: Final = "open"
COMMITTED: Final = "committed"
VOID: Final = "void"
PREPARED: Final = "prepared"
ROLLED_BACK: Final = "rolled_back"
CURRENT: Final = "current"
DONE: Final = "done"

SETTLED: Final = pa.schema(
    [
        ("family", pa.int8()),
        ("id", pa.int64()),
        ("outcome", pa.string()),
        ("members_found", pa.int64()),
        ("members_named", pa.int64()),
        ("incomplete", pa.bool_()),
        ("begin_position", pa.int64()),
        ("first_position", pa.int64()),
        ("last_position", pa.int64()),
        ("end_position", pa.int64()),
        ("branch", pa.string()),
    ]
)
"""Columns of the rows. `begin_position` is the first record of any kind, `first_position` and
`last_position` are of members, `end_position` is the record that decided: COMMIT or ROLLBACK, else
PREPARE; of a page its latest PAGE record."""

_COMMIT: Final = int(RecordType.COMMIT)
_PREPARE: Final = int(RecordType.PREPARE)
_ROLLBACK: Final = int(RecordType.ROLLBACK)
_FIELDS: Final = ("position", "code", "crc", "length", "gaps", "after_gap", "members", "digest")
_Array = npt.NDArray[Any]
_Columns = dict[str, _Array]


def settle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row of `SETTLED` for each transaction and each page.

    Args:
        batches: Columns `family`, `id`, `items` (structs, ascending by position, one or more) and
            `prepare` (the bytes of a PREPARE record, null without one).
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        items, offsets = _items(batch.column("items"))
        is_page = np.asarray(batch.column("family")) == PAGE
        is_usual, settled = _usual(items, offsets)
        yield _rows(batch, np.flatnonzero(is_page), _pages(items, offsets))
        yield _rows(batch, np.flatnonzero(is_usual & ~is_page), settled)
        yield from _unusual(batch, np.flatnonzero(~is_usual & ~is_page), items, offsets)


def _items(lists: pa.ListArray) -> tuple[_Columns, _Array]:
    """Return the fields of all items, nulls as 0, and where each list begins and ends."""
    offsets = np.asarray(lists.offsets, np.int64)
    values = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    columns = {
        name: np.asarray(values.field(name).cast(pa.int64()).fill_null(0)) for name in _FIELDS
    }
    return columns, offsets - offsets[0]


def _pages(items: _Columns, offsets: _Array) -> _Columns:
    """Say which PAGE record of a page counts: the latest one, unless a PAGE_DONE is behind it."""
    is_named = items["code"] == RecordType.PAGE
    latest = np.maximum.reduceat(np.where(is_named, items["position"], -1), offsets[:-1])
    is_current = is_named[offsets[1:] - 1]
    return {
        "outcome": np.where(is_current, CURRENT, DONE),
        "begin_position": items["position"][offsets[:-1]],
        "end_position": latest,
    }


# --- transactions as a writer leaves them: all at once --------------------------------------------


def _usual(items: _Columns, offsets: _Array) -> tuple[_Array, _Columns]:
    """Settle the transactions whose ends stand behind all members, in the usual order.

    Returns:
        Of each list whether it is such a one, and what became of it; of others it means nothing.
    """
    starts, counts = offsets[:-1], np.diff(offsets)
    of = np.repeat(np.arange(len(counts)), counts)
    codes, positions = items["code"], items["position"]
    is_member = codes == MEMBER
    found = np.add.reduceat(is_member.astype(np.int64), starts)
    is_behind = np.arange(len(codes)) - starts[of] >= found[of]
    ends = counts - found
    at = np.minimum(starts + found, offsets[1:] - 1)  # the first end
    opening, closing = codes[at], codes[offsets[1:] - 1]
    is_prepared = (ends > 0) & (opening == _PREPARE)
    is_usual = (ends < 2) | ((ends == 2) & is_prepared & (closing != _PREPARE))
    is_usual &= ~np.logical_or.reduceat(is_member & is_behind, starts)

    named = items["members"][at]
    lengths, crcs = (np.where(is_member, items[name], 0) for name in ("length", "crc"))
    digests = combine_crcs(crcs, lengths, offsets)
    is_whole = (found == named) & (digests == items["digest"][at])
    is_cut = np.logical_or.reduceat(is_member & (items["after_gap"] != 0), starts)
    # Before a COMMIT blocks may be missing anywhere behind the last member (journal-format §3.3).
    last = np.maximum(at - 1, starts)
    is_missing = items["gaps"][last] != items["gaps"][at]
    is_cut |= np.where(is_prepared, items["after_gap"][at] != 0, is_missing)
    fits = is_whole | (is_cut & (found < named))

    is_committed = (ends > 0) & (closing == _COMMIT) & (fits | (~is_prepared & (found == 0)))
    is_rolled_back = (ends > 0) & (closing == _ROLLBACK)
    is_in_doubt = is_prepared & ~is_committed & ~is_rolled_back
    outcome = np.select(
        [ends == 0, is_committed, is_rolled_back, is_in_doubt],
        [OPEN, COMMITTED, ROLLED_BACK, PREPARED],
        VOID,
    )
    end = np.where(is_in_doubt, positions[at], positions[offsets[1:] - 1])
    return is_usual, {
        "outcome": outcome,
        "members_found": found,
        "members_named": np.where(ends > 0, named, -1),
        "incomplete": is_committed & (found < named),
        "begin_position": positions[starts],
        "first_position": np.where(found > 0, positions[starts], -1),
        "last_position": np.where(found > 0, positions[np.maximum(starts + found - 1, 0)], -1),
        "end_position": np.where(ends > 0, end, -1),
    }


# --- any others: step by step ---------------------------------------------------------------------


class Item(NamedTuple):
    """One record of a transaction."""

    position: int
    code: int
    crc: int
    length: int
    gaps: int
    after_gap: int
    members: int
    digest: int


@dataclass(slots=True)
class _Life:
    """A transaction from its first record to the one that settles it."""

    begin: int
    outcome: str = OPEN
    found: int = 0
    digest: int = 0
    is_cut: bool = False
    gaps: int = 0
    is_prepared: bool = False
    is_good: bool = False
    named: int = -1
    first: int = -1
    last: int = -1
    end: int = -1

    def row(self) -> dict[str, Any]:
        """Return it as a row of `SETTLED`."""
        return {
            "outcome": self.outcome,
            "members_found": self.found,
            "members_named": self.named,
            "incomplete": self.outcome == COMMITTED and self.found < self.named,
            "begin_position": self.begin,
            "first_position": self.first,
            "last_position": self.last,
            "end_position": self.end,
        }


def fold(items: Iterator[Item]) -> list[dict[str, Any]]:
    """Settle one id record by record, as a broker does when it recovers.

    An id that comes again behind its end is another transaction: each gives a row.
    """
    rows: list[dict[str, Any]] = []
    life: _Life | None = None
    for item in items:
        life = life or _Life(item.position)
        if item.code == MEMBER:
            _join(life, item)
            continue
        if life.is_prepared and item.code == _PREPARE:
            continue
        if _end(life, item):
            rows.append(life.row())
            life = None
    return rows + ([life.row()] if life else [])


def _join(life: _Life, item: Item) -> None:
    crcs, lengths = np.array([life.digest, item.crc]), np.array([0, item.length])
    life.digest = int(combine_crcs(crcs, lengths, np.array([0, 2]))[0])
    life.is_cut = life.is_cut or bool(item.after_gap)
    life.gaps = item.gaps
    life.first = item.position if life.first < 0 else life.first
    life.last = item.position
    life.found += 1


def _end(life: _Life, item: Item) -> bool:
    """Apply a COMMIT, PREPARE or ROLLBACK; return whether that settles it."""
    is_whole = (life.found, life.digest) == (item.members, item.digest)
    is_fewer = life.found < item.members
    if item.code == _PREPARE:
        life.is_prepared, life.outcome = True, PREPARED
        life.is_good = is_whole or ((life.is_cut or bool(item.after_gap)) and is_fewer)
        life.named, life.end = item.members, item.position
        return False
    is_cut = life.is_cut or life.gaps != item.gaps
    fits = life.is_good if life.is_prepared else is_whole or (is_cut and is_fewer)
    fits = fits or not (life.found or life.is_prepared)
    if life.is_prepared and item.code == _COMMIT and not fits:
        return False
    if not life.is_prepared:
        life.named = item.members
    life.end = item.position
    life.outcome = ROLLED_BACK if item.code == _ROLLBACK else COMMITTED if fits else VOID
    return life.outcome != VOID


def _unusual(
    batch: pa.RecordBatch, chosen: _Array, items: _Columns, offsets: _Array
) -> Iterator[pa.RecordBatch]:
    sources: list[int] = []
    rows: list[dict[str, Any]] = []
    for at in chosen:
        low, high = int(offsets[at]), int(offsets[at + 1])
        fields = (items[name][low:high].tolist() for name in _FIELDS)
        found = fold(Item(*one) for one in zip(*fields, strict=True))
        sources += [int(at)] * len(found)
        rows += found
    if rows:
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        every = np.arange(len(rows))
        yield _rows(batch.take(pa.array(sources)), every, columns)


# --- rows -----------------------------------------------------------------------------------------


def _rows(batch: pa.RecordBatch, chosen: _Array, columns: _Columns) -> pa.RecordBatch:
    """Return some lists of a batch as rows of `SETTLED`; -1 and columns that lack become null."""
    of = batch.take(pa.array(chosen))
    made: list[pa.Array] = [of.column("family"), of.column("id")]
    for field in list(SETTLED)[2:-1]:
        if field.name not in columns:
            made.append(pa.nulls(len(chosen), field.type))
            continue
        values = columns[field.name][chosen]
        is_null = values == -1 if pa.types.is_integer(field.type) else None
        made.append(pa.array(values, field.type, mask=is_null))
    names = [_branch(one) for one in of.column("prepare").to_pylist()]
    made.append(pa.array(names, pa.string()))
    return pa.RecordBatch.from_arrays(made, schema=SETTLED)


def _branch(prepare: bytes | None) -> str | None:
    """Return the XID that a PREPARE record names; None without one, or if it can't be read."""
    if prepare is None:
        return None
    try:
        return str(decode_branch(prepare[END.size :]).xid)
    except JournalFormatError:
        return None
