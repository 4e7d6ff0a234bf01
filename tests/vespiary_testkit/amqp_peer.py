"""A client of AMQP 1.0 over a fake transport: what it sends is frames, and what it got as well."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

from vespiary_broker.server.amqp.handler import AmqpHandler
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
    Header,
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
)
from vespiary_codec.wire.amqp.values import Symbol, UByte, UInt
from vespiary_spec.settings import Acceptor, Protocol
from vespiary_spec.settings import AmqpLimits as AmqpSettings
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import Peer, ServerRig

B = TypeVar("B")
RECEIVER, SENDER = True, False


def amqp_acceptor(**limits: Any) -> Acceptor:
    """Return an acceptor that speaks AMQP and STOMP."""
    both = (Protocol.STOMP, Protocol.AMQP)
    return Acceptor(name="all", port=0, protocols=both, amqp=AmqpSettings(**limits))


def message(
    body: Any = b"body",
    *,
    durable: bool = True,
    section: Section = Section.DATA,
    application: dict[str, Any] | None = None,
    header: dict[str, Any] | None = None,
    **properties: Any,
) -> bytes:
    """Return a message as bytes."""
    data = encode_section(Section.HEADER, Header(durable=durable, **(header or {})))
    if properties:
        data += encode_section(Section.PROPERTIES, MessageProperties(**properties))
    if application:
        data += encode_section(Section.APPLICATION_PROPERTIES, application)
    return data + encode_section(section, body)


class AmqpPeer:
    """One client of the rig that speaks AMQP.

    Args:
        rig: The rig; its acceptor speaks AMQP.
        frame_bytes: Largest frame that it takes.
    """

    def __init__(self, rig: ServerRig, frame_bytes: int = 64 * 1024) -> None:
        self.rig = rig
        self.peer = Peer(rig, rig.listener)
        self.transport = self.peer.transport
        self.frame_bytes = frame_bytes
        self.decoder = FrameDecoder(
            AmqpLimits(frame_bytes=max(frame_bytes, 512), before_open_bytes=2048)
        )
        self.got: list[Frame | ProtocolHeader] = []
        self._fed = 0
        self._next_delivery = 0

    @property
    def handler(self) -> AmqpHandler:
        """The server's side of it."""
        handler = self.peer.connection.handler
        assert isinstance(handler, AmqpHandler)
        return handler

    # --- what it sends ----------------------------------------------------------------------------

    def raw(self, data: bytes) -> None:
        """Have bytes arrive."""
        self.peer.send(data)

    def frame(self, body: Any, payload: bytes = b"", channel: int = 0) -> None:
        """Send a frame."""
        self.raw(encode_frame(Frame(channel, body, payload)))

    async def open(self, container: str = "me", **fields: Any) -> Open:
        """Open the connection without SASL; return the server's open."""
        self.raw(protocol_header(Layer.AMQP))
        fields.setdefault("max_frame_size", UInt(self.frame_bytes))
        self.frame(Open(container_id=container, **fields))
        await self.rig.settle()
        self.take()
        assert isinstance(self.got.pop(0), ProtocolHeader)
        return self.one(Open)

    async def begin(self, channel: int = 0, window: int = 2048, **fields: Any) -> Begin:
        """Begin a session."""
        begin = Begin(
            next_outgoing_id=UInt(0),
            incoming_window=UInt(window),
            outgoing_window=UInt(2048),
            **fields,
        )
        self.frame(begin, channel=channel)
        await self.rig.settle()
        return self.one(Begin)

    async def sender(self, address: str | None, handle: int = 0, **fields: Any) -> Attach:
        """Attach a link by which it sends; return the server's attach."""
        fields.setdefault("target", Target(address=address))
        fields.setdefault("source", Source())
        await self.attach(SENDER, handle, **fields)
        return self.one(Attach)

    async def receiver(
        self, address: str | None, handle: int = 1, credit: int = 0, **fields: Any
    ) -> Attach:
        """Attach a link by which it receives; return the server's attach."""
        fields.setdefault("source", Source(address=address))
        fields.setdefault("target", Target())
        await self.attach(RECEIVER, handle, **fields)
        answer = self.one(Attach)
        if credit:
            await self.credit(credit, handle)
        return answer

    async def attach(self, role: bool, handle: int, channel: int = 0, **fields: Any) -> None:
        """Attach a link."""
        name = fields.pop("name", f"link-{handle}")
        if role is SENDER:
            fields.setdefault("initial_delivery_count", UInt(0))
        self.frame(Attach(name=name, handle=UInt(handle), role=role, **fields), channel=channel)
        await self.rig.settle(40)

    async def credit(
        self, credit: int, handle: int = 1, count: int = 0, channel: int = 0, **fields: Any
    ) -> None:
        """Give credit on a link."""
        flow = Flow(
            next_incoming_id=UInt(fields.pop("next_incoming_id", 0)),
            incoming_window=UInt(fields.pop("window", 2048)),
            next_outgoing_id=UInt(0),
            outgoing_window=UInt(2048),
            handle=UInt(handle),
            delivery_count=UInt(count),
            link_credit=UInt(credit),
            **fields,
        )
        self.frame(flow, channel=channel)
        await self.rig.settle()

    def send(self, data: bytes, handle: int = 0, **fields: Any) -> int:
        """Send a message in one transfer; return the id of its delivery."""
        delivery_id = self._next_delivery
        self._next_delivery += 1
        transfer = Transfer(
            handle=UInt(handle),
            delivery_id=UInt(delivery_id),
            delivery_tag=delivery_id.to_bytes(4, "big"),
            **fields,
        )
        self.frame(transfer, data, channel=fields.pop("channel", 0))
        return delivery_id

    def settle(self, first: int, last: int | None = None, state: Any = None, **fields: Any) -> None:
        """Say what became of deliveries."""
        fields.setdefault("settled", True)
        self.frame(
            Disposition(
                role=RECEIVER,
                first=UInt(first),
                last=None if last is None else UInt(last),
                state=Accepted() if state is None else state,
                **fields,
            )
        )

    async def detach(self, handle: int, *, closed: bool = True) -> None:
        """Detach a link."""
        self.frame(Detach(handle=UInt(handle), closed=closed))
        await self.rig.flush()

    # --- what it got ------------------------------------------------------------------------------

    def take(self) -> list[Frame | ProtocolHeader]:
        """Take in what has come."""
        self.decoder.feed(self.transport.data[self._fed :])
        self._fed = len(self.transport.data)
        while (event := self.decoder.next_event()) is not NEED_DATA:
            self.got.append(event)  # type: ignore[arg-type]
        return self.got

    def all(self, kind: type[B]) -> list[B]:
        """Return the frames of a kind that have come, and forget them."""
        self.take()
        found = [one for one in self.got if isinstance(one, Frame) and isinstance(one.body, kind)]
        self.got = [one for one in self.got if one not in found]
        return [one.body for one in found]

    def one(self, kind: type[B]) -> B:
        """Return the one frame of a kind that has come."""
        (found,) = self.all(kind)
        return found

    def messages(self) -> list[tuple[Transfer, bytes]]:
        """Return the deliveries that have come: the first transfer, and the whole message."""
        self.take()
        frames = [
            one for one in self.got if isinstance(one, Frame) and isinstance(one.body, Transfer)
        ]
        self.got = [one for one in self.got if one not in frames]
        found: list[tuple[Transfer, bytes]] = []
        is_more = False
        for frame in frames:
            if is_more:
                found[-1] = (found[-1][0], found[-1][1] + frame.payload)
            else:
                found.append((frame.body, frame.payload))
            is_more = frame.body.more
        assert not is_more
        return found


def typed_priority(number: int) -> UByte:
    """Return a priority as a header has it."""
    return UByte(number)


def symbol(text: str) -> Symbol:
    """Return a symbol."""
    return Symbol(text)


def with_rig(
    settings: dict[str, Any] | None = None,
    *,
    security: dict[str, Any] | None = None,
    runner: Callable[[Any], None] = product_loop.run,
    **limits: Any,
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test on a loop, with a rig that it gets as its first argument.

    Args:
        settings: Of addresses.
        security: Permissions by match.
        runner: Runs a coroutine.
        limits: Of the acceptor's `amqp`.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        async def scenario(values: dict[str, Any]) -> None:
            rig = ServerRig(acceptor=amqp_acceptor(**limits), settings=settings, security=security)
            await test(rig, **values)
            await rig.close()

        @wraps(test)
        def run(**values: Any) -> None:
            runner(scenario(values))

        signature = inspect.signature(test)
        others = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
