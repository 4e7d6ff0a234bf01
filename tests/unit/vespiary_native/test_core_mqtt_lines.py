"""What the core sends of messages of STOMP and AMQP is what Python sends of them, byte for byte."""

from __future__ import annotations

import random
from typing import Final

import pytest

from vespiary_broker.engine.wildcards import WildcardSyntax
from vespiary_broker.server.mqtt.messages import delivered
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_codec.stored_message import STORED_VERSION, StoredMessage, read_stored
from vespiary_codec.wire.mqtt import Publish, Version, encode
from vespiary_native.abc import AckMode, DeliverStatus
from vespiary_native.abc_mqtt import PACKET_ID_FIRST, MqttEncoding, MqttLimits
from vespiary_testkit.core_rig import CoreRig
from vespiary_testkit.mqtt_lines import OTHERS_LINES
from vespiary_testkit.seeds import seed_for

TOPICS: Final = TopicMapping(WildcardSyntax(), ("/queue/", "/topic/"))
STOMP: Final = 1
AMQP: Final = 3
NATIVE: Final = b"\0\1\x75\xa0\0native\nmqtt-retain:true\n"
START: Final = b"destination:/queue/a.b/c\npersistent:true\n"


class Pair:
    """Two queues that get the same: the core encodes what is in one, Python what is in the other.

    Args:
        rig: Has the core.
        version: Of MQTT.
        qos: Of the subscription.
        topic: Of the consumer; empty: each message has its own.
    """

    def __init__(self, rig: CoreRig, version: int, qos: int, topic: str = "") -> None:
        self.rig, self.version, self.qos, self.topic = rig, Version(version), qos, topic
        core = rig.core
        core.open_queue(2)
        self.route = core.open_route([1, 2])
        handle = core.open_connection()
        core.set_ready_mqtt(handle, version, MqttLimits(6000, 5000, 100))
        core.set_window(handle, 1000)
        self.fast, self.slow = (
            core.open_consumer(handle, queue, AckMode.INDIVIDUAL, 1000, b"", STORED_VERSION)
            for queue in (1, 2)
        )
        encoding = MqttEncoding(qos, 10**6, topic.encode(), 0, TOPICS.prefixes)
        core.encode_mqtt(self.fast, encoding)
        self._next_id = PACKET_ID_FIRST

    def send(self, properties: bytes, protocol: int, body: bytes = b"body") -> None:
        """Put a message into both."""
        is_escaped = b"\\" in properties.partition(b"\0")[0]
        self.rig.core.publish(
            self.route, properties, body, persistent=True, protocol=protocol, escaped=is_escaped
        )
        self.rig.flush()

    def received(self) -> tuple[bytes | None, bytes]:
        """Return what the core sends, None: it leaves that to Python; and what Python sends."""
        core = self.rig.core
        status, _, fast = core.deliver(self.fast, 1, 10**6)
        if status is DeliverStatus.STORED:
            _, _, left = core.deliver_stored(self.fast, 1, 10**6)
        (message,) = read_stored(core.deliver(self.slow, 1, 10**6)[2])
        if status is DeliverStatus.STORED:
            assert [each.body for each in read_stored(left)] == [message.body]
            return None, b""
        return fast, self._encoded(message)

    def _encoded(self, message: StoredMessage) -> bytes:
        said = delivered(message, TOPICS)
        topic = self.topic or TOPICS.topic_of_destination(said.address)
        qos = min(self.qos, said.qos)
        properties = said.properties if self.version is Version.V5 else {}
        packet = Publish(topic, message.body, qos, retain=said.retain, properties=properties)
        if qos:
            packet.packet_id, self._next_id = self._next_id, self._next_id + 1
        return encode(packet, self.version)


