"""The streaming source over a real broker, without a JVM: drivers killed anywhere, brokers too."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from vespiary_pipeline.schema import MESSAGES
from vespiary_pipeline.source import VespiarySource, stream_columns
from vespiary_pipeline.stream.client import StreamClient
from vespiary_pipeline.stream.reader import StreamReader
from vespiary_pipeline.stream.stream_options import read_stream_options
from vespiary_spec.errors import StreamHeld
from vespiary_testkit.broker_calls import address, call
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.micro_batches import Killed, MicroBatches, QueryError
from vespiary_testkit.stomp_peer import StompPeer

QUEUE = "orders"


class Source(DataSource):
    """The streaming part of the format, whose schema Spark would have made of the DDL."""

    def streamReader(self, schema: StructType) -> StreamReader:
        options = read_stream_options(self.options)
        return StreamReader(options, stream_columns(options))


class Ledger(DataSource):
    """Writes down what each batch committed; option `file`."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> LedgerWriter:
        return LedgerWriter(self.options["file"])


class Rows(WriterCommitMessage):
    def __init__(self, rows: list[tuple[str, int, str]]) -> None:
        self.rows = rows


class LedgerWriter(DataSourceStreamArrowWriter):
    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        return Rows(
            [
                (row["queue"], row["sequence"], row["body"].decode())
                for batch in iterator
                for row in batch.to_pylist()
            ]
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        rows = [row for message in messages for row in getattr(message, "rows", [])]
        with self._file.open("a") as file:
            file.write(json.dumps([batchId, rows]) + "\n")


class Query:
    """A query from a broker to a ledger."""

    def __init__(self, broker: BrokerProcess, home: Path, **options: str) -> None:
        self.broker, self.home = broker, home
        self.options = {"queues": QUEUE, "maxMessagesPerTrigger": "4", "lease": "1", **options}
        self.ledger = home / "ledger"

    def run(self, step: Callable[[str], None] = lambda _: None, attempts: int = 1) -> int:
        options = {"url": address(self.broker), **self.options}
        return MicroBatches(
            lambda: Source(options),
            lambda: Ledger({"file": str(self.ledger)}),
            StructType([]),
            self.home / "checkpoint",
            attempts=attempts,
            step=step,
        ).run()

    def batches(self) -> dict[int, list[Any]]:
        """Return what each batch gave; a batch that was repeated gave the same."""
        found: dict[int, list[Any]] = {}
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        for number, rows in map(json.loads, lines):
            assert found.setdefault(number, rows) == rows
        return found

    def bodies(self) -> list[str]:
        """Return the bodies in order; each message stands in one batch."""
        return [body for _, _, body in itertools.chain.from_iterable(self.batches().values())]


def fill(broker: BrokerProcess, *bodies: str, queue: str = QUEUE, **headers: str) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number, body in enumerate(bodies):
            sent = {"destination": f"/queue/{queue}", "persistent": "true"} | headers
            if number == len(bodies) - 1:
                sent["receipt"] = "all"
            peer.send("SEND", sent, body.encode())
        peer.receive_receipt("all")


def left(broker: BrokerProcess, queue: str = QUEUE) -> int:
    messages: int = call(broker, "GET", f"/queues/{queue}")["messages"]
    return messages


def numbered(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


class Killer:
    """Kills at the n-th step."""

    def __init__(self, at: int) -> None:
        self.left, self.steps = at, 0

    def __call__(self, name: str) -> None:
        self.steps += 1
        self.left -= 1
        if not self.left:
            raise Killed(name)


@pytest.mark.ci
def test_each_message_is_in_one_batch_and_the_queue_is_drained(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, *numbered(1, 10))
        query = Query(broker, tmp_path)
        assert query.run() == 3
        assert query.bodies() == numbered(1, 10)
        assert left(broker) == 0, (
            "the last look acknowledges the last batch, though no commit comes"
        )
        assert query.run() == 0
        fill(broker, *numbered(11, 12))
        assert query.run() == 1
        assert query.bodies() == numbered(1, 12)


@pytest.mark.ci
def test_with_acknowledgements_in_commit_alone_the_last_batch_stays(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, *numbered(1, 10))
        query = Query(broker, tmp_path, ackMode="commit")
        query.run()
        assert left(broker) == 2
        assert query.run() == 0
        fill(broker, "m11")
        query.run()
        assert query.bodies() == numbered(1, 11)
        assert left(broker) == 1


@pytest.mark.ci
def test_a_driver_that_is_killed_at_any_step_loses_nothing_and_doubles_nothing(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        counter = Killer(-1)
        fill(broker, *numbered(1, 6), queue="whole")
        (tmp_path / "whole").mkdir()
        Query(broker, tmp_path / "whole", queues="whole").run(counter)
        assert counter.steps > 25
        for at in range(1, counter.steps + 1, 3):
            home, queue = tmp_path / str(at), f"queue{at}"
            home.mkdir()
            fill(broker, *numbered(1, 6), queue=queue)
            query = Query(broker, home, queues=queue)
            with pytest.raises(Killed):
                query.run(Killer(at))
            done = [body for rows in query.batches().values() for _, _, body in rows]
            assert left(broker, queue) >= 6 - len(done), "nothing is acknowledged that is not done"
            fill(broker, "m7", queue=queue)
            query.run(attempts=2)
            assert query.bodies() == numbered(1, 7), at
            assert left(broker, queue) == 0


@pytest.mark.ci
def test_a_broker_that_is_killed_between_batches_goes_on_where_it_was(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, *numbered(1, 9))
        query = Query(broker, tmp_path)

        def step(name: str) -> None:
            if name == "before task":
                broker.kill()
                broker.start()

        with contextlib.suppress(QueryError):
            query.run(step)  # the URL of the broker may have changed: the query fails then
        query.run()
        assert query.bodies() == numbered(1, 9)
        assert left(broker) == 0


@pytest.mark.ci
def test_a_checkpoint_that_is_lost_reads_again_what_was_not_acknowledged(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, *numbered(1, 10))
        first = Query(broker, tmp_path / "one", ackMode="commit")
        first.home.mkdir()
        first.run()
        second = Query(broker, tmp_path / "two")
        second.home.mkdir()
        second.run()
        counted = Counter(first.bodies() + second.bodies())
        assert set(counted) == set(numbered(1, 10))
        assert {body for body, count in counted.items() if count > 1} == {"m9", "m10"}


@pytest.mark.ci
def test_an_older_run_is_fenced_and_another_query_is_refused(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, *numbered(1, 6))
        query = Query(broker, tmp_path, lease="3600")

        def step(name: str) -> None:
            if name == "before task":
                query.run()  # the next driver of the same checkpoint

        with pytest.raises(QueryError, match="claimed by another run"):
            query.run(step)
        assert query.bodies() == numbered(1, 6)
        options = read_stream_options({"url": address(broker), "queues": QUEUE})
        passing = itertools.count(0.0, 10_000.0)
        client = StreamClient(options, clock_s=passing.__next__)
        with pytest.raises(StreamHeld, match=r"is held by .* \[VSP-P108\]"):
            client.claim(f"spark.{QUEUE}", QUEUE, "another query", 60)


@pytest.mark.ci
def test_a_checkpoint_that_was_put_back_is_told(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, *numbered(1, 10))
        query = Query(broker, tmp_path)
        query.run()
        for log in ("offsets", "commits"):
            for number in (1, 2):
                (tmp_path / "checkpoint" / log / str(number)).unlink()
        with pytest.raises(QueryError, match="acknowledged that this checkpoint has not read"):
            query.run()
        query.options["failOnDataLoss"] = "false"
        fill(broker, "m11")
        query.ledger.unlink()
        query.run()
        assert query.bodies() == ["m11"]


@pytest.mark.ci
def test_messages_that_went_before_they_were_read_are_told(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, *numbered(1, 2))
        query = Query(broker, tmp_path)
        query.run()
        fill(broker, *numbered(3, 6))
        call(broker, "POST", f"/queues/{QUEUE}/purge")
        fill(broker, "m7")
        with pytest.raises(QueryError, match=r"4 messages of the queue orders are gone.*purged"):
            query.run()
        query.options["failOnDataLoss"] = "false"
        query.run()
        assert query.bodies() == ["m1", "m2", "m7"]


def test_several_queues_share_a_batch(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, *[f"a{number}" for number in range(9)], queue="a")
        fill(broker, "b0", queue="b")
        query = Query(broker, tmp_path, queues="a, b", partitionRows="1")
        query.run()
        assert sorted(query.bodies()) == sorted([f"a{number}" for number in range(9)] + ["b0"])
        sizes = [len(rows) for rows in query.batches().values()]
        assert max(sizes) <= 4
        assert {row[0] for row in query.batches()[0]} == {"a", "b"}
        assert (left(broker, "a"), left(broker, "b")) == (0, 0)


def test_columns_of_messages(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", "min-large-message-size=4096") as broker:
        fill(broker, "x" * 10_000, priority="7", colour="red", **{"content-type": "text/plain"})
        options = read_stream_options({"url": address(broker), "queues": QUEUE})
        reader = StreamReader(options, MESSAGES.names)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        (part,) = reader.partitions(start, end)
        (row,) = [row for batch in reader.read(part) for row in batch.to_pylist()]
        assert (row["queue"], row["sequence"], row["address"]) == (QUEUE, 1, QUEUE)
        assert (row["priority"], row["large"], row["error"]) == (7, True, None)
        assert dict(row["properties"])["colour"] == "red"
        assert row["body"] == b"x" * 10_000
        reader.stop()


def test_large_bodies_come_in_several_batches(tmp_path: Path):
    """They are small in an answer, as references, and may be too many for the memory together."""
    with BrokerProcess(tmp_path / "data", "min-large-message-size=4096") as broker:
        fill(broker, *[f"{number}" * 40_000 for number in range(6)], "small")
        given = {"url": address(broker), "queues": QUEUE, "rangeBytes": "65536"}
        reader = StreamReader(read_stream_options(given), MESSAGES.names)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        (part,) = reader.partitions(start, end)
        batches = [batch.to_pylist() for batch in reader.read(part)]
        assert len(batches) > 3
        assert max(sum(len(row["body"]) for row in rows) for rows in batches) <= 65536 + 40_000
        rows = [row for batch in batches for row in batch]
        assert [row["sequence"] for row in rows] == list(range(1, 8))
        assert [row["body"][:1] for row in rows] == [*[b"%d" % n for n in range(6)], b"s"]


@pytest.mark.ci
def test_what_is_wrong_is_one_sentence(tmp_path: Path):
    nobody = {"url": "http://127.0.0.1:1", "queues": QUEUE}
    with pytest.raises(OSError, match=r"127.0.0.1:1: the broker can't be reached"):
        Source(nobody).streamReader(schema=StructType([])).initialOffset()
    with BrokerProcess(tmp_path / "data") as broker:
        unknown = {"url": address(broker), "queues": "nothing"}
        with pytest.raises(Exception, match="There is no queue 'nothing'"):
            Source(unknown).streamReader(schema=StructType([])).initialOffset()
    for options, sentence in (
        ({"url": "http://h"}, "queues: a stream needs this option"),
        ({"url": "h:1", "queues": "a"}, "no URL of a broker"),
        ({"url": "http://u:p@h", "queues": "a"}, "a password does not belong into a URL"),
        ({"url": "http://u@h", "queues": "a"}, "a user needs a password"),
        ({"url": "http://h", "queues": "a", "leas": "1"}, "Did you mean lease"),
    ):
        with pytest.raises(Exception, match=sentence):
            VespiarySource(options).streamReader(schema=StructType([])).initialOffset()
