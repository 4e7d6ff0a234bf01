"""The sink: rows to the queues of a running broker, in three modes of delivery.

Owns when what counts. `fenced` stages each task's rows in prepared branches, and `commit` has one
durable decision name the tasks that count (docs/decisions/0030). `dedup` and `plain` send in
`write`, so what a task has sent stays, whatever becomes of the batch.

Spark builds a writer of a stream anew for each batch and again for each `commit`, so nothing is
kept in one: what `commit` needs comes in the messages of the tasks. A batch's writer is pickled
once, and a name that it makes is the same everywhere. `abort` is not called when a driver dies:
what was staged goes with the next decision, or after a day.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from vespiary_pipeline.brief import brief
from vespiary_pipeline.broker_api import BrokerApi
from vespiary_pipeline.sink.connection import SinkConnection
from vespiary_pipeline.sink.frames import Outgoing, RowReader
from vespiary_pipeline.sink.sink_options import SinkOptions
from vespiary_spec.errors import BrokerRefused, ConfigError, SparkUnusable

FENCE_FORMAT: Final = 0x46454E43
"""Format id of branches that belong to a fence (docs/howto/fences.md)."""

WRITE_ID_CHARACTERS_MAX: Final = 43
_TASKS_MAX: Final = 1800
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """What a task has sent.

    Attributes:
        write: Name of the write: the query's id, or that of a batch write.
        task: Its name, unique among all tries.
        branches: How many branches it prepared.
        messages: How many messages it sent.
    """

    def __init__(self, write: str, task: str, branches: int, messages: int) -> None:
        self.write = write
        self.task = task
        self.branches = branches
        self.messages = messages


class _Place(NamedTuple):
    """Which write, batch and task this is."""

    write: str
    batch: int
    task: str


def _send(
    options: SinkOptions, write: str, batch: int, batches: Iterable[pa.RecordBatch]
) -> Written:
    """Send the rows of one task.

    Durability: on return all of them are durable: staged (`fenced`), or in their queues.
    """
    context = TaskContext.get()
    if context is None:
        raise SparkUnusable("a sink writes outside of a task of Spark")
    partition = context.partitionId()
    task = f"{partition}.{context.taskAttemptId()}.{secrets.token_hex(4)}"
    place = _Place(write, batch, task)
    reader = RowReader(options, f"{write}:{batch}:{partition}")
    sent = _Sent(options, place)
    with sent:
        for message in reader.read(batches):
            sent.add(message)
        sent.finish()
    return Written(write, task, sent.branches, sent.messages)


class _Sent:
    """Groups the messages of a task, and sends group by group. Connects with the first one."""

    def __init__(self, options: SinkOptions, place: _Place) -> None:
        self.branches = 0
        self.messages = 0
        self._options = options
        self._place = place
        self._group: list[Outgoing] = []
        self._group_bytes = 0
        self._connection: SinkConnection | None = None

    def __enter__(self) -> _Sent:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)

    def add(self, message: Outgoing) -> None:
        size = len(message.body) + 64 * len(message.headers)
        if self._group and self._group_bytes + size > self._options.transaction_bytes:
            self._send_group()
        self._group.append(message)
        self._group_bytes += size

    def finish(self) -> None:
        if self._group:
            self._send_group()
        if self._connection is not None:
            self._connection.settle()

    def _send_group(self) -> None:
        if self._connection is None:
            self._connection = SinkConnection(self._options)
        if self._options.delivery == "fenced":
            self._connection.send_branch(self._xid(), self._group)
            self.branches += 1
        elif self._options.delivery == "dedup":
            self._connection.send_each(self._group)
        else:
            self._connection.send_transaction(self._group)
        self.messages += len(self._group)
        self._group, self._group_bytes = [], 0

    def _xid(self) -> str:
        write, batch, task = self._place
        global_id = f"{write}:{batch}".encode().hex()
        return f"{FENCE_FORMAT}:{global_id}:{f'{task}.{self.branches}'.encode().hex()}"


def _decide(
    options: SinkOptions,
    batch: int,
    messages: Iterable[WriterCommitMessage | None],
    *,
    is_last: bool,
) -> None:
    """Have the broker decide that these tasks count, unless it has decided on the batch.

    Raises:
        BrokerRefused: Something of it is not staged any more: the batch has to run again.
        NativeError: The broker can't be reached.

    Durability: on return the decision is durable.
    """
    written = [one for one in messages if isinstance(one, Written) and one.branches]
    if options.delivery != "fenced" or not written:
        return
    if len(written) > _TASKS_MAX:
        raise ConfigError(
            "too many tasks have written", path="delivery", value=len(written),
            allowed=f"at most {_TASKS_MAX}", cure="df.coalesce(200) in front of the write",
        )  # fmt: skip
    tasks = {one.task: one.branches for one in written}
    body = {"batch": batch, "tasks": tasks, "isLast": is_last}
    _api(options).json("POST", f"/fences/{_segment(written[0].write)}/decide", body)


def _api(options: SinkOptions) -> BrokerApi:
    return BrokerApi(options.url, options.password_file)


def _segment(name: str) -> str:
    return quote(name, safe="")


@brief
class StreamSink(DataSourceStreamArrowWriter):
    """Writes the batches of a query.

    Args:
        options: What was asked for.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send a task's rows.

        Durability: on return they are durable: staged (`fenced`), or in their queues.
        """
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context else None
        batch = context.getLocalProperty(_BATCH_ID) if context else None
        if not query or not batch:
            raise SparkUnusable(
                "Spark does not say which batch a task writes",
                cure="this version of Spark is not one that the pipeline knows",
            )
        return _send(self._options, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Have the batch count, once, however often this is called.

        Durability: on return the batch is in its queues, or will be after the broker's next start.
        """
        _decide(self._options, batchId, messages, is_last=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave what was staged: it goes with the next decision, as after a driver's death."""


@brief
class BatchSink(DataSourceArrowWriter):
    """Writes one DataFrame.

    Args:
        options: What was asked for.

    Raises:
        ConfigError: The name of the write cannot be one.
        NativeError: The broker can't be reached.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._write = options.write_id or str(uuid.uuid4())
        if len(self._write) > WRITE_ID_CHARACTERS_MAX:
            raise ConfigError(
                "the name of a write is too long", path="writeId", value=self._write,
                allowed=f"at most {WRITE_ID_CHARACTERS_MAX} characters",
            )  # fmt: skip
        # Asked for also where the name is new: who can't decide is told before anything is sent.
        is_asked = options.delivery == "fenced" or bool(options.write_id)
        self._is_done = is_asked and self._fence() >= 0

    def _fence(self) -> int:
        """Return the batch that is decided; -1: none is."""
        try:
            state = _api(self._options).json("GET", f"/fences/{_segment(self._write)}")
        except BrokerRefused as refused:
            if refused.status == 404:
                return -1
            raise
        return int(state["batch"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send a task's rows; none if an earlier run has written them.

        Durability: on return they are durable: staged (`fenced`), or in their queues.
        """
        if self._is_done:
            return Written(self._write, "", 0, 0)
        return _send(self._options, self._write, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Have the write count, once for each name.

        Durability: on return it is in its queues, or will be after the broker's next start.
        """
        _decide(self._options, 0, messages, is_last=not self._options.write_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002  (Spark's)
        """Have what was staged rolled back; nothing of it was seen."""
        if self._options.delivery == "fenced" and self._fence() < 0:
            try:
                _api(self._options).call("DELETE", f"/fences/{_segment(self._write)}")
            except BrokerRefused as refused:
                if refused.status != 404:
                    raise
