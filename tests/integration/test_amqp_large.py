"""Large messages in transfers: windows, small frames, other links meanwhile, what is cut off."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.wire.amqp import (
    NEED_DATA,
    Accepted,
    AmqpLimits,
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Frame,
    FrameDecoder,
    Layer,
    MessageProperties,
    Open,
    ProtocolHeader,
    Section,
    Source,
    Target,
    Transfer,
    encode_frame,
    encode_section,
    protocol_header,
    read_section,
    sections,
)
from vespiary_codec.wire.amqp.values import UInt
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S, wait_for

BODY = bytes(range(256)) * 2000
FRAME_BYTES = 4096


def session(window: int = 0) -> Begin:
    """Return what begins a session."""
    return Begin(next_outgoing_id=UInt(0), incoming_window=UInt(window), outgoing_window=UInt(9))


class RawClient:
    """A client that does what it is told, frame by frame."""

    def __init__(self, port: int, *, window: int, frame_bytes: int = FRAME_BYTES) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.decoder = FrameDecoder(AmqpLimits(frame_bytes=frame_bytes, before_open_bytes=2048))
        self.seen = 0
        self.socket.sendall(protocol_header(Layer.AMQP))
        self.send(Open(container_id="raw", max_frame_size=UInt(frame_bytes)))
        self.send(session(window))
        self.next(Open)
        self.next(Begin)

    def send(self, body: Any, payload: bytes = b"", channel: int = 0) -> None:
        frame = Frame(channel=channel, body=body, payload=payload)
        self.socket.sendall(encode_frame(frame))

    def attach(self, handle: int, *, role: bool, address: str) -> None:
        terminus = {"source": Source(address=address), "target": Target()}
        if not role:
            terminus = {"source": Source(), "target": Target(address=address)}
        count = None if role else UInt(0)
        self.send(
            Attach(
                name=f"l{handle}", handle=UInt(handle), role=role, initial_delivery_count=count,
                **terminus,
            )
        )  # fmt: skip
        self.next(Attach)

    def flow(self, window: int, handle: int | None = None, credit: int | None = None) -> None:
        self.send(
            Flow(
                next_incoming_id=UInt(self.seen), incoming_window=UInt(window),
                next_outgoing_id=UInt(0), outgoing_window=UInt(9),
                handle=None if handle is None else UInt(handle),
                delivery_count=None if handle is None else UInt(0),
                link_credit=None if credit is None else UInt(credit),
            )
        )  # fmt: skip

    def frame(self) -> Frame:
        """Return the next frame."""
        while True:
            event = self.decoder.next_event()
            if isinstance(event, Frame):
                if event.body is None:
                    continue
                self.seen += isinstance(event.body, Transfer)
                return event
            if isinstance(event, ProtocolHeader):
                continue
            assert event is NEED_DATA
            data = self.socket.recv(65536)
            assert data, "the broker has closed the connection"
            self.decoder.feed(data)

    def next(self, kind: type) -> Frame:
        """Return the next frame of a kind; others are passed over."""
        while True:
            frame = self.frame()
            if isinstance(frame.body, kind):
                return frame

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, "acceptors.all.protocols=STOMP,AMQP") as process:
        yield process


@pytest.fixture
def stomp(broker: BrokerProcess) -> Iterator[Client]:
    client = Client(broker.port(), "1.2")
    client.connect()
    yield client
    client.disconnect()


def files(broker: BrokerProcess) -> set[Path]:
    return {path for path in broker.data.glob("large*/*") if path.is_file()}


@pytest.mark.engine
def test_a_window_of_three_frames(broker: BrokerProcess, stomp: Client) -> None:
    before = files(broker)
    stomp.send("/queue/windowed", BODY, persistent="true")
    client = RawClient(broker.port(), window=0)
    client.attach(0, role=True, address="/queue/windowed")
    client.flow(3, 0, 5)
    data, is_more, rounds = b"", True, 0
    while is_more:
        for _ in range(3):
            frame = client.next(Transfer)
            data += frame.payload
            is_more = frame.body.more
            if not is_more:
                break
        rounds += 1
        if rounds == 3:
            client.send(session(), channel=1)
            assert isinstance(client.frame().body, Begin)  # and nothing beyond the window before it
        client.flow(3)
    body = sections(data)[-1]
    assert body.section is Section.DATA
    assert read_section(data, body) == BODY
    client.send(Disposition(role=True, first=UInt(0), settled=True, state=Accepted()))
    wait_for(lambda: files(broker) <= before)
    client.close()


def test_small_messages_overtake_a_large_one_on_another_link(
    broker: BrokerProcess, stomp: Client
) -> None:
    stomp.send("/queue/large", BODY)
    client = RawClient(broker.port(), window=2)
    client.attach(0, role=True, address="/queue/large")
    client.attach(1, role=True, address="/queue/small")
    client.flow(2, 0, 1)
    assert client.next(Transfer).body.more
    assert client.next(Transfer).body.more
    stomp.send("/queue/small", "quick")
    client.flow(50, 1, 1)
    handles = [client.next(Transfer).body.handle for _ in range(50)]
    assert 1 in handles
    client.close()


@pytest.mark.engine
def test_a_link_that_goes_in_the_middle_gives_the_message_back(
    broker: BrokerProcess, stomp: Client
) -> None:
    stomp.send("/queue/cut", BODY)
    client = RawClient(broker.port(), window=2)
    client.attach(0, role=True, address="/queue/cut")
    client.flow(2, 0, 1)
    assert client.next(Transfer).body.more
    client.send(Detach(handle=UInt(0), closed=True))
    assert client.next(Detach).body.error is None
    stomp.subscribe("/queue/cut", ack="auto")
    (got,) = stomp.recorder.take(1)
    assert got.headers["content-length"] == str(len(BODY))
    client.close()


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_large_message_that_never_ends_leaves_no_file(
    broker: BrokerProcess, is_aborted: bool
) -> None:
    before = files(broker)
    client = RawClient(broker.port(), window=9)
    client.attach(0, role=False, address="/queue/never")
    client.next(Flow)
    data = b"\0\x53\x75\xb0" + len(BODY).to_bytes(4, "big") + BODY[:300_000]
    first = Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t", more=True)
    for at in range(0, len(data), 50_000):
        transfer = first if at == 0 else Transfer(handle=UInt(0), more=True)
        client.send(transfer, data[at : at + 50_000])
    wait_for(lambda: len(files(broker) - before) == 1)
    if is_aborted:
        client.send(Transfer(handle=UInt(0), aborted=True))
    else:
        client.close()
    wait_for(lambda: files(broker) <= before)
    client.close()


@pytest.mark.parametrize("kind", ["short", "long", "string"])
def test_a_large_body_that_is_not_what_it_says(broker: BrokerProcess, kind: str) -> None:
    before = files(broker)
    client = RawClient(broker.port(), window=9)
    client.attach(0, role=False, address="/queue/wrong")
    client.next(Flow)
    code = b"\x77\xb1" if kind == "string" else b"\x75\xb0"
    data = b"\0\x53" + code + len(BODY).to_bytes(4, "big") + BODY
    data = data[:-100] if kind == "short" else data
    data += b"junk" if kind == "long" else b""
    client.send(
        Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t", more=True), data[:120_000]
    )
    for at in range(120_000, len(data), 100_000):
        is_more = at + 100_000 < len(data)
        client.send(Transfer(handle=UInt(0), more=is_more), data[at : at + 100_000])
    frame = client.frame()
    error = frame.body.error if isinstance(frame.body, Detach) else frame.body.state.error
    assert error.condition in ("amqp:decode-error", "amqp:precondition-failed")
    wait_for(lambda: files(broker) <= before)
    client.close()


@pytest.mark.engine
def test_a_large_string_survives_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "acceptors.all.protocols=STOMP,AMQP") as broker:
        client = RawClient(broker.port(), window=9)
        client.attach(0, role=False, address="/queue/kept")
        client.next(Flow)
        head = encode_section(Section.PROPERTIES, MessageProperties(subject="large"))
        data = b"\0\x53\x70\xc0\x02\x01\x41" + head
        data += b"\0\x53\x77\xb1" + (300_000).to_bytes(4, "big") + b"x" * 300_000
        transfer = Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t", more=True)
        client.send(transfer, data[:110_000])
        client.send(Transfer(handle=UInt(0), more=True), data[110_000:220_000])
        client.send(Transfer(handle=UInt(0)), data[220_000:])
        told = client.next(Disposition)
        assert isinstance(told.body.state, Accepted)
        client.close()
        broker.kill()
        broker.start()
        client = RawClient(broker.port(), window=999, frame_bytes=65_536)
        client.attach(0, role=True, address="/queue/kept")
        client.flow(999, 0, 1)
        got, is_more = b"", True
        while is_more:
            frame = client.next(Transfer)
            got += frame.payload
            is_more = frame.body.more
        assert got[got.index(b"\0\x53\x73") :] == data[data.index(b"\0\x53\x73") :]
        client.close()
