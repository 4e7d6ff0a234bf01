"""kill -9 while a client sends by a durable link: each message is stored once, and none is lost.

The client does what the standard asks: it settles what it was told of, at random; attached again,
it says which deliveries it has not settled, resumes those that the broker knows, and sends the
others anew. Some of its messages come in two transfers, some have bodies in files.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
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
    Open,
    Source,
    Target,
    Transfer,
    encode_frame,
    protocol_header,
    read_section,
    sections,
)
from vespiary_codec.wire.amqp.values import Symbol, UByte, UInt
from vespiary_testkit.amqp_peer import message
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.seeds import seed_for

LIVES = 6
QUEUE = "/queue/once"
SETTINGS = ("acceptors.all.protocols=AMQP", "journal-file-size=2MiB", "journal-min-files=2")
WINDOW = 2**31 - 1
AHEAD = 50
LARGE_BYTES = 150_000
PIECE_BYTES = 100_000

pytestmark = pytest.mark.ci


class BrokenError(Exception):
    """The broker is gone."""


class Connection:
    """A connection with one session, over a socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.decoder = FrameDecoder(AmqpLimits(before_open_bytes=4096))
        begin = Begin(
            next_outgoing_id=UInt(0), incoming_window=UInt(WINDOW), outgoing_window=UInt(WINDOW)
        )
        self.socket.sendall(protocol_header(Layer.AMQP))
        self.send(Open(container_id="sender", max_frame_size=UInt(65536)), begin)

    def send(self, *bodies: Any) -> None:
        frames = [one if isinstance(one, Frame) else Frame(body=one) for one in bodies]
        self.socket.sendall(b"".join(encode_frame(frame) for frame in frames))

    def frames(self) -> Iterator[Frame]:
        """Yield what comes next."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise BrokenError
        self.decoder.feed(data)
        while (event := self.decoder.next_event()) is not NEED_DATA:
            if isinstance(event, Frame):
                yield event


class Sender:
    """The client: what it has begun and not settled survives its connections.

    Attributes:
        unsettled: Bodies by tag.
        made: Messages that it has made so far.
        resumed: Deliveries that a broker knew when it was attached again.
    """

    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.unsettled: dict[bytes, bytes] = {}
        self.made = self.resumed = 0
        self.accepted: set[bytes] = set()

    def run(self, port: int, most: int) -> None:
        """Send until the broker is gone, or so many messages are made and all is settled."""
        connection = Connection(port)
        with contextlib.closing(connection.socket):
            self._run(connection, most)

    def _run(self, connection: Connection, most: int) -> None:
        connection.send(
            Attach(
                name="once", handle=UInt(0), role=False, source=Source(), rcv_settle_mode=UByte(1),
                target=Target(address=QUEUE, durable=UInt(2), expiry_policy=Symbol("never")),
                initial_delivery_count=UInt(0), unsettled=dict.fromkeys(self.unsettled),
            )
        )  # fmt: skip
        self.connection, self.next_id = connection, 0
        self.tags: dict[int, bytes] = {}
        self.late: list[int] = []  # accepted, and not settled yet
        limit, anew = 0, None
        while True:
            for frame in connection.frames():
                match frame.body:
                    case Attach() as answer:
                        anew = self._resume(set(answer.unsettled or {}))
                    case Flow() if frame.body.handle is not None:
                        limit = frame.body.delivery_count + frame.body.link_credit
                    case Detach() as refusal:
                        raise AssertionError(refusal.error)
                    case Disposition() as told:
                        self._told(told)
            if anew is None or not limit:
                continue
            while anew:
                tag = anew.pop()
                self._transfer(tag, self.unsettled[tag])
            while self.made < most and len(self.unsettled) < AHEAD and self.next_id < limit:
                tag, self.made = b"%d" % self.made, self.made + 1
                self.unsettled[tag] = tag.ljust(LARGE_BYTES if self.made % 20 == 0 else 10)
                self._transfer(tag, self.unsettled[tag])
            if self.made >= most:
                self._settle(0)
                if not self.unsettled:
                    return

    def _resume(self, known: set[bytes]) -> list[bytes]:
        """Settle what the broker knows; return what is to be sent anew."""
        assert known <= set(self.unsettled)
        assert self.accepted & set(self.unsettled) <= known, "what was accepted is known"
        for tag in known:
            self._transfer(tag, b"", resume=True, settled=True, state=Accepted())
            del self.unsettled[tag]
        self.resumed += len(known)
        return list(self.unsettled)

    def _transfer(self, tag: bytes, body: bytes, **more: Any) -> None:
        data = message(body) if body else b""
        size = self.pick.choice((PIECE_BYTES, min(PIECE_BYTES, len(data) // 2 + 1)))
        pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
        frames = [
            Frame(body=Transfer(handle=UInt(0), more=at + 1 < len(pieces)), payload=piece)
            for at, piece in enumerate(pieces)
        ]
        first = Transfer(
            handle=UInt(0), delivery_id=UInt(self.next_id), delivery_tag=tag,
            more=len(pieces) > 1, **more,
        )  # fmt: skip
        frames[0] = Frame(body=first, payload=pieces[0])
        self.tags[self.next_id] = tag
        self.next_id += 1
        self.connection.send(*frames)

    def _told(self, told: Disposition) -> None:
        last = told.first if told.last is None else told.last
        assert isinstance(told.state, Accepted)
        assert not told.settled
        numbers = range(told.first, last + 1)
        self.accepted.update(self.tags[number] for number in numbers)
        self.late += numbers
        self._settle(self.pick.choice((0, 0, 1, 5)))

    def _settle(self, kept: int) -> None:
        """Settle what was accepted, but for the last ones."""
        done = self.late[: len(self.late) - kept]
        del self.late[: len(done)]
        for number in done:
            self.connection.send(Disposition(role=False, first=UInt(number), settled=True))
            del self.unsettled[self.tags[number]]


def stored(port: int) -> list[bytes]:
    """Take all messages of the queue; return their bodies."""
    connection = Connection(port)
    connection.send(
        Attach(name="reader", handle=UInt(0), role=True, source=Source(address=QUEUE),
               target=Target(), snd_settle_mode=UByte(1)),
        Flow(incoming_window=UInt(WINDOW), next_outgoing_id=UInt(0), outgoing_window=UInt(WINDOW),
             next_incoming_id=UInt(0), handle=UInt(0), delivery_count=UInt(0),
             link_credit=UInt(1_000_000), drain=True),
    )  # fmt: skip
    found: list[bytes] = []
    data = b""
    while True:
        for frame in connection.frames():
            if isinstance(frame.body, Transfer):
                data += frame.payload
                if not frame.body.more:
                    found.append(read_section(data, sections(data)[-1]))
                    data = b""
            if isinstance(frame.body, Flow) and frame.body.drain:
                connection.socket.close()
                return found


def test_each_message_is_stored_once(tmp_path: Path) -> None:
    pick = random.Random(seed_for("amqp recovery kills"))
    sender = Sender(pick)
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        for _ in range(LIVES):
            timer = threading.Timer(pick.uniform(0.1, 0.6), broker.kill)
            timer.start()
            with contextlib.suppress(OSError, BrokenError):
                sender.run(broker.port("all"), most=10**9)
            timer.join()
            broker.start()
        sender.run(broker.port("all"), most=sender.made + 10)
        assert sender.resumed > 0, "something was in doubt, and the broker knew it"
        found = stored(broker.port("all"))
        assert len(found) == sender.made > 20 * LIVES
        assert {int(body) for body in found} == set(range(sender.made))
        assert any(len(body) == LARGE_BYTES for body in found)
