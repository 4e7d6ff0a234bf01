"""The life of a broker: restart, kill -9, a locked folder, TLS, a failing journal, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.app.broker import BrokerApp
from vespiary_broker.server.tls_contexts import make_tls_context
from vespiary_spec.errors import ConfigError, RemoteProtocolError
from vespiary_spec.settings import (
    Acceptor,
    AcceptorTls,
    Address,
    Admin,
    Configuration,
    Queue,
    RoutingType,
)
from vespiary_testkit import product_loop
from vespiary_testkit.broker_calls import call, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for


def _fill(port: int, name: str, count: int, **headers: str) -> None:
    with StompPeer(port) as peer:
        peer.connect()
        for number in range(count):
            peer.send(
                "SEND", {"destination": name, "receipt": str(number), **headers}, b"m%d" % number
            )
        peer.receive_receipt(str(count - 1))


def _drain(port: int, name: str, count: int, **headers: str) -> list[bytes]:
    with StompPeer(port) as peer:
        peer.connect()
        peer.send(
            "SUBSCRIBE",
            {"id": "1", "destination": name, "ack": "client-individual", **headers},
        )
        bodies = []
        for _ in range(count):
            (message,) = peer.receive_messages(1)
            bodies.append(message.body)
            peer.send("ACK", {"id": message.get("ack", "")})
        peer.send("DISCONNECT", {"receipt": "bye"})
        rest = peer.receive_receipt("bye")
        return bodies + [message.body for message in rest]


@pytest.mark.ci
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_persistent_messages_survive(tmp_path: Path, how: str) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        _fill(broker.port(), "/queue/kept", 500, persistent="true")
        _fill(broker.port(), "/queue/lost", 10)
        assert _drain(broker.port(), "/queue/lost", 10)[0] == b"m0"
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/kept", "ack": "client"})
            messages = peer.receive_messages(200)
            peer.send("ACK", {"id": messages[99].get("ack", ""), "receipt": "acked"})
            peer.receive_receipt("acked")
        _fill(broker.port(), "/queue/volatile", 10)
        if how == "kill":
            broker.kill()
        else:
            assert broker.stop() == 0
        broker.start()
        bodies = _drain(broker.port(), "/queue/kept", 400)
        assert bodies == [b"m%d" % number for number in range(100, 500)]
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/volatile"})
            peer.send("SEND", {"destination": "/queue/volatile"}, b"marker")
            (first,) = peer.receive_messages(1)
            assert first.body == b"marker", "what was there before is gone"


@pytest.mark.ci
def test_backlog_larger_than_the_memory(tmp_path: Path) -> None:
    """Messages that left memory are read back, in order, also after a restart."""
    broker = BrokerProcess(tmp_path / "data", "global-max-size=32MiB")
    with broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for number in range(400):
                peer.send(
                    "SEND",
                    {
                        "destination": "/queue/large",
                        "persistent": "true",
                        "receipt": str(number),
                    },
                    b"%d" % number + bytes(250_000),
                )
            peer.receive_receipt("399")
        assert broker.rss_bytes() < 150_000_000
        bodies = _drain(broker.port(), "/queue/large", 200, **{"prefetch-count": "1"})[:200]
        assert [int(body.rstrip(b"\0")) for body in bodies] == list(range(200))
        broker.kill()
        broker.start()
        bodies = _drain(broker.port(), "/queue/large", 200)
        assert [int(body.rstrip(b"\0")) for body in bodies] == list(range(200, 400))
        assert broker.rss_bytes() < 150_000_000


@pytest.mark.engine
def test_durable_subscription_survives_and_temporary_ones_do_not(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        durable = {"id": "1", "destination": "/topic/t", "durable-subscription-name": "sub"}
        with StompPeer(broker.port()) as peer, StompPeer(broker.port()) as temporary:
            peer.connect(client_id="me")
            peer.send("SUBSCRIBE", {**durable, "receipt": "r"})
            peer.receive_receipt("r")
            temporary.connect()
            temporary.send("SUBSCRIBE", {"id": "1", "destination": "/topic/t", "receipt": "r"})
            temporary.receive_receipt("r")
            broker.kill()
        broker.start()
        _fill(broker.port(), "/topic/t", 5, persistent="true")
        broker.kill()
        broker.start()
        with StompPeer(broker.port()) as other:
            other.connect(client_id="me")
            other.send("SUBSCRIBE", durable)
            assert [m.body for m in other.receive_messages(5)] == [b"m%d" % n for n in range(5)]


@pytest.mark.engine
def test_committed_transactions_survive_whole(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        _fill(broker.port(), "/queue/in", 3, persistent="true")
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send(
                "SUBSCRIBE", {"id": "1", "destination": "/queue/in", "ack": "client-individual"}
            )
            messages = peer.receive_messages(3)
            for name, message in zip(("kept", "open"), messages, strict=False):
                peer.send("BEGIN", {"transaction": name})
                for number in range(20):
                    peer.send(
                        "SEND",
                        {
                            "destination": f"/queue/out.{number % 2}",
                            "persistent": "true",
                            "transaction": name,
                        },
                        b"%s %d" % (name.encode(), number),
                    )
                peer.send("ACK", {"id": message.get("ack", ""), "transaction": name})
            peer.send("COMMIT", {"transaction": "kept", "receipt": "done"})
            peer.receive_receipt("done")
            broker.kill()
        broker.start()
        assert _drain(broker.port(), "/queue/in", 2) == [b"m1", b"m2"]
        for half in (0, 1):
            bodies = _drain(broker.port(), f"/queue/out.{half}", 10)
            assert bodies == [b"kept %d" % n for n in range(half, 20, 2)]


def test_folder_of_another_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        second = BrokerProcess(tmp_path / "data", log=tmp_path / "second.log")
        with pytest.raises(AssertionError, match="ended with 1 before"):
            second.start()
        assert f"process id {broker.pid}" in second.log_text()
        _fill(broker.port(), "/queue/a", 3)


def test_unknown_setting(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "journal-magic=1")
    with pytest.raises(AssertionError, match=r"ended with [12] before"):
        broker.start()
    assert "journal-magic" in broker.log_text()
    assert not (tmp_path / "data").exists()


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = BrokerProcess(tmp_path / "data", ports={"stomp": port})
        with pytest.raises(AssertionError, match="ended with 1 before"):
            broker.start()
        assert f"cannot listen on 127.0.0.1:{port}" in broker.log_text()


@pytest.mark.ci
@pytest.mark.parametrize(
    "body_bytes", [pytest.param(90_000, id="journal"), pytest.param(300_000, id="large")]
)
def test_full_disk_stops_producers_and_nobody_else(tmp_path: Path, body_bytes: int) -> None:
    """With the free space below the limit from the start no file can be made: SENDs wait."""
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        _fill(broker.port(), "/queue/early", 5, persistent="true")
    free = shutil.disk_usage(tmp_path).free
    limited = BrokerProcess(
        tmp_path / "data",
        f"min-disk-free={free * 2}",
        "disk-scan-period=100",
        "max-disk-usage=100",
    )
    with limited:
        assert _drain(limited.port(), "/queue/early", 5)[0] == b"m0"
        with StompPeer(limited.port()) as producer, StompPeer(limited.port()) as other:
            producer.connect()
            other.connect()
            body = bytes(body_bytes)  # stored in the journal up to min-large-message-size
            is_large = body_bytes > 100 * 1024
            full = (
                "the disk for large messages is full" if is_large else "no journal file can be made"
            )
            sent = 0

            def send_all() -> None:
                nonlocal sent
                with contextlib.suppress(OSError):  # until the connection is ended below
                    while True:
                        headers = {"destination": "/queue/full", "persistent": "true"}
                        producer.send("SEND", headers, body)
                        sent += 1

            producer.socket.settimeout(None)
            sender = threading.Thread(target=send_all)
            sender.start()
            try:
                wait_for(lambda: full in limited.log_text(), limited.log_text)
                wait_for(lambda: is_waiting(limited, is_large), "no producer waits")
                other.send("SEND", {"destination": "/queue/volatile", "receipt": "1"}, b"x")
                other.receive_receipt("1")
                assert sender.is_alive(), "nobody is turned out"
                (shown,) = call(limited, "GET", "/brokers")["items"]
                assert is_large or shown["journalBlockedProducers"] == 1
                assert sent < 2000
            finally:
                producer.socket.shutdown(socket.SHUT_RDWR)
                sender.join()
        # Consumers have to come to make room: the broker stays in its Service, and says why.
        http = f"http://127.0.0.1:{limited.port('http')}"
        with urllib.request.urlopen(f"{http}/readyz") as answer:
            assert answer.read().startswith(b"ready\n" if is_large else b"ready\nproducers wait: ")
        name = b"large_messages_waiting" if is_large else b"journal_blocked"

        def is_told() -> bool:
            with urllib.request.urlopen(f"{http}/metrics") as answer:
                return b"vespiary_%s 1.0" % name in answer.read()

        wait_for(is_told, f"{name!r} among the metrics")
        (shown,) = call(limited, "GET", "/brokers")["items"]
        assert is_large or "no journal file can be made" in shown["journalBlockedReason"]
        if not is_large:
            assert "no journal file can be made" in run_command(limited, "status", code=1)


def is_waiting(broker: BrokerProcess, is_large: bool) -> bool:
    """Return whether a producer waits for room, for a large message if its messages are large."""
    if not is_large:
        return call(broker, "GET", "/brokers")["items"][0]["journalBlockedProducers"] == 1
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as answer:
        return b"vespiary_large_messages_waiting 1.0" in answer.read()


def _certificate(folder: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl program to make a certificate with")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *request.split(), *names, *files], check=True, capture_output=True)
    return certificate, key


@pytest.mark.ci
def test_tls(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    settings = (
        f"acceptors.stomp.tls.certificate={certificate}",
        f"acceptors.stomp.tls.key={key}",
    )
    client = ssl.create_default_context(cafile=str(certificate))
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        port = broker.port("stomp")
        body = os.urandom(300_000)
        with StompPeer(port, tls=client) as peer:
            peer.connect()
            for number in range(20):
                peer.send(
                    "SEND",
                    {"destination": "/queue/tls", "persistent": "true", "receipt": str(number)},
                    body,
                )
            peer.receive_receipt("19")
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/tls"})
            assert all(m.body == body for m in peer.receive_messages(20))
            peer.send("SHOUT")
            assert "unknown command" in peer.receive_error().get("message", "")
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as plain:
            plain.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
            with contextlib.suppress(ConnectionResetError):
                assert not plain.recv(100).startswith(b"CONNECTED")


def test_tls_client_certificates(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    context = make_tls_context(
        AcceptorTls(certificate=str(certificate), key=str(key), client_ca=str(certificate)),
        "acceptors.x.tls",
    )
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigError, match=r"acceptors\.x\.tls"):
        make_tls_context(AcceptorTls(certificate=str(key), key=str(key)), "acceptors.x.tls")
    with pytest.raises(ConfigError, match="client-ca"):
        make_tls_context(
            AcceptorTls(certificate=str(certificate), key=str(key), client_ca="/nowhere"),
            "acceptors.x.tls",
        )


@pytest.mark.ci
def test_stop_tells_the_clients(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        stopper = threading.Thread(target=broker.stop)
        stopper.start()
        try:
            assert peer.receive_error().get("message") == "the broker is stopping"
        finally:
            stopper.join()
        broker.start()


@pytest.mark.engine
def test_memory_only(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "persistence-enabled=false") as broker:
        assert broker.ready["durability"] == "D0"
        _fill(broker.port(), "/queue/a", 100, persistent="true")
        assert len(_drain(broker.port(), "/queue/a", 100)) == 100
    assert not list(tmp_path.glob("data/**/*.hq"))


# --- in this process ------------------------------------------------------------------------------


def _app(tmp_path: Path, addresses: tuple[Address, ...] = (), **options: Any) -> BrokerApp:
    settings = Configuration(
        acceptors=(Acceptor(name="all", port=0),),
        admin=Admin(port=0),
        addresses=addresses,
        max_disk_usage=100,  # on any disk
    )
    return BrokerApp(settings, base=tmp_path / "data", **options)


@pytest.mark.engine
def test_failed_journal_ends_the_broker(tmp_path: Path) -> None:
    """A failed write fences the journal: producers are told, nothing is confirmed, exit code 1."""

    def work(port: int, is_failed: threading.Event) -> str:
        with StompPeer(port) as peer:
            peer.connect()
            peer.send("SEND", {"destination": "/queue/a", "persistent": "true", "receipt": "1"})
            peer.receive_receipt("1")
            is_failed.set()
            frame = peer.receive_error()
            return frame.get("message", "")

    async def scenario() -> None:
        is_ready = asyncio.Event()
        app = _app(tmp_path, on_event=lambda e: is_ready.set() if e["event"] == "ready" else None)
        run = asyncio.create_task(app.run())
        await is_ready.wait()
        is_failed = threading.Event()
        client = asyncio.create_task(
            asyncio.to_thread(work, app.statistics().listeners[0].port, is_failed)
        )
        assert await asyncio.to_thread(is_failed.wait, WAIT_S)
        assert app._journal is not None
        app._journal.fail(ConfigError("the disk is gone"))
        message = await client
        assert "the journal is closed for writing: the disk is gone" in message
        assert not app.is_ready
        assert await run == 1

    product_loop.run(scenario())


def test_what_administrators_see_and_do(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = _app(tmp_path, addresses=(Address(name="fixed", queues=(Queue(name="one"),)),))
        async with app.running():
            port = app.statistics().listeners[0].port
            assert [q.name for q in app.queues()] == ["one"]
            await app.create_queue("orders", "orders")
            assert (await app.create_queue("orders", "orders")).messages == 0  # idempotent
            with pytest.raises(RemoteProtocolError, match="routing type ANYCAST"):
                await app.create_queue("orders", "orders", RoutingType.MULTICAST)
            await asyncio.to_thread(_fill, port, "/queue/orders", 10)
            state = next(q for q in app.queues() if q.name == "orders")
            assert (state.messages, state.ready, state.added, state.consumers) == (10, 10, 10, 0)
            assert next(a for a in app.addresses() if a.name == "orders").messages == 10
            assert await app.purge_queue("orders") == 10
            await asyncio.to_thread(_fill, port, "/queue/orders", 3)
            with pytest.raises(RemoteProtocolError, match="in use"):
                await app.delete_queue("orders")
            with StompPeer(port) as peer:
                await asyncio.to_thread(peer.connect)
                peer.send(
                    "SUBSCRIBE",
                    {"id": "s", "destination": "/queue/orders", "ack": "client-individual"},
                )
                await asyncio.to_thread(peer.receive_messages, 3)
                (consumer,) = app.consumers()
                assert (consumer.queue, consumer.subscription) == ("orders", "s")
                (connection,) = app.connections()
                assert (connection.user, connection.protocol) == ("anonymous", "STOMP 1.2")
                assert await app.delete_queue("orders", is_forced=True) == 3
                error = await asyncio.to_thread(peer.receive_error)
                assert "deleted by an administrator" in error.get("message", "")
            with pytest.raises(RemoteProtocolError, match="there is no queue"):
                await app.delete_queue("orders")
            with pytest.raises(RemoteProtocolError, match="has queues"):
                await app.delete_address("fixed")
            await app.create_address("empty", {RoutingType.MULTICAST})
            await app.delete_address("empty")
            statistics = app.statistics()
            assert statistics.is_ready
            assert (statistics.messages_in, statistics.messages_out) == (13, 3)

    product_loop.run(scenario())


@pytest.mark.engine
def test_restarted_definitions(tmp_path: Path) -> None:
    async def names() -> list[tuple[str, str]]:
        app = _app(tmp_path)
        async with app.running():
            return [(q.name, q.routing_type) for q in app.queues()]

    async def make() -> None:
        app = _app(tmp_path)
        async with app.running():
            await app.create_queue("a", "x")
            await app.create_queue("b", "x", RoutingType.MULTICAST)
            await app.create_queue("c", "x", is_durable=False)
            await app.create_queue("d", "y")
            await app.delete_queue("d")

    product_loop.run(make())
    assert product_loop.run(names()) == [("a", "ANYCAST"), ("b", "MULTICAST")]
