"""The core's scanner against the codec's decoder, which is the specification.

Random streams of frames, plain, odd and broken, go through `scan_stomp`; whatever it does is
compared with what the decoder makes of the same bytes:

- what it took, the decoder reads as the same SENDs and ACKs: same properties, bodies, queues,
  receipts; and nothing else;
- what it leaves as FRAME, the decoder reads as one frame, or refuses;
- what it calls ODD, the decoder refuses, or waits for more of within its limits;
- where it waits for more, the decoder has no frame either.

Both implementations of the core are put to it. `VESPIARY_FUZZ_CASES` sets how many runs there are.
"""

from __future__ import annotations

import ctypes
import os
import random

import pytest

from vespiary_codec.journal.block import walk_blocks
from vespiary_codec.journal.record import AddRecord, decode_record, walk_records
from vespiary_codec.wire.stomp import (
    NEED_DATA,
    Frame,
    HeartBeat,
    RemoteProtocolError,
    StompDecoder,
    StompLimits,
    Version,
    canonical_properties,
    encode,
    encode_message,
    parse_message_id,
    receipt_frame,
)
from vespiary_native.abc import AckMode, ScanStatus
from vespiary_native.values_inspection import MessageView
from vespiary_testkit.core_rig import IMPLEMENTATIONS, SALT
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.stomp_stream import FrameSource

STREAMS = 25
CASES = int(os.environ.get("VESPIARY_FUZZ_CASES", "20"))
LIMITS = StompLimits(header_count=12, header_line_bytes=300, header_bytes=1200, body_bytes=30_000)
LARGEST_FRAME_BYTES = LIMITS.header_bytes + LIMITS.body_bytes + 1
BUFFER_BYTES = 1 << 18
VERSIONS: dict[int, Version] = {10: "1.0", 11: "1.1", 12: "1.2"}
TAUGHT = {b"/queue/%d" % n: n for n in range(4)} | {b"/queue/1\0ANYCAST": 3}
SWITCHED = b"/queue/4"
"""The destination that is a switch: where its messages go is chosen at random."""
HELD = 9
"""Queue of the messages that ACKs name; the others stand for the destinations."""


def order_of(frame: Frame) -> tuple[int, bool]:
    """Return priority and specialness, as `vespiary_broker.server.stomp.sending` has them."""
    priority = frame.get("priority", "4")
    assert priority in tuple("0123456789"), "Python refuses it"
    return int(priority), priority != "4" or frame.get("JMSXGroupID") is not None


