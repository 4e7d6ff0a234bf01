"""What a client has sent by a deadline is read before the client is judged."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from vespiary_broker.admin.first_bytes import FirstBytes
from vespiary_broker.engine.users import make_user
from vespiary_broker.server import cycle
from vespiary_broker.server.deadline import Deadline
from vespiary_broker.server.reaping import Reaping
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import Peer, ServerRig
from vespiary_testkit.virtual_time import run_virtual

DELAY_S = 0.01


class Reader(asyncio.Protocol):
    """Notes when it was read, and takes some time for that."""

    def __init__(self) -> None:
        self.read_at_s: list[float] = []

    def data_received(self, data: bytes) -> None:
        self.read_at_s.append(asyncio.get_running_loop().time())
        time.sleep(DELAY_S)


class Forwarder(asyncio.Protocol):
    """Hands what is read to a peer of a rig."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def data_received(self, data: bytes) -> None:
        self.peer.send(data)


async def stand_still(pause_s: float, meanwhile: Callable[[], None]) -> None:
    """Let the loop stand still after a poll, with timers that become due meanwhile.

    Args:
        pause_s: How long.
        meanwhile: Called at the beginning: what clients do that the poll has not seen.
    """
    loop = asyncio.get_running_loop()
    broker, client = socket.socketpair()
    over = loop.create_future()

    def stop() -> None:
        loop.remove_reader(broker)
        meanwhile()
        time.sleep(pause_s)
        over.set_result(None)

    loop.add_reader(broker, stop)
    client.send(b"x")
    await over
    for end in (broker, client):
        end.close()


async def judge_after(
    write: Callable[[Callable[[], None], Callable[[], None]], Awaitable[None]],
) -> None:
    """Check that a client is read between its deadline and the judgement.

    Args:
        write: Starts the deadline (the first function), and has the client send something (the
            second) that the loop has not polled when the deadline passes.
    """
    loop = asyncio.get_running_loop()
    client, broker = socket.socketpair()
    transport, reader = await loop.create_connection(Reader, sock=broker)
    judged: asyncio.Future[tuple[float, list[float]]] = loop.create_future()

    def start() -> None:
        Deadline(loop, DELAY_S, lambda now_s: judged.set_result((now_s, list(reader.read_at_s))))

    try:
        await write(start, lambda: client.sendall(b"x"))
        now_s, read_at_s = await judged
    finally:
        transport.close()
        client.close()
    assert len(read_at_s) == 1
    assert now_s <= read_at_s[0], "a read in time is earlier than the clock of the judgement"


def test_the_product_s_loop_reads_between_the_deadline_and_the_judgement() -> None:
    async def pause(start: Callable[[], None], send: Callable[[], None]) -> None:
        def meanwhile() -> None:
            start()
            send()

        await stand_still(2 * DELAY_S, meanwhile)

    product_loop.run(judge_after(pause))


def test_asyncio_s_loop_reads_between_the_deadline_and_the_judgement() -> None:
    async def same_turn(start: Callable[[], None], send: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(DELAY_S, send)
        start()

    run_virtual(judge_after(same_turn))


@pytest.mark.parametrize("stage", ["pending", "passed", "read"])
def test_a_deadline_can_be_cancelled_until_it_is_judged(stage: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        judged: list[float] = []
        deadline = Deadline(loop, DELAY_S, judged.append)
        if stage == "pending":
            deadline.cancel()
        elif stage == "passed":
            loop.call_later(DELAY_S, deadline.cancel)
        else:
            await asyncio.sleep(DELAY_S)
            assert not judged
            deadline.cancel()
        control = loop.create_future()
        Deadline(loop, 2 * DELAY_S, control.set_result)
        await control
        assert not judged

    run_virtual(scenario())


def test_turns_that_take_long_do_not_put_the_judgement_off() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        judged: list[float] = []
        Deadline(loop, DELAY_S, judged.append)
        for _ in range(5):
            loop.call_soon(time.sleep, 2 * DELAY_S)
            await asyncio.sleep(0)
        assert judged

    product_loop.run(scenario())


def test_a_request_is_read_before_its_connection_is_closed_for_silence() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        client, broker = socket.socketpair()
        transport, _ = await loop.create_connection(Reader, sock=broker)
        requests = []

        def http(data: bytes, _: str) -> None:
            requests.append(data)

        first = FirstBytes({}, http, lambda: None, DELAY_S)

        def meanwhile() -> None:
            transport.set_protocol(first)
            first.connection_made(transport)
            client.sendall(b"GET / HTTP/1.1\r\n")

        try:
            await stand_still(2 * DELAY_S, meanwhile)
            await asyncio.sleep(0)  # the read
            await asyncio.sleep(0)  # the judgement
            assert requests == [b"GET / HTTP/1.1\r\n"]
        finally:
            first.close()
            client.close()

    product_loop.run(scenario())


def test_acknowledgements_are_read_before_slow_consumers_are_looked_for() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        client, broker = socket.socketpair()
        transport, reader = await loop.create_connection(Reader, sock=broker)
        found = loop.create_future()

        class Scanner:
            period_s = DELAY_S

            def scan(self) -> Iterator[int]:
                found.set_result(list(reader.read_at_s))
                yield 0

        scans = Reaping(Scanner(), loop, lambda: None)

        def meanwhile() -> None:
            scans.start()
            client.sendall(b"ACK")

        try:
            await stand_still(2 * DELAY_S, meanwhile)
            assert len(await found) == 1
        finally:
            scans.close()
            transport.close()
            client.close()

    product_loop.run(scenario())


def test_the_rest_of_a_frame_is_read_before_its_rate_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cycle, "SWEEP_PERIOD_S", DELAY_S)

    async def scenario() -> None:
        rig = ServerRig()
        loop = asyncio.get_running_loop()
        peer = rig.peer()
        await peer.login()
        peer.send(b"SEND\ndestination:/queue/q\nreceipt:1\n\n")
        client, broker = socket.socketpair()
        transport, _ = await loop.create_connection(lambda: Forwarder(peer), sock=broker)

        def meanwhile() -> None:
            rig.cycle.start()
            peer.connection._partial_since_s -= 1000
            client.sendall(b"\0")

        await stand_still(2 * DELAY_S, meanwhile)
        await asyncio.sleep(0)  # the read
        await asyncio.sleep(0)  # the judgement
        await rig.flush()
        assert [frame.command for frame in peer.frames()] == ["RECEIPT"]
        transport.close()
        client.close()
        await rig.close()

    product_loop.run(scenario())


def test_a_login_that_is_read_after_its_deadline_has_the_time_once_more() -> None:
    async def scenario() -> None:
        rig = ServerRig(users={"alice": make_user("alice", "right", iterations=100_000)})
        loop = asyncio.get_running_loop()
        peer = rig.peer()
        client, broker = socket.socketpair()
        transport, _ = await loop.create_connection(lambda: Forwarder(peer), sock=broker)

        def meanwhile() -> None:
            peer.connection.connected_at_s -= rig.listener.acceptor.handshake_timeout
            peer.connection.set_deadline("login", DELAY_S, peer.connection._check_login)
            client.sendall(
                b"CONNECT\naccept-version:1.2\nhost:x\nlogin:alice\npasscode:right\n\n\0"
            )

        await stand_still(2 * DELAY_S, meanwhile)
        await asyncio.sleep(0)  # the read, which begins the check of the password
        await asyncio.sleep(0)  # the judgement
        await asyncio.wait(list(rig.tasks))
        assert [frame.command for frame in peer.frames()] == ["CONNECTED"]
        transport.close()
        client.close()
        await rig.close()

    product_loop.run(scenario())
