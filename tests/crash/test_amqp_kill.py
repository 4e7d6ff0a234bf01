"""kill -9 while a client of AMQP sends through the core: what was accepted survives.

Transfers differ in their bodies alone, so the core takes nearly all of them, and confirms them.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from pathlib import Path

import pytest

from vespiary_codec.wire.amqp import (
    NEED_DATA,
    Accepted,
    AmqpLimits,
    Attach,
    Begin,
    Disposition,
    Flow,
    Frame,
    FrameDecoder,
    Layer,
    Open,
    Source,
    Target,
    Transfer,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.values import UInt
from vespiary_testkit.amqp_peer import message
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.seeds import seed_for

LIVES = 4
QUEUE = "/queue/killed"
SETTINGS = ("journal-file-size=2MiB", "journal-min-files=2")
WINDOW = 2**31 - 1

pytestmark = pytest.mark.ci


class Client:
    """One link of a client, over a socket."""

    def __init__(self, port: int, attach: Attach) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.decoder = FrameDecoder(AmqpLimits(before_open_bytes=4096))
        begin = Begin(
            next_outgoing_id=UInt(0), incoming_window=UInt(WINDOW), outgoing_window=UInt(WINDOW)
        )
        frames = (Open(container_id=attach.name), begin, attach)
        self.send(protocol_header(Layer.AMQP) + b"".join(encode_frame(Frame(0, f)) for f in frames))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        self.socket.close()

    def receive(self) -> list[Frame]:
        """Return the next frames.

        Raises:
            ConnectionError: The broker is gone.
        """
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError
        self.decoder.feed(data)
        found = []
        while (event := self.decoder.next_event()) is not NEED_DATA:
            if isinstance(event, Frame):
                found.append(event)
        return found


def send_until_killed(port: int, life: int, accepted: set[bytes]) -> int:
    """Send as fast as credit allows; note what was accepted. Return how many dispositions came."""
    attach = Attach(
        name="sender", handle=UInt(0), role=False, source=Source(),
        target=Target(address=QUEUE), initial_delivery_count=UInt(0),
    )  # fmt: skip
    sent = limit = window = told = 0
    with contextlib.suppress(OSError), contextlib.closing(Client(port, attach)) as client:
        while True:
            for frame in client.receive():
                if isinstance(frame.body, Flow):
                    window = (frame.body.next_incoming_id or 0) + frame.body.incoming_window
                    if frame.body.handle is not None:
                        limit = frame.body.delivery_count + frame.body.link_credit
                elif isinstance(frame.body, Disposition):
                    told += 1
                    first, last = frame.body.first, frame.body.last
                    numbers = range(first, (first if last is None else last) + 1)
                    accepted.update(b"%d-%d" % (life, number) for number in numbers)
            pieces = []
            for number in range(sent, min(limit, window)):
                transfer = Transfer(handle=UInt(0), delivery_id=UInt(number), delivery_tag=b"t")
                data = message(b"%d-%d" % (life, number))
                pieces.append(encode_frame(Frame(0, transfer, data)))
            sent += len(pieces)
            client.send(b"".join(pieces))
    return told


def stored(port: int, least: int) -> list[bytes]:
    """Take all messages of the queue; return their bodies."""
    attach = Attach(
        name="reader", handle=UInt(0), role=True, source=Source(address=QUEUE), target=Target()
    )
    client = Client(port, attach)
    flow = Flow(
        incoming_window=UInt(WINDOW), next_outgoing_id=UInt(0), outgoing_window=UInt(WINDOW),
        handle=UInt(0), delivery_count=UInt(0), link_credit=UInt(1_000_000), drain=True,
        next_incoming_id=UInt(0),
    )  # fmt: skip
    client.send(encode_frame(Frame(0, flow)))
    found: list[bytes] = []
    done = 0
    while True:
        for frame in client.receive():
            if isinstance(frame.body, Transfer):
                assert frame.body.delivery_id == len(found)
                found.append(body_of(frame.payload))
            if isinstance(frame.body, Flow) and frame.body.drain and len(found) >= least:
                client.close()
                return found
        last = UInt(max(len(found) - 1, 0))
        settled = Disposition(
            role=True, first=UInt(done), last=last, settled=True, state=Accepted()
        )
        if len(found) > done:
            client.send(encode_frame(Frame(0, settled)))
            done = len(found)


def body_of(payload: bytes) -> bytes:
    """Return the value of the data section that ends a message."""
    at = payload.rindex(b"\0\x53\x75\xa0")
    return payload[at + 5 : at + 5 + payload[at + 4]]


def test_what_the_core_accepted_survives_kills(tmp_path: Path) -> None:
    pick = random.Random(seed_for("amqp kills"))
    accepted: set[bytes] = set()
    told = 0
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        for life in range(LIVES):
            timer = threading.Timer(pick.uniform(0.05, 0.4), broker.kill)
            timer.start()
            told += send_until_killed(broker.port("all"), life, accepted)
            timer.join()
            broker.start()
        assert len(accepted) > 20 * told > 0, "dispositions are of runs: the core took them"
        found = stored(broker.port("all"), len(accepted))
        assert len(set(found)) == len(found)
        assert accepted <= set(found)
