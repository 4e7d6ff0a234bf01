"""Durable links by which clients send: what is in doubt is told when they attach again.

Owns the deliveries of such a link that are resumed. Must never store one of these again. What is
remembered is `unsettled`'s. Called by `attaching`; owner: its connection.

| the client resumes a delivery that | what becomes of it |
|---|---|
| was accepted | what it carries is passed over; settled or aborted: the tag is forgotten, else it is told `accepted` again |
| is not known | it is ignored, as the standard has it: the client was told so, and sends it anew |

Source: AMQP 1.0 (OASIS, 2012) §2.6.12, §2.6.13, §2.7.3 and §2.7.5.
"""  # noqa: E501

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.publishing import Target
from vespiary_broker.engine.transactions import Outgoing
from vespiary_broker.server.amqp.assembling import Delivery
from vespiary_broker.server.amqp.conditions import Condition, Refused, error_of
from vespiary_broker.server.amqp.receiving import IncomingLink
from vespiary_broker.server.amqp.unsettled import DurableLink
from vespiary_broker.server.protocol_handler import Work
from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Decoder,
    Detach,
    Error,
    Frame,
    Transfer,
    encode_frame,
)
from vespiary_codec.wire.amqp import Target as AmqpTarget
from vespiary_codec.wire.amqp.composites import write
from vespiary_codec.wire.amqp.values import Described
from vespiary_spec.errors import VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.session import AmqpSession

UNSETTLED_STATE: Final = 2
_SECOND: Final = 1
_SETTLED: Final = 1
_MAP_BYTES: Final = 64
_ENTRY_BYTES: Final = 2 + 8
"""What an entry of the map takes beside its tag, at the most."""


def is_durable(asked: Attach) -> bool:
    """Whether the deliveries of a link are to be remembered that its client has not settled.

    The durability alone is not enough: where the broker settles first, there is none that was
    accepted and is not settled. Nor is there where its client sends all settled.
    """
    target = asked.target
    is_asked = isinstance(target, AmqpTarget) and target.durable == UNSETTLED_STATE
    if not is_asked or target.dynamic or asked.snd_settle_mode == _SETTLED:
        return False
    return bool(asked.rcv_settle_mode == _SECOND)


async def open_durable(session: AmqpSession, asked: Attach) -> DurableLink:
    """Return what is remembered of a link that a client attaches.

    Raises:
        VespiaryError: Nothing more can be remembered.

    Durability: as of `DurableLinks.open`.
    """
    handler = session.handler
    named = asked.unsettled or {}
    return await session.cycle.durable_links.open(
        handler.user,
        handler.client_id,
        asked.name,
        None if asked.incomplete_unsettled else named,
        handler.settings.max_durable_links,
    )


