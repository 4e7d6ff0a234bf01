"""Large messages with real brokers: stock clients, restarts, kill -9, lost files, slow readers."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stomp

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import Ended, StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

MIB = 1024 * 1024


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def body_of(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes without a pattern that a piece at a wrong place would keep."""
    return b"".join(
        hashlib.blake2b(f"{seed} {n}".encode()).digest() for n in range(size_bytes // 64 + 1)
    )[:size_bytes]


def files(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.data / "large-messages").glob("*.msg"))


def statistics(broker: BrokerProcess) -> dict[str, float]:
    url = f"http://127.0.0.1:{broker.port('http')}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.split(" ") for line in lines if line.startswith("vespiary_large_messages"))
    return {name.removeprefix("vespiary_large_messages_"): float(value) for name, value in pairs}


def send(peer: StompPeer, body: bytes, **headers: str) -> None:
    count = str(len(body))
    headers = {"destination": "/queue/big", "persistent": "true", "receipt": "sent"} | headers
    peer.send("SEND", headers | {"content-length": count}, body)
    peer.receive_receipt("sent")


def receive(peer: StompPeer, count: int = 1, ack: str = "client-individual") -> list[Any]:
    peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/big", "ack": ack})
    return peer.receive_messages(count)


class Collector(stomp.ConnectionListener):
    """Collects what a stomp.py connection receives."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.receipts: set[str] = set()

    def on_message(self, frame: Any) -> None:
        self.frames.append(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.add(frame.headers["receipt-id"])


@pytest.mark.ci
def test_a_stock_client_sends_and_receives_megabytes(broker: BrokerProcess) -> None:
    collector = Collector()
    connection = stomp.Connection12([("127.0.0.1", broker.port())], auto_decode=False)
    connection.set_listener("collector", collector)
    connection.connect(wait=True)
    bodies = [body_of(size, size) for size in (5 * MIB, 102_401, 102_400, 3 * MIB + 1)]
    for number, body in enumerate(bodies):
        connection.send(
            "/queue/big", body, headers={"persistent": "true", "receipt": f"r{number}", "n": "1"}
        )
    wait_for(lambda: collector.receipts >= {"r0", "r1", "r2", "r3"})
    assert [path.stat().st_size for path in files(broker)] == [5 * MIB, 102_401, 3 * MIB + 1]
    assert files(broker)[0].read_bytes() == bodies[0]
    connection.subscribe("/queue/big", id="1", ack="client-individual")
    wait_for(lambda: len(collector.frames) == 4)
    assert [frame.body for frame in collector.frames] == bodies
    assert {frame.headers["n"] for frame in collector.frames} == {"1"}
    for frame in collector.frames:
        connection.ack(frame.headers["ack"])
    wait_for(lambda: not files(broker))
    connection.disconnect()
    wait_for(lambda: statistics(broker)["removed_total"] == 3)  # counted after the file is gone
    counted = statistics(broker)
    assert counted["live"] == 0
    assert counted["received_total"] == counted["delivered_total"] == counted["removed_total"] == 3


@pytest.mark.ci
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_without_a_length_the_body_ends_at_the_first_nul(
    broker: BrokerProcess, version: str
) -> None:
    body = body_of(MIB).replace(b"\0", b"x")
    with StompPeer(broker.port(), version=version) as peer:
        peer.connect()
        peer.send_raw(
            b"SEND\ndestination:/queue/big\npersistent:true\nreceipt:sent\n\n" + body + b"\0"
            b"SEND\ndestination:/queue/big\n\nsmall\0"
        )
        peer.receive_receipt("sent")
        assert [message.body for message in receive(peer, 2, "auto")] == [body, b"small"]
    wait_for(lambda: not files(broker))


@pytest.mark.ci
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_they_survive_and_leave_no_files(tmp_path: Path, how: str) -> None:
    body, volatile = body_of(2 * MIB), body_of(MIB)
    with BrokerProcess(tmp_path / "data") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            send(peer, body)
            send(peer, volatile, persistent="false")
            send(peer, body[::-1])
            # A body whose end never comes.
            peer.send_raw(b"SEND\ndestination:/queue/big\ncontent-length:9999999\n\n" + body)
            wait_for(lambda: len(files(broker)) == 4)
            if how == "kill":
                broker.kill()
        if how == "stop":
            assert broker.stop() == 0
        broker.start()
        wait_for(lambda: len(files(broker)) == 2)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            messages = receive(peer, 2)
            assert [message.body for message in messages] == [body, body[::-1]]
            peer.send("ACK", {"id": messages[0].get("ack", ""), "receipt": "done"})
            peer.receive_receipt("done")
            wait_for(lambda: len(files(broker)) == 1)
        broker.kill()
        broker.start()
        with StompPeer(broker.port()) as peer:
            peer.connect()
            assert receive(peer)[0].body == body[::-1]


@pytest.mark.ci
def test_a_lost_connection_leaves_no_part_of_a_body(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send_raw(b"SEND\ndestination:/queue/big\ncontent-length:9999999\n\n" + bytes(MIB))
        wait_for(lambda: len(files(broker)) == 1)
    wait_for(lambda: not files(broker))
    wait_for(lambda: statistics(broker)["receiving"] == 0)


@pytest.mark.ci
def test_transactions_keep_and_abort_throws_away(broker: BrokerProcess) -> None:
    body = body_of(MIB)
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for name in ("kept", "aborted", "forgotten"):
            peer.send("BEGIN", {"transaction": name})
            send(peer, body, transaction=name)
        assert len(files(broker)) == 3
        peer.send("COMMIT", {"transaction": "kept", "receipt": "c"})
        peer.receive_receipt("c")
        peer.send("ABORT", {"transaction": "aborted"})
        wait_for(lambda: len(files(broker)) == 2)
    wait_for(lambda: len(files(broker)) == 1)
    broker.kill()
    broker.start()
    with StompPeer(broker.port()) as peer:
        peer.connect()
        (message,) = receive(peer)
        assert message.body == body
        peer.send("BEGIN", {"transaction": "t"})
        peer.send("ACK", {"id": message.get("ack", ""), "transaction": "t"})
        peer.send("COMMIT", {"transaction": "t", "receipt": "c"})
        peer.receive_receipt("c")
        wait_for(lambda: not files(broker))


@pytest.mark.ci
def test_two_subscribers_share_one_file(broker: BrokerProcess) -> None:
    body = body_of(MIB)
    with StompPeer(broker.port()) as one, StompPeer(broker.port()) as two:
        for peer, name in ((one, "a"), (two, "b")):
            peer.connect(client_id=name)
            peer.send(
                "SUBSCRIBE",
                {
                    "id": "1",
                    "destination": "/topic/big",
                    "durable-subscription-name": name,
                    "ack": "client-individual",
                    "receipt": "ready",
                },
            )
            peer.receive_receipt("ready")
        send(one, body, destination="/topic/big")
        assert len(files(broker)) == 1
        for peer, left in ((one, 1), (two, 0)):
            (message,) = peer.receive_messages(1)
            assert message.body == body
            peer.send("ACK", {"id": message.get("ack", ""), "receipt": "done"})
            peer.receive_receipt("done")
            if left:
                assert len(files(broker)) == 1
        wait_for(lambda: not files(broker))


@pytest.mark.ci
def test_a_slow_consumer_holds_up_nobody_and_no_memory(broker: BrokerProcess) -> None:
    body = body_of(32 * MIB)
    with StompPeer(broker.port()) as sender:
        sender.connect()
        send(sender, body)
        before = broker.rss_bytes()
        slow = socket.create_connection(("127.0.0.1", broker.port()))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        assert slow.recv(4096).startswith(b"CONNECTED")
        slow.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/big\nack:client\n\n\0")
        assert slow.recv(100).startswith(b"MESSAGE")
        slow.sendall(b"SEND\ndestination:/queue/small\nreceipt:behind\n\nx\0")
        with StompPeer(broker.port()) as other:
            other.connect()
            for number in range(50):
                other.send("SEND", {"destination": "/queue/small", "receipt": str(number)}, b"y")
                other.receive_receipt(str(number))
        assert broker.rss_bytes() - before < 16 * MIB
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MIB)
        slow.settimeout(WAIT_S)
        data = bytearray()
        while not data.endswith(b"RECEIPT\nreceipt-id:behind\n\n\0"):
            data += slow.recv(MIB)
        assert body in data, "whole, and what came meanwhile behind it"
        slow.close()
        assert receive(sender)[0].get("redelivered") == "true"


def slow_consumer(broker: BrokerProcess) -> socket.socket:
    """Return a connection that has read the beginning of a large message and reads no more."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    slow.connect(("127.0.0.1", broker.port()))
    slow.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
    assert slow.recv(4096).startswith(b"CONNECTED")
    slow.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/big\nack:client\n\n\0")
    assert slow.recv(100).startswith(b"MESSAGE")
    return slow


