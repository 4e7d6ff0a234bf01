"""Headers that only the broker writes: no client of any protocol gives them to a message."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.departures import origin_of
from vespiary_codec.wire.mqtt import Property, Publish, Will
from vespiary_codec.wire.stomp.properties import BROKER_HEADERS
from vespiary_spec.settings import RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import AmqpPeer, amqp_acceptor, message, with_rig
from vespiary_testkit.large_rig import BODY, LargeRig, receipts, rigged, send
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.server_rig import ServerRig

FORGED = {
    "_AMQ_ORIG_QUEUE": "secret",
    "_AMQ_ORIG_ADDRESS": "secret",
    "_AMQ_ORIG_ROUTING_TYPE": "ANYCAST",
    "_AMQ_ORIG_MESSAGE_ID": "1-1",
    "_AMQ_ORIG_DELIVERIES": "9",
    "_AMQ_ACTUAL_EXPIRY": "1",
    "_AMQ_REJECT_CONDITION": "why",
}
OWN = {"_AMQ_ORIGIN": "kept", "_amq_orig_queue": "kept"}
"""Names that look like those of the broker, and are the client's."""


def stored(rig: ServerRig, name: str, number: int = 0) -> list[str]:
    """Return the header lines of a message in a queue, none of which is the broker's."""
    queue = rig.engine.registry.queues[name]
    view = rig.core.look(queue.id, 0, 100).messages[number]
    assert origin_of(view) == ""
    lines = view.properties.partition(b"\0")[0].decode().splitlines()
    assert not [line for line in lines if line.startswith(BROKER_HEADERS)]
    return lines


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("name", sorted({**FORGED, **OWN}))
def test_stomp(version: str, name: str) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        peer = rig.peer()
        await peer.login(version)
        value = {**FORGED, **OWN}[name]
        plain, forged = (
            f"SEND\ndestination:/queue/q\n{line}a:1\n\nx\0".encode()
            for line in ("", f"{name}:{value}\n")
        )
        peer.send(plain)  # the core is taught by it
        await rig.flush()
        peer.send(forged + plain + forged)
        peer.send(b"BEGIN\ntransaction:t\n\n\0")
        peer.send(forged.replace(b"a:1\n", b"a:1\ntransaction:t\n"))
        peer.send(b"COMMIT\ntransaction:t\n\n\0")
        await rig.flush()
        expected = ["destination:/queue/q", *([f"{name}:{value}"] if name in OWN else []), "a:1"]
        for number in (1, 3, 4):
            assert stored(rig, "q", number) == expected
        for number in (0, 2):
            assert stored(rig, "q", number) == ["destination:/queue/q", "a:1"]
        assert rig.cycle.errors["broker-header"] == (0 if name in OWN else 3), "it is counted"
        assert not peer.transport.is_closed

    scenario()


def check_renamed(lines: list[str]) -> None:
    """Check that forged headers have other names, and those of the client their own."""
    for name, value in FORGED.items():
        assert f"user-property.{name}:{value}" in lines
    for name, value in OWN.items():
        assert f"{name}:{value}" in lines


@rigged
async def test_large_messages_of_stomp(rig: LargeRig) -> None:
    rig.disk.capacity_bytes = 1 << 40
    peer = rig.peer()
    await peer.login()
    extra = "".join(f"{name}:{value}\n" for name, value in {**FORGED, **OWN}.items())
    # With a length it goes to disk as it comes, without one at its end.
    for number, has_length in enumerate((True, False)):
        peer.send(send("q", number, has_length=has_length, extra=extra))
        await rig.flush()
        assert receipts(peer) == [str(number)]
        lines = stored(rig, "q", number)
        assert [line for line in lines if line.startswith("_")] == [
            f"{name}:{value}" for name, value in OWN.items()
        ]
    assert len(rig.bodies()) == 2
    assert rig.cycle.errors["broker-header"] == 2


@on_rig()
async def test_mqtt(rig: MqttRig) -> None:
    queue = await rig.engine.registry.create_queue("q", "topic", RoutingType.MULTICAST)
    pairs = {Property.USER_PROPERTY: list({**FORGED, **OWN}.items())}
    will = Will("topic", b"will", 1, properties=pairs)
    client = await rig.connected("sender", will=will)
    reader = await rig.connected("reader")
    await reader.subscribe("topic")
    client.send(Publish("topic", b"x", 1, packet_id=1))  # the core is taught by it
    await rig.flush()
    client.send(Publish("topic", b"x", 1, packet_id=2, retain=True, properties=pairs))
    await rig.flush()
    client.lose()
    await rig.flush()
    await rig.flush()
    for number in (1, 2):
        check_renamed(stored(rig, queue.name, number))
    found = [each for each in reader.packets() if isinstance(each, Publish)]
    assert [each.payload for each in found] == [b"x", b"x", b"will"]
    for each in found[1:]:  # its receiver sees what its sender wrote
        assert each.properties[Property.USER_PROPERTY] == pairs[Property.USER_PROPERTY]


@with_rig()
async def test_amqp(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    await peer.sender("/queue/q")
    for body in (b"1", b"2", b"3"):  # the core takes the later ones by itself
        peer.send(message(body, application={**FORGED, **OWN}))
        await rig.flush()
    for number in range(3):
        check_renamed(stored(rig, "q", number))


def test_large_messages_of_amqp() -> None:
    async def scenario() -> None:
        rig = LargeRig(acceptor=amqp_acceptor())
        rig.disk.capacity_bytes = 1 << 40
        peer = AmqpPeer(rig)
        await peer.open()
        await peer.begin()
        await peer.sender("/queue/q")
        peer.send(message(BODY, durable=True, application={**FORGED, **OWN}))
        await rig.flush()
        check_renamed(stored(rig, "q"))
        assert len(rig.bodies()) == 1
        await rig.close()

    product_loop.run(scenario())