PLAIN: Final = {
    "nothing else": b"",
    "a type": b"content-type:text/plain\ncontent-type:other\n",
    "ids": b"correlation-id:ID\\c7\ncorrelation-id:8\n",
    "a format": b"mqtt-payload-format:1\n",
    "a format that is none": b"mqtt-payload-format:2\n",
    "own properties": b"a:1\na:2\nuser-property.ack:x\nuser-property.:y\n",
    "escapes": b"a\\nb\\\\:\\c\\r\n",
    "what is not handed on": b"receipt:1\nmessage-id:2\npriority:9\n_AMQ_DUPL_ID:3\nmqtt-qos:2\n",
    "strange lines": b"no value\n\n:\n:x\n",
    "letters": "ü:ö\n".encode(),
}


@pytest.mark.parametrize("protocol", [STOMP, AMQP])
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("what", PLAIN)
def test_the_core_sends_it(rig: CoreRig, version: int, protocol: int, what: str) -> None:
    pair = Pair(rig, version, 1)
    for body in (b"", bytes(300)):
        pair.send(START + PLAIN[what] + (NATIVE if protocol == AMQP else b""), protocol, body)
        fast, slow = pair.received()
        assert fast == slow
        assert fast


LEFT: Final = {
    "retained": (b"mqtt-retain:true\n", (3, 4, 5)),
    "a copy of a retained one": (b"mqtt-retained:true\n", (3, 4, 5)),
    "with an expiry": (b"expires:12\n", (5,)),
    "with an answer's address": (b"reply-to:/queue/x\n", (5,)),
    "with binary correlation": (b"mqtt-correlation-data:AAE=\n", (5,)),
    "with an unknown escape": (b"a:\\t\n", (5,)),
    "with half an escape": (b"a:\\\n", (5,)),
    "no text": (b"a:\xff\n", (5,)),
}


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("what", LEFT)
def test_what_python_says_is_left_to_it(rig: CoreRig, version: int, what: str) -> None:
    lines, versions = LEFT[what]
    pair = Pair(rig, version, 1)
    pair.send(START + lines, STOMP)
    fast, slow = pair.received()
    assert (fast is None) is (version in versions)
    assert fast == slow or fast is None


def test_a_subscription_of_qos_2_is_left_to_python_where_it_counts(rig: CoreRig) -> None:
    pair = Pair(rig, 4, 2)
    pair.send(START, STOMP)
    assert pair.received() == (None, b"")
    pair.send(b"destination:/queue/a.b/c\n", STOMP)
    fast, slow = pair.received()
    assert fast == slow


@pytest.mark.parametrize(
    "destination",
    [
        *(b"/topic/a", b"a", b"/queue//topic/a", b"/queue/", b"", b"/topic/$own.x", b"$own.x"),
        *(b"/queue/a::b", b"/queue/a%20b", b"/queue/a+b", b"/queue/\xc3\xa9", b"/other/a"),
        *(b"/queue/\xff", b"/queue/a\\cb", b"/queue/v1/2.a"),
    ],
)
def test_topics(rig: CoreRig, destination: bytes) -> None:
    pair = Pair(rig, 4, 1)
    pair.send(b"destination:" + destination + b"\n", STOMP)
    fast, slow = pair.received()
    assert fast is None or fast == slow
    plain = (
        b"/topic/a",
        b"a",
        b"/queue//topic/a",
        b"/queue/\xc3\xa9",
        b"/other/a",
        b"/queue/v1/2.a",
    )
    assert (fast is not None) is (destination in plain)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("qos", "topic"), [(0, ""), (1, ""), (1, "fixed"), (2, "")])
def test_whatever_the_lines_are(rig: CoreRig, version: int, qos: int, topic: str) -> None:
    pick = random.Random(seed_for(f"mqtt lines {version} {qos} {topic}"))
    pair = Pair(rig, version, qos, topic)
    left = 0
    for number in range(200):
        if not number % 40:
            rig.add_file()
        lines = pick.sample(OTHERS_LINES, pick.choice([0, 1, 2, 4]))
        properties = pick.choice(OTHERS_LINES[:2]) + b"".join(lines)
        pair.send(properties + pick.choice([b"", NATIVE]), pick.choice([STOMP, AMQP]))
        fast, slow = pair.received()
        left += fast is None
        assert fast is None or fast == slow, properties
    assert 0 < left < 150
