"""The contract of `abc_amqp.CoreAmqp` over the C core (native/src/amqp_scan.c, amqp_send.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any

from vespiary_native.abc_amqp import LINKS_MAX, AmqpLesson, AmqpLimits, AmqpTaken
from vespiary_native.answers import check
from vespiary_native.core_switching import SCAN_STATUS
from vespiary_native.loader import lib


class NativeAmqp:
    """See `abc_amqp.CoreAmqp`."""

    _core: Any
    _result: Any
    _taken: Any

    def set_ready_amqp(self, connection: int, limits: AmqpLimits) -> None:
        """See `CoreAmqp.set_ready_amqp`."""
        check(lib.vespiary_core_set_ready_amqp(self._core, connection, *limits), "set_ready_amqp")

    def scan_amqp(self, connection: int, buffer: int, start: int, end: int) -> tuple[int, int, int]:
        """See `CoreAmqp.scan_amqp`.

        Durability: what was taken is durable with the block that is filling.
        """
        out = self._result
        bad = lib.vespiary_core_scan_amqp(self._core, connection, buffer, start, end, out)
        if bad:
            check(bad, "scan_amqp")
        return SCAN_STATUS[out.status], out.position, out.detail

    # --- sessions ---------------------------------------------------------------------------------
    def set_amqp_window(self, connection: int, channel: int, transfers: int) -> None:
        """See `CoreAmqp.set_amqp_window`."""
        bad = lib.vespiary_core_set_amqp_window(self._core, connection, channel, transfers)
        check(bad, "set_amqp_window")

    def forget_amqp_session(self, connection: int, channel: int) -> None:
        """See `CoreAmqp.forget_amqp_session`."""
        bad = lib.vespiary_core_forget_amqp_session(self._core, connection, channel)
        check(bad, "forget_amqp_session")

    # --- messages in ------------------------------------------------------------------------------
    def teach_amqp(self, connection: int, channel: int, handle: int, lesson: AmqpLesson) -> bool:
        """See `CoreAmqp.teach_amqp`."""
        key, stored, route, is_persistent, is_escaped, ranges = lesson
        numbers = [int(number) for each in ranges for number in each]
        taught = lib.vespiary_core_teach_amqp(
            self._core, connection, channel, handle, key, len(key), stored, len(stored),
            route, is_persistent, is_escaped, numbers, len(ranges),
        )  # fmt: skip
        return bool(check(taught, "teach_amqp"))

    def set_amqp_credit(
        self, connection: int, channel: int, handle: int, messages: int, *, settled: bool
    ) -> None:
        """See `CoreAmqp.set_amqp_credit`."""
        bad = lib.vespiary_core_set_amqp_credit(
            self._core, connection, channel, handle, messages, settled
        )
        check(bad, "set_amqp_credit")

    def forget_amqp_link(self, connection: int, channel: int, handle: int) -> None:
        """See `CoreAmqp.forget_amqp_link`."""
        bad = lib.vespiary_core_forget_amqp_link(self._core, connection, channel, handle)
        check(bad, "forget_amqp_link")

    def taken_amqp(self, connection: int) -> list[AmqpTaken]:
        """See `CoreAmqp.taken_amqp`."""
        out = self._taken  # there are no more links than it has room for
        count = lib.vespiary_core_taken_amqp(self._core, connection, out, LINKS_MAX)
        if not count:
            return []
        check(count, "taken_amqp")
        return [AmqpTaken(out[i].channel, out[i].handle, out[i].messages) for i in range(count)]
