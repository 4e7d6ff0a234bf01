"""How many sessions may outlive their connection: in all, and for each user."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vespiary_broker.engine.naming import NamingRules, UserLimit
from vespiary_broker.engine.users import make_user
from vespiary_codec.wire.mqtt import Connack, Connect, Disconnect, Property, ReasonCode, Version
from vespiary_spec.settings import MqttLimits
from vespiary_testkit.mqtt_rig import V3, V5, MqttRig
from vespiary_testkit.rig_runner import on_rig

NEVER: Any = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
DURABLE: dict[Version, Any] = {
    V3: {"clean_start": False},
    V5: {"clean_start": False, "properties": NEVER},
}
CLEAN: dict[Version, Any] = {V3: {"clean_start": True}, V5: {"clean_start": False}}


def two() -> MqttLimits:
    return MqttLimits(max_sessions=2)


async def refused(rig: MqttRig, client_id: str, version: Version = V5, **fields: Any) -> Connack:
    """Have a client come that is refused; return what it is told."""
    client = rig.client(version)
    client.send(Connect(version, client_id, **(DURABLE[version] | fields)))
    answer = await client.answer(Connack)
    assert client.is_ended
    return answer


def stored(rig: MqttRig) -> list[str]:
    return sorted(key for key in rig.bindings.snapshot() if key.startswith("mqtt-session/"))


@pytest.mark.parametrize("version", [V3, V5])
def test_one_too_many_is_refused_and_others_go_on(version: Version) -> None:
    @on_rig(limits=two)
    async def scenario(rig: MqttRig) -> None:
        first = await rig.connected("a", version, **DURABLE[version])
        (await rig.connected("b", version, **DURABLE[version])).lose()
        answer = await refused(rig, "c", version)
        if version is V5:
            assert answer.reason_code is ReasonCode.QUOTA_EXCEEDED
            sentence = str(answer.properties[Property.REASON_STRING])
            assert "3 sessions" in sentence
            assert "at most 2 (max-sessions" in sentence
        else:
            assert answer.reason_code is ReasonCode.SERVER_UNAVAILABLE
        assert stored(rig) == ["mqtt-session/a", "mqtt-session/b"]
        assert rig.engine.registry.limits.refused == 1
        assert not first.is_ended
        clean = await rig.connected("c", version, **CLEAN[version])
        again = rig.client(version)
        assert (await again.login("b", **DURABLE[version])).session_present
        anew = rig.client(version)
        fields = DURABLE[version] | {"clean_start": True}
        if version is V3:  # this ends it
            await anew.login("b", **fields)
            await rig.connected("d", version, **DURABLE[version])
        else:
            assert not (await anew.login("b", **fields)).session_present
        statistics = rig.hub.statistics()
        assert statistics.sessions_durable == 2
        assert not clean.is_ended

    scenario()


@on_rig(limits=two)
async def test_a_session_that_ends_makes_room(rig: MqttRig) -> None:
    await rig.connected("a", **DURABLE[V5])
    second = await rig.connected("b", **DURABLE[V5])
    await refused(rig, "c")
    second.send(Disconnect(properties={Property.SESSION_EXPIRY_INTERVAL: 0}))
    await rig.flush()
    await rig.flush()
    await rig.connected("c", **DURABLE[V5])
    assert stored(rig) == ["mqtt-session/a", "mqtt-session/c"]


@on_rig(limits=two)
async def test_who_is_refused_ends_nothing_of_its_own(rig: MqttRig) -> None:
    for client_id in ("a", "b"):
        await rig.connected(client_id, **DURABLE[V5])
    clean = await rig.connected("c")
    await refused(rig, "c")
    assert not clean.is_ended
    assert rig.hub.sessions.get("c") is not None


@on_rig(limits=two)
async def test_those_that_come_within_one_flush_count(rig: MqttRig) -> None:
    rig.bindings.gate = asyncio.Event()
    clients = [rig.client() for _ in range(5)]
    for number, client in enumerate(clients):
        client.send(Connect(V5, f"c{number}", **DURABLE[V5]))
        await rig.settle()
    rig.bindings.gate.set()
    await rig.flush()
    codes = [client.one(Connack).reason_code for client in clients]
    assert codes == [ReasonCode.SUCCESS] * 2 + [ReasonCode.QUOTA_EXCEEDED] * 3


@on_rig(limits=two)
async def test_those_whose_clean_sessions_end_first_count(rig: MqttRig) -> None:
    for number in range(5):
        # The queue of a share is on the disk, so its end is waited for.
        await (await rig.connected(f"c{number}")).subscribe(f"$share/s{number}/a", 1)
    rig.bindings.gate = asyncio.Event()
    clients = [rig.client() for _ in range(5)]
    for number, client in enumerate(clients):
        client.send(Connect(V5, f"c{number}", **DURABLE[V5]))
    await rig.settle()
    rig.bindings.gate.set()
    for _ in range(4):
        await rig.flush()
    codes = [client.one(Connack).reason_code for client in clients]
    assert sorted(codes) == [ReasonCode.SUCCESS] * 2 + [ReasonCode.QUOTA_EXCEEDED] * 3
    assert len(stored(rig)) == 2


@on_rig(limits=two)
async def test_sessions_from_before_the_start_count(rig: MqttRig) -> None:
    for client_id in ("x", "y", "z"):
        await rig.bindings.put(f"mqtt-session/{client_id}", {"user": "anonymous", "expiry": 1000})
    rig.hub.sessions.restore()
    assert rig.hub.statistics().sessions_durable == 3
    await refused(rig, "c")
    for client_id in ("x", "y", "z"):
        assert (await rig.client().login(client_id, **DURABLE[V5])).session_present


@on_rig(limits=lambda: MqttLimits(max_sessions=-1))
async def test_minus_one_is_any_number(rig: MqttRig) -> None:
    for number in range(5):
        await rig.connected(f"c{number}", **DURABLE[V5])
    assert rig.hub.statistics().sessions_durable == 5


@on_rig(users=lambda: {name: make_user(name, "secret", iterations=4096) for name in ("u", "v")})
async def test_a_user_has_as_many_as_it_may(rig: MqttRig) -> None:
    rig.engine.registry.limits.change(NamingRules(users={"u": UserLimit(durable_sessions_max=1)}))

    async def enter(user: str, client_id: str) -> Connack:
        client = rig.client()
        login: Any = {"user_name": user, "password": b"secret"}
        client.send(Connect(V5, client_id, **DURABLE[V5], **login))
        return await client.answer(Connack)

    assert (await enter("u", "a")).reason_code is ReasonCode.SUCCESS
    answer = await enter("u", "b")
    assert answer.reason_code is ReasonCode.QUOTA_EXCEEDED
    assert "the user u" in str(answer.properties[Property.REASON_STRING])
    assert (await enter("v", "c")).reason_code is ReasonCode.SUCCESS
    assert (await enter("u", "a")).session_present
