"""The C core against its twin, where both have much to do with AMQP.

`test_core_differential` makes all calls there are; here most of them are those of AMQP clients:
frames in pieces, with lessons, allowances and routes that change between them.
"""

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

from vespiary_codec.wire.amqp import (
    Accepted,
    Disposition,
    Flow,
    Frame,
    Header,
    MessageProperties,
    Section,
    Transfer,
    encode_frame,
    encode_section,
)
from vespiary_codec.wire.amqp.values import Timestamp, UByte, UInt
from vespiary_native.abc import ScanStatus
from vespiary_native.abc_amqp import AmqpLesson, AmqpLimits, AmqpRange
from vespiary_testkit.core_driver import Driver
from vespiary_testkit.core_pair import Both
from vespiary_testkit.seeds import seed_for

pytestmark = pytest.mark.ci

OPERATIONS = 400
CASES = int(os.environ.get("VESPIARY_FUZZ_CASES", "20")) // 2


# --- calls of AMQP clients to both cores ----------------------------------------------------------

BUFFER_BYTES = 1 << 16
CHANNELS = (0, 0, 0, 9)
HANDLES = (0, 0, 0, 1)
HEADS = tuple(b"\0\x53" + bytes(each) for each in (
    (0x75, 0xA0), (0x75, 0xB0), (0x77, 0xA0), (0x77, 0xB0), (0x77, 0xA1), (0x77, 0xB1),
))  # fmt: skip


class AmqpClient:
    """One connection, and what it has sent that was not taken."""

    def __init__(self, handle: int, buffer: int, memory: bytearray) -> None:
        self.handle, self.buffer, self.memory = handle, buffer, memory
        self.waiting = b""
        self.next_id = 0


def before_body(pick: random.Random) -> tuple[bytes, tuple[AmqpRange, ...], bytes]:
    """Return the sections before a body, what may differ in them, and what is stored of them."""
    kind = pick.randrange(4)
    if kind < 2:
        data = encode_section(Section.HEADER, Header(durable=True))
        data += encode_section(Section.PROPERTIES, MessageProperties(to=f"{kind}"))
        return data, (), b"destination:%d\n\0native" % kind
    text, time_ms = pick.choice(["aZ-9", "AMQP", "a:b9", "x_y0"]), pick.choice([7, 1234, 9999, -1])
    properties = MessageProperties(message_id=text, creation_time=Timestamp(time_ms))
    data = encode_section(Section.PROPERTIES, properties)
    at, time_at = data.index(text.encode()), len(data) - 8
    ranges = AmqpRange(at, 4, 3, 4, 16), AmqpRange(time_at, 8, 9, 4, 22, True)
    return data, ranges[: kind - 1], b"id:....\nt:....\n\0....--........"


def frame_of(pick: random.Random, client: AmqpClient) -> bytes:
    """Return a frame; most are transfers of messages that may have been taught."""
    if pick.random() < 0.06:
        other: Any = pick.choice([
            None,
            Flow(incoming_window=UInt(1), next_outgoing_id=UInt(0), outgoing_window=UInt(1)),
            Disposition(role=True, first=UInt(0), settled=True, state=Accepted()),
        ])  # fmt: skip
        return encode_frame(Frame(pick.choice(CHANNELS), other))
    client.next_id = (client.next_id + pick.choice([1] * 8 + [2, 250, 70_000])) % 2**32
    fields: dict[str, Any] = {
        "handle": UInt(pick.choice(HANDLES)),
        "delivery_id": UInt(client.next_id),
        "delivery_tag": bytes(pick.choice([0, 4, 32])),
    }
    usual = {"message_format": UInt(0), "settled": pick.random() < 0.3, "more": False}
    fields |= {name: value for name, value in usual.items() if pick.random() < 0.5}
    if pick.random() < 0.05:
        fields |= pick.choice([
            {"more": True}, {"delivery_id": None}, {"delivery_tag": bytes(33)}, {"aborted": True},
            {"rcv_settle_mode": UByte(1)}, {"state": Accepted()}, {"resume": True},
            {"message_format": UInt(9)}, {"batchable": True}, {"rcv_settle_mode": UByte(0)},
        ])  # fmt: skip
    data = before_body(pick)[0]
    head = pick.choice(HEADS)
    body = pick.choice([b"", b"x", b"text", "grün".encode(), b"\xff\xfe", bytes(200)])
    size = len(body) + pick.choice([0] * 30 + [1])
    data += head + size.to_bytes(1 if head[3] < 0xB0 else 4, "big") + body
    made = bytearray(encode_frame(Frame(pick.choice(CHANNELS), Transfer(**fields), data)))
    if pick.random() < 0.03:
        made[pick.randrange(4, len(made))] = pick.randrange(256)
    return bytes(made)


