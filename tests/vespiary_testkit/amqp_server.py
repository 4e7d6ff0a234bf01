"""A small AMQP 1.0 server in memory that answers wrongly on request.

Owns: queues in memory, for the tests of the load generator. Must never: be taken for a broker (it
is durable in no class) or grow features that no test asks for. Called by `tests/unit/benchmarks`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vespiary_codec.wire.amqp import (
    NEED_DATA,
    Accepted,
    AmqpLimits,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Frame,
    FrameDecoder,
    Layer,
    Open,
    ProtocolHeader,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.values import UByte, UInt

ACCEPTS, TAKES = 1000, 2048


@dataclass(frozen=True, slots=True)
class AmqpFaults:
    """What goes wrong: each `…_at` is the number of a message of a producer, from 1; 0 is never.

    Attributes:
        credit: What a sender may send ahead; it is topped up when nothing of it is left.
        window: Transfers that a session takes; topped up likewise.
        ends_with: What the link, session or connection ends with at `end_at`: a frame.
        outcome: What the message at `outcome_at` gets instead of `accepted`.
        is_refused: Whether links are attached without their terminus, and detached.
    """

    credit: int = ACCEPTS
    window: int = TAKES
    end_at: int = 0
    ends_with: Any = None
    outcome_at: int = 0
    outcome: Any = None
    confirm_twice_at: int = 0
    unsettled_at: int = 0
    deliver_twice_at: int = 0
    is_refused: bool = False
    login_code: int = 0
    max_frame_size: int = 1 << 17


REASON = Error(condition="amqp:internal-error", description="the disk is full")
ENDS = {
    "link": Detach(handle=UInt(0), closed=True, error=REASON),
    "session": End(error=REASON),
    "connection": Close(error=REASON),
}
REJECTED = Rejected(error=REASON)
RELEASED = Released()


class AmqpServer:
    """Its queues, and what it has counted.

    Attributes:
        accepted: Deliveries that receivers have accepted and settled.
        dispositions: Frames by which they did so.
        overdrawn: Transfers beyond credit or window.
        flows: What receivers have asked for: their credit, each time.
    """

    def __init__(self, faults: AmqpFaults) -> None:
        self.faults = faults
        self.queues: dict[str, deque[bytes]] = defaultdict(deque)
        self.receivers: dict[str, list[_Connection]] = defaultdict(list)
        self.accepted = 0
        self.dispositions = 0
        self.overdrawn = 0
        self.flows: list[int] = []
        self.connections: list[_Connection] = []


class _Connection(asyncio.Protocol):
    def __init__(self, server: AmqpServer) -> None:
        self.server = server
        self.faults = server.faults
        self.decoder = FrameDecoder(
            AmqpLimits(frame_bytes=self.faults.max_frame_size, before_open_bytes=512)
        )
        self.unsent = bytearray()
        self.address = ""
        self.credit = self.window = self.count = 0  # as a receiver
        self.room = self.given = 0  # as a sender

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self.decoder.feed(data)
        while (event := self.decoder.next_event()) is not NEED_DATA:
            if isinstance(event, ProtocolHeader):
                self.write(protocol_header(event.layer))
                if event.layer is Layer.SASL:
                    self.send(SaslMechanisms(sasl_server_mechanisms=("ANONYMOUS",)))
            else:
                assert isinstance(event, Frame)
                self.take(event.body, event.payload)

    def send(self, body: Any, payload: bytes = b"") -> None:
        self.write(encode_frame(Frame(0, body, payload)))

    def write(self, data: bytes) -> None:
        if not self.unsent:  # what a turn of the loop has to say leaves together
            asyncio.get_running_loop().call_soon(self.flush)
        self.unsent += data

    def flush(self) -> None:
        self.transport.write(bytes(self.unsent))
        self.unsent.clear()

    def take(self, body: Any, payload: bytes) -> None:
        match body:
            case SaslInit():
                assert body.mechanism == "ANONYMOUS"
                self.send(SaslOutcome(code=UByte(self.faults.login_code)))
                self.decoder.expect_header()
            case Open():
                self.send(Open(container_id="s", max_frame_size=UInt(self.faults.max_frame_size)))
                self.write(b"\0\0\0\x08\2\0\0\0")  # a sign of life
            case Begin():
                self.window = self.faults.window
                window = UInt(self.window)
                self.send(Begin(remote_channel=UByte(0), next_outgoing_id=UInt(0),
                                incoming_window=window, outgoing_window=UInt(TAKES)))  # fmt: skip
            case Attach():
                self.attach(body)
            case Flow():
                self.server.flows.append(body.link_credit or 0)
                self.room = (body.delivery_count or 0) + (body.link_credit or 0) - self.given
                self.give()
            case Transfer():
                self.store(body, payload)
            case Disposition():
                assert body.settled
                assert isinstance(body.state, Accepted)
                last = body.first if body.last is None else body.last
                self.server.accepted += last - body.first + 1
                self.server.dispositions += 1
            case _:
                raise AssertionError(body)

    def attach(self, asked: Attach) -> None:
        receives = not asked.role
        terminus = asked.target if receives else asked.source
        self.address = terminus.address
        named = None if self.faults.is_refused else terminus
        source, target = (Source(), named) if receives else (named, Target())
        self.send(Attach(name=asked.name, handle=UInt(0), role=receives, source=source,
                         target=target, initial_delivery_count=UInt(0)))  # fmt: skip
        if self.faults.is_refused:
            self.send(ENDS["link"])
        elif receives:
            self.top_up()
        else:
            self.server.receivers[self.address].append(self)

    def top_up(self) -> None:
        self.credit, self.window = self.faults.credit, self.faults.window
        self.send(Flow(next_incoming_id=UInt(self.count), incoming_window=UInt(self.window),
                       next_outgoing_id=UInt(0), outgoing_window=UInt(TAKES), handle=UInt(0),
                       delivery_count=UInt(self.count), link_credit=UInt(self.credit)))  # fmt: skip

    def store(self, transfer: Transfer, payload: bytes) -> None:
        assert transfer.delivery_id == self.count
        assert transfer.delivery_tag
        self.server.overdrawn += self.credit <= 0 or self.window <= 0
        self.credit, self.window, self.count = self.credit - 1, self.window - 1, self.count + 1
        faults, number = self.faults, self.count
        if number == faults.end_at:
            self.send(faults.ends_with)
            return
        is_refused = number == faults.outcome_at
        for _ in range(2 if number == faults.confirm_twice_at else 1):
            settled = number != faults.unsettled_at
            self.send(Disposition(role=True, first=UInt(transfer.delivery_id), settled=settled,
                                  state=faults.outcome if is_refused else Accepted()))  # fmt: skip
        if not is_refused:
            copies = 2 if number == faults.deliver_twice_at else 1
            self.server.queues[self.address].extend([payload] * copies)
        for receiver in self.server.receivers[self.address]:
            receiver.give()
        if min(self.credit, self.window) == 0:  # by turns of the loop: a client that does not wait
            asyncio.get_running_loop().call_soon(self.top_up)

    def give(self) -> None:
        queue = self.server.queues[self.address]
        while queue and self.room > 0:
            given = UInt(self.given)
            transfer = Transfer(handle=UInt(0), delivery_id=given, delivery_tag=b"%d" % given,
                                message_format=UInt(0), settled=False)  # fmt: skip
            self.send(transfer, queue.popleft())
            self.given += 1
            self.room -= 1


@contextmanager
def running_amqp_server(faults: AmqpFaults | None = None) -> Iterator[tuple[AmqpServer, int]]:
    """Run a server in a thread; yields it and its port on 127.0.0.1."""
    server = AmqpServer(faults or AmqpFaults())
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(
        loop.create_server(lambda: _Connection(server), "127.0.0.1", 0)
    )
    thread = threading.Thread(target=loop.run_forever, name="amqp-server")
    thread.start()
    try:
        yield server, listener.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end(server, listener))
        loop.close()


async def _end(server: AmqpServer, listener: asyncio.Server) -> None:
    listener.close()
    for connection in server.connections:
        connection.transport.abort()
    await listener.wait_closed()
    await asyncio.sleep(0)  # let connection_lost run before the loop closes
