"""AMQP's fast path out: the calls of `abc_amqp_sending.CoreAmqpSending`, and what is accepted.

Owns nothing: a mix-in of `TwinCore`, over its tables. Transfers and their ids: `amqp_transfers`.
"""

from __future__ import annotations

from typing import Final

from vespiary_native.abc import AckMode, NoRoom, ScanStatus
from vespiary_native.abc_amqp_sending import AmqpDelivery, AmqpEncoding
from vespiary_native.twin import delivery
from vespiary_native.twin.amqp_fields import Fields
from vespiary_native.twin.amqp_sessions import AmqpSession
from vespiary_native.twin.amqp_transfers import Link
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Connection
from vespiary_native.twin.tables import Tables

CHANNEL_MAX: Final = 65_535


def take_disposition(
    staging: Staging, connection: Connection, channel: int, fields: Fields
) -> ScanStatus:
    """Take what a client says of deliveries.

    Returns:
        NEED_DATA: it is done; FRAME: it is not plain, or may be about others as well; BLOCKED: it
        may have been done in part.
    """
    is_receiver, first, last, is_settled = (
        fields.boolean(), fields.uint(), fields.uint(), fields.boolean()
    )  # fmt: skip
    if not is_receiver or first is None or not is_settled or fields.is_odd:
        return ScanStatus.FRAME
    if not fields.accepted():
        return ScanStatus.FRAME
    fields.boolean()  # batchable
    if not fields.is_read:
        return ScanStatus.FRAME
    last = first if last is None else last
    try:
        done = _accept(staging, connection, channel, first, last)
    except NoRoom:
        return ScanStatus.BLOCKED
    return ScanStatus.NEED_DATA if done == (last - first) % 2**32 + 1 else ScanStatus.FRAME


def _accept(staging: Staging, connection: Connection, channel: int, first: int, last: int) -> int:
    """Acknowledge what the core has sent with these ids; return how many of them it had sent.

    Raises:
        NoRoom: For an acknowledgement; those before it are done.
    """
    known = connection.sessions.get(channel)
    if known is None:
        return 0
    session = known.out
    found = session.between(first, last)
    for delivery_id in found:
        sent = session.sent[delivery_id]
        delivery.acknowledge(staging, sent.consumer, sent.sequence)
        del session.sent[delivery_id]
    return len(found)


class TwinAmqpSending(Tables):
    """The calls; base class of `TwinCore`."""

    def encode_amqp(self, consumer: int, encoding: AmqpEncoding) -> None:
        """See `CoreAmqpSending.encode_amqp`."""
        known = self._consumer(consumer)
        is_fit = known.version == 0 and known.mode is AckMode.INDIVIDUAL and not known.encoding
        link = known.amqp
        is_other = link is not None and link.encoding.channel != encoding.channel
        if not is_fit or is_other or not 0 <= encoding.channel <= CHANNEL_MAX:
            raise ValueError(f"messages of consumer {consumer} cannot be encoded: {encoding}")
        if link is None:
            known.amqp = Link(encoding)
        else:
            link.encoding = encoding

    def set_amqp_link_credit(self, consumer: int, messages: int) -> None:
        """See `CoreAmqpSending.set_amqp_link_credit`."""
        known = self._consumer(consumer)
        if known.amqp is None:
            raise ValueError(f"consumer {consumer} has no link")
        is_more = messages > known.amqp.credit
        known.amqp.credit = messages
        if is_more:
            self._staging.queue_ready(known.queue)

    def set_amqp_room(self, connection: int, channel: int, frames: int) -> None:
        """See `CoreAmqpSending.set_amqp_room`."""
        known = self._sending(connection)
        if not 0 <= channel <= CHANNEL_MAX:
            raise ValueError(f"channel {channel}")
        known.sessions.setdefault(channel, AmqpSession()).out.room = frames

    def _sending(self, handle: int) -> Connection:
        known = self._connection(handle)
        if not known.is_amqp:
            raise ValueError(f"connection {handle} is not one of AMQP")
        return known

    def next_amqp_delivery(self, connection: int, channel: int) -> int:
        """See `CoreAmqpSending.next_amqp_delivery`."""
        session = self._sending(connection).sessions.get(channel)
        if session is None:
            raise ValueError(f"no session is known on channel {channel}")
        return session.out.take_id()

    def take_amqp_sent(
        self, connection: int, channel: int, first: int, last: int
    ) -> list[AmqpDelivery]:
        """See `CoreAmqpSending.take_amqp_sent`."""
        session = self._sending(connection).sessions.get(channel)
        if session is None:
            return []
        out = session.out
        taken = [(one, out.sent.pop(one)) for one in out.between(first, last)]
        return [AmqpDelivery(one, sent.consumer.handle, sent.sequence) for one, sent in taken]
