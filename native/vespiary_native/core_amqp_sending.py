"""The contract of `abc_amqp_sending.CoreAmqpSending` over the C core (native/src/amqp_send.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any

from vespiary_native.abc_amqp_sending import AmqpDelivery, AmqpEncoding
from vespiary_native.answers import check
from vespiary_native.loader import ffi, lib


class NativeAmqpSending:
    """See `abc_amqp_sending.CoreAmqpSending`."""

    _core: Any

    def encode_amqp(self, consumer: int, encoding: AmqpEncoding) -> None:
        """See `CoreAmqpSending.encode_amqp`."""
        bad = lib.vespiary_core_encode_amqp(self._core, consumer, *encoding)
        check(bad, f"encode_amqp({consumer})")

    def set_amqp_link_credit(self, consumer: int, messages: int) -> None:
        """See `CoreAmqpSending.set_amqp_link_credit`."""
        bad = lib.vespiary_core_set_amqp_link_credit(self._core, consumer, messages)
        check(bad, f"set_amqp_link_credit({consumer})")

    def set_amqp_room(self, connection: int, channel: int, frames: int) -> None:
        """See `CoreAmqpSending.set_amqp_room`."""
        bad = lib.vespiary_core_set_amqp_room(self._core, connection, channel, frames)
        check(bad, f"set_amqp_room({channel})")

    def next_amqp_delivery(self, connection: int, channel: int) -> int:
        """See `CoreAmqpSending.next_amqp_delivery`."""
        found = lib.vespiary_core_next_amqp_delivery(self._core, connection, channel)
        return check(found, f"next_amqp_delivery({channel})")

    def take_amqp_sent(
        self, connection: int, channel: int, first: int, last: int
    ) -> list[AmqpDelivery]:
        """See `CoreAmqpSending.take_amqp_sent`."""
        take = lib.vespiary_core_take_amqp_sent
        room = check(take(self._core, connection, channel, first, last, ffi.NULL, 0), "take_sent")
        if not room:
            return []
        out = ffi.new("vespiary_amqp_sent[]", room)
        check(take(self._core, connection, channel, first, last, out, room), "take_sent")
        return [AmqpDelivery(one.id, one.consumer, one.sequence) for one in out]
