"""The client of a broker that takes messages over: what it does not even connect for."""

from __future__ import annotations

import socket

import pytest

from vespiary_broker.app.transfer_client import Target, TransferClient, Unreachable
from vespiary_testkit import product_loop


@pytest.mark.parametrize("name", ["orders..svc", ".svc", "a" * 64, "orders\0svc"])
def test_a_name_that_no_certificate_has_costs_no_connection(name: str):
    """A handshake that cannot begin makes uvloop close a descriptor that is another one's."""

    async def check(port: int) -> None:
        target = Target(url=f"https://127.0.0.1:{port}", server_name=name)
        async with TransferClient(target) as client:
            with pytest.raises(Unreachable, match=r"label|NUL"):
                await client.send("id", 1, "q", b"")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        product_loop.run(check(listener.getsockname()[1]))
        with pytest.raises(BlockingIOError):
            listener.accept()
