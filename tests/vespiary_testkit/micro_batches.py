"""Structured Streaming's micro-batches without a JVM: the same calls in the same order.

Owns the order in which Spark 4.3 calls a Python source and sink with `Trigger.AvailableNow`, its
two logs (offsets before a batch, commits behind it), and where it may die. The order was recorded
in real Spark; `tests/spark/test_micro_batch_calls.py` records it again and compares.

Every object goes through `pyspark.cloudpickle`, as it does in Spark: a reader lives as long as a
run, a task gets a copy of it; a writer is built anew for each batch, and each task and the driver
get a copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, WriterCommitMessage
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

Offset = dict[str, Any]


class Killed(BaseException):
    """The driver is killed here: no `abort`, no `stop`, no log line after it."""


class QueryError(Exception):
    """The query ended with the error of a call (in Spark: StreamingQueryException)."""


class _Task:
    """What a task may ask of its context."""

    def __init__(self, properties: Mapping[str, str], partition: int, attempt: int) -> None:
        self._properties = properties
        self._partition = partition
        self._attempt = attempt

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get(key)

    def partitionId(self) -> int:
        return self._partition

    def attemptNumber(self) -> int:
        return self._attempt

    def taskAttemptId(self) -> int:
        return self._partition * 1000 + self._attempt


def _copied(thing: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(thing))


class MicroBatches:
    """A query from a source to a sink with a checkpoint.

    Args:
        source: Makes the source, as Spark does for each run.
        sink: Makes the sink's data source.
        schema: Of the rows.
        checkpoint: Folder of the two logs; made if it is not there.
        query_id: The query's id: the checkpoint's, the same in all its runs.
        attempts: How often each task writes; Spark retries a task whose first attempt failed behind
            its writes, and only the last attempt's message is committed.
        step: Called with a name before and behind each call and each line of a log; it may raise
            `Killed`.
    """

    def __init__(
        self,
        source: Callable[[], DataSource],
        sink: Callable[[], DataSource],
        schema: StructType,
        checkpoint: Path,
        *,
        query_id: str = "query",
        attempts: int = 1,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._sink = sink
        self._schema = schema
        self._offsets = checkpoint / "offsets"
        self._commits = checkpoint / "commits"
        for folder in (self._offsets, self._commits):
            folder.mkdir(parents=True, exist_ok=True)
        self._query_id = query_id
        self._attempts = attempts
        self._step = step
        self._planned: DataSourceStreamReader | None = None

    # --- the logs ---------------------------------------------------------------------------------

    def _latest(self, log: Path) -> int:
        return max((int(path.name) for path in log.iterdir()), default=-1)

    def _end_of(self, batch_id: int) -> Offset | None:
        path = self._offsets / str(batch_id)
        return json.loads(path.read_text()) if batch_id >= 0 else None

    @contextmanager
    def _stepping(self, name: str) -> Iterator[None]:
        self._step(f"before {name}")
        yield
        self._step(f"behind {name}")

    # --- a run ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until all that was there at the beginning is read; return the number of batches.

        Raises:
            QueryError: A call failed; the next run goes on from the logs.
            Killed: `step` said so.
        """
        reader = _copied(self._source()).streamReader(schema=self._schema)
        try:
            return self._run(reader)
        except _OwnError as failure:
            reader.stop()
            raise QueryError(str(failure)) from failure

    def _ask(self, reader: DataSourceStreamReader, name: str, *args: Any) -> Any:
        """Call the reader in the driver: if it fails, Spark's runner stops it."""
        with self._stepping(name):
            try:
                return getattr(reader, name)(*args)
            except Exception as error:
                raise _OwnError(f"{name}: {error}") from error

    def _run(self, reader: DataSourceStreamReader) -> int:
        if isinstance(reader, SupportsTriggerAvailableNow):
            self._ask(reader, "prepareForTriggerAvailableNow")
        limit = self._ask(reader, "getDefaultReadLimit")
        logged, done = self._latest(self._offsets), self._latest(self._commits)
        batches = 0
        if logged > done:
            self._batch(reader, logged, is_first=True)
            batches, done = 1, logged
        while True:
            start = self._end_of(done)
            from_here = start if start is not None else self._ask(reader, "initialOffset")
            end = self._ask(reader, "latestOffset", from_here, limit)
            self._ask(reader, "reportLatestOffset")
            if end == from_here and start is not None:
                return batches  # else the first batch of a checkpoint is made, rows or none
            with self._stepping("offset log"):
                (self._offsets / str(done + 1)).write_text(json.dumps(end))
            if start is not None:
                self._ask(reader, "commit", start)
            self._batch(reader, done + 1, is_first=not batches)
            batches, done = batches + 1, done + 1

    def _batch(self, reader: DataSourceStreamReader, batch_id: int, *, is_first: bool) -> None:
        start, end = self._end_of(batch_id - 1), self._end_of(batch_id)
        if start is None:
            start = self._ask(reader, "initialOffset")
        partitions = self._ask(reader, "partitions", start, end)
        if is_first:  # Spark plans the reading in another process, once a run
            self._planned = _copied(self._source()).streamReader(schema=self._schema)
        writer = _copied(self._sink()).streamWriter(schema=self._schema, overwrite=False)
        messages: list[WriterCommitMessage | None] = [None] * len(partitions)
        try:
            for number, partition in enumerate(partitions):
                for attempt in range(self._attempts):
                    with self._task(batch_id, number, attempt), self._stepping("task"):
                        rows = _copied(self._planned).read(_copied(partition))
                        messages[number] = _copied(_copied(writer).write(rows))
            with self._stepping("sink.commit"):
                _copied(writer).commit(messages, batch_id)
        except Exception as error:
            failed = [None] * len(partitions)
            _copied(writer).abort(failed, batch_id)
            raise QueryError(f"batch {batch_id}: {error}") from error
        with self._stepping("commit log"):
            (self._commits / str(batch_id)).touch()

    @contextmanager
    def _task(self, batch_id: int, partition: int, attempt: int) -> Iterator[None]:
        properties = {
            "sql.streaming.queryId": self._query_id,
            "streaming.sql.batchId": str(batch_id),
        }
        before = TaskContext._taskContext
        TaskContext._taskContext = _Task(properties, partition, attempt)  # type: ignore[assignment]
        try:
            yield
        finally:
            TaskContext._taskContext = before


class _OwnError(Exception):
    """A call of the reader in the driver failed."""
