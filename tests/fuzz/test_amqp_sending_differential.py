"""The C core against its twin, where both send to clients of AMQP, and hear what these accept."""

from __future__ import annotations

import contextlib
import os

import pytest

from vespiary_native.abc import NoRoom
from vespiary_native.loader import is_wanted

if not is_wanted():
    pytest.skip("the native part is switched off: nothing to compare", allow_module_level=True)

import random
from typing import Any

from vespiary_codec.stored_message import STORED_VERSION
from vespiary_codec.wire.amqp import (
    RECEIVER,
    Accepted,
    Disposition,
    Frame,
    Rejected,
    encode_frame,
)
from vespiary_codec.wire.amqp.native_part import NATIVE
from vespiary_codec.wire.amqp.values import UInt
from vespiary_native.abc import AckMode, DeliverStatus, ScanStatus
from vespiary_native.abc_amqp import AmqpLimits
from vespiary_native.abc_amqp_sending import AmqpEncoding
from vespiary_testkit.core_driver import Driver
from vespiary_testkit.core_pair import Both
from vespiary_testkit.seeds import seed_for

pytestmark = pytest.mark.ci

OPERATIONS = 500
CASES = int(os.environ.get("VESPIARY_FUZZ_CASES", "20")) // 2


# --- calls of AMQP clients that receive, to both cores --------------------------------------------

CHANNELS = (0, 700)
LINES = (
    b"destination:q\n",
    b"destination:q\n",
    b"persistent:true\ndestination:q\n",
    b"a:expires:1\npersistent:true\n",
    b"expires:1\n",
    b"_AMQ_ORIG_QUEUE:q\n",
    b"ingress-timestamp:5\n",
    b"persistent:true",
    b"",
)


class AmqpReader:
    """One connection of a client that receives.

    Attributes:
        consumers: Queues by consumer.
        channels: Channels by consumer.
    """

    def __init__(self, handle: int, buffer: int, memory: bytearray) -> None:
        self.handle, self.buffer, self.memory = handle, buffer, memory
        self.consumers: dict[int, int] = {}
        self.channels: dict[int, int] = {}
        self.next_ids = dict.fromkeys(CHANNELS, 0)


def amqp_properties(pick: random.Random) -> bytes:
    """Return properties of a message of AMQP, or what looks like some."""
    before, footer = bytes(pick.choice([0, 0, 5, 300])), bytes(pick.choice([0, 0, 0, 9]))
    section, code = pick.choice(
        [(0x75, 0xB0), (0x75, 0xB0), (0x75, 0xA0), (0x77, 0xA1), (0x77, 0xB1), (0x77, 0x40), (0, 0)]
    )
    version = 1 if pick.random() < 0.98 else 2
    size = len(before) + (0 if pick.random() < 0.98 else 1000)
    lines = b"".join(pick.choice(LINES[: 9 if pick.random() < 0.2 else 4]) for _ in range(2))
    flags = pick.choice([0, 0, 1, 255])
    native = NATIVE.pack(version, section, code, flags, size) + before + footer
    if pick.random() < 0.02:
        native = native[: pick.randrange(12)]
    return lines + (b"\0" if pick.random() < 0.97 else b"") + native


