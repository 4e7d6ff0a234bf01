"""What the core's scanner of MQTT takes, what it leaves to Python, and what it calls odd."""

from __future__ import annotations

import pytest

from vespiary_codec.journal.record import AddRecord
from vespiary_native.abc import NoRoom, ScanStatus
from vespiary_native.abc_accounts import AccountLimits
from vespiary_native.abc_mqtt import ADDRESS_LINE_BYTES_MAX, MqttLimits
from vespiary_testkit.core_rig import CoreRig
from vespiary_testkit.mqtt_stream import packet, publish

LINE = b"destination:a\n"
LIMITS = MqttLimits(packet_bytes=6000, body_bytes=5000, receive_maximum=3)


class Client:
    """A connection of MQTT that was taught the topic `a`."""

    def __init__(self, rig: CoreRig, version: int = 4, limits: MqttLimits = LIMITS) -> None:
        self.rig, self.version = rig, version
        self.handle = rig.core.open_connection()
        rig.core.set_ready_mqtt(self.handle, version, limits)
        rig.core.teach_mqtt(self.handle, b"a", LINE, rig.route)

    def scan(self, data: bytes) -> tuple[ScanStatus, int, int]:
        self.rig.memory[: len(data)] = data
        status, *rest = self.rig.core.scan_mqtt(self.handle, self.rig.buffer, 0, len(data))
        return (ScanStatus(status), *rest)

    def publish(
        self,
        payload: bytes = b"x",
        *,
        topic: bytes = b"a",
        flags: int = 2,
        packet_id: int = 1,
        properties: bytes = b"\0",
    ) -> bytes:
        properties = properties if self.version == 5 else b""
        return publish(topic, payload, flags=flags, packet_id=packet_id, properties=properties)

    def answers(self) -> bytes:
        found = dict(self.rig.core.take_receipts())
        return found.get(self.handle, b"")


@pytest.mark.parametrize("version", [3, 4, 5])
def test_plain_messages_are_stored_as_python_stores_them(rig: CoreRig, version: int) -> None:
    client = Client(rig, version)
    data = client.publish(b"one") + client.publish(b"", flags=10) + client.publish(b"two", flags=0)
    assert client.scan(data) == (ScanStatus.NEED_DATA, len(data), 0)
    rig.flush()
    first, second = rig.records()
    assert isinstance(first, AddRecord)
    assert isinstance(second, AddRecord)
    assert first.properties == LINE + b"persistent:true\n"
    assert (first.body, first.priority, first.protocol) == (b"one", 4, 2)
    assert (second.body, second.places, second.has_escapes) == (b"", ((1, 2),), False)
    (volatile,) = rig.core.look(1, 3, 1).messages
    assert (volatile.properties, volatile.is_journalled) == (LINE, False)
    assert (volatile.protocol, volatile.priority) == (2, 4)


def test_escapes_of_an_address_are_known_as_such(rig: CoreRig) -> None:
    client = Client(rig)
    rig.core.teach_mqtt(client.handle, b"b:c", b"destination:b\\cc\n", rig.route)
    client.scan(client.publish(topic=b"b:c"))
    rig.flush()
    (record,) = rig.records()
    assert isinstance(record, AddRecord)
    assert record.has_escapes


def test_pubacks_leave_behind_the_flush_in_order(rig: CoreRig) -> None:
    client = Client(rig)
    client.scan(client.publish(packet_id=7) + client.publish(packet_id=0x0908))
    assert client.answers() == b""
    rig.core.receipt(client.handle, b"[confirm]")
    request = rig.write()
    assert request is not None
    assert client.answers() == b""
    client.scan(client.publish(packet_id=3))
    rig.core.write_done(request.sequence)
    assert client.answers() == b"\x40\x02\0\7\x40\x02\x09\x08[confirm]"
    rig.flush()
    assert client.answers() == b"\x40\x02\0\3"


def test_a_puback_of_what_is_not_journalled_waits_for_those_before_it(rig: CoreRig) -> None:
    client = Client(rig)
    rig.core.open_queue(2, durable=False)
    rig.core.teach_mqtt(client.handle, b"v", LINE, rig.core.open_route([2]))
    client.scan(client.publish(topic=b"v", packet_id=1))
    assert client.answers() == b"\x40\x02\0\1"
    client.scan(client.publish(packet_id=2) + client.publish(topic=b"v", packet_id=3))
    assert client.answers() == b""
    rig.flush()
    assert client.answers() == b"\x40\x02\0\2\x40\x02\0\3"


