"""Large messages on their way to clients of AMQP, and links that end or go on behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vespiary_broker.store.large_reader import LargeReader
from vespiary_codec.wire.amqp import Detach, Source
from vespiary_codec.wire.amqp.values import Symbol, UByte
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import AmqpPeer, amqp_acceptor, message
from vespiary_testkit.large_rig import BODY, LargeRig

SETTLED = UByte(1)


def run(test: Callable[[LargeRig, AmqpPeer], Awaitable[None]]) -> None:
    """Run a test with a client, a queue that has a large message and a small one behind it."""

    async def scenario() -> None:
        rig = LargeRig(acceptor=amqp_acceptor())
        client = AmqpPeer(rig)
        await client.open()
        await client.begin()
        await client.sender("/queue/a", 0)
        for body in (BODY, b"small"):
            client.send(message(body))
            await rig.flush()
        client.take()
        client.got.clear()
        await test(rig, client)
        await rig.close()

    product_loop.run(scenario())


async def until_given(rig: LargeRig, client: AmqpPeer, count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(2000):
        await rig.flush()
        found += client.messages()
        if len(found) >= count:
            break
        await asyncio.sleep(0.001)
    return found


def test_a_pre_settled_browser_goes_on_behind_one() -> None:
    async def scenario(rig: LargeRig, client: AmqpPeer) -> None:
        source = Source(address="/queue/a", distribution_mode=Symbol("copy"))
        await client.receiver(None, 1, credit=5, source=source, snd_settle_mode=SETTLED)
        found = await until_given(rig, client, 2)
        assert [len(data) > len(BODY) for _, data in found] == [True, False]

    run(scenario)


def test_a_link_that_ends_before_its_first_byte_takes_no_delivery_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(rig: LargeRig, client: AmqpPeer) -> None:
        is_read, may_go_on = asyncio.Event(), asyncio.Event()
        next_piece = LargeReader.next_piece

        async def wait(reader: LargeReader) -> bytes:
            piece = await next_piece(reader)
            is_read.set()
            await may_go_on.wait()
            return piece

        monkeypatch.setattr(LargeReader, "next_piece", wait)
        await client.receiver("/queue/a", 1, credit=1)
        await is_read.wait()
        await client.detach(1)
        client.one(Detach)
        may_go_on.set()
        await rig.settle()
        await client.receiver("/queue/a", 2, credit=2)
        found = await until_given(rig, client, 2)
        assert [int(transfer.delivery_id) for transfer, _ in found] == [0, 1]

    run(scenario)
