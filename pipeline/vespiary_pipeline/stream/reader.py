"""The streaming source: ranges of live queues, acknowledged when a later batch begins.

Owns when what is acknowledged. Spark calls `latestOffset(start)` only when all up to `start` is in
its commit log, and at every trigger; `commit` comes a batch late, and not at all for the last batch
of a run. So `start` is acknowledged in `latestOffset` too (ackMode=eager), which drains an idle
queue.

Durability: nothing is acknowledged that Spark's commit log does not cover. A batch that is run
again reads the same sequences, whose messages the broker keeps until then.

Must never hold anything in `stop`: Spark does not call it at the end of a query.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.ranges import SALT, RangeAnswer, RangeGap, decode_trailer
from vespiary_native.columns import scan
from vespiary_pipeline.brief import brief
from vespiary_pipeline.plan import Part
from vespiary_pipeline.sources.batches import Batch, Wanted, names_of
from vespiary_pipeline.stream.bodies import StreamBodies
from vespiary_pipeline.stream.client import Claim, StreamClient
from vespiary_pipeline.stream.offsets import Offsets, QueueOffset, read_offsets
from vespiary_pipeline.stream.stream_options import StreamOptions
from vespiary_spec.errors import CorruptRecord, MessagesLost

HARMLESS_GAPS: Final = frozenset({"rolled-back", "transaction", "before-stream"})
"""There was no message to be seen, or it was gone when the stream was made."""


class Range(InputPartition):
    """Messages of one queue behind one sequence up to another."""

    def __init__(self, queue: str, claim: Claim, after: int, to: int) -> None:
        super().__init__((queue, claim, after, to))
        self.queue, self.claim, self.after, self.to = queue, claim, after, to


class _Held(NamedTuple):
    """A stream that this run claimed, and how far it was acknowledged then."""

    claim: Claim
    acknowledged: int


@brief
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues. Owner: the query; one lives in the driver, tasks get copies.

    Args:
        options: What was asked for.
        columns: Columns, in order.
    """

    def __init__(self, options: StreamOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._owner = ""
        self._is_available_now = False
        self._target: dict[str, int] = {}
        self._held: dict[str, _Held] = {}
        self._heads: dict[str, QueueOffset] = {}

    # --- offsets ----------------------------------------------------------------------------------

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there at the first look, and nothing that comes later."""
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much one batch reads."""
        most = self._options.rows_max
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins: behind what is acknowledged.

        Spark asks before the first batch, and again when that one is repeated by another process:
        nothing is acknowledged in between, so the answer is the same.

        Raises:
            BrokerRefused: There is no such queue, or no stream can read it.
            NativeError: The broker can't be reached.
        """
        queues = {}
        for queue in self._options.queues:
            state = self._shown(queue)
            queues[queue] = QueueOffset(state["queueId"], state["acknowledged"])
        return Offsets("", queues).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch reads; acknowledge what came before it.

        Args:
            start: Up to here all is done: Spark's commit log has it.
            limit: How many messages a batch may have.

        Raises:
            MessagesLost: Messages behind `start` are acknowledged already.
            StreamHeld: Another query reads the queue.
            StreamFenced: A later start of this query took over.
            NativeError: The broker can't be reached.
        """
        begin = read_offsets(start)
        self._claim(begin)
        self._heads = {}
        for queue, offset in begin.queues.items():
            self._check_kept(queue, offset)
            if self._options.acknowledges == "eager":
                self._acknowledge(queue, offset.sequence)
            state = self._http.head(self._held[queue].claim)
            self._heads[queue] = QueueOffset(offset.queue_id, int(state["head"]))
        if self._is_available_now and not self._target:
            self._target = {queue: head.sequence for queue, head in self._heads.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = self._ends(begin, most)
        is_idle = all(ends[queue] == one.sequence for queue, one in begin.queues.items())
        if is_idle and begin.owner:
            return start
        queues = {
            queue: QueueOffset(offset.queue_id, ends[queue])
            for queue, offset in begin.queues.items()
        }
        return Offsets(self._owner, queues).to_json()

    def _ends(self, begin: Offsets, most: int | None) -> dict[str, int]:
        """Return up to which sequence each queue is read: a fair part of what a batch may have."""
        left = {
            queue: max(
                0,
                min(self._heads[queue].sequence, self._target.get(queue, 2**63 - 1))
                - offset.sequence,
            )
            for queue, offset in begin.queues.items()
        }
        taken = dict.fromkeys(left, 0)
        room = sum(left.values()) if most is None else most
        for number, queue in enumerate(sorted(left, key=lambda name: left[name])):
            taken[queue] = min(left[queue], room // (len(left) - number))
            room -= taken[queue]
        # A batch that may have fewer messages than there are queues reads at least one.
        if room and not any(taken.values()) and any(left.values()):
            taken[max(left, key=lambda name: left[name])] = 1
        return {queue: begin.queues[queue].sequence + taken[queue] for queue in left}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how far the queues could be read, for Spark's progress."""
        return Offsets(self._owner, self._heads).to_json() if self._heads else None

    # --- the broker -------------------------------------------------------------------------------

    @property
    def _http(self) -> StreamClient:
        """What calls in the driver: a connection for each call, so nothing is kept or pickled."""
        return StreamClient(self._options)

    def _name(self, queue: str) -> str:
        return f"{self._options.stream}.{queue}"

    def _shown(self, queue: str) -> dict[str, Any]:
        """Return what is known of a queue's stream; make it if it is not there."""
        state = self._http.show(self._name(queue))
        if state is None:
            self._owner = self._owner or str(uuid.uuid4())
            state = self._http.claim(self._name(queue), queue, self._owner, self._options.lease_s)
        return state

    def _claim(self, offsets: Offsets) -> None:
        """Claim all queues for the owner that a checkpoint names, once a run."""
        if self._held:
            return
        self._owner = offsets.owner or self._owner or str(uuid.uuid4())
        for queue in offsets.queues:
            state = self._http.claim(self._name(queue), queue, self._owner, self._options.lease_s)
            if state["queueId"] != offsets.queues[queue].queue_id:
                raise MessagesLost(
                    f"the queue {queue} is not the one that the checkpoint has read",
                    where=self._http.place,
                    measured=f"queue {state['queueId']}",
                    allowed=f"queue {offsets.queues[queue].queue_id}",
                    cure="begin with a new checkpoint",
                )
            claim = Claim(self._name(queue), state["epoch"], state["queueId"])
            self._held[queue] = _Held(claim, state["acknowledged"])

    def _check_kept(self, queue: str, offset: QueueOffset) -> None:
        held = self._held[queue]
        if held.acknowledged > offset.sequence and self._options.fails_on_data_loss:
            raise MessagesLost(
                f"messages of the queue {queue} are acknowledged that this checkpoint has not read",
                where=self._http.place,
                measured=f"acknowledged up to {held.acknowledged}",
                allowed=f"up to {offset.sequence}",
                cure="was the checkpoint put back to an older state? failOnDataLoss=false goes on",
            )

    def _acknowledge(self, queue: str, sequence: int) -> None:
        held = self._held[queue]
        if sequence > held.acknowledged:
            self._http.acknowledge(held.claim, sequence)
            self._held[queue] = held._replace(acknowledged=sequence)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge what Spark is done with.

        Args:
            end: Up to here.

        Raises:
            StreamFenced: A later start of this query took over.
            NativeError: The broker can't be reached.
        """
        done = read_offsets(end)
        self._claim(done)
        for queue, offset in done.queues.items():
            self._acknowledge(queue, offset.sequence)

    def stop(self) -> None:
        """Do nothing: the stream stays as it is, and no connection is kept open."""

    # --- reading ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of a batch; the same offsets give the same messages.

        Args:
            start: Behind this.
            end: Up to this.

        Raises:
            StreamHeld: Another query reads the queue.
            NativeError: The broker can't be reached.
        """
        begin, last = read_offsets(start), read_offsets(end)
        self._claim(last)
        rows = self._options.partition_rows
        return [
            Range(queue, self._held[queue].claim, after, min(after + rows, offset.sequence))
            for queue, offset in last.queues.items()
            for after in range(begin.queues[queue].sequence, offset.sequence, rows)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range on an executor.

        Args:
            partition: One of `partitions`.

        Raises:
            MessagesLost: A message is gone that nobody has read.
            CorruptRecord: An answer is damaged.
            StreamFenced: A later start of this query took over.
            NativeError: The broker can't be reached.
        """
        assert isinstance(partition, Range)
        client = StreamClient(self._options, keeps_open=True)
        try:
            after = partition.after
            while after < partition.to:
                data, length = client.range(
                    partition.claim, after, partition.to, self._options.range_bytes
                )
                trailer = self._trailer(data, length, client.place)
                self._check_gaps(partition, trailer.gaps, client.place)
                blocks = memoryview(data)[:length]
                yield from self._rows(partition, blocks, trailer.messages, client)
                after = trailer.through
        finally:
            client.close()

    def _trailer(self, data: bytes, length: int, place: str) -> RangeAnswer:
        try:
            return decode_trailer(data, length)
        except JournalFormatError as error:
            raise CorruptRecord("an answer of the broker is damaged", where=place) from error

    def _check_gaps(self, part: Range, gaps: Sequence[RangeGap], place: str) -> None:
        lost = [gap for gap in gaps if gap.reason not in HARMLESS_GAPS]
        if lost and self._options.fails_on_data_loss:
            number = sum(gap.last - gap.first + 1 for gap in lost)
            raise MessagesLost(
                f"{number} messages of the queue {part.queue} are gone that this query has not read"
                f" ({lost[0].reason}: {lost[0].first} to {lost[0].last})",
                where=place,
                cure="read the dead letters, or say failOnDataLoss=false to go on without them",
            )

    def _rows(
        self, part: Range, blocks: memoryview, messages: int, client: StreamClient
    ) -> Iterator[pa.RecordBatch]:
        found = scan(blocks, offset=0, salt=SALT, file_id=part.claim.queue_id)
        if found.stop.offset != len(blocks) or found.columns.rows != messages:
            raise CorruptRecord(
                "an answer of the broker is damaged",
                where=f"{client.place}: {part.claim.name} behind {part.after}",
                measured=found.stop.found or f"{found.columns.rows} of {messages} messages",
            )
        if not found.columns.rows:
            return
        bodies = StreamBodies(client, part.claim, found.columns, self._options.range_bytes)
        wanted = Wanted(
            tuple(name for name in self._columns if name not in ("queue", "sequence")),
            self._options.max_body_bytes,
            names_of({}),
            bodies,
            self._options.range_bytes,
        )
        shown = Part(client.place, "message", part.claim.queue_id, part.claim.queue_id, SALT)
        sequences = pa.Array.from_buffers(
            pa.int64(), found.columns.rows, [None, pa.py_buffer(found.columns.place_sequence)]
        )
        begin = 0
        for batch in Batch(shown, blocks, found.columns, wanted).batches():
            own = {
                "queue": pa.repeat(pa.scalar(part.queue), batch.num_rows),
                "sequence": sequences.slice(begin, batch.num_rows),
            }
            arrays = [own[name] if name in own else batch.column(name) for name in self._columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(self._columns))
            begin += batch.num_rows