class AmqpCalls:
    """Opens, teaches, feeds and closes connections of AMQP."""

    core: Both
    random: random.Random
    routes: list[int]
    amqp: list[AmqpClient]
    taken: int

    def open_amqp(self) -> None:
        """Make a connection, which is taught something in most cases."""
        memory = bytearray(BUFFER_BYTES)
        attached = [core.attach_buffer(memory) for core in self.core.cores]
        client = AmqpClient(self.core.open_connection(), attached[0], memory)
        self.amqp.append(client)
        self.core.set_ready_amqp(client.handle, AmqpLimits(4096, 150))
        for _ in range(20):
            self.change_amqp(client)

    def close_amqp(self, client: AmqpClient) -> None:
        """Close a connection."""
        self.core.close_connection(client.handle)
        for core in self.core.cores:
            core.detach_buffer(client.buffer)
        self.amqp.remove(client)

    def change_amqp(self, client: AmqpClient) -> None:
        """Change what a client may do."""
        pick, core, handle = self.random, self.core, client.handle
        channel, link, act = pick.choice(CHANNELS), pick.choice(HANDLES), pick.random()
        if act < 0.45:
            for _ in range(4):
                self.teach_amqp(handle, channel, link)
        elif act < 0.7:
            core.set_amqp_window(handle, channel, pick.choice([0, 3, 2048, 2048, 2048]))
        elif act < 0.96:
            messages = pick.choice([0, 2, 1000, 1000, 1000])
            core.set_amqp_credit(handle, channel, link, messages, settled=pick.random() < 0.1)
        elif act < 0.98:
            core.forget_amqp_link(handle, channel, link)
        else:
            core.forget_amqp_session(handle, channel)

    def teach_amqp(self, handle: int, channel: int, link: int) -> None:
        """Teach a link something."""
        pick = self.random
        before, ranges, stored = before_body(pick)
        key = before + pick.choice(HEADS if pick.random() < 0.97 else [b"\0\x53\x76\xa0"])
        to, is_persistent = pick.choice(self.routes), pick.random() < 0.7
        lesson = AmqpLesson(key, stored, to, is_persistent, pick.random() < 0.1, ranges)
        self.core.teach_amqp(handle, channel, link, lesson)

    def feed_amqp(self, client: AmqpClient) -> None:
        """Have a client send frames, in pieces."""
        pick, rest = self.random, client.waiting
        count = pick.choice([1, 2, 5, 30])
        stream = rest + b"".join(frame_of(pick, client) for _ in range(count))
        start = pick.randint(0, 7)
        client.memory[start : start + len(stream)] = stream
        at, end = start, start + len(rest)
        status = ScanStatus.NEED_DATA
        while end < start + len(stream) and status == ScanStatus.NEED_DATA:
            end = min(start + len(stream), end + pick.choice([1, 3, 17, 100, 10**6]))
            at, status = self.scan_amqp(client, at, end)
        if status == ScanStatus.ODD:
            self.close_amqp(client)
            return
        client.waiting = bytes(client.memory[at : start + len(stream)])[: BUFFER_BYTES // 2]

    def scan_amqp(self, client: AmqpClient, at: int, end: int) -> tuple[int, int]:
        """Have both cores take what they can; return how far they came, and why no further."""
        pick, core = self.random, self.core
        while True:
            status, at, detail = core.scan_amqp(client.handle, client.buffer, at, end)
            self.taken += sum(each.messages for each in core.taken_amqp(client.handle))
            core.output_waiting(client.handle)
            if pick.random() < 0.05:
                with contextlib.suppress(ValueError, NoRoom):
                    self.change_amqp(client)
            is_passed = status == ScanStatus.BLOCKED and pick.random() < 0.3
            if status != ScanStatus.FRAME and not is_passed:
                return at, status
            at += detail

    def serve_amqp(self) -> None:
        """Do something with one of them."""
        pick = self.random
        if not self.amqp or (len(self.amqp) < 3 and pick.random() < 0.1):
            self.open_amqp()
        client = pick.choice(self.amqp)
        act = pick.random()
        if act < 0.3:
            self.change_amqp(client)
        elif act < 0.31:
            self.close_amqp(client)
        else:
            self.feed_amqp(client)


# --- the tests ------------------------------------------------------------------------------------


class AmqpDriver(AmqpCalls, Driver):
    """A run of AMQP clients, and little else."""

    def __init__(self, seed: int) -> None:
        self.taken = 0
        super().__init__(seed)
        self.is_paging = self.is_starved = False
        self.slab_bytes = 128 * 1024
        self.sizes |= {"slab_bytes": self.slab_bytes, "slabs_max": 64, "record_bytes_max": 12_000}
        self.begin_life()

    def begin_life(self) -> None:
        self.amqp: list[AmqpClient] = []
        super().begin_life()

    def operate(self) -> None:
        pick = self.random
        act = pick.random()
        with contextlib.suppress(NoRoom, ValueError):  # both said the same
            if act < 0.7:
                self.serve_amqp()
            elif act < 0.87:
                self.keep_files()
                self.flush()
            elif act < 0.93:
                self.core.take_receipts()
                self.core.take_ready_queues()
            elif act < 0.95:
                self.open_route()
            elif act < 0.97 and len(self.routes) > 2:
                self.core.close_route(self.routes.pop())
            elif act < 0.98:
                self.core.hold_adds(held=pick.random() < 0.2)
            else:
                self.core.publish(
                    pick.choice(self.routes), b"destination:x\n", b"y", persistent=True
                )
        self.compare()


@pytest.mark.parametrize("case", range(CASES))
def test_cores_agree_about_amqp(case: int) -> None:
    driver = AmqpDriver(seed_for(f"amqp differential {case}"))
    driver.start()
    for number in range(OPERATIONS):
        driver.operate()
        if number % 170 == 169:
            driver.restart(is_clean=driver.random.random() < 0.6)
    assert driver.taken > 0
