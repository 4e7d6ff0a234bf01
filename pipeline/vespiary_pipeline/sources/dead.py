"""Records that are dead: messages that came and went within one stretch of a journal.

Owns which records of a stretch can be left out without a change of what lives
(`dead=false`), and the stretches. Must never judge a record by what stands outside its stretch.
Called by `source` on executors.

A stretch is a run of blocks that are read one after the other. A place (a queue and a sequence) is
dead if its ADD stands in the stretch, no copy of it and no page does, and an ACK behind it does:
what stands in front of the stretch says nothing of it, as a place begins with its ADD, and what
stands behind counts the same with and without that ADD and that ACK. So they can go, but only
together:

- an ADD goes if all its places are dead;
- an ACK goes if the ADDs of all its sequences go;
- a transaction goes whole, with its COMMIT, or not at all: if it is of ADDs that could go, all
  between its first record and its COMMIT, and as many as that names. Whether its digest fits does
  not matter: what was never added is as dead as what was acknowledged.

An ACK of a transaction, a copy that compaction made, and whatever is not seen whole, stays. That
costs time later and is never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vespiary_codec.journal.columns import Columns
from vespiary_codec.journal.record_types import RecordFlag, RecordType

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

STRETCH_BYTES: Final = 64 * 1024 * 1024
STRETCH_ROWS: Final = 512 * 1024
_NEVER: Final = np.int64(2**63 - 1)
_SPAN_BITS: Final = 44
"""Sequences of a stretch lie closer together than this, or nothing of it is left out."""
_CLOSE: Final = 8
"""Places that the ranges of a stretch's ACKs cover, for each row, at most; else nothing goes."""
_OCTETS: Final = ("kind", "flags", "protocol", "priority")
_PLACES: Final = ("place_queue", "place_sequence", "place_number")


Batches = Iterator[pa.RecordBatch]


class Stretch:
    """Scanned windows that are held until it is seen what is dead in them. Owner: the task.

    Args:
        rows_max: Records that are held at once, at most, but for those of one window.
        bytes_max: Bytes of windows, likewise.
    """

    def __init__(self, rows_max: int = STRETCH_ROWS, bytes_max: int = STRETCH_BYTES) -> None:
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._windows: list[tuple[Columns, Callable[[Columns], Batches]]] = []
        self._bytes = self._rows = 0

    def add(
        self, columns: Columns, make: Callable[[Columns], Batches], window_bytes: int
    ) -> Batches:
        """Take in a window behind the last one; yield batches once enough of them are held.

        Args:
            columns: What was scanned: records of all kinds.
            make: Returns batches of some of these records.
            window_bytes: What is held by it.
        """
        self._windows.append((columns, make))
        self._bytes += window_bytes
        self._rows += columns.rows
        if self._bytes >= self._bytes_max or self._rows >= self._rows_max:
            yield from self.batches()

    def batches(self) -> Batches:
        """Yield what is not dead in the windows that are held, and begin anew."""
        windows, self._windows = self._windows, []
        self._bytes = self._rows = 0
        if not windows:
            return
        stays = living([columns for columns, _ in windows])
        at = 0
        for columns, make in windows:
            rows = stays[at : at + columns.rows]
            at += columns.rows
            if rows.any():
                yield from make(chosen(columns, rows))


# --- which records stay ---------------------------------------------------------------------------


class _Records(NamedTuple):
    """What is looked at of the records of a stretch, and of the places that they speak of."""

    kind: npt.NDArray[np.uint8]
    is_moved: _Flags
    position: _Numbers
    transaction: _Numbers
    number: _Numbers
    row: npt.NDArray[np.intp]
    queue: _Numbers
    sequence: _Numbers
    sequences: _Numbers

    def is_kind(self, kind: RecordType) -> _Flags:
        """Return which records are of a type."""
        found: _Flags = self.kind == int(kind)
        return found


class _Transactions(NamedTuple):
    """The transactions of a stretch.

    Attributes:
        of: Of each record its transaction, as an index; of one without any, that of all those.
        is_whole: Whether a transaction is of ADDs alone and all of it is seen.
        commit: Where the COMMIT stands.
    """

    of: npt.NDArray[np.int32]
    is_whole: _Flags
    commit: _Numbers


class _Added(NamedTuple):
    """The places of ADDs, by their keys: ascending, each once, and so searched.

    Attributes:
        key: Place as one number.
        row: The ADD.
        since: From which position on it is there.
    """

    key: _Numbers
    row: npt.NDArray[np.intp]
    since: _Numbers


