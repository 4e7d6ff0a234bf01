"""SENDs and PUBLISHes to a switch: kept by the scanner until Python has said where each goes.

Owns what the last scan kept. Must never stage anything before that. The calls are those of
`abc_switching.CoreSwitching`; a mix-in of `TwinCore`, and used by its scanner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vespiary_codec.journal.record import RecordFlag
from vespiary_native.abc_switching import SWITCHED_BYTES_MAX, SWITCHED_MAX
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Connection, Route, SendPlan
from vespiary_native.twin.tables import Tables, free_handle
from vespiary_native.values import NoRoom, ScanStatus
from vespiary_native.values_inspection import MessageView

RECEIPT: Final = b"RECEIPT\nreceipt-id:%b\n\n\0"
UNROUTED_RECEIPT: Final = b"RECEIPT\nreceipt-id:%b\nqueues:0\n\n\0"
"""Of a message that no queue took."""
PUBACK: Final = b"\x40\x02%b"
MQTT_5: Final = 5


class KeptSend(NamedTuple):
    """One frame: where it stands, and what is known of it.

    Attributes:
        position: Where it begins.
        body_position: Where its body begins.
        body_end: Where its body ends.
        end: Where the next one begins.
        plan: What is known of it.
        receipt: The receipt that it asks for (of MQTT: its packet id); None: none.
    """

    position: int
    body_position: int
    body_end: int
    end: int
    plan: SendPlan
    receipt: bytes | None


class Switched:
    """What the last scan kept.

    Attributes:
        sends: The frames, all of one connection and to one switch.
    """

    def __init__(self) -> None:
        self.sends: list[KeptSend] = []
        self._connection: Connection | None = None
        self._view = memoryview(b"")

    def begin(self, connection: Connection, view: memoryview) -> None:
        """Forget what was kept: another scan begins."""
        self.sends.clear()
        self._connection, self._view = connection, view

    def clear(self) -> None:
        """Forget what was kept, and where."""
        self.sends.clear()
        self._connection, self._view = None, memoryview(b"")

    @property
    def answer(self) -> tuple[int, int, int]:
        """What the scan answers when something was kept."""
        first = self.sends[0]
        return ScanStatus.SWITCHED, first.position, first.plan.route.handle

    def keep(self, send: KeptSend) -> bool:
        """Keep a frame; False: the others have to go first."""
        sends, connection = self.sends, self._connection
        assert connection is not None
        if sends and (
            send.plan.route is not sends[0].plan.route
            or len(sends) >= connection.switched_max
            or sends[-1].end - sends[0].position >= SWITCHED_BYTES_MAX
        ):
            return False
        sends.append(send)
        return True

    def views(self, now_ms: int) -> list[MessageView]:
        """Return what was kept as selectors see it."""
        return [
            MessageView(
                sequence=0,
                is_returned=False,
                is_held=False,
                is_aside=False,
                deliveries=0,
                priority=plan.priority,
                protocol=plan.protocol,
                time_ms=now_ms,
                is_journalled=plan.is_persistent,
                is_special=bool(plan.flags & RecordFlag.SPECIAL),
                is_large=False,
                is_escaped=bool(plan.flags & RecordFlag.ESCAPED),
                body_length=body_end - body_position,
                properties=plan.properties,
            )
            for _, body_position, body_end, _, plan, _ in self.sends
        ]

    def send(self, staging: Staging, routes: list[Route]) -> tuple[ScanStatus, int, int]:
        """Stage what was kept, each to its route.

        Raises:
            ValueError: There are none, or more than messages.
        """
        connection = self._connection
        if not routes or len(routes) > len(self.sends) or not (connection and connection.is_open):
            raise ValueError(f"{len(routes)} routes for {len(self.sends)} messages")
        sends, self.sends = self.sends, []
        for send, route in zip(sends, routes, strict=False):
            status = stage_send(staging, connection, route, self._view, send)
            if status is not ScanStatus.NEED_DATA:
                connection.switched_max = 1  # the next one may find no room either
                return status, send.position, send.end - send.position
        is_part = len(routes) < len(sends)  # there was no time for the others
        wider = len(routes) if is_part else 2 * connection.switched_max
        connection.switched_max = min(wider, SWITCHED_MAX)
        return ScanStatus.NEED_DATA, sends[len(routes) - 1].end, 0


def stage_send(
    staging: Staging, connection: Connection, route: Route, view: memoryview, send: KeptSend
) -> ScanStatus:
    """Stage a message and hold its receipt; FRAME and BLOCKED: nothing was done."""
    plan = send.plan
    if staging.accounts.is_held(route):
        return ScanStatus.FRAME
    if send.receipt is not None and connection.version == MQTT_5 and not route.queues:
        return ScanStatus.FRAME  # the client is told that nobody gets it
    try:
        block = staging.add(
            route,
            plan.properties,
            view[send.body_position : send.body_end],
            is_persistent=plan.is_persistent,
            protocol=plan.protocol,
            priority=plan.priority,
            flags=plan.flags,
        )
    except NoRoom:
        return ScanStatus.BLOCKED
    except ValueError:
        return ScanStatus.FRAME  # too large: the slow path says so to the client
    if block:
        connection.last_block = block
    if send.receipt is not None:
        form = PUBACK if connection.is_mqtt else RECEIPT if route.queues else UNROUTED_RECEIPT
        frame = form % send.receipt
        note = connection.note
        if block and note is not None and note.block == block:
            note.receipts.append(frame)  # what `staging.receipt` would do
        else:
            staging.receipt(connection, frame, is_for_all=False)
    return ScanStatus.NEED_DATA


class TwinSwitching(Tables):
    """The calls of `abc_switching.CoreSwitching`; base class of `TwinCore`."""

    def open_switch(self) -> int:
        """See `CoreSwitching.open_switch`."""
        handle = free_handle(self._routes)
        self._routes[handle] = Route(handle, [], is_switch=True)
        return handle

    def switched(self) -> list[MessageView]:
        """See `CoreSwitching.switched`."""
        return self._switched.views(self._blocks.now_ms)

    def send_switched(self, routes: Sequence[int]) -> tuple[ScanStatus, int, int]:
        """See `CoreSwitching.send_switched`.

        Durability: durable with the block that is filling.
        """
        if self._staging.transaction:
            raise ValueError("a transaction is being staged")
        return self._switched.send(self._staging, [self._queues_route(one) for one in routes])
