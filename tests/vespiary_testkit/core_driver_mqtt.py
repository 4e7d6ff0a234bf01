"""Random calls of MQTT clients to both cores: what they send, in pieces, and what they are sent.

Owns the connections of MQTT: a mix-in of `core_driver.Driver`.
"""

from __future__ import annotations

import random
from contextlib import suppress

from vespiary_codec.stored_message import STORED_VERSION, read_stored
from vespiary_codec.wire.mqtt import NEED_DATA, MqttDecoder, Publish, Version
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom, ScanStatus
from vespiary_native.abc_mqtt import PACKET_ID_FIRST, MqttEncoding, MqttLimits
from vespiary_testkit.core_pair import Both
from vespiary_testkit.mqtt_lines import OTHERS_LINES
from vespiary_testkit.mqtt_stream import PacketSource

BUFFER_BYTES = 1 << 16
TOPICS = (b"t/0", b"t/1", b"t/2", b"t/\xc3\xa9")
LINES = (
    b"destination:t.0\n",
    b"destination:t.1\n",
    b"destination:a\\cb\n",
    b"destination:t.%25\n",
    b"destination:t.\xc3\xa9\n",
    b"destination:v1/2.a\n",
    b"destination:$SYS.a\n",
    b"destination:a::b\n",
    b"destination:\n",
)


class MqttClient:
    """One connection, and what it has sent that was not taken."""

    def __init__(self, pick: random.Random, handle: int, buffer: int, memory: bytearray) -> None:
        self.handle, self.buffer, self.memory = handle, buffer, memory
        self.version = pick.choice([3, 4, 5, 5])
        self.sent: list[int] = []
        self.source = PacketSource(pick, self.version, self.sent)
        self.waiting = b""
        self.consumers: dict[int, int] = {}
        self.encoded: set[int] = set()
        self.reserved: set[int] = set()


