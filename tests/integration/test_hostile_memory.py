"""What clients announce costs no memory: only bytes that came do, and not many times over."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import WAIT_S

CONNECTIONS = 1000
MIB = 1024 * 1024
CONNECT = b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0"

ANNOUNCEMENTS = {
    # A frame that could be complete with few more bytes, so the broker keeps it and waits.
    "SEND": b"SEND\ndestination:/queue/a\ncontent-length:409600\n\n",
    "SEND with a receipt": b"SEND\ndestination:/queue/a\nreceipt:1\ncontent-length:409600\n\n",
    "SUBSCRIBE": b"SUBSCRIBE\nid:1\ndestination:/queue/a\nprefetch-count:2147483647\n\n\0",
}


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("hostile") / "data") as process:
        yield process


@pytest.mark.ci
@pytest.mark.parametrize("kind", ANNOUNCEMENTS)
def test_a_thousand_announcements_cost_little(broker: BrokerProcess, kind: str) -> None:
    before = broker.rss_bytes()
    with ExitStack() as stack:
        clients = []
        for _ in range(CONNECTIONS):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", broker.port()), WAIT_S)
            )
            client.sendall(CONNECT)
            clients.append(client)
        for client in clients:
            assert client.recv(4096).startswith(b"CONNECTED\n")
        for client in clients:
            client.sendall(ANNOUNCEMENTS[kind] + (b"0123456789" if "SEND" in kind else b""))
        with socket.create_connection(("127.0.0.1", broker.port()), WAIT_S) as probe:
            # It is answered behind all that was read before it.
            probe.sendall(CONNECT + b"SEND\ndestination:/queue/b\nreceipt:done\n\nx\0")
            answer = b""
            while b"receipt-id:done" not in answer:
                data = probe.recv(4096)
                assert data, answer
                answer += data
        grown = broker.rss_bytes() - before
        assert grown < 64 * MIB, f"{grown / CONNECTIONS:.0f} bytes a connection"
