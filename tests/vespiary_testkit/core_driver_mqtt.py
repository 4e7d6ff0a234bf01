"""Random calls of MQTT clients to both cores: what they send, in pieces.

Owns the connections of MQTT: a mix-in of `core_driver.Driver`.
"""

from __future__ import annotations

import random

from vespiary_native.abc import ScanStatus
from vespiary_native.abc_mqtt import MqttLimits
from vespiary_testkit.core_pair import Both
from vespiary_testkit.mqtt_stream import PacketSource

BUFFER_BYTES = 1 << 16
TOPICS = (b"t/0", b"t/1", b"t/2", b"t/\xc3\xa9")
LINES = (
    b"destination:t.0\n",
    b"destination:t.1\n",
    b"destination:a\\cb\n",
    b"destination:t.%25\n",
    b"destination:t.\xc3\xa9\n",
)


class MqttClient:
    """One connection, and what it has sent that was not taken."""

    def __init__(self, pick: random.Random, handle: int, buffer: int, memory: bytearray) -> None:
        self.handle, self.buffer, self.memory = handle, buffer, memory
        self.version = pick.choice([3, 4, 5, 5])
        self.sent: list[int] = []
        self.source = PacketSource(pick, self.version, self.sent)
        self.waiting = b""


class MqttCalls:
    """Opens, teaches, feeds and closes connections of MQTT."""

    core: Both
    random: random.Random
    routes: list[int]
    switches: list[int]
    clients: list[MqttClient]

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
        for _ in range(pick.choice([0, 4, 8, 12])):
            self.teach_topic(client)

    def teach_topic(self, client: MqttClient) -> None:
        """Let a client publish by itself."""
        pick = self.random
        route = pick.choice(self.switches if pick.random() < 0.2 else self.routes)
        self.core.teach_mqtt(client.handle, pick.choice(TOPICS), pick.choice(LINES), route)

    def close_client(self, client: MqttClient) -> None:
        """End a connection."""
        self.core.close_connection(client.handle)
        for core in self.core.cores:
            core.detach_buffer(client.buffer)
        self.clients.remove(client)

    def serve_client(self) -> None:
        """Do something with one of them."""
        pick = self.random
        if not self.clients or (len(self.clients) < 3 and pick.random() < 0.2):
            self.open_client()
        client = pick.choice(self.clients)
        act = pick.random()
        if act < 0.1:
            self.teach_topic(client)
        elif act < 0.13:
            self.close_client(client)
        else:
            self.feed_client(client)

    def feed_client(self, client: MqttClient) -> None:
        """Have a client send packets, in pieces."""
        pick = self.random
        rest = client.waiting
        stream = rest + b"".join(
            client.source.next() for _ in range(pick.choice([1, 2, 5, 12, 40]))
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
            is_passed = status == ScanStatus.BLOCKED and pick.random() < 0.3
            if status != ScanStatus.FRAME and not is_passed:
                return at, status
            at += detail
