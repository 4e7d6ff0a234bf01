"""Messages that come faster than their address or their user may send wait, by every protocol."""

from __future__ import annotations

import asyncio

import pytest

from vespiary_broker.engine.naming import EVERYBODY, NamingRules, UserLimit
from vespiary_broker.server import pace
from vespiary_codec.wire.mqtt import Publish
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.amqp_peer import AmqpPeer, amqp_acceptor, message
from vespiary_testkit.journal_workload import run_in_virtual_time
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.server_rig import ServerRig

RATE, COUNT = 16, 24
STEP_S = 1 / 64
"""Rates and steps are powers of two, so that waits are exact: the virtual clock stands still for a
wait too short to change it, such as one for the remainder of a division."""
LIMITED = {"q": AddressSettings(producer_message_rate=RATE)}


def send(number: int, to: str = "q", **headers: str) -> bytes:
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return f"SEND\ndestination:/queue/{to}\nreceipt:{number}\n{lines}\nx\0".encode()


def added(rig: ServerRig, queue: str = "q") -> int:
    found = rig.engine.registry.queues.get(queue)
    return 0 if found is None else rig.core.queue_statistics(found.id).added


async def all_come(rig: ServerRig, count: int, queue: str = "q") -> None:
    for _ in range(1000):
        if added(rig, queue) == count:
            return
        await asyncio.sleep(STEP_S)
    raise AssertionError(f"{added(rig, queue)} of {count} came")


def rigged(**options: object) -> ServerRig:
    return ServerRig(journal=MemoryJournal(is_automatic=True), **options)  # type: ignore[arg-type]


@run_in_virtual_time
async def test_stomp() -> None:
    rig = rigged(settings=LIMITED)
    peer, other = rig.peer(), rig.peer()
    await peer.login()
    await other.login()
    peer.send(b"".join(send(number) for number in range(COUNT)))
    await rig.flush()
    assert added(rig) == RATE, "what was read at once is not taken at once"
    assert not peer.transport.is_reading_now
    assert not peer.connection.is_listening, "heart-beats are not missed meanwhile"
    for number in range(COUNT):
        other.send(send(number, "elsewhere"))
    await all_come(rig, COUNT, "elsewhere")
    await all_come(rig, COUNT)
    await rig.flush()
    assert [frame.get("receipt-id") for frame in peer.frames()] == [str(n) for n in range(COUNT)]
    assert peer.transport.is_reading_now
    assert rig.engine.registry.limits.rates.throttled >= 1
    await rig.close()


@run_in_virtual_time
async def test_mqtt() -> None:
    rig = MqttRig(journal=MemoryJournal(is_automatic=True), settings=LIMITED)
    reader = await rig.connected("reader")
    await reader.subscribe("q", 1)
    queue = next(iter(rig.engine.registry.addresses["q"].queues))
    client = await rig.connected("sender")
    for number in range(COUNT):
        client.send(Publish("q", b"x", qos=1, packet_id=number + 1))
    await rig.flush()
    assert added(rig, queue) == RATE
    assert not client.transport.is_reading_now
    await all_come(rig, COUNT, queue)
    await rig.close()


@run_in_virtual_time
async def test_amqp() -> None:
    rig = rigged(settings=LIMITED, acceptor=amqp_acceptor())
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    await peer.sender("/queue/q")
    for _ in range(COUNT):
        peer.send(message(b"x"))
    await rig.flush()
    assert added(rig) == RATE
    await all_come(rig, COUNT)
    await rig.close()


@run_in_virtual_time
async def test_what_the_core_was_taught_is_asked_again_when_a_rate_comes_and_goes() -> None:
    rig = rigged()
    peer = rig.peer()
    await peer.login()

    async def burst(since: int) -> int:
        peer.send(b"".join(send(number) for number in range(COUNT)))
        await rig.flush()
        return added(rig) - since

    def change(settings: dict[str, AddressSettings]) -> None:
        rig.engine.registry.change_settings(settings)
        rig.cycle.permissions_changed()  # as a reload does

    assert await burst(0) == COUNT
    change(LIMITED)
    assert await burst(COUNT) == RATE
    await all_come(rig, 2 * COUNT)
    change({})
    assert await burst(2 * COUNT) == COUNT
    await rig.close()


@pytest.mark.parametrize("limited", ["anonymous", EVERYBODY])
def test_messages_of_a_user(limited: str) -> None:
    @run_in_virtual_time
    async def scenario() -> None:
        rig = rigged()
        rules = NamingRules(users={limited: UserLimit(messages_per_s=RATE)})
        rig.engine.registry.limits.change(rules)
        first, second = rig.peer(), rig.peer()
        await first.login()
        await second.login()
        for number in range(COUNT // 2):
            first.send(send(number, "a"))
            second.send(send(number, "b"))
        await rig.flush()
        assert added(rig, "a") + added(rig, "b") == RATE, "both connections together"
        await all_come(rig, COUNT // 2, "a")
        await all_come(rig, COUNT // 2, "b")
        await rig.close()

    scenario()


@run_in_virtual_time
async def test_a_transaction_waits_as_a_whole_and_is_counted_once() -> None:
    rig = rigged(settings=LIMITED)
    peer = rig.peer()
    await peer.login()
    for name in ("t", "u"):
        peer.send(f"BEGIN\ntransaction:{name}\n\n\0".encode())
        peer.send(b"".join(send(number, transaction=name) for number in range(RATE + 1)))
    peer.send(b"COMMIT\ntransaction:t\n\n\0")
    await rig.flush()
    assert added(rig) == RATE + 1, "what is more than may come at once is paid for afterwards"
    peer.send(b"COMMIT\ntransaction:u\n\n\0")
    await rig.flush()
    assert added(rig) == RATE + 1
    await all_come(rig, 2 * (RATE + 1))
    await rig.close()


@run_in_virtual_time
async def test_a_client_that_goes_while_it_waits_leaves_nothing_behind() -> None:
    rig = rigged(settings={"q": AddressSettings(producer_message_rate=0)})
    peer = rig.peer()
    await peer.login()
    peer.send(send(1))
    await rig.flush()
    assert added(rig) == 0
    peer.lose()
    await asyncio.sleep(pace.LOOK_S)
    await rig.settle()
    assert not rig.tasks
    assert added(rig) == 0
    await rig.close()


@run_in_virtual_time
async def test_bytes_count_by_address() -> None:
    rig = rigged(settings={"q": AddressSettings(producer_byte_rate=2048)})
    peer = rig.peer()
    await peer.login()
    body = "y" * 1024
    peer.send(b"".join(send(n).replace(b"\n\nx", f"\n\n{body}".encode()) for n in range(4)))
    await rig.flush()
    assert added(rig) == 2
    await all_come(rig, 4)
    await rig.close()