class DurableIncomingLink(IncomingLink):
    """A link by which a client sends, and whose unsettled deliveries are remembered.

    Args:
        session: As of `IncomingLink`.
        asked: As there.
        destination: As there.
        text: As there.
        answer: What is answered, without the deliveries that were accepted.
        durable: What is remembered of it.
    """

    def __init__(
        self,
        session: AmqpSession,
        asked: Attach,
        destination: Destination | None,
        text: str,
        answer: Attach,
        durable: DurableLink,
    ) -> None:
        told = _unsettled(durable, answer, session.handler.frame_bytes)
        self._is_incomplete = len(told) < len(durable.known)
        if told or asked.unsettled is not None:
            answer = replace(answer, unsettled=told, incomplete_unsettled=self._is_incomplete)
        super().__init__(session, asked, destination, text, answer)
        self._durable = durable
        self._ids: dict[bytes, int] = {}  # of the latest delivery with a tag
        self._resumed: Delivery | None = None
        self._is_said = False
        settings = session.handler.settings
        self._most = 2 * (settings.max_unsettled + settings.amqp_credits)
        durable.attached(self)

    # --- transfers --------------------------------------------------------------------------------

    def _take(self, transfer: Transfer, payload: bytes) -> Work:
        resumed = self._resumed
        if resumed is None and self._delivery is None:
            if transfer.resume:
                resumed = self._resumed = self._begin(transfer)
            elif self._is_incomplete:
                raise Refused(
                    Condition.NOT_ALLOWED,
                    "a new delivery comes, though the client was not told of all unsettled ones",
                    cure="resume those that it was told of, and attach again",
                )
            elif len(self._durable.known) >= self._most:
                raise Refused(
                    Condition.RESOURCE_LIMIT_EXCEEDED,
                    "a new delivery comes, and too many before it are not settled",
                    measured=f"{len(self._durable.known)} deliveries that were accepted",
                    allowed=f"below {self._most} (twice max-unsettled and amqp-credits)",
                    cure="settle those that were accepted before the link was attached again",
                )
        if resumed is None:
            return super()._take(transfer, payload)
        if transfer.delivery_id not in (None, resumed.id):
            raise Refused(
                Condition.NOT_ALLOWED, "another delivery begins before the one before it has ended"
            )
        resumed.is_settled |= bool(transfer.settled) or transfer.aborted
        if transfer.aborted or not transfer.more:
            self._resumed = None
            self._resume(resumed)
            self._used()
        return None

    def _begin(self, transfer: Transfer) -> Delivery:
        delivery = super()._begin(transfer)
        if delivery.is_second and not delivery.is_settled:

            def stage(message: Outgoing, target: Target) -> int:
                return self._stage(delivery.tag, message, target)

            delivery.stage = stage
        return delivery

    def _stage(self, tag: bytes, message: Outgoing, target: Target) -> int:
        if not self.is_open:
            # Its client may have been told by another connection that it is not known.
            raise Refused(Condition.STOLEN, "the link was detached while a message waited")
        return self._durable.stage(tag, message, target, self._publisher.stage)

    def _resume(self, delivery: Delivery) -> None:
        tag = delivery.tag
        if tag not in self._durable.known:
            if not self._is_said:
                self._is_said = True
                self.session.connection.note_line(
                    "a client resumes a delivery that is not known, which is ignored"
                    " peer=%s link=%a tag=%s; no more is said of this link",
                    *(self.name[:100], tag.hex()),
                    level=logging.WARNING,
                )
        elif delivery.is_settled:
            self._durable.settle(tag)
        else:
            self._accept(delivery)

    # --- outcomes ---------------------------------------------------------------------------------

    def _accept(self, delivery: Delivery) -> None:
        if delivery.is_second and not delivery.is_settled:
            self._ids[delivery.tag] = delivery.id
        elif delivery.tag in self._durable.known:
            self._durable.settle(delivery.tag)
        super()._accept(delivery)

    def _release(self, delivery: Delivery) -> None:
        self._durable.settle(delivery.tag)
        super()._release(delivery)

    def _settle(self, delivery_id: int, tag: bytes) -> None:
        if self._ids.get(tag) == delivery_id:
            del self._ids[tag]
            self._durable.settle(tag)

    # --- the end ----------------------------------------------------------------------------------

    def detach(self, asked: Detach) -> Work:
        """End it; with `closed` what is remembered goes as well."""
        self.close(is_counted=False)
        if not asked.closed:
            self.confirm_detached(is_closed=False)
            return None
        key = self.session.cycle.durable_links.drop(self._durable)
        return self._dropped(key)

    async def _dropped(self, key: str) -> None:
        error: Error | None = None
        try:
            if key:
                await self.session.cycle.engine.registry.wait_removed(key)
        except VespiaryError as refusal:
            error = error_of(refusal)
        self.confirm_detached(is_closed=True, error=error)

    def close(self, *, is_counted: bool) -> None:
        """Give back what it holds; what is remembered stays."""
        super().close(is_counted=is_counted)
        self._resumed = None
        self._durable.left(self)


def _unsettled(durable: DurableLink, answer: Attach, frame_bytes: int) -> dict[Any, Described]:
    """Return the map of deliveries that were accepted, as far as it fits into a frame."""
    accepted = Decoder(write(Accepted())).value()
    room = frame_bytes - len(encode_frame(Frame(body=answer))) - _MAP_BYTES
    found: dict[Any, Described] = {}
    for tag in durable.known:
        room -= len(tag) + _ENTRY_BYTES
        if room < 0:
            break
        found[tag] = accepted
    return found
