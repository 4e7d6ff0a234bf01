"""A stream and a sink that write down each call that Spark makes, over a queue that is a file.

Owns the queue (a number of rows in a file, so that it outlives every process), the log of calls,
and where a call fails once. Used in real Spark and in `micro_batches`: what the two write down has
to be the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

ROWS_MAX = 2
SCHEMA = "seq bigint"


class Desk:
    """The folder of one scenario: `queue` (rows so far), `calls`, and `fail` (a call to fail once).

    Args:
        folder: An existing folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def put(self, rows: int) -> None:
        """Let the queue have more rows."""
        (self.folder / "queue").write_text(str(self.head + rows))

    @property
    def head(self) -> int:
        """Rows that the queue ever got; their numbers are 1 to this."""
        path = self.folder / "queue"
        return int(path.read_text()) if path.exists() else 0

    def fail_once(self, call: str) -> None:
        """Let the next call of that name fail, after it was written down."""
        (self.folder / "fail").write_text(call)

    def log(self, call: str, **facts: Any) -> None:
        """Write a call down; fail if that was asked for.

        Raises:
            RuntimeError: The call has to fail, this once.
        """
        line = json.dumps([call, facts], sort_keys=True) + "\n"
        handle = os.open(self.folder / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        fail = self.folder / "fail"
        if fail.exists() and fail.read_text() == call:
            fail.unlink()
            raise RuntimeError(f"{call} fails once, as asked for")

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Return all calls so far, in order."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(call, facts) for call, facts in map(json.loads, lines)]


class Rows(InputPartition):
    """Rows with first < seq <= last."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))
        self.first, self.last = first, last


class RecordingSource(DataSource):
    """The format `recording`; option `desk` is the folder."""

    @classmethod
    def name(cls) -> str:
        return "recording"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> RecordingReader:
        return RecordingReader(self.options["desk"], int(self.options.get("partitions", "1")))

    def streamWriter(self, schema: StructType, overwrite: bool) -> RecordingWriter:
        return RecordingWriter(self.options["desk"])


class RecordingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives at most `ROWS_MAX` rows in a batch."""

    def __init__(self, folder: str, partitions: int) -> None:
        self._desk = Desk(folder)
        self._partitions = partitions
        self._target: int | None = None
        self._desk.log("reader")

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._desk.head
        self._desk.log("prepareForTriggerAvailableNow")

    def getDefaultReadLimit(self) -> ReadLimit:
        self._desk.log("getDefaultReadLimit")
        return ReadMaxRows(ROWS_MAX)

    def initialOffset(self) -> dict[str, int]:
        self._desk.log("initialOffset")
        return {"seq": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        assert isinstance(limit, ReadMaxRows)
        head = self._desk.head if self._target is None else min(self._target, self._desk.head)
        end = max(start["seq"], min(head, start["seq"] + limit.max_rows))
        self._desk.log("latestOffset", start=start["seq"], end=end)
        return {"seq": end}

    def reportLatestOffset(self) -> dict[str, int]:
        self._desk.log("reportLatestOffset")
        return {"seq": self._desk.head}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Rows]:
        self._desk.log("partitions", start=start["seq"], end=end["seq"])
        cuts = [
            start["seq"] + (end["seq"] - start["seq"]) * number // self._partitions
            for number in range(self._partitions + 1)
        ]
        return [Rows(first, last) for first, last in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        self._desk.log("read", first=partition.first, last=partition.last)
        numbers = pa.array(range(partition.first + 1, partition.last + 1), pa.int64())
        yield pa.record_batch([numbers], names=["seq"])

    def commit(self, end: dict[str, int]) -> None:
        self._desk.log("source.commit", end=end["seq"])

    def stop(self) -> None:
        self._desk.log("stop")


class Written(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows


class RecordingWriter(DataSourceStreamArrowWriter):
    """Writes down which rows it got, in which batch, and what Spark tells of query and batch."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        rows = [value for batch in iterator for value in batch.column(0).to_pylist()]
        context = TaskContext.get()
        batch_id = context and context.getLocalProperty("streaming.sql.batchId")
        has_query = bool(context and context.getLocalProperty("sql.streaming.queryId"))
        Desk(self._folder).log("write", rows=rows, batch=batch_id, has_query=has_query)
        return Written(rows)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        rows = sorted(row for message in messages for row in getattr(message, "rows", []))
        Desk(self._folder).log("sink.commit", batch=batchId, rows=rows)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        Desk(self._folder).log("sink.abort", batch=batchId, messages=len(messages))


SCENARIOS: dict[str, tuple[tuple[str, Any], ...]] = {
    "rows in several batches": (("put", 5), ("run", 1)),
    "a run without anything new": (("put", 2), ("run", 1), ("run", 1)),
    "nothing at all": (("run", 1),),
    "a read fails": (("put", 5), ("fail", "read"), ("run", 1), ("put", 1), ("run", 1)),
    "a write fails": (("put", 3), ("fail", "write"), ("run", 1), ("run", 1)),
    "the sink's commit fails": (("put", 3), ("fail", "sink.commit"), ("run", 1), ("run", 1)),
    "the source's commit fails": (("put", 5), ("fail", "source.commit"), ("run", 1), ("run", 1)),
    "latestOffset fails": (("put", 3), ("fail", "latestOffset"), ("run", 1), ("run", 1)),
    "partitions fails": (("put", 3), ("fail", "partitions"), ("run", 1), ("run", 1)),
    "initialOffset fails": (("put", 3), ("fail", "initialOffset"), ("run", 1), ("run", 1)),
    "other partitions in a replay": (("put", 4), ("fail", "sink.commit"), ("run", 1), ("run", 2)),
}
"""What is done, step by step: rows come, a call shall fail, a run with a number of partitions."""


def play(desk: Desk, scenario: str, run: Any) -> list[tuple[str, dict[str, Any]]]:
    """Do a scenario and return the calls; those of one stage of tasks are sorted.

    Args:
        desk: Its folder.
        scenario: Its name.
        run: Called with a number of partitions; runs a query until it ends.
    """
    for act, value in SCENARIOS[scenario]:
        if act == "put":
            desk.put(value)
        elif act == "fail":
            desk.fail_once(value)
        else:
            run(value)
    return in_stages(desk.calls())


def in_stages(calls: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Return calls with those of tasks, which run beside one another, in one order."""
    sorted_calls: list[tuple[str, dict[str, Any]]] = []
    stage: list[tuple[str, dict[str, Any]]] = []
    for call in calls:
        if call[0] in ("read", "write"):
            stage.append(call)
            continue
        sorted_calls += sorted(stage, key=str)
        stage = []
        sorted_calls.append(call)
    return sorted_calls + sorted(stage, key=str)
