"""The way of a forwarded connection on asyncio's own loop, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.server.address_limits import KIND
from vespiary_broker.server.listener import Listener
from vespiary_broker.server.proxy_header import SIGNATURE
from vespiary_spec.settings import Acceptor, AcceptorTls
from vespiary_testkit import product_loop
from vespiary_testkit.certificates import Authority
from vespiary_testkit.journal_workload import until
from vespiary_testkit.server_rig import ServerRig
from vespiary_testkit.waiting import WAIT_S, wait_for

HEADER = SIGNATURE + struct.pack("!BBH4s4sHH", 0x21, 0x11, 12, b"\xc0\0\2\7", b"\x7f\0\0\1", 5, 6)
CONNECT = b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority()
    authority.sign("broker").write(folder)
    (folder / "ca.crt").write_bytes(authority.certificate)
    return folder


def log_in(port: int, files: Path, first: bytes = HEADER) -> tuple[bytes, socket.socket]:
    """Send the end of the handshake and the first frame in one segment; return the answer."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(files / "ca.crt"))
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    raw = socket.create_connection(("127.0.0.1", port), WAIT_S)
    raw.sendall(first)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(65536))
        else:
            break
    tls.write(CONNECT)
    raw.sendall(outgoing.read())
    received = b""
    while not received:
        incoming.write(raw.recv(65536))
        with contextlib.suppress(ssl.SSLWantReadError):
            received = tls.read(4096)
    return received, raw


def test_what_comes_with_the_end_of_the_handshake_is_kept(files: Path) -> None:
    async def scenario() -> None:
        rig = ServerRig()
        tls = AcceptorTls(certificate=str(files / "tls.crt"), key=str(files / "tls.key"))
        acceptor = Acceptor(name="x", port=0, tls=tls, proxy_protocol=True)
        listener = Listener(acceptor, 490 * 1024)
        await listener.start(rig.cycle)
        received, raw = await asyncio.to_thread(log_in, listener.port, files)
        assert received.startswith(b"CONNECTED")
        assert [connection.peer for connection in listener.connections] == ["192.0.2.7"]
        raw.close()
        listener.stop()
        await listener.wait_closed(WAIT_S)
        await rig.close()

    product_loop.run(scenario())


def test_an_end_that_comes_with_the_end_of_the_handshake_is_noticed(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport tells it to whom it had before the connection is handed on."""

    async def scenario() -> None:
        rig = ServerRig()
        tls = AcceptorTls(certificate=str(files / "tls.crt"), key=str(files / "tls.key"))
        listener = Listener(Acceptor(name="x", port=0, tls=tls), 490 * 1024)
        await listener.start(rig.cycle)
        loop = asyncio.get_running_loop()
        start_tls, begun = loop.start_tls, loop.create_future()

        async def start_and_lose(*args: Any, **options: Any) -> asyncio.Transport | None:
            transport = await start_tls(*args, **options)
            assert transport is not None
            transport.abort()
            loop.call_soon(begun.set_result, None)
            return transport

        monkeypatch.setattr(loop, "start_tls", start_and_lose)
        context = ssl.create_default_context(cafile=str(files / "ca.crt"))
        with contextlib.suppress(ConnectionError):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=context, server_hostname="localhost"
            )
            writer.close()
        await begun
        await until(lambda: not (rig.cycle.connections or listener.connections))
        assert rig.cycle.connections_total == 1
        listener.stop()
        await listener.wait_closed(WAIT_S)
        await rig.close()

    product_loop.run(scenario())


@pytest.mark.parametrize("is_forwarded", [False, True])
def test_a_stop_gives_back_all_places_of_an_address(files: Path, is_forwarded: bool) -> None:
    async def scenario() -> None:
        rig = ServerRig()
        acceptor = Acceptor(
            name="x",
            port=0,
            tls=AcceptorTls(certificate=str(files / "tls.crt"), key=str(files / "tls.key")),
            proxy_protocol=is_forwarded,
            connections_per_address_allowed=4,
        )
        listener = Listener(acceptor, 490 * 1024)
        await listener.start(rig.cycle)
        first = HEADER if is_forwarded else b""
        _, logged_in = await asyncio.to_thread(log_in, listener.port, files, first)
        outgoing = ssl.MemoryBIO()
        client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing)
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        opened = [logged_in]
        for data in (first, first + hello[:9], first + hello, first + hello):
            opened.append(socket.create_connection(("127.0.0.1", listener.port), WAIT_S))
            opened[-1].sendall(data)
        await asyncio.to_thread(wait_for, lambda: rig.cycle.errors)
        assert rig.cycle.errors == {KIND: 1}
        assert listener.addresses.networks_count == 1
        listener.stop()
        await listener.wait_closed(0.1)
        assert listener.addresses.networks_count == listener.addresses.refused_count == 0
        for each in opened:
            each.close()
        await rig.close()

    product_loop.run(scenario())


def test_a_stop_ends_those_that_have_said_nothing() -> None:
    async def scenario() -> None:
        rig = ServerRig()
        listener = Listener(Acceptor(name="x", port=0, proxy_protocol=True), 490 * 1024)
        await listener.start(rig.cycle)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(SIGNATURE)
        await asyncio.sleep(0.05)
        listener.stop()
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(WAIT_S):
                assert await reader.read() == b""
        writer.close()
        await rig.close()

    product_loop.run(scenario())