LEFT = {
    "QoS 2": {"flags": 4},
    "QoS 3": {"flags": 6},
    "retained": {"flags": 3},
    "dup of QoS 0": {"flags": 8},
    "no packet id": {"packet_id": 0},
    "unknown topic": {"topic": b"b"},
    "no topic": {"topic": b""},
    "NUL in the topic": {"topic": b"a\0"},
    "a payload beyond the limit": {"payload": bytes(5001)},
}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("what", LEFT)
def test_unusual_messages_are_left_whole(rig: CoreRig, what: str, version: int) -> None:
    client = Client(rig, version)
    plain, unusual = client.publish(), client.publish(**LEFT[what])  # type: ignore[arg-type]
    data = plain + unusual + plain
    assert client.scan(data) == (ScanStatus.FRAME, len(plain), len(unusual))
    assert rig.core.queue_statistics(1).tail == 2


@pytest.mark.parametrize("properties", [b"\2\1\1", b"\x80\0", b"\3\x23\0\1"])
def test_properties_are_left_to_python(rig: CoreRig, properties: bytes) -> None:
    client = Client(rig, 5)
    data = client.publish(properties=properties)
    assert client.scan(data) == (ScanStatus.FRAME, 0, len(data))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("length", range(6))
def test_what_ends_too_early_is_left_to_python(rig: CoreRig, version: int, length: int) -> None:
    client = Client(rig, version)
    whole = client.publish(b"")
    end = len(whole) - 2 if version == 4 else len(whole) - 3
    rest = whole[2 : 2 + min(length, end)]
    cut = packet(whole[0], rest)
    if len(rest) < len(whole) - 2:
        assert client.scan(cut + whole) == (ScanStatus.FRAME, 0, len(cut))


def test_a_length_may_have_more_bytes_than_it_needs(rig: CoreRig) -> None:
    client = Client(rig)
    whole = client.publish()
    for padded in (1, 2, 3):
        data = packet(whole[0], whole[2:], padded=padded)
        assert client.scan(data) == (ScanStatus.NEED_DATA, len(data), 0)
        for cut in range(1, len(data)):
            status, position, detail = client.scan(data[:cut])
            assert (status, position) == (ScanStatus.NEED_DATA, 0)
            assert detail == (0 if cut <= padded + 1 else len(data))
    data = packet(whole[0], whole[2:], padded=4)
    assert client.scan(data)[0] == ScanStatus.ODD
    assert client.scan(data[:5])[0] == ScanStatus.ODD


def test_odd_is_what_no_packet_of_a_client_begins_with(rig: CoreRig) -> None:
    flags = {4: 0, 5: 0, 6: 2, 7: 0, 8: 2, 10: 2, 12: 0, 14: 0}
    for version in (3, 4, 5):
        client = Client(rig, version)
        for first in range(256):
            kind, low = first >> 4, first & 15
            good = kind == 3 or flags.get(kind) == low
            good |= version == 3 and kind in (6, 8, 10) and low == 10
            good |= version == 5 and first == 0xF0
            status = client.scan(bytes([first]))[0]
            assert status == (ScanStatus.NEED_DATA if good else ScanStatus.ODD), (version, first)


def test_a_packet_beyond_the_limit_is_odd_as_soon_as_its_length_is_known(rig: CoreRig) -> None:
    client = Client(rig)
    assert client.scan(b"\x30" + b"\xed\x2e") == (ScanStatus.NEED_DATA, 0, 6000)
    assert client.scan(b"\x30" + b"\xee\x2e") == (ScanStatus.ODD, 0, 0)


def test_nobody_there_is_for_python_to_say_in_mqtt_5(rig: CoreRig) -> None:
    nowhere = rig.core.open_route([])
    for version, status in ((4, ScanStatus.NEED_DATA), (5, ScanStatus.FRAME)):
        client = Client(rig, version)
        rig.core.teach_mqtt(client.handle, b"a", LINE, nowhere)
        assert client.scan(client.publish())[0] == status
        assert client.scan(client.publish(flags=0))[0] == ScanStatus.NEED_DATA


def test_who_does_not_keep_to_receive_maximum_is_left_to_python(rig: CoreRig) -> None:
    client = Client(rig, 5)
    one = client.publish()
    assert client.scan(one * 5) == (ScanStatus.FRAME, 3 * len(one), len(one))
    rig.core.receipt(client.handle, b"\x32\x80\1" + bytes(128) + b"\x50\2\0\7\x62\2\0\7")
    assert rig.core.unanswered(client.handle) == 4
    assert client.scan(client.publish(flags=0))[0] == ScanStatus.NEED_DATA
    rig.flush()
    assert client.answers().startswith(b"\x40\x02\0\1" * 3 + b"\x32")
    assert rig.core.unanswered(client.handle) == 0
    rig.core.receipt(client.handle, bytes([0x30, 100]) + bytes(100))
    assert client.scan(one)[0] == ScanStatus.NEED_DATA
    other = Client(rig, 4)
    assert other.scan(other.publish() * 20)[0] == ScanStatus.NEED_DATA


