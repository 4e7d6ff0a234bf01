"""Streams of a real broker: ranges, acknowledgements, kill -9, pages, transactions, gaps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from vespiary_codec.journal.ranges import RangeAnswer, decode_range
from vespiary_codec.journal.record import AddRecord, decode_record, walk_records
from vespiary_testkit.broker_calls import address, call, metrics, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/streams.md"
QUEUE = "orders"


# --- a reader of a stream -------------------------------------------------------------------------

# The reader of a stream of a real broker, over its HTTP API, as a Spark source calls it.

_CALL_S = 60.0


class StreamProblem(Exception):  # noqa: N818  (an answer, not a fault)
    """A call was refused.

    Attributes:
        status: HTTP status.
        code: Code of the error, such as VSP-P109; empty if it has none.
    """

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(problem["detail"])
        self.status = status
        self.code = problem["type"].rpartition(":")[2] if "urn:" in problem["type"] else ""


@dataclass
class Answered:
    """An answer to `range`: all of its bytes, and what they say."""

    data: bytes
    answer: RangeAnswer

    @property
    def records(self) -> list[AddRecord]:
        found = []
        for payload, count in self.answer.payloads:
            for raw in walk_records(payload, count):
                record = decode_record(raw)
                assert isinstance(record, AddRecord)
                found.append(record)
        return found

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(record.body) for record in self.records]

    @property
    def sequences(self) -> list[int]:
        return [record.places[0].sequence for record in self.records]

    @property
    def gaps(self) -> list[tuple[int, int, str]]:
        return [tuple(gap) for gap in self.answer.gaps]  # type: ignore[misc]


class StreamReader:
    """One run that reads a stream; `claim` first."""

    def __init__(self, broker: BrokerProcess, name: str, queue: str, owner: str = "query") -> None:
        self.broker = broker
        self.name = name
        self.queue = queue
        self.owner = owner
        self.epoch = 0
        self.queue_id = 0

    def claim(self, lease_s: float = 60.0) -> dict[str, Any]:
        body = {"name": self.name, "queue": self.queue, "owner": self.owner, "leaseS": lease_s}
        state: dict[str, Any] = json.loads(self._call("POST", "/streams", body)[0])
        self.epoch, self.queue_id = state["epoch"], state["queueId"]
        return state

    def head(self) -> int:
        return int(self.head_state()["head"])

    def head_state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._get("head")[0])
        return state

    def range(self, after: int, to: int, max_bytes: int | None = None) -> Answered:
        more = {} if max_bytes is None else {"maxBytes": max_bytes}
        data, headers = self._get("range", after=after, to=to, **more)
        length = int(headers["Vespiary-Blocks-Length"])
        return Answered(data, decode_range(data, length, self.queue_id))

    def body(self, sequence: int, offset: int = 0, max_bytes: int = 2**20) -> bytes:
        return self._get("body", sequence=sequence, offset=offset, maxBytes=max_bytes)[0]

    def acknowledge(self, sequence: int) -> dict[str, Any]:
        path = f"/streams/{self.name}/acknowledge"
        body = {"epoch": self.epoch, "sequence": sequence}
        state: dict[str, Any] = json.loads(self._call("POST", path, body)[0])
        return state

    def _get(self, what: str, **query: int) -> tuple[bytes, Any]:
        text = urlencode({"epoch": self.epoch} | query)
        return self._call("GET", f"/streams/{self.name}/{what}?{text}")

    def _call(self, method: str, path: str, body: Any = None) -> tuple[bytes, Any]:
        request = urllib.request.Request(
            f"{address(self.broker)}/api/v1{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_CALL_S) as answer:
                return answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            raise StreamProblem(error.code, json.loads(error.read())) from error


# --- the tests ------------------------------------------------------------------------------------


def fill(broker: BrokerProcess, first: int, count: int, size: int = 0, **headers: str) -> None:
    """Send messages with their numbers as the begin of their bodies, and have them confirmed."""
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(first, first + count):
            sent = {"destination": f"/queue/{QUEUE}", "persistent": "true"} | headers
            if number == first + count - 1:
                sent["receipt"] = "all"
            peer.send("SEND", sent, body_of(number, size))
        peer.receive_receipt("all")


def body_of(number: int, size: int = 0) -> bytes:
    return (b"%d." % number).ljust(size, b"x")


def bodies(first: int, count: int, size: int = 0) -> list[bytes]:
    return [body_of(number, size) for number in range(first, first + count)]


def reader(broker: BrokerProcess, owner: str = "query") -> StreamReader:
    return StreamReader(broker, "spark", QUEUE, owner)


@pytest.mark.ci
def test_ranges_are_repeatable_until_they_are_acknowledged_also_over_kills(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, 1, 200)
        stream = reader(broker)
        assert stream.claim()["acknowledged"] == 0
        head = stream.head()
        assert head == 200
        first = stream.range(0, head)
        assert first.bodies == bodies(1, 200)
        assert (first.answer.through, first.gaps) == (200, [])
        assert stream.range(0, head).data == first.data
        broker.kill()  # between range and acknowledge
        broker.start()
        assert stream.range(0, head).data == first.data, "the same epoch goes on, the same bytes"
        assert stream.acknowledge(150)["acknowledged"] == 150
        broker.kill()  # right behind the answer
        broker.start()
        assert call(broker, "GET", f"/queues/{QUEUE}")["messages"] == 50
        again = stream.range(0, head)
        assert again.bodies == bodies(151, 50)
        assert again.gaps == [(1, 150, "acknowledged")]
        assert stream.acknowledge(100)["acknowledged"] == 150, "a lower one changes nothing"
        fill(broker, 201, 10)
        assert stream.head() == 210
        assert stream.acknowledge(210)["lag"] == 0
        run_command(broker, "stream", "delete", "spark", "--yes")
        assert call(broker, "GET", f"/queues/{QUEUE}")["messages"] == 0


@pytest.mark.ci
def test_nobody_else_gets_the_messages_and_the_queue_stays(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, 1, 3)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            wanted = {"id": "1", "destination": f"/queue/{QUEUE}", "ack": "client"}
            peer.send("SUBSCRIBE", wanted)
            peer.receive_messages(3)
            with pytest.raises(StreamProblem, match="has consumers") as refused:
                reader(broker).claim()
            assert refused.value.status == 409
        wait_for(lambda: call(broker, "GET", f"/queues/{QUEUE}")["consumers"] == 0)
        stream = reader(broker)
        stream.claim()
        for _ in range(2):
            with StompPeer(broker.port()) as peer:
                peer.connect()
                peer.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{QUEUE}"})
                assert "is read by the stream spark" in peer.receive_error().get("message", "")
            said = run_command(broker, "queue", "delete", QUEUE, "--force", "--yes", code=1)
            assert "is read by the stream spark of query" in said
            broker.kill()
            broker.start()
        assert stream.range(0, stream.head()).bodies == bodies(1, 3)
        assert "VSP" not in run_command(broker, "stream", "list")


@pytest.mark.ci
def test_another_owner_waits_for_the_lease_and_an_older_run_is_fenced(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, 1, 5)
        first, second, other = reader(broker), reader(broker), reader(broker, "another")
        first.claim(lease_s=3600)
        second.claim(lease_s=3600)
        assert second.epoch > first.epoch
        for act in (first.head, lambda: first.range(0, 5), lambda: first.acknowledge(5)):
            with pytest.raises(StreamProblem, match="claimed by another run") as refused:
                act()
            assert (refused.value.status, refused.value.code) == (409, "VSP-P109")
        assert second.range(0, 5).bodies == bodies(1, 5), "nothing of the older run came through"
        broker.kill()
        broker.start()
        with pytest.raises(StreamProblem, match=r"held by query.*another 3[56]..") as refused:
            other.claim()
        assert refused.value.code == "VSP-P108"
        run_command(broker, "stream", "delete", "spark", "--yes")
        other.claim(lease_s=1)
        assert other.epoch > second.epoch, "numbers of claims are not used again"
        with pytest.raises(StreamProblem, match="claimed by another run"):
            second.head()

        def is_over() -> bool:
            try:
                second.claim()
            except StreamProblem:
                return False
            return True

        wait_for(is_over)
        assert second.range(0, 5).bodies == bodies(1, 5)


@pytest.mark.ci
def test_paged_messages_are_read_as_they_were_in_memory(tmp_path: Path):
    settings = (
        "journal-file-size=1MiB",
        "address-settings.#.max-size-bytes=256KiB",
        "address-settings.#.page-size-bytes=64KiB",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        fill(broker, 1, 100, 1000)
        stream = reader(broker)
        stream.claim()
        before = stream.range(0, stream.head())
        fill(broker, 101, 1400, 1000)
        wait_for(lambda: len(list((tmp_path / "data/paging").glob("*/*.page"))) > 8)
        wait_for(lambda: stream.head() == 1500)
        assert stream.range(0, 100).data == before.data
        assert stream.range(0, 1500).bodies == bodies(1, 1500, 1000)
        found, at = [], 0
        while at < 1500:
            part = stream.range(at, 1500, 100_000)
            assert part.gaps == []
            found += part.bodies
            at = part.answer.through
        assert found == bodies(1, 1500, 1000)
        stream.acknowledge(700)
        broker.kill()
        broker.start()
        assert stream.range(700, 1500).bodies == bodies(701, 800, 1000)
        stream.acknowledge(1500)
        wait_for(lambda: not list((tmp_path / "data/paging").glob("*/*.page")))


def prepare(broker: BrokerProcess, xid: str, *numbers: int) -> None:
    """Send messages in a branch of a distributed transaction, and prepare it."""
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("BEGIN", {"transaction": "t", "xid": xid})
        for number in numbers:
            sent = {"destination": f"/queue/{QUEUE}", "transaction": "t", "persistent": "true"}
            peer.send("SEND", sent, body_of(number))
        ends = {"transaction": "t", "xid": xid, "receipt": "r", "phase": "prepare"}
        peer.send("COMMIT", ends)
        peer.receive_receipt("r")


@pytest.mark.ci
@pytest.mark.parametrize("is_commit", [True, False])
def test_the_head_stays_in_front_of_a_transaction_in_doubt(tmp_path: Path, is_commit: bool):
    xid = "7:0a0b:01"
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, 1, 2)
        stream = reader(broker)
        stream.claim()
        prepare(broker, xid, 3, 4)
        fill(broker, 5, 3)
        for _ in range(2):
            state = stream.head_state()
            assert (state["head"], state["cap"], state["cappedBy"]) == (
                2, "prepared-transaction", xid,
            )  # fmt: skip
            assert stream.range(0, 2).bodies == bodies(1, 2)
            with pytest.raises(StreamProblem, match="at most its head, 2"):
                stream.range(0, 3)
            with pytest.raises(StreamProblem, match="at most its head, 2"):
                stream.acknowledge(3)
            broker.kill()
            broker.start()
        if is_commit:
            run_command(broker, "transaction", "commit", xid, "--yes")
            assert stream.head() == 7
            assert stream.range(2, 7).bodies == bodies(3, 5)
            return
        run_command(broker, "transaction", "rollback", xid, "--yes")
        run_command(broker, "queue", "purge", QUEUE, "--yes")
        prepare(broker, "7:0a0b:02", 8)
        run_command(broker, "transaction", "rollback", "7:0a0b:02", "--yes")
        assert stream.head() == 8
        told = stream.range(0, 8)
        assert told.gaps == [
            (1, 2, "purged"), (3, 4, "rolled-back"), (5, 7, "purged"), (8, 8, "rolled-back"),
        ]  # fmt: skip
        broker.kill()
        broker.start()
        fill(broker, 9, 1)
        assert stream.range(7, stream.head()).sequences == [9], "8 is a sequence that was told"


@pytest.mark.ci
def test_gaps_are_told_with_their_reasons(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", "message-expiry-scan-period=100ms") as broker:
        fill(broker, 1, 2)
        stream = reader(broker)
        stream.claim()
        fill(broker, 3, 2, expires="1")
        fill(broker, 5, 4)
        wait_for(lambda: stream.range(0, stream.head()).sequences == [1, 2, 5, 6, 7, 8])
        assert stream.range(0, 8).gaps == [(3, 4, "expired")]
        run_command(broker, "queue", "create", "aside")
        run_command(broker, "queue", "move", QUEUE, "aside", "--yes", "--limit", "1")
        run_command(broker, "queue", "remove", QUEUE, "--limit", "1", "--yes")
        assert stream.range(0, 8).gaps == [
            (1, 1, "moved"), (2, 2, "removed"), (3, 4, "expired"),
        ]  # fmt: skip
        run_command(broker, "queue", "purge", QUEUE, "--yes")
        told = stream.range(0, 8)
        assert told.gaps == [
            (1, 1, "moved"), (2, 2, "removed"), (3, 4, "expired"), (5, 8, "purged"),
        ]  # fmt: skip
        assert (told.bodies, told.answer.through) == ([], 8)
        broker.kill()
        broker.start()
        assert stream.range(0, 8).gaps == [(1, 2, "before-stream"), (3, 8, "unknown")]


@pytest.mark.ci
def test_no_sequence_that_a_head_has_covered_is_used_again(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, 1, 2)
        stream = reader(broker)
        stream.claim()
        fill(broker, 3, 5, persistent="false")  # they do not survive, and leave nothing behind
        assert stream.head() == 7
        broker.kill()
        broker.start()
        fill(broker, 8, 1)
        assert stream.head() == 8
        again = stream.range(0, 8)
        assert (again.sequences, again.gaps) == ([1, 2, 8], [(3, 7, "unknown")])
        assert broker.stop() == 0
        done = subprocess.run(
            [sys.executable, "-m", "vespiary_broker", "journal", "verify", str(tmp_path / "data")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, "the tools understand what the head has written"


@pytest.mark.engine
def test_large_bodies_are_read_in_pieces(tmp_path: Path):
    big = bytes(range(256)) * 2000
    with BrokerProcess(tmp_path / "data", "min-large-message-size=100KiB") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            headers = {"destination": f"/queue/{QUEUE}", "persistent": "true", "receipt": "r"}
            peer.send("SEND", headers, big)
            peer.receive_receipt("r")
        stream = reader(broker)
        stream.claim()
        (record,) = stream.range(0, stream.head()).records
        assert record.is_large
        pieces = [stream.body(1, offset, 100_000) for offset in range(0, len(big) + 1, 100_000)]
        assert b"".join(pieces) == big
        assert stream.body(1, len(big)) == b""
        with pytest.raises(StreamProblem, match="no large message"):
            stream.body(2)
        stream.acknowledge(1)
        wait_for(lambda: not list((tmp_path / "data/large-messages").glob("*.msg")))


def test_metrics_tell_how_far_behind_a_stream_is(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, 1, 12)
        stream = reader(broker)
        stream.claim()
        stream.acknowledge(5)
        label = f'{{queue="{QUEUE}",stream="spark"}}'
        found = metrics(broker)
        assert found[f"vespiary_stream_lag_messages{label}"] == 7
        assert found[f"vespiary_stream_acknowledged_sequence{label}"] == 5
        assert 0 < found[f"vespiary_stream_lease_left_seconds{label}"] <= 60


@pytest.mark.ci
def test_the_run_of_the_page_works(tmp_path: Path):
    (script,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert script.count("curl") >= 5
    with BrokerProcess(tmp_path / "data") as broker:
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env=os.environ
            | {
                "API": f"{address(broker)}/api/v1",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "VESPIARY_API": address(broker),
                "VESPIARY_URL": f"stomp://127.0.0.1:{broker.port()}",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done
        assert "stream spark deleted" in done.stdout
        assert call(broker, "GET", "/queues/orders")["messages"] == 0
        headers = (tmp_path / "headers.txt").read_text()
        (length,) = re.findall(r"(?i)vespiary-blocks-length: (\d+)", headers)
        data = (tmp_path / "range.bin").read_bytes()
        (queue_id,) = set(re.findall(r'"queueId":(\d+)', done.stdout))
        assert decode_range(data, int(length), int(queue_id)).messages == 5


@pytest.mark.ci
def test_a_reader_keeps_up_with_senders_over_kills(tmp_path: Path):
    """Batches as Spark makes them: each message is read once, whatever is killed between."""
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, 1, 1)
        stream = reader(broker)
        stream.claim()
        seen: list[bytes] = []
        sent, at = 1, 0
        for life in range(4):
            sender = threading.Thread(target=fill, args=(broker, sent + 1, 300))
            sender.start()
            sender.join()
            sent += 300
            stream.acknowledge(at)
            to = stream.head()
            if life % 2:
                broker.kill()
                broker.start()
            seen += stream.range(at, to).bodies
            at = to
        stream.acknowledge(at)
        assert seen == bodies(1, sent)
        assert call(broker, "GET", f"/queues/{QUEUE}")["messages"] == 0
