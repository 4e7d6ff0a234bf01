"""Parquet files that are written where a journal is read: Arrow batches in, files out.

Owns: which messages of a part are taken, in which files they go, and that these are on the disk
when a task ends. Must never import Spark, or make a file visible: a task may run twice, and what
its driver was told of counts. Called by `direct` on executors.

The rules are those of `visible_messages`. There they are joins, for any number of transactions;
here the transactions are looked up in a file that all workers of a machine have mapped.
"""

from __future__ import annotations

import os
import re
import secrets
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vespiary_pipeline.brief import brief
from vespiary_pipeline.jobs.message_columns import VISIBLE, WRITTEN
from vespiary_pipeline.targets import disk_errors

HELD_BYTES: Final = 32 * 1024 * 1024
"""Of messages that a task holds until they are a row group."""
_NOWHERE: Final = -1
"""Where a member of a transaction becomes visible that was not committed."""
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
"""What Spark writes as %XX in the names of folders."""
_RANGED: Final = (VISIBLE, "arrival", "expires", "priority", "body_bytes", "file_id", "offset",
                  "position", "transaction")  # fmt: skip
"""Columns whose lowest and highest values footers have: texts and bodies have no place there."""

Numbers = npt.NDArray[np.int64]


class Reader(Protocol):
    """Reads a journal part by part; goes to executors pickled."""

    def partitions(self) -> Sequence[Any]:
        """Return the parts, in the order of the journal."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of a part."""


class WrittenFile(NamedTuple):
    """A Parquet file that a task has written and flushed.

    Attributes:
        name: Its name, which no other task has and no other try of this one.
        folder: Where it belongs: `address=orders/day=2026-11-22`.
        rows: Messages in it.
        size_bytes: Its size.
        bodies_missing: Messages without a body, though bodies were read.
    """

    name: str
    folder: str
    rows: int
    size_bytes: int
    bodies_missing: int


class Folder(NamedTuple):
    """An address and a day that messages of a batch have.

    Attributes:
        name: Of the folder, as Spark would spell it.
        rows: Which rows; None: all of them.
    """

    name: str
    rows: npt.NDArray[np.bool_] | None


def folders_of(batch: pa.RecordBatch) -> list[Folder]:
    """Return the folders that messages of a batch go to, in the order in which they come.

    Args:
        batch: Columns `address` and `arrival`.
    """
    # Without its zone, which is UTC: with one Arrow looks for a database of zones.
    arrival = batch["arrival"].cast(pa.timestamp("us"))
    days = pc.floor_temporal(arrival, unit="day").cast(pa.date32())
    by_address = pc.dictionary_encode(batch["address"], null_encoding="encode")
    by_day = pc.dictionary_encode(days, null_encoding="encode")
    addresses, dates = by_address.dictionary.to_pylist(), by_day.dictionary.to_pylist()
    keys = by_address.indices.to_numpy().astype(np.int64) * len(dates)
    keys += by_day.indices.to_numpy()
    found, first = np.unique(keys, return_index=True)
    return [
        Folder(
            f"address={_escaped(addresses[key // len(dates)])}"
            f"/day={_escaped(dates[key % len(dates)])}",
            None if len(found) == 1 else keys == key,
        )
        for key in found[np.argsort(first)].tolist()
    ]


def _escaped(value: object) -> str:
    text = "" if value is None else str(value)
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text) if text else _NO_VALUE


@brief
@dataclass(frozen=True, slots=True, kw_only=True)
class PartFiles:
    """Writes the messages of parts. Owner: the driver; it goes to executors pickled.

    Attributes:
        reader: Reads at least `MESSAGE`, with bodies if they are wanted.
        folder: Where the files go.
        after: Position up to which all messages were taken.
        until: Position of the last record that is looked at.
        has_bodies: With the bodies of messages.
        transactions: Arrow file of those that were committed: `transaction`, `first_position` and
            `end_position`, sorted by id and end. None: there are none.
        doubled: Arrow file of the positions of copies that are passed over, sorted. None: none.
    """

    reader: Reader
    folder: Path
    after: int
    until: int
    has_bodies: bool
    transactions: Path | None
    doubled: Path | None

    def write(self, numbered: tuple[int, Any]) -> list[WrittenFile]:
        """Write the messages of one part.

        Args:
            numbered: Number of the part, and the part.

        Raises:
            CorruptRecord: Confirmed data is damaged.
            SourceChanged: A file was used again meanwhile.
            DiskFull: There is no room.
            NativeError: A file can't be read or written.

        Durability: on return the files, not yet their names, survive a power cut.
        """
        number, part = numbered
        own = f"part-{number:05}-{secrets.token_hex(8)}"
        committed = _Committed(self.transactions)
        doubled = _column(self.doubled, "position")
        with FolderFiles(self.folder, own) as files:
            for batch in self.reader.read(part):
                visible = self._visible(batch, committed)
                taken = visible > self.after
                if len(doubled):
                    taken &= ~_is_in(_numbers(batch["position"]), doubled)
                files.add(*self._chosen(batch, visible, taken))
            return files.close()

    def _visible(self, batch: pa.RecordBatch, committed: _Committed) -> Numbers:
        """Return where each record became visible as a message, `_NOWHERE` if it did not."""
        positions = _numbers(batch["position"])
        transactions = _numbers(batch["transaction"])
        is_message = pc.and_kleene(
            pc.equal(batch["kind"], "ADD"), pc.equal(batch["journal"], "message")
        )
        is_wanted = is_message.fill_null(False).to_numpy(zero_copy_only=False)
        is_wanted &= positions <= self.until
        visible = np.where(is_wanted, positions, _NOWHERE)
        members = is_wanted & (transactions != 0)
        if members.any():
            visible[members] = committed.ends(transactions[members], positions[members])
        return visible

    def _chosen(
        self, batch: pa.RecordBatch, visible: Numbers, taken: npt.NDArray[np.bool_]
    ) -> tuple[pa.RecordBatch, list[Folder]]:
        if not taken.all():
            batch, visible = batch.filter(pa.array(taken)), visible[taken]
        columns = [*WRITTEN, "body"] if self.has_bodies else list(WRITTEN)
        rows = pa.RecordBatch.from_arrays(
            [pa.array(visible), *(batch[name] for name in columns)], names=[VISIBLE, *columns]
        )
        return rows, folders_of(batch) if len(rows) else []