@pytest.mark.ci
def test_a_consumer_that_goes_in_the_middle_leaves_the_message_to_the_next(
    broker: BrokerProcess,
) -> None:
    body = body_of(12 * MIB)
    with StompPeer(broker.port()) as peer:
        peer.connect()
        send(peer, body)
        for _ in range(2):
            slow_consumer(broker).close()
        (message,) = receive(peer)
        assert message.body == body
        assert message.get("redelivered") == "true"
        assert message.get("delivery-count") == "2"
        assert len(files(broker)) == 1
        peer.send("ACK", {"id": message.get("ack", ""), "receipt": "done"})
        peer.receive_receipt("done")
        wait_for(lambda: not files(broker))
        assert statistics(broker)["damaged"] == 0


def take_away(broker: BrokerProcess, peer: StompPeer) -> None:
    """Have a peer take the message, and wait until its file is gone."""
    (message,) = receive(peer)
    peer.send("ACK", {"id": message.get("ack", ""), "receipt": "done"})
    peer.receive_receipt("done")
    wait_for(lambda: not files(broker))


@pytest.mark.ci
def test_a_subscription_that_ends_in_the_middle_takes_no_credit_and_no_file(
    broker: BrokerProcess,
) -> None:
    body = body_of(12 * MIB)
    with StompPeer(broker.port()) as peer:
        peer.connect()
        send(peer, body)
        slow = slow_consumer(broker)
        slow.sendall(b"UNSUBSCRIBE\nid:1\n\n\0")
        take_away(broker, peer)
        slow.settimeout(WAIT_S)
        slow.sendall(b"SEND\ndestination:/queue/small\nreceipt:behind\n\nx\0")
        data = bytearray()
        while not data.endswith(b"RECEIPT\nreceipt-id:behind\n\n\0"):
            data += slow.recv(MIB)
        assert body in data, "a frame that was begun is sent whole, also when its file is gone"
        slow.close()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("frame", "last"),
    [
        (b"DISCONNECT\nreceipt:bye\n\n\0", b"RECEIPT\nreceipt-id:bye\n\n\0"),
        (b"NONSENSE\n\n\0", b"The connection is closed.\n\0"),
    ],
)
def test_who_leaves_in_the_middle_gets_the_rest_and_is_told(
    broker: BrokerProcess, frame: bytes, last: bytes
) -> None:
    body = body_of(12 * MIB)
    with StompPeer(broker.port()) as peer:
        peer.connect()
        send(peer, body)
        slow = slow_consumer(broker)
        slow.sendall(frame)
        take_away(broker, peer)
        slow.settimeout(WAIT_S)
        data = bytearray()
        while piece := slow.recv(MIB):
            data += piece
        assert body in data, "a frame that was begun is sent whole, also when its file is gone"
        assert data.endswith(last)
        slow.close()


