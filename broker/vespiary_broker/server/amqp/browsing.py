"""Links that look at a queue and take nothing: `distribution-mode` copy.

Owns how far each has looked. Must never hold a message: what others take meanwhile is passed over.
Called by `attaching`; owner: its connection.

A browser begins with the oldest message and shows each once; at the end of the queue it waits for
more, looking again a few times a second, and a drain says that it is there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import LargeBody, LargeDelivery, MessageView
from vespiary_broker.engine.guards import Guard
from vespiary_broker.engine.message_times import is_scheduled
from vespiary_broker.engine.names import check_not_own
from vespiary_broker.engine.page_walk import PageWalk
from vespiary_broker.engine.publishing import make_target
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.subscriptions import (
    SubscriptionRequest,
    check_connection,
    match_of,
)
from vespiary_broker.engine.turn_time import Share
from vespiary_broker.server.amqp.conditions import Condition, Refused
from vespiary_broker.server.amqp.restoring import payload_of
from vespiary_broker.server.amqp.sending import OutgoingLink
from vespiary_broker.server.amqp.transfers import transfer_frames
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.stored_message import StoredMessage, stored_head
from vespiary_codec.wire.amqp import Detach, Flow
from vespiary_spec.errors import VespiaryError
from vespiary_spec.settings import Permission, RoutingType

if TYPE_CHECKING:
    from vespiary_broker.server.protocol_handler import Work

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.session import AmqpSession

_LOOK: Final = 64
_AGAIN_S: Final = 0.2
_ABSENT_S: Final = 0.01
_STEPS_A_TURN: Final = 16


async def open_browser(
    session: AmqpSession, link: OutgoingLink, request: SubscriptionRequest
) -> OutgoingLink:
    """Return a link that browses the queue of a request.

    Raises:
        NotPermitted: The user may not browse there, or may not make what is missing; or the queue
            is another user's.
        RemoteProtocolError: There is no such queue, and it may not be made.
        InvalidSelector: The selector is no condition.
    """
    registry = session.cycle.engine.registry
    destination = request.destination
    check_not_own(destination)
    registry.permissions.check_subscribing(destination.user, Permission.BROWSE, destination.address)
    check_connection(registry.addresses.get(destination.address), session.connection.handle)
    name = destination.queue or destination.address
    queue = registry.queue_of(destination.address, name)
    if queue is None:
        address = registry.addresses.get(destination.address)
        queues = [] if address is None else list(address.queues_of(RoutingType.ANYCAST))
        if queues and destination.queue is None:
            queue = queues[0]
        else:
            # Sending is not what it needs; whether its user may make the queue is asked there.
            await make_target(registry, replace(destination, is_trusted=True))
            queue = registry.queue_of(destination.address, name)
    if queue is None:
        raise Refused(Condition.NOT_FOUND, f"there is no queue {name[:100]!a} to browse")
    check_connection(queue, session.connection.handle)
    registry.owners.check(queue, destination.user)
    return BrowserLink(session, link, queue, request)


class BrowserLink(OutgoingLink):
    """A link that browses.

    Args:
        session: Its session.
        link: The link as it was asked for.
        queue: What it looks at.
        request: Which messages it wants.
    """

    def __init__(
        self, session: AmqpSession, link: OutgoingLink, queue: Queue, request: SubscriptionRequest
    ) -> None:
        super().__init__(session, link.asked, link.answer)
        self.node = link.node
        self._queue = queue
        self._match = match_of(request)
        self._guard: Guard | None = None
        self._cursor = 0
        self._walk = PageWalk(session.cycle.core, queue.id)
        self._is_scheduled = False
        self.is_open = True

    @property
    def queue_id(self) -> int:
        """Number of the queue."""
        return self._queue.id

    def refresh(self) -> None:
        """Look on, if there is credit."""
        self._schedule(0.0)

    def _schedule(self, delay_s: float) -> None:
        if not self._is_scheduled and self.is_open and self.credit:
            self._is_scheduled = True
            self.session.cycle.loop.call_later(delay_s, self._look)

    def flow(self, flow: Flow) -> None:
        """Take the client's credit."""
        self._take_credit(flow)
        if self.credit:
            self.refresh()
        elif self._is_draining:
            self._end_drain()
        if flow.echo and not self._is_draining:
            self._send_flow()

    def _look(self) -> None:
        """Show what comes next, a bounded part."""
        self._is_scheduled = False
        session, queue = self.session, self._queue
        if not self.is_open:
            return
        if queue.is_deleted:
            self.refuse(Refused(Condition.RESOURCE_DELETED, f"the queue {queue.name} is gone"))
            return
        if not session.has_room or self._large is not None or not session.connection.is_open:
            return  # `refresh` follows
        if session.connection.is_write_paused:
            self._schedule(_ABSENT_S)
            return
        registry, user = session.cycle.engine.registry, session.handler.user
        try:
            registry.permissions.check_subscribing(user, Permission.BROWSE, queue.address.name)
            registry.owners.check(queue, user)
            self._guard = registry.guards.guard_for(user, queue, Permission.BROWSE)
            delay_s = self._show()
        except VespiaryError as error:
            self.refuse(error)
            return
        if delay_s is None:
            if self._is_draining and self._large is None:
                self._end_drain()
                return
            delay_s = _AGAIN_S
        self._schedule(delay_s)

    def _show(self) -> float | None:
        """Show messages; return when to go on, None at the end of the queue."""
        share = self.session.cycle.engine.turn_time.share(self)
        try:
            return self._show_next(share)
        finally:
            share.end()

    def _show_next(self, share: Share) -> float | None:
        core, queue = self.session.cycle.core, self._queue
        statistics = core.queue_statistics(queue.id)
        walk = self._walk
        walk.refresh(self.session.cycle.engine.dispatcher.view_giver.pages, statistics.paged)
        for _ in range(_STEPS_A_TURN):
            if self._cursor >= statistics.available:
                return None
            found = walk.look(self._cursor, _LOOK, matches=(self._match,))
            for message in found.messages:
                if not self._may_show:
                    return _ABSENT_S
                if not share.has_time:
                    return 0.0
                if self._match is not None:
                    share.did(self._match.cost_us(message))
                self._cursor = message.sequence + 1
                self._show_one(message)
            self._cursor = max(self._cursor, found.next_sequence)
            if found.absent is not None:
                self.session.cycle.engine.dispatcher.load(found.absent, queue.id)
                return _ABSENT_S
            if found.is_waiting:
                return _ABSENT_S
        return 0.0

    @property
    def _may_show(self) -> bool:
        session = self.session
        is_bounded = len(self.held) < session.handler.settings.max_unsettled
        return bool(self.credit) and is_bounded and session.has_room and self._large is None

    def _show_one(self, message: MessageView) -> None:
        now_ms = self.session.cycle.engine.fates.clock_ms()
        if message.is_held or message.is_aside or is_scheduled(message, now_ms):
            return
        if self._match is not None and not self._match.wants(message):
            return
        if self._guard is not None and not self._guard.wants(message):
            return
        stored = self._walk.body(message.sequence)
        if stored is None:
            return
        found = StoredMessage(
            message.sequence,
            message.time_ms,
            message.deliveries,
            message.priority,
            message.protocol,
            message.is_escaped,
            message.properties,
            b"" if message.is_large else stored,
        )
        if message.is_large:
            reference = decode_large_reference(stored)
            body = LargeBody(reference.large_id, reference.size_bytes, reference.crc)
            self.stream(LargeDelivery(message.sequence, stored_head(found), body))
            return
        prefixes = self.session.handler.prefixes
        payload = payload_of(found, self._queue.id, now_ms, prefixes=prefixes)
        if self._too_large.is_one(len(payload)):
            self._too_large.say(self, message.sequence, len(payload))
            return
        session = self.session
        frames = transfer_frames(
            session.channel,
            self.handle,
            self.given(message.sequence),
            message.sequence.to_bytes(8, "big"),
            payload,
            session.handler.frame_bytes,
            is_settled=self.is_pre_settled,
        )
        self._sent.clear()
        session.connection.write(session.pass_on(frames))

    def _serve(self) -> None:
        self.refresh()

    def _try_acknowledge(self) -> None:
        """Forget what was settled as it left: it stays in the queue."""
        self._sent.clear()

    def detach(self, asked: Detach) -> Work:
        """End it."""
        self.close(is_counted=False)
        self.confirm_detached(is_closed=asked.closed)
        return None

    def close(self, *, is_counted: bool) -> None:  # noqa: ARG002 (it holds nothing)
        """Look no more."""
        if not self.is_open:
            return
        self.is_open = False
        if self._large is not None:
            self._large.cut()
        for delivery_id in self.held.values():
            self.session.unsettled.pop(delivery_id, None)
        self.held.clear()
        self._walk.leave()
        self._drop_node()
