"""A client of AMQP with one durable link, over the fake transport, and the broker's notes of it."""

from __future__ import annotations

from typing import Any

from vespiary_broker.engine.names import OWN_PREFIX
from vespiary_codec.wire.amqp import Accepted, Attach, Decoder, Disposition, Target, Transfer
from vespiary_codec.wire.amqp.composites import write
from vespiary_codec.wire.amqp.values import Symbol, UByte, UInt
from vespiary_testkit.amqp_peer import SENDER, AmqpPeer, message
from vespiary_testkit.server_rig import ServerRig

SECOND = UByte(1)
ADDRESS = "/queue/a"
ACCEPTED = Decoder(write(Accepted())).value()


class DurableSender:
    """A client with one durable link, which settles when it is told to."""

    def __init__(self, rig: ServerRig, frame_bytes: int = 64 * 1024) -> None:
        self.rig = rig
        self.peer = AmqpPeer(rig, frame_bytes)
        self.number = 0

    async def open(
        self, unsettled: Any = None, *, container: str = "me", durable: int = 2, **more: Any
    ) -> Attach:
        """Connect and attach; return the broker's attach."""
        await self.peer.open(container=container)
        await self.peer.begin()
        return await self.attach(unsettled, durable=durable, **more)

    async def attach(self, unsettled: Any = None, *, durable: int = 2, **more: Any) -> Attach:
        more.setdefault("rcv_settle_mode", SECOND)
        more.setdefault("name", "link")
        target = Target(address=ADDRESS, durable=UInt(durable), expiry_policy=Symbol("never"))
        await self.peer.attach(SENDER, 0, target=target, unsettled=unsettled, **more)
        await self.rig.flush()
        await self.rig.flush()  # what is forgotten has to be durable as well
        return self.peer.one(Attach)

    def send(self, tag: bytes, body: bytes = b"", payload: bytes | None = None, **more: Any) -> int:
        """Begin a delivery; return its id."""
        number, self.number = self.number, self.number + 1
        transfer = Transfer(handle=UInt(0), delivery_id=UInt(number), delivery_tag=tag, **more)
        self.peer.frame(transfer, message(body or tag) if payload is None else payload)
        return number

    async def sent(self, *tags: bytes, **more: Any) -> None:
        """Send messages, and see that all were accepted, and none settled."""
        first = self.number
        for tag in tags:
            self.send(tag, **more)
        await self.rig.flush()
        assert self.told() == [(number, False) for number in range(first, self.number)]

    def told(self) -> list[tuple[int, bool]]:
        """Return the ids that were told to be accepted, with whether they are settled."""
        found = []
        for one in self.peer.all(Disposition):
            assert isinstance(one.state, Accepted)
            last = one.first if one.last is None else one.last
            found += [(number, one.settled) for number in range(one.first, last + 1)]
        return found

    async def settle(self, first: int, last: int | None = None) -> None:
        body = Disposition(
            role=False, first=UInt(first), last=None if last is None else UInt(last), settled=True
        )
        self.peer.frame(body)
        await self.rig.flush()

    def lose(self) -> None:
        self.peer.peer.lose()


def stored(rig: ServerRig, name: str = "a") -> int:
    return rig.core.queue_statistics(rig.engine.registry.queues[name].id).ready


def notes(rig: ServerRig) -> list[int]:
    """Return how many notes there are in each queue of a link."""
    queues = rig.engine.registry.queues
    return [stored(rig, name) for name in queues if name.startswith(f"{OWN_PREFIX}amqp.")]


def tags(answer: Attach) -> dict[Any, Any]:
    assert answer.unsettled is not None
    assert all(state == ACCEPTED for state in answer.unsettled.values())
    return answer.unsettled