class AmqpReaderCalls:
    """Opens, serves and closes connections of AMQP that receive."""

    core: Both
    random: random.Random
    queues: dict[int, bool]
    routes: list[int]
    readers: list[AmqpReader]

    def go_on(self, client: Any, consumer: int, status: DeliverStatus) -> bool:
        """See `MqttCalls.go_on`."""
        raise NotImplementedError

    def send_amqp(self) -> None:
        """Publish messages of AMQP."""
        pick = self.random
        for _ in range(pick.randrange(12)):
            self._send_one(pick)

    def _send_one(self, pick: random.Random) -> None:
        body = bytes(pick.choice([0, 9, 255, 256, 3000]))
        self.core.publish(
            pick.choice(self.routes), amqp_properties(pick), body,
            persistent=pick.random() < 0.7, protocol=pick.choice([3] * 20 + [1, 2]),
            priority=pick.choice([4] * 20 + [5]), escaped=pick.random() < 0.1,
            special=pick.random() < 0.005,
        )  # fmt: skip

    def open_amqp(self) -> None:
        """Make a connection with some sessions."""
        memory = bytearray(4096)
        attached = [core.attach_buffer(memory) for core in self.core.cores]
        reader = AmqpReader(self.core.open_connection(), attached[0], memory)
        self.readers.append(reader)
        self.core.set_ready_amqp(reader.handle, AmqpLimits(10_000, 5000))
        for channel in CHANNELS:
            self.core.set_amqp_room(reader.handle, channel, 1000)

    def close_amqp(self, reader: AmqpReader) -> None:
        """End a connection."""
        for consumer in list(reader.consumers):
            self._close_link(reader, consumer)
        self.core.close_connection(reader.handle)
        for core in self.core.cores:
            core.detach_buffer(reader.buffer)
        self.readers.remove(reader)

    def serve_reader(self) -> None:
        """Do something with one of them."""
        pick, core = self.random, self.core
        if not self.readers or (len(self.readers) < 3 and pick.random() < 0.05):
            self.open_amqp()
        reader = pick.choice(self.readers)
        channel, act = pick.choice(CHANNELS), pick.random()
        if act < 0.01:
            self.close_amqp(reader)
        elif act < 0.1:
            core.set_amqp_room(reader.handle, channel, pick.choice([0, 5, 100, 100, 2**32 - 1]))
        elif act < 0.11:
            core.forget_amqp_session(reader.handle, channel)
            reader.next_ids[channel] = 0
        elif act < 0.15:
            reader.next_ids[channel] = core.next_amqp_delivery(reader.handle, channel) + 1
        elif act < 0.19:
            first, last = self._range(reader, channel)
            core.take_amqp_sent(reader.handle, channel, first, last)
        elif act < 0.4:
            self._say(reader, channel)
        elif len(reader.consumers) < 2 or act < 0.42:
            self._open_link(reader, channel)
        else:
            self._serve_link(reader, pick.choice(sorted(reader.consumers)))

    def _range(self, reader: AmqpReader, channel: int) -> tuple[int, int]:
        pick = self.random
        first = (reader.next_ids[channel] - pick.randrange(60)) % 2**32
        return first, (first + pick.choice([-1, 0, 0, 0, 1, 10, 2**31 - 1, 2**31])) % 2**32

    def _say(self, reader: AmqpReader, channel: int) -> None:
        """Have a client settle something, in whole frames or cut ones."""
        pick, data = self.random, b""
        for _ in range(pick.choice([1, 1, 3])):
            first, last = self._range(reader, channel)
            state = Accepted() if pick.random() < 0.9 else Rejected()
            data += encode_frame(
                Frame(
                    channel,
                    Disposition(
                        role=RECEIVER if pick.random() < 0.97 else False,
                        first=UInt(first),
                        last=UInt(last) if pick.random() < 0.8 else None,
                        settled=pick.random() < 0.95,
                        state=state,
                        batchable=pick.random() < 0.1,
                    ),
                )
            )
        if pick.random() < 0.1:
            data = data[: pick.randrange(len(data))]
        elif pick.random() < 0.1:
            changed = bytearray(data)
            changed[pick.randrange(8, len(data))] = pick.randrange(256)
            data = bytes(changed)
        reader.memory[: len(data)] = data
        at = 0
        while True:
            status, at, detail = self.core.scan_amqp(reader.handle, reader.buffer, at, len(data))
            if status != ScanStatus.FRAME:
                return
            at += detail

    def _open_link(self, reader: AmqpReader, channel: int) -> None:
        pick = self.random
        mode = AckMode.INDIVIDUAL if pick.random() < 0.95 else AckMode.AUTO
        known = sorted(self.queues)
        queue = pick.choice([q for q in known if self.core.queue_statistics(q).ready] or known)
        credit = pick.choice([3, *[2**31 - 1] * 6])
        consumer = self.core.open_consumer(reader.handle, queue, mode, credit, b"", STORED_VERSION)
        reader.consumers[consumer], reader.channels[consumer] = queue, channel
        self._encode(reader, consumer)
        self.core.set_amqp_link_credit(consumer, 50)

    def _encode(self, reader: AmqpReader, consumer: int) -> None:
        pick = self.random
        channel = reader.channels[consumer] if pick.random() < 0.97 else pick.choice(CHANNELS)
        handle, frame_bytes = (
            pick.choice([0, 1, 300, 2**32 - 1]),
            pick.choice([80, 400, 10_000, 10_000, 10_000]),
        )
        is_settled, is_stored = pick.random() < 0.3, pick.random() < 0.1
        self.core.encode_amqp(
            consumer, AmqpEncoding(channel, handle, frame_bytes, is_settled, is_stored)
        )

    def _close_link(self, reader: AmqpReader, consumer: int) -> None:
        self.core.close_consumer(consumer, counted=self.random.random() < 0.5)
        del reader.consumers[consumer]
        del reader.channels[consumer]

    def _serve_link(self, reader: AmqpReader, consumer: int) -> None:
        pick, core = self.random, self.core
        act = pick.random()
        if act < 0.02:
            self._close_link(reader, consumer)
        elif act < 0.06:
            self._encode(reader, consumer)
        elif act < 0.2:
            core.set_amqp_link_credit(consumer, pick.choice([0, 3, 50, 50, 2**32 - 1]))
        elif act < 0.22:
            core.set_credit(consumer, pick.choice([2, 1000, 1000]))
        else:
            self._deliver(reader, consumer)

    def _deliver(self, reader: AmqpReader, consumer: int) -> None:
        pick, core = self.random, self.core
        is_stored = pick.random() < 0.2
        for _ in range(6):
            deliver = core.deliver_stored if is_stored else core.deliver
            room = pick.choice([100, 2000, 10**6])
            status, count, _ = deliver(consumer, pick.choice([1, 5, 1000]), room)
            reader.next_ids[reader.channels[consumer]] += count
            is_stored = status == DeliverStatus.STORED
            if not is_stored and not self.go_on(reader, consumer, status):
                return


