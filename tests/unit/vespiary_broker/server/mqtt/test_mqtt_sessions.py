"""Sessions: who has one, how long, and what is left when a client goes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from scramp import ScramClient

from vespiary_broker.app.administration import Administration
from vespiary_broker.app.jms import JmsAdministration
from vespiary_broker.app.tasks import Tasks
from vespiary_broker.engine.config_deletion import delete_unconfigured
from vespiary_broker.engine.jms import JmsKind, JmsObjects
from vespiary_broker.engine.usage import DROPPED_MAX
from vespiary_broker.engine.users import make_user
from vespiary_broker.server.mqtt.sessions import read_session
from vespiary_codec.wire.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Property,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Version,
    Will,
)
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings, DeletionPolicy, MqttLimits, RoutingType
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.virtual_time import run_virtual

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


def expiring(seconds: int) -> dict[str, object]:
    return {"clean_start": False, "properties": {Property.SESSION_EXPIRY_INTERVAL: seconds}}


def queues(rig: MqttRig) -> list[str]:
    return sorted(name for name in rig.engine.registry.queues if not name.startswith("$mqtt"))


def administration(rig: MqttRig) -> Administration:
    made = Administration(Tasks(rig._spawn))
    made._engine, made._cycle = rig.engine, rig.cycle
    return made


def jms_topic(rig: MqttRig) -> tuple[JmsAdministration, JmsObjects]:
    administrator = administration(rig)
    objects = JmsObjects(rig.bindings, administrator, lock=asyncio.Lock())
    return JmsAdministration(objects, administrator), objects


# --- CONNECT --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "clean", "properties", "stays"),
    [
        (V3, True, {}, False), (V3, False, {}, True), (Version.V3_1, False, {}, True),
        (V5, True, {}, False), (V5, False, {}, False), (V5, False, NEVER, True),
        (V5, True, NEVER, True),
    ],
)  # fmt: skip
def test_which_sessions_stay(
    version: Version, clean: bool, properties: dict[Property, int], stays: bool
) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        client = await rig.connected("c", version, clean_start=clean, properties=properties)
        await client.subscribe("a")
        assert rig.engine.registry.queues["c.a"].is_durable is stays
        client.send(Disconnect())
        await rig.flush()
        await rig.flush()
        assert client.is_ended
        assert queues(rig) == (["c.a"] if stays else [])
        assert ("mqtt-session/c" in rig.bindings.snapshot()) is stays
        again = rig.client(version)
        answer = await again.login("c", clean_start=False, properties=properties)
        assert answer.session_present is (stays and version is not Version.V3_1)
        assert again.connection.handler.subscriptions_count == stays  # type: ignore[union-attr]

    scenario()


@on_rig()
async def test_connack_leaves_when_the_session_is_durable(rig: MqttRig) -> None:
    rig.bindings.gate = asyncio.Event()
    client = rig.client()
    client.send(Connect(V5, "c", properties=NEVER))
    await rig.settle()
    assert client.packets() == []
    rig.bindings.gate.set()
    await rig.settle()
    assert client.one(Connack).reason_code is ReasonCode.SUCCESS


@on_rig()
async def test_a_clean_start_forgets_and_a_new_id_is_given(rig: MqttRig) -> None:
    client = await rig.connected("c", properties=NEVER)
    await client.subscribe("a")
    client.lose()
    again = rig.client()
    assert not (await again.login("c", clean_start=True, properties=NEVER)).session_present
    assert queues(rig) == []
    nameless = rig.client()
    answer = await nameless.login("")
    given = answer.properties[Property.ASSIGNED_CLIENT_IDENTIFIER]
    assert nameless.connection.handler.client_id == given  # type: ignore[union-attr]


@on_rig()
async def test_another_connection_takes_over(rig: MqttRig) -> None:
    first = await rig.connected("c", properties=NEVER)
    await first.subscribe("a")
    second = rig.client()
    assert (await second.login("c", clean_start=False, properties=NEVER)).session_present
    assert first.one(Disconnect).reason_code is ReasonCode.SESSION_TAKEN_OVER
    assert first.is_ended
    writer = await rig.connected("w")
    writer.send(Publish("a", b"x"))
    assert [each.payload for each in await second.received()] == [b"x"]


@on_rig(users=lambda: {name: make_user(name, "secret", iterations=4096) for name in ("u", "v")})
async def test_logins(rig: MqttRig) -> None:
    for name, password, code in (
        ("u", b"wrong", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        (None, None, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
    ):
        for version in (V3, V5):
            client = rig.client(version)
            client.send(Connect(version, "c", user_name=name, password=password))
            assert (await client.answer(Connack)).reason_code is code
            assert client.is_ended
    client = rig.client()
    client.send(Connect(V5, "c", user_name="u", password=b"secret", properties=NEVER))
    assert (await client.answer(Connack)).reason_code is ReasonCode.SUCCESS
    assert client.connection.handler.user == "u"  # type: ignore[union-attr]
    thief = rig.client()
    thief.send(Connect(V5, "c", user_name="v", password=b"secret"))
    assert (await thief.answer(Connack)).reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert not client.is_ended


@on_rig()
async def test_enhanced_authentication_is_refused_by_name(rig: MqttRig) -> None:
    client = rig.client()
    client.send(Connect(V5, "c", properties={Property.AUTHENTICATION_METHOD: "GS2-KRB5"}))
    await rig.flush()
    assert client.one(Connack).reason_code is ReasonCode.BAD_AUTHENTICATION_METHOD


def authenticating(method: str, data: bytes | None) -> dict[Property, object]:
    said: dict[Property, object] = {Property.AUTHENTICATION_METHOD: method}
    return said if data is None else said | {Property.AUTHENTICATION_DATA: data}


async def scram(client: MqttClientPeer, rig: MqttRig, password: str, first: ReasonCode) -> Any:
    """Go through SCRAM-SHA-256; return the last packet, and what its signature is checked by."""
    method = "SCRAM-SHA-256"
    mine = ScramClient([method], "u", password)
    said: Any = authenticating(method, mine.get_client_first().encode())
    if first is ReasonCode.SUCCESS:
        client.send(Connect(V5, "c", properties=said))
    else:
        client.send(Auth(first, said))
    await rig.flush()
    challenge = client.one(Auth)
    assert challenge.reason_code is ReasonCode.CONTINUE_AUTHENTICATION
    mine.set_server_first(challenge.properties[Property.AUTHENTICATION_DATA].decode())  # type: ignore[union-attr]
    said = authenticating(method, mine.get_client_final().encode())
    client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, said))
    await rig.flush()
    (last,) = client.packets()
    return last, mine


@on_rig(users=lambda: {"u": make_user("u", "secret", iterations=4096)})
async def test_scram_and_again(rig: MqttRig) -> None:
    client = rig.client()
    answer, mine = await scram(client, rig, "secret", ReasonCode.SUCCESS)
    assert isinstance(answer, Connack)
    assert answer.reason_code is ReasonCode.SUCCESS
    mine.set_server_final(answer.properties[Property.AUTHENTICATION_DATA].decode())
    assert client.connection.handler.user == "u"  # type: ignore[union-attr]
    answer, mine = await scram(client, rig, "secret", ReasonCode.REAUTHENTICATE)
    assert isinstance(answer, Auth)
    mine.set_server_final(answer.properties[Property.AUTHENTICATION_DATA].decode())
    client.send(Publish("a", b"x", 1, packet_id=1))
    await rig.flush()
    client.one(Puback)
    answer, _ = await scram(client, rig, "wrong", ReasonCode.REAUTHENTICATE)
    assert isinstance(answer, Disconnect)
    assert answer.reason_code is ReasonCode.NOT_AUTHORIZED


@on_rig(runner=run_virtual, users=lambda: {"u": make_user("u", "secret", iterations=4096)})
async def test_scram_has_the_time_for_logins_again_once_it_is_answered(rig: MqttRig) -> None:
    client = rig.client()
    mine = ScramClient(["SCRAM-SHA-256"], "u", "secret")
    await asyncio.sleep(1)
    said: Any = authenticating("SCRAM-SHA-256", mine.get_client_first().encode())
    client.send(Connect(V5, "c", properties=said))
    await rig.settle()
    client.one(Auth)
    await asyncio.sleep(9.5)
    assert not client.is_ended
    await asyncio.sleep(1)
    assert client.is_ended


@on_rig(users=lambda: {"u": make_user("u", "secret", iterations=4096)})
async def test_scram_with_a_wrong_password_and_packets_out_of_turn(rig: MqttRig) -> None:
    client = rig.client()
    answer, _ = await scram(client, rig, "wrong", ReasonCode.SUCCESS)
    assert answer.reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert client.is_ended
    early = rig.client()
    said: Any = authenticating("SCRAM-SHA-256", None)
    early.send(Connect(V5, "c", properties=said), Publish("a", b"x"))
    await rig.flush()
    challenge, refusal = early.packets()
    assert isinstance(challenge, Auth)
    assert isinstance(refusal, Connack)
    assert refusal.reason_code is ReasonCode.PROTOCOL_ERROR


@on_rig()
async def test_a_second_connect_ends_the_connection(rig: MqttRig) -> None:
    client = await rig.connected("c")
    client.send(Connect(V5, "c"))
    await rig.flush()
    assert client.one(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR


@on_rig(runner=run_virtual, limits=lambda: MqttLimits(server_keep_alive=10))
async def test_keep_alive(rig: MqttRig) -> None:
    client = rig.client()
    answer = await client.login("c", keep_alive_s=100)
    assert answer.properties[Property.SERVER_KEEP_ALIVE] == 10
    for _ in range(5):
        await asyncio.sleep(14)
        client.send(Pingreq())
        await rig.settle()
        assert client.packets() == [Pingresp()]
    await asyncio.sleep(16)
    assert client.one(Disconnect).reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT
    quiet = await rig.connected("q", keep_alive_s=2, version=V3)
    await asyncio.sleep(2.5)
    assert not quiet.is_ended
    await asyncio.sleep(1)
    assert quiet.is_ended


# --- the end --------------------------------------------------------------------------------------


@on_rig()
async def test_a_session_expires(rig: MqttRig) -> None:
    client = await rig.connected("c", **expiring(1))
    await client.subscribe("a")
    client.lose()
    await asyncio.sleep(2.3)
    await rig.flush()
    assert queues(rig) == []
    assert "mqtt-session/c" not in rig.bindings.snapshot()
    assert rig.hub.sessions.expired == 1
    assert not (await rig.client().login("c", **expiring(1))).session_present


@on_rig(limits=lambda: MqttLimits(session_expiry_interval=50))
async def test_expiry_is_bounded_and_disconnect_may_change_it(rig: MqttRig) -> None:
    client = rig.client()
    answer = await client.login("c", **expiring(100))
    assert answer.properties[Property.SESSION_EXPIRY_INTERVAL] == 50
    client.send(Disconnect(properties={Property.SESSION_EXPIRY_INTERVAL: 0}))
    await rig.flush()
    assert not (await rig.client().login("c", **expiring(100))).session_present
    other = await rig.connected("o")
    other.send(Disconnect(properties={Property.SESSION_EXPIRY_INTERVAL: 10}))
    await rig.flush()
    assert other.one(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
def test_a_jump_of_the_wall_clock_ends_no_session_and_keeps_none(jump_s: int) -> None:
    @on_rig(runner=run_virtual)
    async def scenario(rig: MqttRig) -> None:
        client = await rig.connected("c", **expiring(60))
        await client.subscribe("a")
        client.lose()
        await rig.flush()
        jumped_ns = time.time_ns() + jump_s * 1_000_000_000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: jumped_ns)
            await asyncio.sleep(30)
            assert queues(rig) == ["c.a"]
            await asyncio.sleep(32)
            await rig.flush()
            assert queues(rig) == []
            assert rig.hub.sessions.expired == 1

    scenario()


@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize("topic_filter", ["a", "$share/g/a"])
@pytest.mark.parametrize("act", ["delete", "jms", "configuration", "drop"])
def test_a_session_ends_with_the_queue_of_a_subscription(
    act: str, topic_filter: str, is_connected: bool
) -> None:
    """Else its client would be told that the session is there, and miss what was in the queue."""

    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        client = await rig.connected("c", **expiring(60))
        await client.subscribe(topic_filter)
        await client.subscribe("other")
        if not is_connected:
            client.lose()
            await rig.flush()
        (name,) = (each for each in queues(rig) if each != "c.other")
        registry, administrator = rig.engine.registry, administration(rig)
        with pytest.raises(RemoteProtocolError, match="of the MQTT client c"):
            await administrator.delete_queue(name)
        assert not client.is_ended or not is_connected
        assert len(queues(rig)) == 2
        if act == "delete":
            await administrator.delete_queue(name, is_forced=True)
        elif act == "jms":
            objects = JmsObjects(rig.bindings, administrator, lock=asyncio.Lock())
            jms = JmsAdministration(objects, administrator)
            await jms.create(JmsKind.TOPIC, "a", [], "")
            with pytest.raises(RemoteProtocolError, match="of the MQTT client c"):
                await jms.delete(JmsKind.TOPIC, "a")
            await jms.delete(JmsKind.TOPIC, "a", is_forced=True)
        elif act == "configuration":
            registry.addresses["a"].is_configured = True
            registry.change_settings(
                {"#": AddressSettings(config_delete_addresses=DeletionPolicy.FORCE)}
            )
            await delete_unconfigured(registry, [])
        else:
            administrator.drop_queue(name, is_forced=True)
        await rig.flush()
        await rig.flush()
        assert queues(rig) == []
        assert "mqtt-session/c" not in rig.bindings.snapshot()
        assert client.is_ended
        again = rig.client()
        answer = await again.login("c", **expiring(60))
        assert not answer.session_present

    scenario()


@on_rig()
async def test_a_session_stays_if_it_has_no_part_in_a_queue_that_goes(rig: MqttRig) -> None:
    client = await rig.connected("c", **expiring(60))
    await client.subscribe("a")
    await client.subscribe("b")
    client.send(Unsubscribe(5, ("b",)))
    await rig.flush()
    await rig.engine.registry.create_queue("c.mine", "x", RoutingType.MULTICAST, client_id="c")
    await administration(rig).delete_queue("c.mine")
    await rig.flush()
    assert queues(rig) == ["c.a"]
    assert not client.is_ended


def removals(rig: MqttRig) -> list[str]:
    """Return the list to which each key is added whose removal from the bindings begins."""
    order: list[str] = []
    remove = rig.bindings.remove

    async def noted(key: str) -> None:
        order.append(key)
        await asyncio.sleep(0)
        await remove(key)

    rig.bindings.remove = noted  # type: ignore[method-assign]
    return order


@pytest.mark.parametrize("act", ["delete", "jms", "configuration"])
@pytest.mark.parametrize("topic_filter", ["a", "$share/g/a"])
def test_sessions_are_removed_before_the_queue_that_they_lose(act: str, topic_filter: str) -> None:
    """After a power loss in between, a session would come back without its queue."""

    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        for client_id in ("c", "d", "e"):
            client = await rig.connected(client_id, **expiring(60))
            await client.subscribe(topic_filter)
            client.lose()
        await rig.flush()
        order = removals(rig)
        keys = [queue.key for queue in rig.engine.registry.queues.values()]
        administrator = administration(rig)
        if act == "delete":
            name = "$share.g.a" if "$" in topic_filter else "c.a"
            await administrator.delete_queue(name, is_forced=True)
        elif act == "jms":
            jms, _ = jms_topic(rig)
            await jms.create(JmsKind.TOPIC, "a")
            await jms.delete(JmsKind.TOPIC, "a", is_forced=True)
        else:
            registry = rig.engine.registry
            registry.addresses["a"].is_configured = True
            registry.change_settings(
                {"#": AddressSettings(config_delete_addresses=DeletionPolicy.FORCE)}
            )
            assert await delete_unconfigured(registry, []) == (4 if topic_filter == "a" else 2)
        owners = ["c"] if (act, topic_filter) == ("delete", "a") else ["c", "d", "e"]
        for number, owner in enumerate(owners):
            key = keys[number % len(keys)]
            assert order.index(f"mqtt-session/{owner}") < order.index(key)
        left = {"c", "d", "e"} - set(owners)
        assert {each for each in "cde" if rig.hub.sessions.get(each) is not None} == left

    scenario()


@on_rig()
async def test_a_session_is_removed_before_its_queues_however_many_they_are(rig: MqttRig) -> None:
    client = await rig.connected("c", **expiring(60))
    count = DROPPED_MAX + 10
    filters = tuple(Subscription(f"a/{number}", 1) for number in range(count))
    client.send(Subscribe(1, filters))
    await client.answer(Suback)
    order = removals(rig)
    client.lose()
    await rig.connected("c", clean_start=True)
    assert order[0] == "mqtt-session/c"
    assert sum(key.startswith("queue/") for key in order) == count


@on_rig()
async def test_the_cost_of_a_deletion_does_not_grow_with_the_subscriptions(rig: MqttRig) -> None:
    count = 200
    client = await rig.connected("c", **expiring(60))
    for share in ("", "$share/g/"):
        filters = tuple(Subscription(f"{share}a/{number}", 1) for number in range(count))
        client.send(Subscribe(1, filters))
        await client.answer(Suback)
    names = 0
    made = rig.hub.queues.name

    def counted(client_id: str, topic_filter: str) -> str:
        nonlocal names
        names += 1
        return made(client_id, topic_filter)

    rig.hub.queues.name = counted  # type: ignore[method-assign]
    await rig.engine.registry.create_queue("mine", "x", RoutingType.ANYCAST)
    await administration(rig).delete_queue("mine")
    assert names == 0
    for share in ("", "$share/g/"):
        client.send(Unsubscribe(2, tuple(f"{share}a/{number}" for number in range(count))))
        await client.answer(Unsuback)
    assert queues(rig) == []
    assert names <= 10 * count
    client.send(Subscribe(3, tuple(Subscription(f"a/{number}", 1) for number in range(count))))
    await client.answer(Suback)
    names = 0
    await rig.engine.registry.before_deletion(list(rig.engine.registry.queues.values()))
    assert queues(rig) == []
    assert names <= 10 * count


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_a_jms_topic_goes_with_queues_that_go_with_one_another(expiry_s: int) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        jms, objects = jms_topic(rig)
        await jms.create(JmsKind.TOPIC, "a")
        client = await rig.connected("c", **expiring(expiry_s))
        await client.subscribe("a")
        await client.subscribe("$share/g/a")
        writer = await rig.connected("w")
        writer.send(Publish("a", b"x", 1, packet_id=1))
        await rig.flush()
        assert await jms.delete(JmsKind.TOPIC, "a", is_forced=True) == 2
        assert objects.get(JmsKind.TOPIC, "a") is None
        assert queues(rig) == []
        assert "a" not in rig.engine.registry.addresses

    scenario()


@on_rig()
async def test_a_jms_topic_goes_although_a_client_takes_two_queues_of_it_along(
    rig: MqttRig,
) -> None:
    jms, _ = jms_topic(rig)
    await jms.create(JmsKind.TOPIC, "a")
    client = rig.peer()
    await client.login()
    for name in ("1", "2"):
        client.send(f"SUBSCRIBE\nid:{name}\ndestination:/topic/a\n\n\0".encode())
    await rig.flush()
    assert len(queues(rig)) == 2
    await jms.delete(JmsKind.TOPIC, "a", is_forced=True)
    assert queues(rig) == []
    assert "a" not in rig.engine.registry.addresses


@on_rig()
async def test_a_jms_topic_goes_although_clients_subscribe_meanwhile(rig: MqttRig) -> None:
    jms, _ = jms_topic(rig)
    await jms.create(JmsKind.TOPIC, "a")
    client = await rig.connected("c", **expiring(60))
    await client.subscribe("a")
    late = await rig.connected("d", **expiring(60))
    remove = rig.bindings.remove

    async def slow(key: str) -> None:
        if key.startswith("mqtt-session/") and not late.is_ended:
            late.send(Subscribe(1, (Subscription("a", 1),)))
            await rig.settle()
        await remove(key)

    rig.bindings.remove = slow  # type: ignore[method-assign]
    await jms.delete(JmsKind.TOPIC, "a", is_forced=True)
    await rig.flush()
    assert queues(rig) == []
    assert "a" not in rig.engine.registry.addresses
    assert late.is_ended
    assert len(rig.hub.sessions) == 0


@pytest.mark.parametrize(
    ("away_since_ms", "now_ms", "left_s"),
    [(1_000, 5_000, 6.0), (1_000, 50_000, 0.0), (9_000, 5_000, 10.0)],
)
def test_what_is_left_of_a_session_after_a_restart(
    away_since_ms: int, now_ms: int, left_s: float
) -> None:
    """Across a restart there is the wall clock alone; if it was set back, the time starts again."""
    value = {"user": "u", "expiry": 10, "away-since": away_since_ms}
    assert read_session("c", value, now_ms).left_s(now_ms) == left_s


def test_a_session_in_the_bindings() -> None:
    value = {"user": "u", "expiry": 10, "subscriptions": {"a/#": {"qos": 1, "no-local": True}}}
    session = read_session("c", value, now_ms=5000)
    assert session.to_json() == value | {"away-since": 5000}
    assert session.left_s(5000) == 10
    assert session.subscriptions["a/#"].no_local


@on_rig()
async def test_a_binding_that_is_no_session_is_named(rig: MqttRig) -> None:
    await rig.bindings.put("mqtt-session/x", {"expiry": 1})
    with pytest.raises(ValueError, match="mqtt-session/x"):
        rig.hub.sessions.restore()
    await rig.bindings.remove("mqtt-session/x")


# --- wills ----------------------------------------------------------------------------------------

WILL = Will("gone", b"bye", 1)


@pytest.mark.parametrize(
    ("version", "end"),
    [(version, end) for version in (V3, V5) for end in ("lost", "good-bye", "error")]
    + [(V5, "with will")],
)
def test_when_a_will_is_sent(version: Version, end: str) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r")
        await reader.subscribe("gone")
        client = await rig.connected("c", version, will=WILL)
        if end == "lost":
            client.lose()
        elif end == "error":
            client.send_bytes(b"\xf0\x00" if version is V3 else b"\x00\x00")
        else:
            code = ReasonCode.DISCONNECT_WITH_WILL if end == "with will" else ReasonCode.SUCCESS
            client.send(Disconnect(code))
        got = [each.payload for each in await reader.received()]
        assert got == ([] if end == "good-bye" else [b"bye"])

    scenario()


@on_rig(runner=run_virtual)
async def test_a_will_waits_for_its_delay_and_goes_if_its_client_comes(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("gone")
    will = Will("gone", b"bye", 1, properties={Property.WILL_DELAY_INTERVAL: 1})
    for comes_back in (True, False):
        client = await rig.connected("c", will=will, **expiring(100))
        client.lose()
        await rig.flush()
        assert reader.packets() == []
        if comes_back:
            back = await rig.connected("c", **expiring(100))
            await asyncio.sleep(1.2)
            assert await reader.received() == []
            back.lose()
    await asyncio.sleep(1.2)
    assert [each.payload for each in await reader.received()] == [b"bye"]
    # The delay ends with the session (§3.1.3.2.2).
    client = await rig.connected("c", will=will)
    client.lose()
    assert [each.payload for each in await reader.received()] == [b"bye"]


@on_rig()
async def test_a_will_is_retained_and_a_wrong_one_refused(rig: MqttRig) -> None:
    client = await rig.connected("c", will=Will("gone", b"bye", 1, retain=True))
    client.lose()
    await rig.flush()
    reader = await rig.connected("r")
    (got,) = await reader.subscribe("gone")
    assert (got.payload, got.retain) == (b"bye", True)  # type: ignore[union-attr]
    bad = rig.client()
    bad.send(Connect(V5, "b", will=Will("$SYS/x")))
    await rig.flush()
    assert bad.one(Connack).reason_code is ReasonCode.NOT_AUTHORIZED
    assert rig.hub.sessions.get("b") is None


# --- SUBSCRIBE ------------------------------------------------------------------------------------


@on_rig()
async def test_suback_leaves_when_the_subscription_is_durable(rig: MqttRig) -> None:
    client = await rig.connected("c", **expiring(100))
    rig.bindings.gate = asyncio.Event()
    client.send(Subscribe(5, (Subscription("a", 1), Subscription("b", 0))))
    await rig.settle()
    assert client.packets() == []
    rig.bindings.gate.set()
    await rig.flush()
    assert client.one(Suback).reason_codes == (ReasonCode.GRANTED_QOS_1, ReasonCode.SUCCESS)
    stored = rig.bindings.snapshot()["mqtt-session/c"]
    assert set(stored["subscriptions"]) == {"a", "b"}
    client.send(Unsubscribe(6, ("a", "nothing")))
    await rig.flush()
    assert client.one(Unsuback).reason_codes == (
        ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED,
    )  # fmt: skip
    assert set(rig.bindings.snapshot()["mqtt-session/c"]["subscriptions"]) == {"b"}
    assert queues(rig) == ["c.b"]


@on_rig(limits=lambda: MqttLimits(max_subscriptions=1))
async def test_refused_subscriptions_leave_nothing(rig: MqttRig) -> None:
    client = await rig.connected("c", **expiring(100))
    client.send(Subscribe(5, (Subscription("a", 1), Subscription("b", 1))))
    await rig.flush()
    assert client.one(Suback).reason_codes == (
        ReasonCode.GRANTED_QOS_1, ReasonCode.QUOTA_EXCEEDED,
    )  # fmt: skip
    assert queues(rig) == ["c.a"]
    client.send(Subscribe(6, (Subscription("$share/g/a", 1, no_local=True),)))
    await rig.flush()
    assert client.one(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR


@on_rig()
async def test_names_of_queues_are_never_the_same_for_two(rig: MqttRig) -> None:
    one, two = await rig.connected("a"), await rig.connected("a.b")
    await one.subscribe("b/c")
    await two.subscribe("c")
    assert queues(rig) == ["a%2Eb.c", "a.b.c"]


@pytest.mark.parametrize("destination", ["/topic/a.b::c.a.b", "/queue/a.b::c.a.b", "a.b::c.a.b"])
@pytest.mark.parametrize(
    ("is_there", "client_id", "reason"),
    [
        (True, "thief", "the queue c.a.b belongs to another client"),
        (False, "thief", "the queue c.a.b belongs to another client"),
        (True, "c", "the queue c.a.b belongs to a session of another protocol"),
        (False, "c", "the queue c.a.b belongs to a session of another protocol"),
    ],
)
def test_stomp_is_told_why_it_may_not_have_the_queue_of_a_session(
    destination: str, is_there: bool, client_id: str, reason: str
) -> None:
    @on_rig()
    async def run(rig: MqttRig) -> None:
        client = await rig.connected("c", clean_start=False, properties=NEVER)
        await client.subscribe("a/b")
        if not is_there:
            client.send(Disconnect())
            await rig.flush()
        stomp = rig.peer()
        await stomp.login(client_id=client_id)
        stomp.send(f"SUBSCRIBE\nid:1\ndestination:{destination}\nreceipt:r\n\n\0".encode())
        await rig.flush()
        (error,) = stomp.frames()
        assert (error.command, error.get("receipt-id")) == ("ERROR", "r")
        assert error.get("message", "").startswith(reason)

    run()