@pytest.mark.ci
def test_a_stop_in_the_middle_keeps_the_message(tmp_path: Path) -> None:
    body = body_of(12 * MIB)
    with BrokerProcess(tmp_path / "data") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            send(peer, body)
        with slow_consumer(broker):
            assert broker.stop() == 0
        broker.start()
        with StompPeer(broker.port()) as peer:
            peer.connect()
            assert receive(peer)[0].body == body


@pytest.mark.ci
def test_frames_behind_a_large_one_keep_their_order(broker: BrokerProcess) -> None:
    bodies = [body_of(MIB), b"one", body_of(MIB, 1), b"two", body_of(MIB, 2), b"three"]
    frames = [
        b"SEND\ndestination:/queue/big\npersistent:true\n%scontent-length:%d\n\n%s\0"
        % (b"transaction:t\n" if number > 2 else b"", len(body), body)
        for number, body in enumerate(bodies)
    ]
    begin, commit = b"BEGIN\ntransaction:t\n\n\0", b"COMMIT\ntransaction:t\nreceipt:c\n\n\0"
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send_raw(b"".join([*frames[:3], begin, *frames[3:], commit]))
        peer.receive_receipt("c")
        assert [message.body for message in receive(peer, 6, "auto")] == bodies
    wait_for(lambda: not files(broker))


