"""SUBSCRIBE and UNSUBSCRIBE with very many filters: others have their turns meanwhile."""

from __future__ import annotations

import pytest

from vespiary_codec.wire.mqtt import (
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from vespiary_testkit.mqtt_rig import MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.turn_clock import CountedTurns

FILTERS = tuple(f"t/{number}/+" for number in range(60))


async def processed(rig: MqttRig) -> None:
    """Wait until what all clients have sent is done with."""
    await rig.flush()
    while any(connection.is_busy for connection in rig.cycle.connections.values()):
        await rig.flush()
    await rig.flush()


async def subscribed(rig: MqttRig) -> MqttClientPeer:
    client = await rig.connected("c")
    client.send(Subscribe(1, tuple(map(Subscription, FILTERS))))
    await processed(rig)
    (answer,) = client.all_of(Suback)
    assert len(answer.reason_codes) == len(FILTERS)
    return client


@on_rig()
async def test_very_many_filters_are_entered_and_begun_over_some_turns(rig: MqttRig) -> None:
    registry, turn_time = rig.engine.registry, rig.engine.turn_time
    for method in ("create_queue", "queue_route"):  # entering one, and what is retained for it
        counted = CountedTurns(turn_time)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, method, counted.counted(getattr(registry, method)))
            (await subscribed(rig)).lose()
            await processed(rig)
        assert counted.done >= len(FILTERS)
        assert counted.most <= 10


@on_rig()
async def test_the_first_of_very_many_takes_effect_at_once(rig: MqttRig) -> None:
    client = await rig.connected("c")
    rig.engine.turn_time.spend(1.0)  # others have used this turn up
    client.send(Subscribe(1, tuple(map(Subscription, FILTERS))))
    assert "t.0.*" in rig.engine.registry.addresses
    assert "t.59.*" not in rig.engine.registry.addresses
    writer = rig.client()
    await writer.login("w")
    writer.send(Publish("t/0/x", b"first"))
    await processed(rig)
    writer.send(Publish("t/59/x", b"last"))
    await processed(rig)
    _, *got = client.packets()
    assert [each.payload for each in got if isinstance(each, Publish)] == [b"first", b"last"]


@on_rig()
async def test_very_many_filters_end_over_some_turns(rig: MqttRig) -> None:
    client, registry = await subscribed(rig), rig.engine.registry
    counted = CountedTurns(rig.engine.turn_time)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "drop_queue", counted.counted(registry.drop_queue))
        client.send(Unsubscribe(2, FILTERS))
        await processed(rig)
    (answer,) = client.all_of(Unsuback)
    assert answer.packet_id == 2
    assert counted.done == len(FILTERS)
    assert counted.most <= 10
