"""$SYS topics: what they say, and to whom."""

from __future__ import annotations

import asyncio

import pytest

from vespiary_broker.engine.queues import CHANGED
from vespiary_codec.wire.mqtt import Publish
from vespiary_spec.version import VERSION
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.virtual_time import run_virtual


@on_rig(runner=run_virtual)
async def test_values_come_at_once_and_every_ten_seconds(rig: MqttRig) -> None:
    others = await rig.connected("others")
    assert await others.subscribe("#", 0) == []
    client = await rig.connected("c")
    first = [each for each in await client.subscribe("$SYS/#", 0) if isinstance(each, Publish)]
    values = {each.topic: each.payload.decode() for each in first}
    assert all(each.retain for each in first)
    assert values["$SYS/broker/version"] == f"vespiary {VERSION}"
    assert values["$SYS/broker/clients/connected"] == "2"
    assert await client.subscribe("$SYS/broker/clients/total", 1)
    others.lose()
    await asyncio.sleep(11)
    again = {each.topic: (each.payload, each.retain) for each in await client.received()}
    assert set(again) == set(values)
    assert again["$SYS/broker/clients/connected"] == (b"1", False)
    client.lose()
    await asyncio.sleep(11)
    assert not rig.hub.sys_topics._watching


@on_rig()
async def test_messages_are_counted_as_in_the_metrics(rig: MqttRig) -> None:
    client = await rig.connected("c")
    await client.subscribe("a", 1)
    for number in range(1, 4):
        client.send(Publish("a", b"x", qos=1, packet_id=number))
    await rig.flush()
    queue = rig.engine.registry.queues["c.a"]
    queue.count_departed(CHANGED, 1)  # one was replaced by another one in the same queue
    for expected in (b"2", b"3"):  # the value itself is a message as well
        reader = await rig.connected("reader")
        values = await reader.subscribe("$SYS/broker/messages/stored", 0)
        assert [each.payload for each in values if isinstance(each, Publish)] == [expected]
        reader.lose()
        await rig.flush()
        client.lose()  # with its queue: what went through it still counts
        await rig.flush()


@pytest.mark.parametrize(
    "frames",
    [
        b"SEND\ndestination:/topic/$SYS.broker.version\n\nforged\0",
        b"SEND\ndestination:$SYS.broker.version\n\nforged\0",
        b"SEND\ndestination:$SYS.#::r.$SYS.#\n\nforged\0",
        b"BEGIN\ntransaction:t\n\n\0"
        b"SEND\ndestination:/topic/$SYS.broker.version\ntransaction:t\n\nforged\0"
        b"COMMIT\ntransaction:t\n\n\0",
    ],
)
def test_no_other_protocol_can_forge_them(frames: bytes) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r")
        await reader.subscribe("$SYS/#", 0)
        await reader.received()
        stomp = rig.peer()
        await stomp.login()
        stomp.send(frames)
        await rig.settle()
        assert b"ERROR" in stomp.transport.data
        assert b"only the broker itself sends to the address $SYS." in stomp.transport.data
        assert await reader.received() == []

    scenario()
