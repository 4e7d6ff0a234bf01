"""What a queue holds that its user may not consume any more: it ends, and takes no room."""

from __future__ import annotations

import asyncio

import pytest

from vespiary_broker.app.withholding import Withholding
from vespiary_broker.engine.queues import Queue
from vespiary_codec.wire.mqtt import Property, Puback, Publish
from vespiary_spec.settings import Permission, SecuritySettings
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.waiting import WAIT_S

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
EVERYTHING = {permission.value: ("anonymous",) for permission in Permission}
NO_CONSUMER = SecuritySettings(**{**EVERYTHING, "consume": ()})
MANY = 600
"""Messages that one turn of a walk does not get through."""


def rule(rig: MqttRig, *forbidden: str) -> None:
    """Let everybody do everything, but consume at some addresses."""
    matches = {"#": SecuritySettings(**EVERYTHING), **dict.fromkeys(forbidden, NO_CONSUMER)}
    rig.engine.registry.permissions.replace(matches)
    rig.cycle.permissions_changed()


async def away(rig: MqttRig) -> Queue:
    """Return the queue of a client that has subscribed to everything and gone."""
    client = await rig.connected("c", properties=NEVER)
    await client.subscribe("#")
    client.lose()
    await rig.flush()
    (queue,) = (each for each in rig.engine.registry.queues.values() if "mqtt" not in each.name)
    return queue


async def back(rig: MqttRig) -> MqttClientPeer:
    client = rig.client(V5)
    await client.login("c", clean_start=False, properties=NEVER)
    return client


async def topics(rig: MqttRig, client: MqttClientPeer) -> list[str]:
    """Return the topics of what a client gets, acknowledged."""
    found: list[str] = []
    got = [each for each in client.early if isinstance(each, Publish)]
    got += await client.received()
    while got:
        for each in got:
            client.send(Puback(each.packet_id))
        found += [each.topic for each in got]
        await rig.flush()
        got = await client.received()
    return found


async def publish(rig: MqttRig, *names: str) -> None:
    writer = await rig.connected("w")
    for number, topic in enumerate(names, 1):
        writer.send(Publish(topic, b"x", 1, packet_id=number))
        if not number % 100:
            await rig.flush()
    await rig.flush()
    writer.lose()


def is_empty(rig: MqttRig, queue: Queue) -> bool:
    statistics = rig.core.queue_statistics(queue.id)
    return statistics.head == statistics.tail


async def until_filtered(rig: MqttRig, queue: Queue) -> None:
    async with asyncio.timeout(WAIT_S):
        while queue.unfiltered_below:
            await rig.flush()


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_what_may_not_be_had_any_more_ends_without_its_client(rig: MqttRig) -> None:
    Withholding(rig.engine, rig.cycle, rig.journal, None)
    rule(rig)
    queue = await away(rig)
    await publish(rig, "secret", "secret", "secret")
    rule(rig, "secret")
    await until_filtered(rig, queue)
    assert is_empty(rig, queue)
    assert rig.engine.registry.withheld == 3


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_permissions_that_change_again_meanwhile_count_from_the_first_message(
    rig: MqttRig,
) -> None:
    Withholding(rig.engine, rig.cycle, rig.journal, None)
    rule(rig)
    queue = await away(rig)
    await publish(rig, "first", *["open"] * MANY, "last")
    rule(rig, "last")
    await asyncio.sleep(0)  # the walk has passed the first message
    assert queue.unfiltered_below
    rule(rig, "last", "first")
    await until_filtered(rig, queue)
    assert rig.engine.registry.withheld == 2
    found = await topics(rig, await back(rig))
    assert found == ["open"] * MANY
    assert is_empty(rig, queue)


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_a_user_who_goes_meanwhile_loses_nothing(rig: MqttRig) -> None:
    withholding = Withholding(rig.engine, rig.cycle, rig.journal, None, again_s=0.001)
    rule(rig)
    properties = NEVER | {Property.RECEIVE_MAXIMUM: 1}
    client = await rig.connected("c", properties=properties)
    await client.subscribe("#")
    await publish(rig, "secret", "open", "open")
    await client.received()
    rule(rig, "secret")  # the client has that one, and may give it back
    (queue,) = (each for each in rig.engine.registry.queues.values() if "mqtt" not in each.name)
    permissions = rig.engine.registry.permissions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permissions, "_roles", lambda _: frozenset())
        client.lose()
        rig.cycle.permissions_changed()
        async with asyncio.timeout(WAIT_S):
            while withholding._asked:
                await rig.flush()
        assert queue.unfiltered_below
        assert rig.core.queue_statistics(queue.id).ready == 3
    rig.cycle.permissions_changed()
    await until_filtered(rig, queue)
    assert await topics(rig, await back(rig)) == ["open", "open"]


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_few_queues_are_walked_at_a_time(rig: MqttRig) -> None:
    withholding = Withholding(rig.engine, rig.cycle, rig.journal, None)
    rule(rig)
    for number in range(6):
        client = await rig.connected(f"c{number}", properties=NEVER)
        await client.subscribe("#")
        client.lose()
    await publish(rig, "secret", *["open"] * MANY)
    walking, most, end_withheld = 0, 0, withholding._end_withheld

    async def counted(queue: Queue, end: int) -> bool:
        nonlocal walking, most
        walking += 1
        most = max(most, walking)
        try:
            return await end_withheld(queue, end)
        finally:
            walking -= 1

    withholding._end_withheld = counted  # type: ignore[method-assign]
    rule(rig, "secret")
    queues = [each for each in rig.engine.registry.queues.values() if each.unfiltered_below]
    assert len(queues) == 6
    for queue in queues:
        await until_filtered(rig, queue)
    assert most == 2
    assert rig.engine.registry.withheld == 6


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_what_a_client_gives_back_ends_as_well(rig: MqttRig) -> None:
    Withholding(rig.engine, rig.cycle, rig.journal, None, again_s=0.001)
    rule(rig)
    client = await rig.connected("c", properties=NEVER | {Property.RECEIVE_MAXIMUM: 1})
    await client.subscribe("#")
    await publish(rig, "first", "secret", "open")
    (first,) = await client.received()
    rule(rig, "secret", "first")  # one is with the client, the next waits for its window
    (queue,) = (each for each in rig.engine.registry.queues.values() if "mqtt" not in each.name)
    await rig.flush()
    assert queue.unfiltered_below, "the client may give back what it has"
    client.send(Puback(first.packet_id))
    await until_filtered(rig, queue)
    assert await topics(rig, client) == ["open"]
    assert is_empty(rig, queue)