class MqttCalls:
    """Opens, teaches, feeds and closes connections of MQTT."""

    core: Both
    random: random.Random
    queues: dict[int, bool]
    routes: list[int]
    switches: list[int]
    clients: list[MqttClient]

    def flush(self) -> None:
        """See `Driver.flush`."""
        raise NotImplementedError

    def keep_files(self) -> None:
        """See `Driver.keep_files`."""
        raise NotImplementedError

    def load_slab(self, file_id: int, slab: int) -> bool:
        """See `Driver.load_slab`."""
        raise NotImplementedError

    def enter_wanted(self) -> bool:
        """See `PagingCalls.enter_wanted`."""
        raise NotImplementedError

    def choose(self) -> tuple[int, int, int]:
        """See `SwitchingCalls.choose`."""
        raise NotImplementedError

    def open_client(self) -> None:
        """Make a connection, which is taught something in most cases."""
        pick = self.random
        memory = bytearray(BUFFER_BYTES)
        attached = [core.attach_buffer(memory) for core in self.core.cores]
        assert attached[0] == attached[1]
        client = MqttClient(pick, self.core.open_connection(), attached[0], memory)
        self.clients.append(client)
        limits = MqttLimits(20_000, 8000, pick.choice([1, 3, 20, 65_535]))
        self.core.set_ready_mqtt(client.handle, client.version, limits)
        self.core.set_window(client.handle, pick.choice([0, 1, 5, 100, 65_535, 65_535]))
        for _ in range(pick.choice([0, 4, 8, 12])):
            self.teach_topic(client)

    def teach_topic(self, client: MqttClient) -> None:
        """Let a client publish by itself."""
        pick = self.random
        route = pick.choice(self.switches if pick.random() < 0.2 else self.routes)
        self.core.teach_mqtt(client.handle, pick.choice(TOPICS), pick.choice(LINES), route)

    def close_client(self, client: MqttClient) -> None:
        """End a connection."""
        self.core.sent(client.handle)
        for consumer in list(client.consumers):
            self.close_reader(client, consumer)
        self.core.close_connection(client.handle)
        for core in self.core.cores:
            core.detach_buffer(client.buffer)
        self.clients.remove(client)

    def serve_client(self) -> None:
        """Do something with one of them."""
        pick = self.random
        if not self.clients or (len(self.clients) < 3 and pick.random() < 0.2):
            self.open_client()
        if pick.random() < 0.2:
            self.flush()
            self.keep_files()
        client = pick.choice(self.clients)
        act = pick.random()
        if act < 0.1:
            self.teach_topic(client)
        elif act < 0.11:
            self.close_client(client)
        elif act < 0.55:
            self.feed_client(client)
        else:
            self.send_to_client(client)

    def feed_client(self, client: MqttClient) -> None:
        """Have a client send packets, in pieces."""
        pick = self.random
        rest = client.waiting
        answers = b""
        if pick.random() < 0.6:
            ids = pick.sample(client.sent, pick.randint(0, len(client.sent)))
            answers = b"".join(client.source.puback(packet_id) for packet_id in ids)
        stream = (
            rest
            + answers
            + b"".join(client.source.next() for _ in range(pick.choice([1, 2, 5, 12, 40])))
        )
        stream = stream[: BUFFER_BYTES - 8]
        start = pick.randint(0, 7)
        client.memory[start : start + len(stream)] = stream
        at, end = start, start + len(rest)
        status = ScanStatus.NEED_DATA
        while end < start + len(stream) and status == ScanStatus.NEED_DATA:
            end = min(start + len(stream), end + pick.choice([1, 3, 17, 100, 4096, 10**6]))
            at, status = self.scan_client(client, at, end)
        if status == ScanStatus.ODD:
            self.close_client(client)
            return
        client.waiting = bytes(client.memory[at : start + len(stream)])[: BUFFER_BYTES // 2]

    def scan_client(self, client: MqttClient, at: int, end: int) -> tuple[int, int]:
        """Have both cores take what they can; return how far they came, and why no further."""
        pick, core = self.random, self.core
        while True:
            status, at, detail = core.scan_mqtt(client.handle, client.buffer, at, end)
            if status == ScanStatus.SWITCHED:
                if pick.random() < 0.1:
                    return at, ScanStatus.NEED_DATA  # nothing is taken until it is sent on
                if pick.random() < 0.1:
                    self.teach_topic(client)  # what was kept is forgotten
                    core.switched()
                    return at, ScanStatus.NEED_DATA
                status, at, detail = self.choose()
                if status == ScanStatus.NEED_DATA:
                    continue
            core.output_waiting(client.handle)
            core.unanswered(client.handle)
            is_passed = status == ScanStatus.BLOCKED and pick.random() < 0.3
            if status != ScanStatus.FRAME and not is_passed:
                return at, status
            at += detail

    # --- messages out -----------------------------------------------------------------------------
    def publish_otherwise(self) -> None:
        """Publish what a client of another protocol has sent."""
        pick = self.random
        lines = pick.choices(OTHERS_LINES, k=pick.choice([0, 1, 2, 3, 8]))
        properties = pick.choice(OTHERS_LINES[:3]) + b"".join(lines)
        protocol = pick.choice([1, 3])
        if protocol == 3:
            properties += b"\0\1\x75\xa0\0native\nc:d\n\\"
        with suppress(NoRoom):
            self.core.publish(
                pick.choice(self.routes),
                properties,
                bytes(pick.choice([0, 1, 60, 200, 3000])),
                persistent=pick.random() < 0.8,
                protocol=protocol,
                priority=pick.choice([4, 4, 4, 4, 5]),
                escaped=b"\\" in properties if pick.random() < 0.9 else pick.random() < 0.5,
            )

    def send_to_client(self, client: MqttClient) -> None:
        """Do something about what a client is sent."""
        pick, core = self.random, self.core
        act = pick.random()
        if not client.consumers or act < 0.1:
            self.open_reader(client)
        elif act < 0.14:
            self.encode_otherwise(client, pick.choice(sorted(client.consumers)))
        elif act < 0.22:
            self.close_reader(client, pick.choice(sorted(client.consumers)))
        elif act < 0.3:
            core.set_window(client.handle, pick.choice([0, 1, 5, 100, 65_535, 65_535]))
        elif act < 0.36:
            self.reserve(client)
        elif act < 0.39:
            self.publish_otherwise()
        elif act < 0.47:
            known = pick.choice(client.sent) if client.sent else PACKET_ID_FIRST
            core.take_puback(client.handle, pick.choice([known, known, 1, 32_767, 65_535]))
        else:
            self.deliver_to(client, pick.choice(sorted(client.consumers)))
        core.sent(client.handle)
        core.sent_count(client.handle)

    def open_reader(self, client: MqttClient) -> None:
        """Make a consumer whose messages are encoded, in most cases."""
        pick = self.random
        known = sorted(self.queues)
        full = [queue for queue in known if self.core.queue_statistics(queue).ready]
        queue = pick.choice(full or known)
        mode = AckMode.INDIVIDUAL if pick.random() < 0.95 else AckMode.AUTO
        credit = pick.choice([3, *[2**31 - 1] * 6])
        handle = self.core.open_consumer(client.handle, queue, mode, credit, b"", STORED_VERSION)
        client.consumers[handle] = queue
        if pick.random() < 0.95:
            self.encode_otherwise(client, handle)

    def encode_otherwise(self, client: MqttClient, consumer: int) -> None:
        """Have the messages of a consumer encoded in another way, or elsewhere."""
        pick = self.random
        if pick.random() < 0.1:
            self.core.encode_mqtt(consumer, None)
            client.encoded.discard(consumer)
            return
        low = self.core.queue_statistics(client.consumers[consumer]).next
        encoding = MqttEncoding(
            pick.choice([0, 1, 1, 2, 2]),
            pick.choice([60, 84, 3000, 300_000, 300_000]),
            pick.choice([b"", b"fixed/topic"]),
            pick.choice([0, 0, 0, low + 3]),
            pick.choice([(), (b"/queue/", b"/topic/"), (b"", b"/topic/", b"/queue/")]),
        )
        self.core.encode_mqtt(consumer, encoding)
        client.encoded.add(consumer)

    def close_reader(self, client: MqttClient, consumer: int) -> None:
        """Close a consumer."""
        self.core.close_consumer(consumer, counted=self.random.random() < 0.5)
        del client.consumers[consumer]
        client.encoded.discard(consumer)

    def reserve(self, client: MqttClient) -> None:
        """Keep an id from the core, or let it have it again."""
        pick = self.random
        low = pick.choice([PACKET_ID_FIRST, PACKET_ID_FIRST, 100])
        packet_id = pick.randint(low, low + 100)
        if client.reserved and pick.random() < 0.5:
            packet_id = client.reserved.pop()
            self.core.reserve_packet_id(client.handle, packet_id, reserved=False)
            return
        self.core.reserve_packet_id(client.handle, packet_id, reserved=True)
        client.reserved.add(packet_id)

    def deliver_to(self, client: MqttClient, consumer: int) -> None:
        """Send a client messages, whoever encodes them; what comes is read by the codec."""
        pick, core = self.random, self.core
        for _ in range(5):
            most, room = pick.choice([1, 5, 100]), pick.choice([1, 4000, 10**6])
            before = core.sent_count(client.handle)
            status, count, data = core.deliver(consumer, most, room)
            if consumer in client.encoded:
                sent = self.read_packets(client, data)
                assert core.sent_count(client.handle) - before == len(sent)
            if status == DeliverStatus.STORED:
                status, count, data = core.deliver_stored(consumer, most, room)
                assert len([*read_stored(data)]) == count
                continue
            if not self.go_on(client, consumer, status):
                return

    def go_on(self, client: MqttClient, consumer: int, status: DeliverStatus) -> bool:
        """Do what a delivery needs that has stopped; return whether there may be more."""
        pick, core = self.random, self.core
        queue = client.consumers[consumer]
        if status == DeliverStatus.LARGE:
            return core.take_large(consumer) is not None
        if status in (DeliverStatus.SPECIAL, DeliverStatus.WORN):
            sequence = core.next_deliverable(queue)
            if pick.random() < 0.5 and status == DeliverStatus.SPECIAL:
                core.give(consumer, [sequence], 10**6)
            else:
                core.finish(queue, [sequence])
            core.specials_seen(queue)
            return True
        if status == DeliverStatus.ABSENT:
            self.load_slab(*core.absent_slab(consumer))
            return consumer in client.consumers
        if status == DeliverStatus.PAGED:
            return bool(self.enter_wanted()) and consumer in client.consumers
        return status == DeliverStatus.LIMIT

    def read_packets(self, client: MqttClient, data: bytes) -> list[int]:
        """Return the packet ids of the PUBLISHes that a client was sent; nothing else was."""
        decoder = MqttDecoder(role="client", version=Version(client.version))
        decoder.feed(data)
        sent = []
        while not isinstance(packet := decoder.next_packet(), type(NEED_DATA)):
            assert isinstance(packet, Publish)
            if packet.qos:
                assert packet.packet_id >= PACKET_ID_FIRST
                assert packet.packet_id not in client.reserved
                sent.append(packet.packet_id)
        assert not decoder.is_mid_packet
        client.sent += sent
        del client.sent[:-60]
        return sent
