"""The HTTP port under load, on the product's loop: no callback of a connection may fail.

Clients pipeline, break off anywhere, reset, read slowly, or are too many. `Calls` counts the
callbacks that a flow-control assertion of aiohttp or of ours sits in, so that each is known to be
reached; `admin_rig` fails a test in which one of them raised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.web_protocol import RequestHandler

from vespiary_broker.admin import first_bytes, server
from vespiary_testkit import product_loop
from vespiary_testkit.admin_rig import AdminRig, admin_rig, queue_state
from vespiary_testkit.waiting import WAIT_S, wait_for

PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
DOCUMENT = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = json.dumps({"name": "orders"}).encode()
QUEUE = (
    b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
CHUNKED = (
    b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
)
TOO_LONG = (
    b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 300000\r\n\r\n" + bytes(300_000)
)
ENDS = ("close", "reset", "shutdown")
PIPELINED = 200
SLOW_ANSWERS = 40


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts calls of what has assertions about the order in which transports call it."""
    found: Counter[str] = Counter()

    def count(kind: type, name: str) -> None:
        was = getattr(kind, name)

        def counted(self: Any, *arguments: Any) -> Any:
            found[name] += 1
            return was(self, *arguments)

        monkeypatch.setattr(kind, name, counted)

    for name in ("pause_writing", "resume_writing", "_pause_transport_reading"):
        count(BaseProtocol, name)
    for name in ("connection_made", "connection_lost", "data_received"):
        count(RequestHandler, name)
    return found


@pytest.fixture
def rig(caplog: pytest.LogCaptureFixture) -> Iterator[AdminRig]:
    """The port; it must not log a failure of its own, and answer to the end."""
    caplog.set_level(logging.INFO)
    with admin_rig() as found:
        for number in range(100):
            name = f"queue-{number}"
            found.broker.queue_states[name] = queue_state(name)
        yield found
        # Connections of the test that ended just now may take the last places for a moment.
        wait_for(lambda: found.get("/healthz").status == 200)
    failures = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not failures


def connect(rig: AdminRig, *, receive_bytes: int = 0) -> socket.socket:
    """Return a connected socket; `receive_bytes` bounds what it takes without being read."""
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(WAIT_S)
    made.connect(("127.0.0.1", rig.port))
    return made


def end(connection: socket.socket, how: str) -> None:
    """End a connection as a client may."""
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "shutdown":
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass  # it was closed with a part of the request unread
    connection.close()


async def read_answers(reader: asyncio.StreamReader, count: int) -> list[tuple[int, bytes]]:
    """Return status and body of so many answers on one connection."""
    found = []
    for _ in range(count):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        found.append((int(head[9:12]), await reader.readexactly(int(length or 0))))
    return found


