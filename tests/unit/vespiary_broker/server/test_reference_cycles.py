"""What clients begin and end is freed at once, by reference counting alone.

Objects that refer to one another in a circle wait for a garbage collection, which holds up
everybody for half a microsecond for each of them. So what a client can make in any number may leave
none: subscriptions with their queues, links, sessions, connections.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pytest

from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_codec.wire.amqp import Coordinator, Declare, Disposition, End, Source, Target
from vespiary_codec.wire.amqp.composites import write
from vespiary_codec.wire.amqp.values import Symbol
from vespiary_codec.wire.mqtt import (
    Property,
    Puback,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    encode,
)
from vespiary_spec.settings import AddressSettings, Protocol, RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import RECEIVER, SENDER, AmqpPeer, message
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk
from vespiary_testkit.large_rig import BODY, FOLDER, LIMITS, LargeRig, rigged, send
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import MqttClientPeer, MqttRig
from vespiary_testkit.server_rig import Peer, ServerRig
from vespiary_testkit.websocket_rig import Client as WebSocketClient

COUNT = 200
FEW = 10
SETTINGS = {"view": AddressSettings(default_non_destructive=True)}

AnyPeer: TypeAlias = Peer | MqttClientPeer | AmqpPeer | WebSocketClient
Scenario: TypeAlias = Callable[[MqttRig, int, bool], Awaitable[AnyPeer]]


@contextmanager
def without_collector() -> Iterator[Callable[[], Counter[str]]]:
    """Have nothing be collected; yield what tells the broker's objects that await a collection."""

    def left() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
        finally:
            gc.set_debug(0)
        kinds = map(type, gc.garbage)
        found = Counter(each.__name__ for each in kinds if each.__module__.startswith("vespiary_b"))
        gc.garbage.clear()
        return found

    gc.collect()
    gc.disable()
    try:
        yield left
    finally:
        gc.enable()
        gc.collect()


async def lose(rig: ServerRig, client: AnyPeer) -> None:
    """Have a connection break, and its transport let go of it, as a real one does."""
    connection = client.peer.connection if isinstance(client, AmqpPeer) else client.connection
    client.transport.is_closed = True
    connection.connection_lost(None)
    client.transport.protocol = None
    for _ in range(2000):  # the queues of many subscriptions go in so many turns
        await rig.flush()
        if not rig.tasks and not rig.registry_queues():
            break


def mqtt(topic_filter: str) -> Scenario:
    async def run(rig: MqttRig, count: int, is_ended: bool) -> AnyPeer:
        client = await rig.connected()
        for number in range(count):
            client.send(Subscribe(7, (Subscription(topic_filter.format(number), 1),)))
            await rig.flush()
        await check_begun(rig, count)
        filters = [topic_filter.format(number) for number in range(count)]
        if is_ended:
            client.send(Unsubscribe(8, tuple(filters)))
        else:
            client.send(*(Publish(name.replace("+", "x"), b"unacknowledged") for name in filters))
        await rig.flush()
        return client

    return run


def stomp(destination: str, headers: str = "", end: str = "") -> Scenario:
    async def run(rig: MqttRig, count: int, is_ended: bool) -> AnyPeer:
        client = rig.peer()
        await client.login(client_id="c")
        await stomp_frames(rig, client.send, count, is_ended, destination, headers, end)
        assert {frame.command for frame in client.frames()} <= {"MESSAGE"}, client.transport.data
        return client

    return run


def websocket(destination: str) -> Scenario:
    async def run(rig: MqttRig, count: int, is_ended: bool) -> AnyPeer:
        client = await WebSocketClient(rig, "v12.stomp").open()
        await stomp_frames(rig, client.message, count, is_ended, destination, "", "")
        return client

    return run


async def stomp_frames(
    rig: MqttRig,
    send: Callable[[bytes], object],
    count: int,
    is_ended: bool,
    destination: str,
    headers: str,
    end: str,
) -> None:
    for number in range(count):
        name, more = destination.format(number), headers.format(number)
        send(f"SUBSCRIBE\nid:{number}\ndestination:{name}\nack:client\n{more}\n\0".encode())
        await rig.flush()
    await check_begun(rig, count)
    for number in range(count):
        name = destination.format(number)
        if is_ended:
            send(f"UNSUBSCRIBE\nid:{number}\n{end.format(number)}\n\0".encode())
            await rig.flush()
        else:
            send(f"SEND\ndestination:{name.replace('*', 'x')}\na:1\n\nkept\0".encode())
    if not is_ended:
        send(b"BEGIN\ntransaction:t\n\n\0SEND\ntransaction:t\ndestination:/queue/t\n\nnever\0")
    await rig.flush()


