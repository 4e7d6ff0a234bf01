"""$SYS topics: what they say, and to whom."""

from __future__ import annotations

import asyncio

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
