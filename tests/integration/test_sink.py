"""The sink to a real broker, without a JVM: what each mode promises when tasks and drivers die."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from vespiary_broker.engine.users import format_users, make_user
from vespiary_pipeline.sink.frames import COLUMNS
from vespiary_pipeline.source import VespiarySource
from vespiary_spec.errors import BrokerRefused, ConfigError, NativeError, UnknownSetting
from vespiary_testkit.broker_calls import address, call
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.micro_batches import Killed, MicroBatches, QueryError
from vespiary_testkit.stomp_peer import StompPeer

QUEUE: Final = "copies"
BATCH: Final = 12
STEP: list[Callable[[str], None]] = []
"""What is called for each row: a source is copied into each task, and keeps nothing."""


class Rows(InputPartition):
    def __init__(self, numbers: list[int]) -> None:
        super().__init__(tuple(numbers))
        self.numbers = numbers


class NumbersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Numbers from 0 on, so many a batch, dealt out to so many partitions."""

    def __init__(self, last: int, partitions: int) -> None:
        self._last, self._partitions = last, partitions

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"n": min(start["n"] + BATCH, self._last)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Rows]:
        numbers = list(range(start["n"], end["n"]))
        return [Rows(numbers[at :: self._partitions]) for at in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        for number in partition.numbers:
            if STEP:
                STEP[0](f"row {number}")
            yield rows(f"m{number}")

    def commit(self, end: dict[str, int]) -> None:
        pass


class Numbers(DataSource):
    def streamReader(self, schema: StructType) -> NumbersReader:
        return NumbersReader(int(self.options["last"]), int(self.options["partitions"]))


def rows(*bodies: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": list(bodies)}, pa.schema({"body": pa.string()}))


def schema(**columns: str) -> StructType:
    kinds = {"string": "StringType", "binary": "BinaryType", "timestamp": "TimestampType"}
    import pyspark.sql.types as types

    found = StructType()
    for name, kind in columns.items():
        if kind.startswith("map"):
            made: Any = types.MapType(types.StringType(), types.StringType())
        else:
            made = getattr(types, kinds.get(kind, {"int": "IntegerType"}.get(kind, "")))()
        found.add(StructField(name, made))
    return found


class Query:
    """A query from numbers to a broker."""

    def __init__(self, broker: BrokerProcess, home: Path, **options: str) -> None:
        self.broker, self.home = broker, home
        home.mkdir(exist_ok=True)
        self.options = {"address": QUEUE, "transactionBytes": "4096", **options}
        self.query_id = f"{home.name}-id"

    def run(
        self,
        last: int,
        *,
        partitions: int = 3,
        step: Callable[[str], None] = lambda _: None,
        attempts: int = 1,
    ) -> int:
        STEP[:] = [step]
        options = {**places(self.broker), **self.options}
        return MicroBatches(
            lambda: Numbers({"last": str(last), "partitions": str(partitions)}),
            lambda: VespiarySource(options),
            schema(body="string"),
            self.home / "checkpoint",
            query_id=self.query_id,
            attempts=attempts,
            step=step,
        ).run()


def places(broker: BrokerProcess) -> dict[str, str]:
    return {"url": address(broker), "stompUrl": f"stomp://127.0.0.1:{broker.port()}"}


def received(broker: BrokerProcess, queue: str = QUEUE) -> Counter[str]:
    """Take everything out of a queue."""
    found: Counter[str] = Counter()
    waiting = call(broker, "GET", f"/queues/{queue}")["messages"]
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{queue}", "ack": "auto"})
        for _ in range(waiting):
            found[peer.receive().body.decode()] += 1
    return found


def staged(broker: BrokerProcess) -> int:
    return len(call(broker, "GET", "/transactions")["items"])


def once(last: int) -> Counter[str]:
    return Counter(f"m{number}" for number in range(last))


class Killer:
    """Kills at the n-th step."""

    def __init__(self, at: int) -> None:
        self.left, self.steps = at, 0

    def __call__(self, name: str) -> None:
        self.steps += 1
        self.left -= 1
        if not self.left:
            raise Killed(name)


# --- fenced ---------------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_query_writes_each_row_once_and_leaves_nothing_staged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        query = Query(broker, tmp_path / "q")
        assert query.run(30) == 3
        assert query.run(30) == 0
        (fence,) = call(broker, "GET", "/fences")["items"]
        assert (fence["name"], fence["batch"], fence["pending"]) == ("q-id", 2, 0)
        assert staged(broker) == 0
        assert received(broker) == once(30)


@pytest.mark.ci
def test_a_driver_that_is_killed_at_any_step_writes_each_row_once(tmp_path: Path) -> None:
    """Each later run has other partitions: rows stand in other tasks, in another order."""
    with BrokerProcess(tmp_path / "data") as broker:
        counter = Killer(-1)
        Query(broker, tmp_path / "whole", address="whole").run(2 * BATCH, step=counter)
        assert counter.steps > 50
        for at in range(1, counter.steps + 1, 3):
            query = Query(broker, tmp_path / f"k{at}", address=f"k{at}")
            with pytest.raises(Killed):
                query.run(2 * BATCH, step=Killer(at))
            query.run(3 * BATCH, partitions=1 + at % 5, attempts=2)
            assert received(broker, f"k{at}") == once(3 * BATCH), at
        assert staged(broker) == 0


@pytest.mark.ci
def test_a_driver_that_is_killed_again_and_again_writes_each_row_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        query = Query(broker, tmp_path / "q")
        for life, at in enumerate((7, 23, 40, 61, 18, 90, 33)):
            with contextlib.suppress(Killed):
                query.run(20 * BATCH, partitions=1 + life % 4, step=Killer(at))
        query.run(20 * BATCH)
        assert received(broker) == once(20 * BATCH)
        assert staged(broker) == 0


@pytest.mark.ci
@pytest.mark.parametrize("point", ["behind task", "before sink.commit", "behind sink.commit"])
def test_a_broker_that_is_killed_keeps_what_is_staged_and_decided(
    tmp_path: Path, point: str
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        query = Query(broker, tmp_path / "q")
        kills: list[str] = []

        def step(name: str) -> None:
            if name == point and not kills:
                kills.append(name)
                broker.kill()
                broker.start()

        # The broker's ports are others then, and the query that knows the old ones fails.
        with contextlib.suppress(QueryError):
            query.run(2 * BATCH, step=step)
        assert kills
        query.run(2 * BATCH, partitions=2)
        assert received(broker) == once(2 * BATCH)
        assert staged(broker) == 0


def test_two_drivers_of_one_checkpoint_write_each_row_once(tmp_path: Path) -> None:
    """The second ends the batch between the first one's tasks and its commit."""
    with BrokerProcess(tmp_path / "data") as broker:
        query = Query(broker, tmp_path / "q")
        seen: list[str] = []

        def step(name: str) -> None:
            if name == "before sink.commit" and not seen:
                seen.append(name)
                query.run(BATCH, partitions=2)

        query.run(BATCH, step=step)
        assert received(broker) == once(BATCH)
        assert staged(broker) == 0


@pytest.mark.ci
def test_a_batch_whose_branches_are_gone_is_refused_and_runs_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        query = Query(broker, tmp_path / "q")

        def step(name: str) -> None:
            if name == "before sink.commit":
                xid = call(broker, "GET", "/transactions")["items"][0]["xid"]
                with StompPeer(broker.port()) as peer:
                    peer.connect()
                    peer.send("ABORT", {"transaction": "t", "xid": xid, "receipt": "r"})
                    peer.receive_receipt("r")

        with pytest.raises(QueryError, match="not prepared whole"):
            query.run(BATCH, step=step)
        assert call(broker, "GET", f"/queues/{QUEUE}")["ready"] == 0
        query.run(BATCH)
        assert received(broker) == once(BATCH)


# --- dedup and plain ------------------------------------------------------------------------------


def test_dedup_writes_rows_again_without_doubling_them(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        query = Query(broker, tmp_path / "q", delivery="dedup")
        for at in (5, 20, 34):
            with pytest.raises(Killed):
                query.run(3 * BATCH, step=Killer(at))
        query.run(3 * BATCH, attempts=2)
        assert received(broker) == once(3 * BATCH)


def test_dedup_with_rows_in_other_partitions_doubles_and_loses_nothing(tmp_path: Path) -> None:
    """An id of the place alone would be another row's now, which would be taken for a copy."""
    with BrokerProcess(tmp_path / "data") as broker:
        query = Query(broker, tmp_path / "q", delivery="dedup")
        with pytest.raises(Killed):
            query.run(BATCH, partitions=4, step=killing("behind task"))
        query.run(BATCH, partitions=3)
        found = received(broker)
        assert set(found) == set(once(BATCH))
        assert max(found.values()) == 2


def killing(point: str) -> Callable[[str], None]:
    """Return a step that kills at a point."""

    def step(name: str) -> None:
        if name == point:
            raise Killed(name)

    return step


@pytest.mark.ci
def test_plain_loses_nothing_and_may_double(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        query = Query(broker, tmp_path / "q", delivery="plain")
        with pytest.raises(Killed):
            query.run(BATCH, step=killing("before sink.commit"))
        query.run(BATCH)
        assert received(broker) == Counter({f"m{number}": 2 for number in range(BATCH)})


def test_ids_of_ones_own_go_over_runs_and_partitions(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        kinds = schema(body="string", duplicate_id="string")
        for bodies in (["a", "b"], ["b", "c", "a"]):
            batch = pa.RecordBatch.from_pydict(
                {"body": bodies, "duplicate_id": [f"id-{body}" for body in bodies]}
            )
            write(broker, kinds, [[batch]], delivery="dedup")
        assert received(broker) == Counter("abc")


# --- writes of a DataFrame ------------------------------------------------------------------------


class _Context:
    """What a task may ask of its context in a batch write."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def partitionId(self) -> int:
        return self._partition

    def taskAttemptId(self) -> int:
        return self._partition

    def getLocalProperty(self, key: str) -> str | None:
        return None


def write(
    broker: BrokerProcess,
    kinds: StructType,
    partitions: list[list[pa.RecordBatch]],
    *,
    fails: bool = False,
    **options: str,
) -> None:
    """Write a DataFrame as Spark does."""
    given = {**places(broker), "address": QUEUE, **options}
    writer = cloudpickle.loads(
        cloudpickle.dumps(VespiarySource(given).writer(schema=kinds, overwrite=False))
    )
    messages, before = [], TaskContext._taskContext
    try:
        for number, batches in enumerate(partitions):
            TaskContext._taskContext = _Context(number)  # type: ignore[assignment]
            task = cloudpickle.loads(cloudpickle.dumps(writer))
            messages.append(cloudpickle.loads(cloudpickle.dumps(task.write(iter(batches)))))
    finally:
        TaskContext._taskContext = before
    if fails:
        writer.abort(messages)
    else:
        writer.commit(messages)


@pytest.mark.ci
def test_a_dataframe_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        kinds = schema(body="string")
        write(broker, kinds, [[rows("a")], [rows("b")]], fails=True)
        assert (staged(broker), call(broker, "GET", "/fences")["items"]) == (0, [])
        write(broker, kinds, [[rows("a")], [], [rows("b"), rows("c")]])
        assert received(broker) == Counter("abc")
        assert call(broker, "GET", "/fences")["items"] == []


@pytest.mark.ci
def test_a_write_with_a_name_is_done_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        kinds = schema(body="string")
        for _ in range(3):
            write(broker, kinds, [[rows("a", "b")]], writeId="import-7")
        write(broker, kinds, [[rows("a")]], writeId="import-8")
        assert received(broker) == Counter({"a": 2, "b": 1})
        assert staged(broker) == 0


@pytest.mark.ci
def test_columns_become_headers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        later = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
        batch = pa.RecordBatch.from_pydict(
            {
                "body": [b"\0\xff:\n", b""],
                "address": ["orders", None],
                "priority": pa.array([7, None], pa.int32()),
                "expires": pa.array([later, None], pa.timestamp("us", tz="UTC")),
                "properties": pa.array(
                    [[("colour", "r:e\\d\n"), ("destination", "elsewhere"), ("expires", "1")], []],
                    pa.map_(pa.string(), pa.string()),
                ),
            }
        )
        kinds = schema(body="binary", address="string", priority="int", expires="timestamp")
        kinds.add(schema(properties="map")["properties"])
        write(broker, kinds, [[batch]])
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for number, queue in enumerate(("orders", QUEUE)):
                destination = {"id": str(number), "destination": f"/queue/{queue}", "ack": "auto"}
                peer.send("SUBSCRIBE", destination)
            by_body = {frame.body: frame for frame in (peer.receive() for _ in "ab")}
        first, second = by_body[b"\0\xff:\n"], by_body[b""]
        assert (first.get("priority"), first.get("colour")) == ("7", "r:e\\d\n")
        assert first.get("expires") == "4102444800000"
        assert first.get("subscription") == "0"
        assert (second.get("persistent"), second.get("priority")) == ("true", None)


def test_a_row_that_is_larger_than_a_transaction_goes_alone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "min-large-message-size=100KiB") as broker:
        bodies = ["s", "x" * 300_000, "t", "y" * 5_000]
        write(broker, schema(body="string"), [[rows(*bodies)]], transactionBytes="4096")
        assert received(broker) == Counter(bodies)


# --- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"body": "string", "size": "int"}, {}, r"a sink has no such column.*size.*body, address"),
        ({"body": "int"}, {}, r"this column has another type.*int.*binary or string"),
        ({"address": "string"}, {}, "a sink needs the column body"),
        ({"body": "string"}, {"address": ""}, "nothing says where the messages go"),
        ({"body": "string", "duplicate_id": "string"}, {}, "fenced sends no duplicate ids"),
        ({"body": "string"}, {"writeId": "x" * 44}, "the name of a write is too long"),
        ({"body": "string"}, {"writeId": "x", "delivery": "plain"}, "remembers no write"),
        ({"body": "string"}, {"delivery": "twice"}, "fenced, dedup, plain"),
        ({"body": "string"}, {"stompUrl": "http://h"}, "this is no STOMP listener"),
        ({"body": "string"}, {"url": ""}, "a sink needs this option"),
    ],
)
def test_wrong_options_and_columns_are_one_sentence(
    columns: dict[str, str], options: dict[str, str], sentence: str
) -> None:
    given = {"url": "http://127.0.0.1:1", "address": "a", **options}
    with pytest.raises(ConfigError, match=sentence):
        VespiarySource(given).writer(schema=schema(**columns), overwrite=False).write(iter([]))


def test_an_option_that_is_misspelled_is_told() -> None:
    with pytest.raises(UnknownSetting, match="Did you mean delivery"):
        VespiarySource({"url": "http://h", "deliver": "plain"}).streamWriter(
            schema=schema(body="string"), overwrite=False
        )
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        VespiarySource({"url": "http://h", "address": "a"}).writer(
            schema=schema(body="string"), overwrite=True
        )


def test_a_broker_that_is_not_there_or_refuses_is_told(tmp_path: Path) -> None:
    assert COLUMNS.keys() >= {"body", "address"}
    kinds = schema(body="string")
    with BrokerProcess(tmp_path / "data") as broker:
        with pytest.raises(NativeError, match=r"can't be reached.*stompUrl"):
            write(broker, kinds, [[rows("a")]], stompUrl="stomp://127.0.0.1:1")
        http = address(broker).replace("http", "stomp")
        with pytest.raises(BrokerRefused, match="does not speak STOMP"):
            write(broker, kinds, [[rows("a")]], stompUrl=http)
        with pytest.raises(BrokerRefused, match="wildcard"):
            write(broker, kinds, [[rows("a")]], address="a.#")
        none = pa.RecordBatch.from_pydict({"body": ["a", None]}, pa.schema({"body": "string"}))
        with pytest.raises(BrokerRefused, match=r"row 1 of .*: a row has no body"):
            write(broker, kinds, [[none]])
        assert staged(broker) == 0


@pytest.mark.ci
def test_users_log_in_with_a_password_from_a_file(tmp_path: Path) -> None:
    data, kinds = tmp_path / "data", schema(body="string")
    data.mkdir()
    accounts = [make_user("loader", "secret", roles=["admin"]), make_user("guest", "secret")]
    (data / "users").write_text(format_users(accounts))
    (data / "users").chmod(0o600)
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "wrong").write_text("other\n")
    with BrokerProcess(data) as broker:

        def told(user: str, password: str) -> dict[str, str]:
            url = address(broker).replace("://", f"://{user}@")
            return {"url": url, "passwordFile": str(tmp_path / password)}

        write(broker, kinds, [[rows("a")]], **told("loader", "password"))
        with pytest.raises(BrokerRefused, match="password"):
            write(broker, kinds, [[rows("b")]], **told("loader", "wrong"))
        with pytest.raises(BrokerRefused, match="admin"):
            write(broker, kinds, [[rows("c")]], **told("guest", "password"))
        with StompPeer(broker.port()) as peer:
            peer.connect(login="loader", passcode="secret")
            peer.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{QUEUE}", "ack": "auto"})
            assert peer.receive().body == b"a"


@pytest.mark.ci
def test_an_address_that_stays_full_ends_the_task_with_a_sentence(tmp_path: Path) -> None:
    settings = (
        "address-settings.#.max-size-bytes=64KiB",
        "address-settings.#.address-full-policy=BLOCK",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        kinds, bodies = schema(body="string"), ["x" * 40_000] * 2
        write(broker, kinds, [[rows(*bodies)]])
        with pytest.raises(NativeError, match=r"took and answered nothing for 2 s.*full"):
            write(broker, kinds, [[rows(*bodies)]], timeout="2")