def amqp(address: str, selector: str = "", *, is_browser: bool = False) -> Scenario:
    async def run(rig: MqttRig, count: int, is_ended: bool) -> AnyPeer:
        client = AmqpPeer(rig)
        await client.open()
        await client.begin()
        filters = {Symbol("apache.org:selector-filter:string"): selector} if selector else None
        mode = Symbol("copy") if is_browser else None
        for number in range(count):
            source = Source(address=address.format(number), filter=filters, distribution_mode=mode)
            await client.receiver(None, number, credit=1, source=source)
        await check_begun(rig, count)
        for number in range(count):
            if is_ended:
                await client.detach(number)
        return client

    return run


async def amqp_senders(rig: MqttRig, count: int, is_ended: bool) -> AnyPeer:
    client = AmqpPeer(rig)
    await client.open()
    await client.begin()
    for number in range(count):
        await client.sender("topic://t", number)
        client.send(message(), number)
    await rig.flush()
    for number in range(count if is_ended else 0):
        await client.detach(number)
    return client


async def amqp_coordinators(rig: MqttRig, count: int, is_ended: bool) -> AnyPeer:
    client = AmqpPeer(rig)
    await client.open()
    await client.begin()
    for number in range(count):
        await client.attach(SENDER, number, target=Coordinator(), source=Source())
        client.send(b"\0\x53\x77" + write(Declare()), number)
        await rig.flush()
    assert len(client.all(Disposition)) == count
    for number in range(count if is_ended else 0):
        await client.detach(number)
    return client


async def amqp_temporary_queues(rig: MqttRig, count: int, is_ended: bool) -> AnyPeer:
    client = AmqpPeer(rig)
    await client.open()
    await client.begin()
    source = Source(dynamic=True, capabilities=(Symbol("temporary-queue"),))
    for number in range(count):
        await client.receiver(None, number, source=source)
    await check_begun(rig, count)
    for number in range(count if is_ended else 0):
        await client.detach(number)
    return client


async def amqp_sessions(rig: MqttRig, count: int, is_ended: bool) -> AnyPeer:
    client = AmqpPeer(rig)
    await client.open()
    for number in range(count):
        await client.begin(number)
        source = Source(address=f"topic://t.{number}")
        name = f"link-{number}"
        await client.attach(RECEIVER, 1, number, name=name, source=source, target=Target())
    await check_begun(rig, count)
    for number in range(count if is_ended else 0):
        client.frame(End(), channel=number)
        await rig.flush()
    return client


async def check_begun(rig: MqttRig, count: int) -> None:
    """Wait until clients have so many subscriptions."""

    def begun() -> int:
        handlers = [each.handler for each in rig.cycle.connections.values()]
        return sum(each.subscriptions_count for each in handlers if each is not None)

    for _ in range(2000):  # what is made for the first selector takes a thread's time
        if begun() == count:
            break
        await rig.flush()
        await asyncio.sleep(0.005)
    assert begun() == count


SCENARIOS = {
    "mqtt": mqtt("a/{}"),
    "mqtt-wildcard": mqtt("a/{}/+"),
    "mqtt-shared": mqtt("$share/g/a{}"),
    "stomp": stomp("/topic/s.{}"),
    "stomp-wildcard": stomp("/topic/s.{}.*"),
    "stomp-selector": stomp("/topic/s.{}", "selector:a = {}\n"),
    "stomp-no-local": stomp("/topic/s.{}", "no-local:true\n"),
    "stomp-durable": stomp(
        "/topic/s.{}", "durable-subscription-name:d{}\n", "durable-subscription-name:d{}\n"
    ),
    "stomp-queue": stomp("/queue/s.{}"),
    "stomp-queue-selector": stomp("/queue/s.{}", "selector:a = {}\n"),
    "stomp-view": stomp("/queue/view"),
    "stomp-one-topic": stomp("/topic/s"),
    "websocket": websocket("/topic/s.{}"),
    "amqp": amqp("topic://s.{}"),
    "amqp-wildcard": amqp("topic://s.{}.*"),
    "amqp-selector": amqp("topic://s.{}", "a = 1"),
    "amqp-queue": amqp("queue://s.{}"),
    "amqp-queue-selector": amqp("queue://s.{}", "a = 1"),
    "amqp-browser": amqp("queue://kept", is_browser=True),
    "amqp-senders": amqp_senders,
    "amqp-coordinators": amqp_coordinators,
    "amqp-temporary-queues": amqp_temporary_queues,
    "amqp-sessions": amqp_sessions,
}


def run_on_rig(test: Callable[[MqttRig], Awaitable[None]]) -> None:
    async def scenario() -> None:
        protocols = (Protocol.STOMP, Protocol.MQTT, Protocol.AMQP)
        rig = MqttRig(protocols=protocols, settings=SETTINGS)
        await test(rig)
        await rig.close()

    product_loop.run(scenario())