class _Ranges(NamedTuple):
    """Ranges of sequences, each as what it covers of `_Added`: from `low` up to, without, `high`.

    Attributes:
        row: The record that has the range.
        low: Index.
        high: Index.
        is_full: All its sequences are there.
    """

    row: npt.NDArray[np.intp]
    low: npt.NDArray[np.intp]
    high: npt.NDArray[np.intp]
    is_full: _Flags


def living(stretch: Sequence[Columns]) -> _Flags:
    """Return which records of a stretch have to stay.

    Args:
        stretch: Records of all kinds that follow one another, by ascending position.
    """
    records = _records(stretch)
    stays = np.ones(len(records.kind), np.bool_)
    is_place = records.is_kind(RecordType.ADD)[records.row]
    if not is_place.any():
        return stays
    transactions = _transactions(records)
    keys = _keys(records)
    if keys is None:
        return stays
    added = _added(records, transactions, keys, is_place & ~records.is_moved[records.row])
    is_alone = records.transaction == 0
    is_ack = (records.is_kind(RecordType.ACK) & is_alone)[records.row]
    acks = _ranges(records, keys, added, is_ack)
    covered = int((acks.high - acks.low).sum())
    if covered > _CLOSE * (len(records.kind) + len(records.row)):
        return stays
    last_ack = np.full(len(added.key), -1, np.int64)
    of_range, place = _each(acks)
    last_ack[place] = records.position[acks.row[of_range]]  # the last one counts: they ascend
    is_dead = (last_ack > added.since) & ~_held(records, keys, added, is_place)
    goes = _dead_adds(records, transactions, added, is_dead)
    is_gone = goes[added.row]

    can_go = acks.is_full & _all(is_gone[place], acks)
    goes |= _all_ranges(records, is_ack, acks, can_go)
    goes |= _dead_counts(records, keys, added, is_gone, last_ack)
    return ~goes


def _records(stretch: Sequence[Columns]) -> _Records:
    def joined(name: str) -> _Numbers:
        return np.concatenate([np.frombuffer(getattr(one, name), np.int64) for one in stretch])

    kind, flags = (
        np.concatenate([np.frombuffer(getattr(one, name), np.uint8) for one in stretch])
        for name in ("kind", "flags")
    )
    counts = np.concatenate([np.diff(np.frombuffer(one.places_from, np.int32)) for one in stretch])
    return _Records(
        kind,
        (flags & int(RecordFlag.MOVED)) != 0,
        joined("position"),
        joined("transaction"),
        joined("number"),
        np.repeat(np.arange(len(kind)), counts),
        *(joined(name) for name in _PLACES),
    )


def _numbered(values: _Numbers) -> tuple[_Numbers, npt.NDArray[np.int32]]:
    """Return the different values, and for each entry which of them it is."""
    buffers = [None, pa.py_buffer(values)]
    found = pa.Array.from_buffers(pa.int64(), len(values), buffers).dictionary_encode()
    return np.asarray(found.dictionary), np.asarray(found.indices)


def _transactions(records: _Records) -> _Transactions:
    ids, of = _numbered(records.transaction)
    is_member = records.is_kind(RecordType.ADD) | records.is_kind(RecordType.DUPLICATE)
    is_commit = records.is_kind(RecordType.COMMIT)

    def counted(which: _Flags) -> _Numbers:
        return np.bincount(of[which], minlength=len(ids)).astype(np.int64)

    members, commits = counted(is_member), counted(is_commit)
    commit = np.full(len(ids), _NEVER, np.int64)
    commit[of[is_commit]] = records.position[is_commit]
    named = np.zeros(len(ids), np.int64)
    named[of[is_commit]] = records.number[is_commit]
    last = np.full(len(ids), -1, np.int64)
    last[of[is_member]] = records.position[is_member]
    is_whole = (
        (ids != 0)
        & (commits == 1)
        & (counted(~(is_member | is_commit)) == 0)
        & (members == named)
        & (last < commit)
    )
    return _Transactions(of, is_whole, commit)


def _keys(records: _Records) -> _Numbers | None:
    """Return each first sequence and its queue as one number; None if they are too far apart."""
    queues, of = _numbered(records.queue)
    lowest = records.sequence.min()
    if (records.sequence.max() - lowest) >> _SPAN_BITS or len(queues) >> (62 - _SPAN_BITS):
        return None
    key: _Numbers = (of.astype(np.int64) << _SPAN_BITS) + (records.sequence - lowest)
    return key


def _added(records: _Records, transactions: _Transactions, keys: _Numbers, which: _Flags) -> _Added:
    """Return the places of some ADDs, without those that several of them name."""
    chosen = np.flatnonzero(which)
    order = chosen[np.argsort(keys[chosen], kind="stable")]
    key = keys[order]
    is_double = np.zeros(len(key), np.bool_)
    is_double[1:] = key[1:] == key[:-1]
    is_double[:-1] |= is_double[1:]
    row = records.row[order]
    of = transactions.of[row]
    seen_whole = np.where(transactions.is_whole[of], transactions.commit[of], _NEVER)
    since = np.where(records.transaction[row] == 0, records.position[row], seen_whole)
    return _Added(key, row, np.where(is_double, _NEVER, since))