def test_a_route_that_went_is_asked_for_again(rig: CoreRig) -> None:
    client = Client(rig)
    rig.core.close_route(rig.route)
    assert client.scan(client.publish())[0] == ScanStatus.FRAME
    assert rig.core.open_route([1]) == rig.route
    assert client.scan(client.publish())[0] == ScanStatus.FRAME


def test_a_full_account_is_left_to_python(rig: CoreRig) -> None:
    client = Client(rig)
    account = rig.core.open_account()
    rig.core.join_account(1, account)
    rig.core.limit_account(account, AccountLimits(None, None, 1, 0, is_holding=True))
    data = client.publish() * 2
    assert client.scan(data) == (ScanStatus.FRAME, len(data) // 2, len(data) // 2)


def test_without_room_nothing_is_taken(rig: CoreRig) -> None:
    client = Client(rig)
    data = client.publish(bytes(4000)) * 10
    rig.core.hold_adds(held=True)
    assert client.scan(data) == (ScanStatus.BLOCKED, 0, len(data) // 10)
    with pytest.raises(NoRoom):
        rig.publish()
    rig.core.hold_adds(held=False)
    assert client.scan(data) == (ScanStatus.NEED_DATA, len(data), 0)


def test_what_waits_for_its_route_counts_for_receive_maximum(rig: CoreRig) -> None:
    """Or it would depend on how the stream is cut whether the client keeps to it."""
    client = Client(rig, 5)
    rig.core.teach_mqtt(client.handle, b"s", b"destination:s\n", rig.core.open_switch())
    each = client.publish(topic=b"s")
    plain = client.publish(topic=b"s", flags=0)
    assert client.scan(plain + each * 4)[0] == ScanStatus.SWITCHED
    assert len(rig.core.switched()) == 4
    assert rig.core.send_switched([rig.route] * 4) == (
        ScanStatus.NEED_DATA,
        len(plain + each * 3),
        0,
    )
    assert client.scan(each) == (ScanStatus.FRAME, 0, len(each))


def test_messages_to_a_switch_wait_for_their_routes(rig: CoreRig) -> None:
    client = Client(rig, 5)
    switch = rig.core.open_switch()
    rig.core.teach_mqtt(client.handle, b"s", b"destination:\\c\n", switch)
    kept = client.publish(b"1", topic=b"s", packet_id=8) + client.publish(b"2", topic=b"s", flags=0)
    data = client.publish() + kept + client.publish()
    assert client.scan(data) == (ScanStatus.SWITCHED, len(client.publish()), switch)
    first, second = rig.core.switched()
    assert (first.properties, first.is_journalled) == (b"destination:\\c\npersistent:true\n", True)
    assert (first.protocol, first.body_length, first.is_escaped) == (2, 1, True)
    assert (second.properties, second.is_journalled) == (b"destination:\\c\n", False)
    nowhere = rig.core.open_route([])
    end = len(client.publish()) + len(kept)
    status, position, _ = rig.core.send_switched([rig.route, nowhere])
    assert (status, position) == (ScanStatus.NEED_DATA, end)
    rig.flush()
    assert client.answers() == b"\x40\x02\0\1\x40\x02\0\x08"
    client.scan(kept)
    assert rig.core.send_switched([nowhere, rig.route])[0] == ScanStatus.FRAME  # nobody gets it
    client.scan(kept)
    rig.core.teach_mqtt(client.handle, b"s", b"destination:other\n", switch)
    assert rig.core.switched() == []


def test_what_makes_no_sense_is_refused(rig: CoreRig) -> None:
    core, stomp = rig.core, rig.connection
    with pytest.raises(ValueError):
        core.scan_mqtt(stomp, rig.buffer, 0, 1)
    for version, limits in ((2, LIMITS), (6, LIMITS), (4, MqttLimits(100, 100, 0))):
        with pytest.raises(ValueError):
            core.set_ready_mqtt(stomp, version, limits)
    client = Client(rig)
    for start, end in ((2, 1), (0, len(rig.memory) + 1)):
        with pytest.raises(ValueError):
            core.scan_mqtt(client.handle, rig.buffer, start, end)
    for topic, line in ((b"", LINE), (b"a\0", LINE), (b"a", b""), (bytes([65]) * 65_536, LINE)):
        with pytest.raises(ValueError):
            core.teach_mqtt(client.handle, topic, line, rig.route)
    core.teach_mqtt(client.handle, b"l", b"l" * ADDRESS_LINE_BYTES_MAX, rig.route)
    with pytest.raises(ValueError):
        core.teach_mqtt(client.handle, b"l", b"l" * (ADDRESS_LINE_BYTES_MAX + 1), rig.route)
    with pytest.raises(ValueError):
        core.teach_mqtt(client.handle, b"a", LINE, 77)