@pytest.mark.parametrize("name", SCENARIOS)
def test_ended_subscriptions_and_links(name: str) -> None:
    """The client ends each of them, and stays."""

    async def scenario(rig: MqttRig) -> None:
        await rig.engine.registry.create_queue("kept", "kept", RoutingType.ANYCAST)
        await lose(rig, await SCENARIOS[name](rig, 1, True))  # what is made once
        with without_collector() as left:
            client = await SCENARIOS[name](rig, COUNT, True)
            await check_begun(rig, 0)
            assert left() == {}
        await lose(rig, client)

    run_on_rig(scenario)


@pytest.mark.parametrize("name", SCENARIOS)
def test_closed_connections(name: str) -> None:
    """Connections break that have them."""

    async def scenario(rig: MqttRig) -> None:
        await rig.engine.registry.create_queue("kept", "kept", RoutingType.ANYCAST)
        await lose(rig, await SCENARIOS[name](rig, 1, False))
        with without_collector() as left:
            for _ in range(FEW):
                client: AnyPeer | None = await SCENARIOS[name](rig, FEW, False)
                assert client is not None
                await lose(rig, client)
                client = None
            await check_begun(rig, 0)
            assert left() == {}

    run_on_rig(scenario)


def test_mqtt_sessions_that_begin_anew() -> None:
    """A session outlives its connection, and ends with the next one."""

    async def scenario(rig: MqttRig) -> None:
        await go_on(rig)
        with without_collector() as left:
            for _ in range(FEW):
                await go_on(rig)
            assert left() == {}

    async def go_on(rig: MqttRig) -> None:
        never = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
        client = await rig.connected(properties=never, clean_start=True)
        await client.subscribe("a/b", 2)
        client.send(Publish("a/b", b"in flight", qos=1, packet_id=1))
        await rig.flush()
        await lose(rig, client)

    run_on_rig(scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"CON",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT\naccept-version:1.2\nhost:x\nlogin:a\npasscode:b\n\n\0",
        b"CONNECT\naccept-version:9\nhost:x\n\n\0",
        b"\x10\x0f\x00\x04MQTT\x05\xc2\x00\x00\x00\x00\x00\x00\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x00\x01\x00\x00\x00\x00\x00\x08\x02\x00\x00\x00",
    ],
)
def test_connections_that_never_log_in(data: bytes) -> None:
    async def scenario(rig: MqttRig) -> None:
        await go_on(rig)
        with without_collector() as left:
            for _ in range(FEW):
                await go_on(rig)
            assert left() == {}

    async def go_on(rig: ServerRig) -> None:
        client = rig.peer()
        client.send(data)
        for _ in range(10):
            await rig.flush()
        assert isinstance(rig, MqttRig)
        await lose(rig, client)

    run_on_rig(scenario)


def test_large_payloads_of_mqtt() -> None:
    """One that is stored, and one whose client goes in the middle of it."""

    async def scenario() -> None:
        options = LargeMessageOptions(directory=FOLDER, retry_s=0.001)
        large = LargeMessages(options, MemoryDisk(capacity_bytes=1 << 40), InlineExecutor())
        journal = MemoryJournal(is_automatic=True, files=4)
        rig = MqttRig(journal=journal, large=large, large_limits=LIMITS)
        await go_on(rig)
        with without_collector() as left:
            for _ in range(FEW):
                await go_on(rig)
            assert left() == {}
        await rig.close()
        await large.close()

    async def go_on(rig: MqttRig) -> None:
        client = await rig.connected()
        await client.subscribe("a", 1)
        data = encode(Publish("a", BODY, qos=1, packet_id=1), client.version)
        client.send_bytes(data)
        for _ in range(20):
            await rig.flush()
        kinds = {type(packet) for packet in client.packets()}
        assert kinds == {Publish, Puback}
        client.send_bytes(data[: len(data) // 2])
        await rig.flush()
        await lose(rig, client)

    product_loop.run(scenario())


@rigged
async def test_large_messages_whose_clients_go(rig: LargeRig) -> None:
    """One goes in the middle of a body, one while it is sent a body, and one when it has it."""

    async def go_on() -> None:
        sender, reader = rig.peer(), rig.peer()
        for peer in (sender, reader):
            await peer.login()
        sender.send(send("q", 1) + send("q", 2)[: len(BODY) // 2])
        await rig.flush()
        reader.transport.is_stuck = True
        reader.send(b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:auto\n\n\0")
        await rig.flush()
        assert reader.transport.data
        for peer in (sender, reader):
            await lose(rig, peer)

    rig.disk.capacity_bytes = 1 << 40
    await go_on()
    with without_collector() as left:
        for _ in range(FEW):
            await go_on()
        assert left() == {}