def _ranges(records: _Records, keys: _Numbers, added: _Added, which: _Flags) -> _Ranges:
    chosen = np.flatnonzero(which)
    first = keys[chosen]
    # No further than to the end of the queue: the keys of the next one begin there.
    room = (((first >> _SPAN_BITS) + 1) << _SPAN_BITS) - first
    count = records.sequences[chosen]
    low = np.searchsorted(added.key, first)
    high = np.searchsorted(added.key, first + np.minimum(count, room))
    return _Ranges(records.row[chosen], low, high, high - low == count)


def _each(ranges: _Ranges) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the ranges taken apart: indexes of a range, and of a place that it covers."""
    sizes = ranges.high - ranges.low
    of = np.repeat(np.arange(len(sizes)), sizes)
    begin = np.cumsum(sizes) - sizes
    return of, np.arange(len(of)) - begin[of] + ranges.low[of]


def _held(records: _Records, keys: _Numbers, added: _Added, is_place: _Flags) -> _Flags:
    """Return which places a page or a copy of compaction's speaks of too."""
    in_page = records.is_kind(RecordType.PAGE)[records.row]
    others = _ranges(records, keys, added, in_page | (is_place & records.is_moved[records.row]))
    edges = np.zeros(len(added.key) + 1, np.int64)
    np.add.at(edges, others.low, 1)
    np.add.at(edges, others.high, -1)
    held: _Flags = np.cumsum(edges[:-1]) > 0
    return held


def _dead_adds(
    records: _Records, transactions: _Transactions, added: _Added, is_dead: _Flags
) -> _Flags:
    """Return which records are ADDs with dead places alone, or of a transaction of such."""
    rows, of = len(records.kind), transactions.of
    is_added = np.zeros(rows, np.bool_)
    is_added[added.row] = True
    lives = np.zeros(rows, np.bool_)
    lives[added.row[~is_dead]] = True
    dies = is_added & ~lives
    is_member = records.is_kind(RecordType.ADD) & (records.transaction != 0)
    spoilt = np.bincount(of[is_member & ~dies], minlength=len(transactions.is_whole)) > 0
    goes: _Flags = np.where(records.transaction == 0, dies, (transactions.is_whole & ~spoilt)[of])
    return goes


def _all(which: _Flags, ranges: _Ranges) -> _Flags:
    """Return for each range whether all that it covers is so; one that covers nothing is not."""
    sizes = ranges.high - ranges.low
    good: _Flags = sizes > 0
    if len(which):
        failed = np.bincount(np.repeat(np.arange(len(sizes)), sizes)[~which], minlength=len(sizes))
        good &= failed == 0
    return good


def _all_ranges(records: _Records, is_range: _Flags, ranges: _Ranges, can_go: _Flags) -> _Flags:
    """Return which records have ranges, all of which can go."""
    has_any = np.zeros(len(records.kind), np.bool_)
    has_any[records.row[is_range]] = True
    has_any[ranges.row[~can_go]] = False
    return has_any


def _dead_counts(
    records: _Records, keys: _Numbers, added: _Added, is_gone: _Flags, last_ack: _Numbers
) -> _Flags:
    """Return which records count deliveries of places that are gone."""
    is_count = records.is_kind(RecordType.COUNT)[records.row]
    counts = _ranges(records, keys, added, is_count)
    of_range, place = _each(counts)
    is_past = records.position[counts.row[of_range]] < last_ack[place]
    can_go = counts.is_full & _all(is_gone[place] & is_past, counts)
    return _all_ranges(records, is_count, counts, can_go)


# --- columns without the others -------------------------------------------------------------------


def chosen(columns: Columns, rows: _Flags) -> Columns:
    """Return the columns of some records.

    Args:
        columns: Of all.
        rows: Which of them.
    """
    if rows.all():
        return columns
    ends = np.frombuffer(columns.places_from, np.int32)
    counts = np.diff(ends)
    places = np.repeat(rows, counts)
    fields = {}
    for name in Columns._fields[1:]:
        if name == "places_from":
            left = np.concatenate([[0], np.cumsum(counts[rows])])
            fields[name] = left.astype(np.int32).data
            continue
        values = np.frombuffer(getattr(columns, name), np.uint8 if name in _OCTETS else np.int64)
        fields[name] = values[places if name in _PLACES else rows].data
    return Columns(int(rows.sum()), **fields)