@pytest.mark.ci
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_prepared_branch_keeps_its_bodies_over_kills(tmp_path: Path, how: str) -> None:
    body = body_of(2 * MIB)
    branch = {"transaction": "t", "xid": "1:0a:01", "receipt": "xa"}
    with BrokerProcess(tmp_path / "data") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("BEGIN", branch)
            peer.receive_receipt("xa")
            send(peer, body, transaction="t")
            peer.send("COMMIT", branch | {"phase": "prepare"})
            peer.receive_receipt("xa")
            broker.kill()
        for _ in range(2):
            broker.start()
            assert len(files(broker)) == 1
            broker.kill()
        broker.start()
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("COMMIT" if how == "commit" else "ABORT", branch)
            peer.receive_receipt("xa")
            if how == "rollback":
                wait_for(lambda: not files(broker))
            broker.kill()
        broker.start()
        if how == "commit":
            with StompPeer(broker.port()) as peer:
                peer.connect()
                assert [message.body for message in receive(peer, 1, "auto")] == [body]
        wait_for(lambda: not files(broker))


@pytest.mark.ci
def test_a_lost_file_is_reported_and_the_rest_is_served(tmp_path: Path) -> None:
    bodies = [body_of(MIB, seed) for seed in range(4)]
    with BrokerProcess(tmp_path / "data") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for body in bodies:
                send(peer, body)
        broker.stop()
        missing, short, flipped, _ = files(broker)
        missing.unlink()
        with short.open("r+b") as file:
            file.truncate(1000)
        with flipped.open("r+b") as file:
            file.seek(MIB - 1)
            file.write(bytes([bodies[2][-1] ^ 1]))
        broker.start()
        assert statistics(broker)["damaged"] == 2
        assert "the file is missing" in broker.log_text()
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/big", "ack": "client"})
            with pytest.raises((Ended, ConnectionError)):
                peer.receive_messages(1)  # the flipped bit shows at the end: nothing whole comes
        wait_for(lambda: statistics(broker)["damaged"] == 3)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            (message,) = receive(peer)
            assert message.body == bodies[3]
            peer.send("ACK", {"id": message.get("ack", ""), "receipt": "done"})
            peer.receive_receipt("done")
        missing.write_bytes(bodies[0])
        broker.stop()
        broker.start()
        with StompPeer(broker.port()) as peer:
            peer.connect()
            assert receive(peer)[0].body == bodies[0], "it is back with its file"
        purge(broker, "big")
        wait_for(lambda: not files(broker))


def purge(broker: BrokerProcess, queue: str) -> None:
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/{queue}/purge"
    request = urllib.request.Request(url, method="POST", data=b"")
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        json.load(answer)


@pytest.mark.ci
def test_too_large_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "max-large-message-size=1MiB") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send_raw(b"SEND\ndestination:/queue/big\ncontent-length:1048577\n\n")
            error = peer.receive()
            assert error.command == "ERROR"
            assert "1048577 octets; at most 1048576" in error.get("message", "")
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send_raw(b"SEND\ndestination:/queue/big\n\n" + b"x" * (MIB + 1))
            error = peer.receive()
            assert "at most 1048576 are allowed" in error.get("message", "")
        wait_for(lambda: not files(broker))