class _Committed:
    """The transactions that were committed, by id.

    Args:
        path: As in `PartFiles`.
    """

    def __init__(self, path: Path | None) -> None:
        self._ids = _column(path, "transaction")
        self._firsts = _column(path, "first_position")
        self._ends = _column(path, "end_position")

    def ends(self, transactions: Numbers, positions: Numbers) -> Numbers:
        """Return where members became visible: at the end of the transaction around each.

        An id that came again is several transactions, one behind the other.

        Args:
            transactions: Ids.
            positions: Where the members stand.
        """
        if not len(self._ids):
            return np.full(len(positions), _NOWHERE)
        at = np.searchsorted(self._ids, transactions, "left")
        behind = np.searchsorted(self._ids, transactions, "right")
        for one in np.flatnonzero(behind - at > 1).tolist():
            at[one] = bisect_left(self._ends, positions[one], int(at[one]), int(behind[one]))
        is_found = at < behind
        at[~is_found] = 0
        is_around = (self._firsts[at] <= positions) & (positions <= self._ends[at])
        return np.where(is_found & is_around, self._ends[at], _NOWHERE)


def _column(path: Path | None, name: str) -> Numbers:
    """Return a column of an Arrow file, mapped and not read."""
    if path is None:
        return np.empty(0, np.int64)
    with disk_errors("a file of the export can't be read", path, "export"):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    return _numbers(table[name].combine_chunks())


def _numbers(column: pa.Array) -> Numbers:
    """Return whole numbers, 0 where there is none."""
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _is_in(values: Numbers, ordered: Numbers) -> npt.NDArray[np.bool_]:
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.equal(ordered[at], values)


# --- files ----------------------------------------------------------------------------------------


class _File:
    """The file of one folder, and what is not in it yet. Owner: `FolderFiles`."""

    def __init__(self, path: Path, folder: str) -> None:
        self.folder = folder
        self.held: list[pa.RecordBatch] = []
        self.held_bytes = self.rows = self.bodies_missing = 0
        self._path = path
        self._file: BinaryIO | None = None
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self.held.append(batch)
        self.held_bytes += batch.nbytes
        self.rows += batch.num_rows
        if "body" in batch.schema.names:
            self.bodies_missing += batch["body"].null_count

    def write(self) -> None:
        """Write what is held as a row group."""
        table = pa.Table.from_batches(self.held)
        self.held, self.held_bytes = [], 0
        if self._writer is None:
            self._file = self._path.open("xb")
            self._writer = pq.ParquetWriter(
                self._file, table.schema, compression="zstd", write_statistics=list(_RANGED)
            )
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> WrittenFile:
        """Write the rest and flush all."""
        if self.held:
            self.write()
        assert self._file is not None
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return WrittenFile(self._path.name, self.folder, self.rows, size, self.bodies_missing)

    def abandon(self) -> None:
        """Close it as it is: nobody is told of it."""
        with suppress(OSError, ValueError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


class FolderFiles:
    """The files of one task, one for each folder. Owner: the task, with `with`.

    Args:
        place: Where they go.
        own: What their names begin with.
        held_bytes: What is held before the fullest file gets a row group.
    """

    def __init__(self, place: Path, own: str, held_bytes: int = HELD_BYTES) -> None:
        self._place = place
        self._own = own
        self._held_bytes = held_bytes
        self._files: dict[str, _File] = {}

    def __enter__(self) -> FolderFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.abandon()

    def add(self, rows: pa.RecordBatch, folders: Sequence[Folder]) -> None:
        """Take rows.

        Args:
            rows: Columns of the files.
            folders: Where they go: from `folders_of`.

        Raises:
            DiskFull: There is no room.
            NativeError: A file can't be written.
        """
        for folder in folders:
            if (file := self._files.get(folder.name)) is None:
                name = f"{self._own}-{len(self._files)}.zstd.parquet"
                file = self._files[folder.name] = _File(self._place / name, folder.name)
            file.add(rows if folder.rows is None else rows.filter(pa.array(folder.rows)))
        with self._disk_errors():
            while sum(file.held_bytes for file in self._files.values()) > self._held_bytes:
                max(self._files.values(), key=lambda file: file.held_bytes).write()

    def close(self) -> list[WrittenFile]:
        """Write the rest; return the files, flushed.

        Raises:
            DiskFull: There is no room.
            NativeError: A file can't be written.

        Durability: on return the files, not yet their names, survive a power cut.
        """
        with self._disk_errors():
            return [file.close() for file in self._files.values()]

    def _disk_errors(self) -> AbstractContextManager[None]:
        return disk_errors("a file of the export can't be written", self._place, "export")
