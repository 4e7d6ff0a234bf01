"""Client ids, shares and filters that are longer together than the name of a queue may be."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.server.mqtt.subscription_queues import SubscriptionQueues
from vespiary_codec.wire.mqtt import Property, Publish, Unsubscribe
from vespiary_spec.limits import ADDRESS_NAME_CHARACTERS_MAX
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
    names = [queues.name(*each) for each in said]
    assert len(set(names)) == len(names)
    assert all(len(name.encode()) <= ADDRESS_NAME_CHARACTERS_MAX for name in names)
    assert names[said.index(("c" * 1022, "a"))] == "c" * 1022 + ".a"
    assert names[said.index(("c" * 1023, "a"))].startswith("~")
    assert all(name.startswith("$share.~") for name in names[-3:])
    assert not queues.name(f"~{LONG}"[:100], "a").startswith("~")


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