@pytest.mark.engine
def test_min_large_message_size_says_what_is_large(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "min-large-message-size=5000") as broker,
        StompPeer(broker.port()) as peer,
    ):
        peer.connect()
        send(peer, b"x" * 5000)
        assert files(broker) == []
        send(peer, b"x" * 5001)
        assert len(files(broker)) == 1
        assert [len(message.body) for message in receive(peer, 2)] == [5000, 5001]


@pytest.mark.ci
def test_many_headers_make_a_message_large_for_the_journal(tmp_path: Path) -> None:
    settings = ("journal-buffer-size=490KiB", "min-large-message-size=1MiB")
    with (
        BrokerProcess(tmp_path / "data", *settings) as broker,
        StompPeer(broker.port()) as peer,
    ):
        peer.connect()
        headers = {f"h{n}": "v" * 1000 for n in range(50)}
        send(peer, b"x" * 470 * 1024, **headers)
        assert len(files(broker)) == 1
        (message,) = receive(peer)
        assert message.body == b"x" * 470 * 1024
        assert message.get("h49") == "v" * 1000


def test_without_persistence_bodies_stay_in_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "persistence-enabled=false") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            send(peer, b"x" * 200_000)
            assert receive(peer)[0].body == b"x" * 200_000
            peer.send_raw(b"SEND\ndestination:/queue/big\ncontent-length:1048577\n\n")
            assert peer.receive().command == "ERROR"
        assert files(broker) == []


@pytest.mark.ci
def test_dropping_a_queue_removes_its_bodies(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        send(peer, body_of(MIB))
        send(peer, body_of(MIB), persistent="false")
    wait_for(lambda: statistics(broker)["live"] == 2)
    assert files(broker)
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/big?force=true"
    urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=WAIT_S).close()
    wait_for(lambda: not files(broker))
    wait_for(lambda: statistics(broker)["live"] == 0)


def test_a_message_that_no_queue_wants_leaves_no_file(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        send(peer, body_of(MIB), destination="/topic/nobody")
        wait_for(lambda: not files(broker))
        peer.send("BEGIN", {"transaction": "t"})
        send(peer, body_of(MIB), destination="/topic/nobody", transaction="t")
        peer.send("COMMIT", {"transaction": "t", "receipt": "c"})
        peer.receive_receipt("c")
        wait_for(lambda: not files(broker))


def vm_hwm_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.verify
def test_one_gibibyte_takes_little_memory(broker: BrokerProcess) -> None:
    size_bytes, piece = 1024 * MIB, os.urandom(MIB)
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    before = vm_hwm_bytes(broker.pid)
    with StompPeer(broker.port()) as peer:
        peer.connect()
        head = (
            f"SEND\ndestination:/queue/big\npersistent:true\nreceipt:s\ncontent-length:{size_bytes}"
        )
        peer.send_raw(head.encode() + b"\n\n")
        for _ in range(size_bytes // MIB):
            peer.send_raw(piece)
        peer.send_raw(b"\0")
        peer.receive_receipt("s")
    sent = vm_hwm_bytes(broker.pid)
    client = socket.create_connection(("127.0.0.1", broker.port()))
    client.sendall(
        b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
        b"SUBSCRIBE\nid:1\ndestination:/queue/big\nack:auto\n\n\0"
    )
    buffer, received = bytearray(MIB), 0
    digest, wanted = hashlib.sha256(), hashlib.sha256()
    data = b""
    while data.count(b"\n\n") < 2:
        data += client.recv(4096)
    data = data[data.index(b"MESSAGE") :]
    data = data[data.index(b"\n\n") + 2 :]
    digest.update(data)
    received = len(data)
    while received < size_bytes:
        count = client.recv_into(buffer, min(MIB, size_bytes - received))
        digest.update(memoryview(buffer)[:count])
        received += count
    assert client.recv(1) == b"\0"
    for _ in range(size_bytes // MIB):
        wanted.update(piece)
    assert digest.digest() == wanted.digest()
    after = vm_hwm_bytes(broker.pid)
    print(f"\nVmHWM MiB: {before / MIB:.1f} before, {sent / MIB:.1f} sent, {after / MIB:.1f} after")
    assert after - before < 64 * MIB
    wait_for(lambda: not files(broker))
    client.close()