class Bench:
    """A core with a taught connection, observers of its queues, and what should come out."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.core = IMPLEMENTATIONS[name][0](slabs_max=16, record_bytes_max=64 * 1024)
        self.number = self.random.choice(list(VERSIONS))
        self.version = VERSIONS[self.number]
        core = self.core
        core.add_file(1, SALT, 64 << 20)
        core.start(1, 0, 0)
        self.memory = bytearray(BUFFER_BYTES)
        self.buffer = core.attach_buffer(self.memory)
        observer = core.open_connection()
        self.observers = []
        for queue in (0, 1, 2, 3):
            core.open_queue(queue)
            self.observers.append(core.open_consumer(observer, queue, AckMode.AUTO, 1, b"o", 12))
        core.open_queue(HELD)
        self.routes = [core.open_route([queue]) for queue in (0, 1, 2, 3)]
        self.switch = core.open_switch()
        self.chosen: list[int] = []
        self.shown: list[MessageView] = []
        self.added: list[AddRecord] = []
        self.given: list[tuple[int, int]] = []
        self.frames = FrameSource(self.random, self.given)
        self.connect()

    def connect(self) -> None:
        core = self.core
        self.connection = core.open_connection()
        core.set_ready(
            self.connection,
            self.number,
            (LIMITS.header_count, LIMITS.header_line_bytes, LIMITS.header_bytes, LIMITS.body_bytes),
        )
        for destination, queue in TAUGHT.items():
            core.teach(self.connection, destination, self.routes[queue])
        core.teach(self.connection, SWITCHED, self.switch)
        self.consumer = core.open_consumer(
            self.connection, HELD, AckMode.INDIVIDUAL, 1000, b"s1", self.number
        )
        route = core.open_route([HELD])
        for _ in range(30):
            core.publish(route, b"", b"", persistent=True)
        self.settle()
        _, _, frames = core.deliver(self.consumer, 1000, 10**6)
        ids = [part.split(b"\n")[0] for part in frames.split(b"message-id:")[1:]]
        self.given[:] = [(HELD, int(one.split(b"-")[1])) for one in ids]

    def disconnect(self) -> None:
        self.settle()
        self.core.close_consumer(self.consumer)
        self.core.close_connection(self.connection)

    def settle(self) -> bytes:
        """Have everything written; return the receipts."""
        while (request := self.core.seal_write()) is not None:
            data = ctypes.string_at(request.address, request.length)
            for _, header, payload in walk_blocks(
                data, offset=request.offset, salt=SALT, file_id=1
            ):
                records = [decode_record(raw) for raw in walk_records(payload, header.records)]
                self.added += [record for record in records if isinstance(record, AddRecord)]
            self.core.write_done(request.sequence)
        receipts = dict(self.core.take_receipts())
        self.core.take_ready_queues()
        return receipts.get(getattr(self, "connection", -1), b"")

    # --- one stream -----------------------------------------------------------------------------

    def stream(self) -> None:
        pick = self.random
        parts = []
        for _ in range(pick.choice([1, 1, 2, 6])):
            frame = self.frames.frame()
            parts.append(self.frames.mutated(frame) if pick.random() < 0.4 else frame)
        data = b"".join(parts)[:BUFFER_BYTES]
        taken, refused = self.scan(data)
        self.check_effects(taken)
        if refused or taken is None:
            self.disconnect()
            self.connect()

    def scan(self, data: bytes) -> tuple[list[Frame], bool]:
        """Scan a stream in random pieces; return what the core took, and whether it was the end."""
        self.memory[: len(data)] = data
        at = end = 0
        taken: list[Frame] = []
        while True:
            status, position, detail = self.core.scan_stomp(self.connection, self.buffer, at, end)
            taken += self.check_taken(data[at:position])
            at = position
            if status == ScanStatus.SWITCHED:
                assert detail == self.switch
                position = self.choose()
                taken += self.check_taken(data[at:position])
                at = position
                continue
            if status == ScanStatus.FRAME:
                self.check_left(data[at : at + detail])
                at += detail
                continue
            rest = data[at:end]
            if status == ScanStatus.ODD:
                self.check_odd(rest)
                return taken, True
            assert status == ScanStatus.NEED_DATA
            assert detail == 0 or detail > len(rest), "it has what it needs"
            if end == len(data):
                self.check_incomplete(rest)
                return taken, bool(rest)
            end = min(len(data), end + self.random.choice([1, 7, 60, 4096, 10**6, 10**6]))

    def choose(self) -> int:
        """Have what a switch keeps go somewhere; return where the scan goes on."""
        shown = self.core.switched()
        chosen = [self.random.randrange(len(self.routes)) for _ in shown]
        status, position, detail = self.core.send_switched([self.routes[one] for one in chosen])
        assert (status, detail) == (ScanStatus.NEED_DATA, 0)
        self.shown += shown
        self.chosen += chosen
        return position

    def decode(self, data: bytes) -> tuple[list[Frame], RemoteProtocolError | None, int]:
        """Return the frames in `data`, the error, and the bytes that wait for more."""
        decoder = StompDecoder(LIMITS)
        decoder.set_version(self.version)
        decoder.feed(data)
        frames = []
        try:
            while (event := decoder.next_event()) is not NEED_DATA:
                if not isinstance(event, HeartBeat):
                    frames.append(event)
        except RemoteProtocolError as error:
            return frames, error, 0
        return frames, None, decoder.buffered_bytes

    def check_taken(self, data: bytes) -> list[Frame]:
        frames, error, left = self.decode(data)
        assert error is None, f"taken, but {error}: {data[:300]!r}"
        assert left == 0, f"taken, but not whole: {data[:300]!r}"
        return frames

    def check_left(self, data: bytes) -> None:
        frames, error, left = self.decode(data)
        is_one = len(frames) == 1 and error is None and left == 0
        assert is_one or (error and not frames), f"{frames} {error} {left}: {data[:300]!r}"

    def check_odd(self, data: bytes) -> None:
        frames, error, left = self.decode(data)
        assert not frames, f"odd, but the decoder reads {frames}: {data[:300]!r}"
        assert error is not None or left <= LARGEST_FRAME_BYTES

    def check_incomplete(self, data: bytes) -> None:
        frames, _, _ = self.decode(data)
        assert not frames, f"it waits, but there is {frames}: {data[:300]!r}"

    # --- what came of it ------------------------------------------------------------------------

    def check_effects(self, taken: list[Frame]) -> None:
        self.added.clear()
        receipts = self.settle()
        expected: dict[int, list[tuple[bytes, bytes]]] = {0: [], 1: [], 2: [], 3: []}
        journalled: list[tuple[int, bytes, bytes, int, bool]] = []
        for frame in taken:
            if frame.command == "SEND":
                assert frame.get("_AMQ_DUPL_ID") is None, "only Python knows what was seen before"
                key = (frame.get("destination") or "").encode()
                if (kind := frame.get("destination-type")) is not None:
                    key += b"\0" + kind.encode()
                properties = canonical_properties(frame)
                if key == SWITCHED:
                    queue = self.chosen.pop(0)
                    self.check_shown(self.shown.pop(0), frame)
                else:
                    queue = TAUGHT[key]
                expected[queue].append((properties, frame.body))
                if frame.get("persistent") == "true":
                    journalled.append((queue, properties, frame.body, *order_of(frame)))
            else:
                self.check_ack(frame)
        found = [
            (one.places[0].queue_id, one.properties, one.body, one.priority, one.is_special)
            for one in self.added
        ]
        assert found == journalled
        assert not self.chosen, "more was sent on than came"
        for queue, messages in expected.items():
            head = self.core.queue_statistics(queue).next
            sequences = list(range(head, head + len(messages)))
            _, _, _, frames = self.core.give(self.observers[queue], sequences, 10**9)
            assert frames == b"".join(
                encode_message(
                    [("subscription", "o"), ("message-id", f"{queue}-{head + number}")],
                    properties,
                    body,
                    "1.2",
                )
                for number, (properties, body) in enumerate(messages)
            )
        wanted = [id_ for frame in taken if (id_ := frame.get("receipt")) is not None]
        assert receipts == b"".join(encode(receipt_frame(id_), self.version) for id_ in wanted)

    def check_shown(self, view: MessageView, frame: Frame) -> None:
        assert view.properties == canonical_properties(frame)
        assert (view.priority, view.is_special) == order_of(frame)
        assert view.is_journalled is (frame.get("persistent") == "true")
        assert view.body_length == len(frame.body)

    def check_ack(self, frame: Frame) -> None:
        """Compare with what `vespiary_broker.server.stomp.session` does with an ACK."""
        assert frame.command == "ACK"
        assert frame.get("transaction") is None
        text = frame.get("id" if self.number == 12 else "message-id") or ""
        queue, sequence = parse_message_id(text)
        assert (queue, sequence) in self.given, f"it does not hold {text}"
        self.given.remove((queue, sequence))
        assert self.core.holder(self.connection, queue, sequence) == -1
        if self.number == 11:
            assert frame.get("subscription") == "s1"


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", range(CASES))
def test_scanner_and_decoder_agree(name: str, case: int) -> None:
    bench = Bench(name, seed_for(f"stomp scanner {case}"))
    for _ in range(STREAMS):
        bench.stream()