# --- the tests ------------------------------------------------------------------------------------


class AmqpDriver(AmqpReaderCalls, Driver):  # type: ignore[misc]
    """A run of AMQP clients that receive, and little else."""

    def __init__(self, seed: int, *, has_room: bool) -> None:
        super().__init__(seed)
        self.is_paging, self.is_starved = False, not has_room
        self.slab_bytes = 128 * 1024
        self.sizes |= {"slab_bytes": self.slab_bytes, "slabs_max": 64, "record_bytes_max": 12_000}
        self.begin_life()

    def begin_life(self) -> None:
        super().begin_life()
        self.readers: list[AmqpReader] = []

    def go_on(self, client, consumer, status) -> bool:  # type: ignore[no-untyped-def]
        return Driver.go_on(self, client, consumer, status)

    def operate(self) -> None:
        act = self.random.random()
        with contextlib.suppress(NoRoom, ValueError):  # both said the same
            if act < 0.65:
                self.serve_reader()
            elif act < 0.85:
                self.send_amqp()
            elif act < 0.93:
                self.keep_files()
                self.flush()
            elif act < 0.97:
                self.core.take_receipts()
                self.core.take_ready_queues()
            else:
                self.settle_message()
        self.compare()


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("case", range(CASES))
def test_cores_agree_about_what_amqp_clients_are_sent(case: int, has_room: bool) -> None:
    driver = AmqpDriver(seed_for(f"amqp sending {case}"), has_room=has_room)
    driver.start()
    for number in range(OPERATIONS):
        driver.operate()
        if number % 170 == 169:
            is_clean = driver.random.random() < 0.6
            for reader in list(driver.readers) if is_clean else ():
                driver.close_amqp(reader)
            driver.restart(is_clean=is_clean)