async def ask(rig: AdminRig, data: bytes, count: int = 1) -> list[tuple[int, bytes]]:
    """Send requests over one connection, and return the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        writer.write(data)
        return await read_answers(reader, count)
    finally:
        writer.close()


def ask_at_once(rig: AdminRig, wanted: list[tuple[bytes, int]]) -> list[list[tuple[int, bytes]]]:
    """Send requests over as many connections at the same time, and return the answers of each."""

    async def main() -> list[list[tuple[int, bytes]]]:
        async with asyncio.timeout(WAIT_S):
            return await asyncio.gather(*(ask(rig, data, count) for data, count in wanted))

    return product_loop.run(main())


def test_all_pipelined_requests_are_answered_in_order(rig: AdminRig, calls: Counter[str]):
    data = (PROBE + DOCUMENT + CHUNKED) * (PIPELINED // 4)
    found = ask_at_once(rig, [(data, 3 * (PIPELINED // 4))] * 4)
    for answers in found:
        assert [status for status, _ in answers[::3]] == [200] * (PIPELINED // 4)
        assert {body for _, body in answers[::3]} == {b"alive\n"}
        assert len({body for _, body in answers[1::3]}) == 1
        assert {status for status, _ in answers[2::3]} <= {200, 201}
    assert calls["_pause_transport_reading"], "no connection had too many requests in its queue"


def test_clients_of_all_kinds_at_the_same_time(rig: AdminRig):
    wanted = [
        (PROBE, 1),
        (DOCUMENT, 1),
        (QUEUE, 1),
        (CHUNKED, 1),
        (TOO_LONG, 1),
        (b"\0\r\n\r\n", 1),
    ]
    for _ in range(3):
        found = ask_at_once(rig, wanted * 20)
        for (data, _), answers in zip(wanted * 20, found, strict=True):
            ((status, _),) = answers
            good = {TOO_LONG: {413}, b"\0\r\n\r\n": {400}, PROBE: {200}, DOCUMENT: {200}}
            assert status in good.get(data, {200, 201}), data[:20]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("data", [PROBE, QUEUE, CHUNKED, PROBE + QUEUE, DOCUMENT * 5], ids=str)
def test_a_client_may_end_after_each_byte(rig: AdminRig, how: str, data: bytes):
    for cut in range(0, len(data) + 1, 7):
        connection = connect(rig)
        if cut:
            connection.sendall(data[:cut])
        end(connection, how)
    assert ask_at_once(rig, [(PROBE, 1)] * 4) == [[(200, b"alive\n")]] * 4


@pytest.mark.parametrize("how", ENDS)
def test_a_slow_reader_is_waited_for_and_may_leave(rig: AdminRig, how: str, calls: Counter[str]):
    size = len(rig.get("/api/v1/openapi.json").body)
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(rig, receive_bytes=4096)) for _ in range(6)]
        for connection in slow:
            connection.sendall(DOCUMENT * SLOW_ANSWERS)
        wait_for(lambda: calls["pause_writing"] >= len(slow), "a paused connection for each")
        for connection in slow[::2]:
            received = 0
            while received < size * SLOW_ANSWERS:
                received += len(connection.recv(1 << 20))
        for connection in slow[1::2]:
            end(connection, how)
        for connection in slow[::2]:
            end(connection, how)
    assert calls["resume_writing"]
    wait_for(lambda: calls["connection_lost"] == calls["connection_made"], lambda: calls)


def test_those_that_are_too_many_are_told_so_while_they_send(
    rig: AdminRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)
    with ExitStack() as stack:
        for _ in range(4):
            held = stack.enter_context(connect(rig))
            held.sendall(PROBE)
            assert held.recv(12) == b"HTTP/1.1 200"
        for _ in range(3):
            found = ask_at_once(rig, [(QUEUE, 1), (TOO_LONG, 1)] * 20)
            assert found == [[(503, b"")]] * 40
            for _ in range(20):
                answer = rig.call("POST", "/api/v1/queues", data=bytes(60_000))
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


def test_one_that_is_turned_away_and_stays_is_closed(
    rig: AdminRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 0)
    monkeypatch.setattr(server, "_LINGER_S", 0.05)
    for lingering in (1, 0):  # none may linger in the second round
        monkeypatch.setattr(server, "_LINGERING_MAX", lingering)
        with connect(rig) as connection:
            connection.sendall(QUEUE)
            assert connection.recv(12) == b"HTTP/1.1 503"
            while connection.recv(100):
                pass
            _wait_reset(connection)
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)


def _wait_reset(connection: socket.socket) -> None:
    """Send until the other side says that it has closed."""

    def is_closed() -> bool:
        try:
            connection.send(b"x")
        except OSError:
            return True
        return False

    wait_for(is_closed, "a reset")


def test_it_stops_with_clients_that_were_turned_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 0)
    monkeypatch.setattr(server, "_LINGER_S", 3600.0)
    with ExitStack() as stack:
        with admin_rig() as rig:
            left = [stack.enter_context(connect(rig)) for _ in range(3)]
            for connection in left:
                connection.sendall(QUEUE)
                assert connection.recv(12) == b"HTTP/1.1 503"
        for connection in left:
            _wait_reset(connection)


@pytest.mark.parametrize("limit", ["CONNECTIONS_MAX", "PER_CLIENT_MAX"])
def test_probes_are_answered_while_all_connections_are_taken(
    rig: AdminRig, monkeypatch: pytest.MonkeyPatch, limit: str
):
    """They take no connection, so nobody can take theirs, with whole requests or begun ones."""
    monkeypatch.setattr(server, limit, 4)
    with ExitStack() as stack:
        for _ in range(4):
            held = stack.enter_context(connect(rig))
            held.sendall(DOCUMENT)
            assert held.recv(12) == b"HTTP/1.1 200"
        for begun in (b"GET /healthz ", PROBE[:-1], b"GET /ws"):
            for _ in range(2 * server.WAITING_MIN):
                stack.enter_context(connect(rig)).sendall(begun)
        for probe in (PROBE, PROBE.replace(b"GET /healthz", b"HEAD /readyz")):
            for _ in range(2 * server.WAITING_MIN):
                with connect(rig) as connection:
                    connection.sendall(probe)
                    answer = b"".join(iter(lambda: connection.recv(4096), b""))
                    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                    assert answer.endswith(b"\r\n\r\nalive\n" if probe is PROBE else b"\r\n\r\n")
        with connect(rig) as connection:
            connection.sendall(PROBE[:20])
            connection.sendall(PROBE[20:])
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert ask_at_once(rig, [(QUEUE, 1)]) == [[(503, b"")]]


def test_a_probe_that_never_ends_is_answered(rig: AdminRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 0)
    with connect(rig) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * first_bytes.HEAD_BYTES_MAX)
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_silent_connections_make_room_the_oldest_first(
    rig: AdminRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(server, "WAITING_MIN", 2)
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(rig)) for _ in range(12)]
        for connection in silent[:8]:
            assert connection.recv(12) == b"HTTP/1.1 503"
        found = ask_at_once(rig, [(PROBE, 1), (QUEUE, 1)])
        assert [status for ((status, _),) in found] == [200, 201]
        assert rig.get("/healthz").status == 200
        silent[-1].sendall(PROBE)
        assert silent[-1].recv(12) == b"HTTP/1.1 200"


def test_one_address_does_not_take_all_connections(rig: AdminRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "PER_CLIENT_MAX", 3)
    with ExitStack() as stack:
        for _ in range(3):
            held = stack.enter_context(connect(rig))
            held.sendall(DOCUMENT)
            assert held.recv(12) == b"HTTP/1.1 200"
        assert ask_at_once(rig, [(QUEUE, 1)]) == [[(503, b"")]]
        with socket.create_connection(
            ("127.0.0.1", rig.port), timeout=WAIT_S, source_address=("127.0.0.2", 0)
        ) as other:
            other.sendall(QUEUE)
            assert other.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 201")
