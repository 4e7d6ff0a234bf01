"""Clients that close while nobody reads their sockets: real sockets, no reading."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator

import pytest

from vespiary_broker.server.closed_clients import ClosedClients
from vespiary_testkit import product_loop
from vespiary_testkit.waiting import WAIT_S


class Waiting:
    """A connection that waits."""

    peer = "192.0.2.1"

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.aborts = 0
        self.is_client_closed = False

    def abort(self) -> None:
        self.aborts += 1

    def note_line(self, event: str, *details: str | int) -> None:
        assert event % (self.peer, *details)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The broker's side and the client's, over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), 10)
        own, _ = server.accept()
    yield own, client
    own.close()
    client.close()


def run(test: Callable[[ClosedClients], Awaitable[None]]) -> None:
    async def scenario() -> None:
        clients = ClosedClients(asyncio.get_running_loop())
        try:
            await test(clients)
        finally:
            clients.close()

    product_loop.run(scenario())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 (the loop has no event for it)
            await asyncio.sleep(0.001)


async def tell(clients: ClosedClients) -> None:
    """Let the loop tell of everything that has happened so far: another client closes."""
    one, other = socket.socketpair()
    last = Waiting(one.fileno())
    clients.watch(last, is_consuming=True)
    other.close()
    await until(lambda: last.aborts > 0)
    clients.forget(last)
    one.close()


Pair = tuple[socket.socket, socket.socket]


def test_a_client_that_closes_is_seen_behind_bytes_that_nobody_reads(pair: Pair) -> None:
    async def scenario(clients: ClosedClients) -> None:
        own, client = pair
        waiting = Waiting(own.fileno())
        client.sendall(b"x" * 10_000)
        clients.watch(waiting, is_consuming=True)
        await tell(clients)
        assert waiting.aborts == 0, "bytes are no end"
        client.close()
        await until(lambda: waiting.aborts == 1)

    run(scenario)


def test_one_that_closed_before_is_seen_at_once(pair: Pair) -> None:
    async def scenario(clients: ClosedClients) -> None:
        own, client = pair
        client.close()
        waiting = Waiting(own.fileno())
        clients.watch(waiting, is_consuming=True)
        await until(lambda: waiting.aborts == 1)

    run(scenario)


def test_one_that_only_sends_may_close_its_side(pair: Pair) -> None:
    async def scenario(clients: ClosedClients) -> None:
        own, client = pair
        waiting = Waiting(own.fileno())
        clients.watch(waiting, is_consuming=False)
        client.shutdown(socket.SHUT_WR)
        await tell(clients)
        assert waiting.aborts == 0
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # with a reset
        await until(lambda: waiting.aborts == 1)

    run(scenario)


def test_what_was_told_counts_when_it_holds_messages_later(pair: Pair) -> None:
    async def scenario(clients: ClosedClients) -> None:
        own, client = pair
        waiting = Waiting(own.fileno())
        clients.watch(waiting, is_consuming=False)
        client.shutdown(socket.SHUT_WR)
        await tell(clients)
        assert waiting.aborts == 0
        clients.watch(waiting, is_consuming=True)
        clients.watch(waiting, is_consuming=False)
        await until(lambda: waiting.aborts == 1)

    run(scenario)


def test_who_is_forgotten_is_left_alone(pair: Pair) -> None:
    async def scenario(clients: ClosedClients) -> None:
        own, client = pair
        waiting = Waiting(own.fileno())
        clients.watch(waiting, is_consuming=True)
        clients.forget(waiting)
        clients.forget(waiting)
        client.close()
        await tell(clients)
        assert waiting.aborts == 0

    run(scenario)


def test_a_number_that_is_used_again_is_another_connection(pair: Pair) -> None:
    async def scenario(clients: ClosedClients) -> None:
        own, client = pair
        number = own.fileno()
        first, second = Waiting(number), Waiting(number)
        clients.watch(first, is_consuming=True)
        own.close()  # its transport is gone, and it says so later
        with socket.create_server(("127.0.0.1", 0)) as server:
            again = socket.create_connection(server.getsockname(), 10)
            other, _ = server.accept()
        second.descriptor = other.fileno()
        first.descriptor = other.fileno()  # as if the kernel had given the number again
        clients.watch(second, is_consuming=True)
        clients.forget(first)
        again.close()
        await until(lambda: second.aborts == 1)
        assert first.aborts == 0
        other.close()
        client.close()

    run(scenario)


def test_what_has_no_socket_is_not_watched() -> None:
    async def scenario(clients: ClosedClients) -> None:
        waiting = Waiting(-1)
        clients.watch(waiting, is_consuming=True)
        clients.forget(waiting)
        waiting.descriptor = 1_000_000  # closed meanwhile
        clients.watch(waiting, is_consuming=True)
        clients.forget(waiting)
        assert waiting.aborts == 0

    run(scenario)
