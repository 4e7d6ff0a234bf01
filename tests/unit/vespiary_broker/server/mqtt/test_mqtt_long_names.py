"""Client ids, shares and filters that are longer together than the name of a queue may be."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.names import check_name
from vespiary_broker.server.mqtt.subscription_queues import SubscriptionQueues
from vespiary_codec.wire.mqtt import Property, Publish, Unsubscribe
from vespiary_spec.limits import ADDRESS_NAME_CHARACTERS_MAX
from vespiary_spec.settings import RoutingType
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig

NEVER: Any = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
LONG = "ü" * 400  # escaped it is 2400 bytes


@on_rig()
async def test_names_of_long_ones_are_short_and_never_the_same(rig: MqttRig) -> None:
    queues: SubscriptionQueues = rig.hub.queues
    said = [
        (client_id, topic_filter)
        for client_id in (f"{LONG}1", f"{LONG}2", "c" * 1022, "c" * 1023)
        for topic_filter in ("a", "a/" + "b" * 900, "a/" + "b" * 901)
    ]
    said.append(("c" * 100, "ü" * 500))  # fewer characters than bytes
    said += [("", f"$share/{LONG}{number}/a") for number in range(3)]
    said.append(("c", "a" * 197 + " " + "b" * 900))  # a space is where the name is cut off
    names = [check_name(queues.name(*each), "queue") for each in said]
    assert len(set(names)) == len(names)
    assert all(len(name.encode()) <= ADDRESS_NAME_CHARACTERS_MAX for name in names)
    assert names[said.index(("c" * 1022, "a"))] == "c" * 1022 + ".a"
    assert names[said.index(("c" * 1023, "a"))].startswith("~")
    assert all(name.startswith("$share.~") for name in names[-4:-1])
    assert not queues.name(f"~{LONG}"[:100], "a").startswith("~")


@on_rig()
async def test_a_share_keeps_its_queue_of_an_earlier_version(rig: MqttRig) -> None:
    """It was called `%20` where a filter has a space, and holds confirmed messages."""
    reader = await rig.connected("c", properties=NEVER)
    await reader.subscribe("$share/w/my topic", 1)
    registry = rig.engine.registry
    for name in ("$share.w.my%20topic", "$share.w.my%20other"):
        await registry.create_queue(name, name[9:], RoutingType.MULTICAST)
    rig.hub.queues.drop_abandoned({"$share.w.my topic"})
    left = {name for name in registry.queues if name.startswith("$share.")}
    assert left == {"$share.w.my topic", "$share.w.my%20topic"}


@pytest.mark.parametrize("prefix", ["", f"$share/{LONG}/"], ids=["own", "shared"])
def test_a_long_client_id_subscribes_comes_back_and_ends(prefix: str) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected(LONG, properties=NEVER)
        await reader.subscribe(f"{prefix}a/+", 1)
        reader.lose()
        writer = await rig.connected("w")
        writer.send(Publish("a/b", b"x", 1, packet_id=1))
        await rig.flush()
        again = rig.client()
        answer = await again.login(LONG, clean_start=False, properties=NEVER)
        assert answer.session_present
        got = [each for each in again.early if isinstance(each, Publish)]
        got += await again.received()
        assert [each.payload for each in got] == [b"x"]
        name = rig.hub.queues.name(LONG, f"{prefix}a/+")
        rig.hub.queues.drop_abandoned({name} if prefix else ())
        assert rig.hub.queues.find(LONG, f"{prefix}a/+") is not None
        again.send(Unsubscribe(3, (f"{prefix}a/+",)))
        again.lose()
        anew = await rig.connected(LONG, clean_start=True)
        await rig.flush()
        assert rig.hub.queues.find(LONG, f"{prefix}a/+") is None
        assert not anew.is_ended

    scenario()
