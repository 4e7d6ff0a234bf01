"""What all MQTT clients share: sessions, retained messages, wills, and what is noted of QoS 2.

Owns how these parts are put together, and the clock by which sessions expire. Called by the
clients' handlers and by `app`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import MessageView
from vespiary_broker.engine.ports import Bindings
from vespiary_broker.engine.queues import Queue
from vespiary_broker.server.mqtt.exactly_once import ExactlyOnce
from vespiary_broker.server.mqtt.retained import Retained
from vespiary_broker.server.mqtt.sessions import MqttSession, MqttSessions
from vespiary_broker.server.mqtt.subscription_queues import (
    PROTOCOL,
    SubscriptionQueues,
    may_be_shared,
)
from vespiary_broker.server.mqtt.sys_topics import PERIOD_S, SysTopics
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_broker.server.mqtt.wills import Wills
from vespiary_broker.server.note_queues import NoteQueues
from vespiary_spec.errors import RemoteProtocolError

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle

_SCAN_S: Final = 1.0
_WAIT_S: Final = 0.01

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MqttStatistics:
    """Sessions, retained messages and wills.

    Attributes:
        sessions: Sessions, those of clients that are away too.
        sessions_connected: Sessions whose client is connected.
        sessions_durable: Sessions that outlive their connection.
        sessions_expired: Sessions that ended because nobody came in time, since the start.
        retained_messages: Topics that have a retained message.
        wills_waiting: Wills that wait for their delay.
        wills_sent: Wills that were sent since the start.
    """

    sessions: int
    sessions_connected: int
    sessions_durable: int
    sessions_expired: int
    retained_messages: int
    wills_waiting: int
    wills_sent: int


class MqttHub:
    """The parts.

    Args:
        cycle: What all connections share.
        bindings: The bindings journal.
        load_slab: Begins to read a part of a queue that is not in memory.
        prefixes: What other protocols write in front of addresses.
    """

    def __init__(
        self,
        cycle: Cycle,
        bindings: Bindings,
        load_slab: Callable[[int, int], None],
        prefixes: tuple[str, ...] = (),
    ) -> None:
        registry = cycle.engine.registry
        self.topics = TopicMapping(registry.syntax, prefixes)
        self.queues = SubscriptionQueues(registry, self.topics)
        notes = NoteQueues(cycle.core, registry, load_slab, self._wait)
        self.exactly_once = ExactlyOnce(notes)
        self.retained = Retained(notes, self.topics)
        self.wills = Wills(cycle, self.topics, notes, self.retained)
        self.sessions = MqttSessions(
            bindings,
            self.queues,
            registry.limits,
            _now_ms,
            cycle.loop.time,
            self.exactly_once.forget,
        )
        self.sys_topics = SysTopics(
            cycle,
            self.topics,
            lambda: (len(self.sessions), self.sessions.connected),
            lambda: self.retained.count,
        )
        registry.before_deletion = self.end_sessions
        registry.on_lost = self._lost
        cycle.engine.fates.is_owed = self._is_owed
        self._cycle = cycle
        self._loading: set[str] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._scan: asyncio.TimerHandle | None = None

    def restore(self) -> None:
        """Take the sessions from the bindings; from then on one ends that loses a queue.

        Raises:
            ValueError: A session is not what this version writes; names its key.
        """
        self.sessions.restore()

    def start(self) -> None:
        """Take up the wills of a former run, and begin to watch sessions that expire."""
        self._cycle.spawn(self.load_wills())
        self._scan = self._cycle.loop.call_later(_SCAN_S, self._expire)
        self._telling = self._cycle.loop.call_later(PERIOD_S, self._tell)

    async def load_wills(self) -> None:
        """Take up the wills that a former run has left; nobody connects before that."""
        await self.wills.load(self.sessions, _now_ms())

    def statistics(self) -> MqttStatistics:
        """Return what there is now."""
        return MqttStatistics(
            len(self.sessions),
            self.sessions.connected,
            self.sessions.durable,
            self.sessions.expired,
            self.retained.count,
            self.wills.waiting,
            self.wills.sent,
        )

    def _tell(self) -> None:
        self._telling = self._cycle.loop.call_later(PERIOD_S, self._tell)
        self.sys_topics.send_all()

    def close(self) -> None:
        """Stop watching; wills that wait go on waiting after the next start."""
        for timer in (self._scan, self._telling):
            if timer is not None:
                timer.cancel()
        self.wills.close()

    def _expire(self) -> None:
        count = self.retained.count
        has_more = self.retained.expire(_now_ms())
        if self.retained.count != count:
            self._cycle.touch()
        pause_s = _WAIT_S if has_more else _SCAN_S
        self._scan = self._cycle.loop.call_later(pause_s, self._expire)
        for session in self.sessions.take_due():
            self._cycle.spawn(self._end(session))

    async def _end(self, session: MqttSession) -> None:
        """End a session whose time is over, unless its client has come back."""
        async with self.sessions.lock(session.client_id):
            if session.client is None and self.sessions.get(session.client_id) is session:
                self.wills.release(session.client_id)
                await self.sessions.end(session)
                self.sessions.expired += 1
                self._cycle.client_lines.note(
                    *("session expired client=%r", session.client_id),
                    listener=PROTOCOL,
                    now_s=self._cycle.loop.time(),
                )

    def left(self, session: MqttSession) -> None:
        """Begin what follows from the end of a connection: its session ends, or is remembered."""
        self.sessions.left(session)
        if not session.expiry_s:
            self._cycle.spawn(self._end_now(session))
        elif not self._cycle.failure:
            self._cycle.spawn(self.sessions.save(session))

    async def _end_now(self, session: MqttSession) -> None:
        async with self.sessions.lock(session.client_id):
            if session.client is None:
                await self.sessions.end(session)

    def _is_owed(self, queue: Queue, view: MessageView) -> bool:
        """Return whether a client gets a message although it has expired.

        What was sent and not acknowledged is sent again when the client comes back (MQTT 5.0 §4.4),
        and expiry ends no delivery that has begun (§3.3.2.3.3).
        """
        sessions: list[MqttSession] = []
        if queue.traits.protocol == PROTOCOL:
            owner = self.sessions.get(queue.client_id)
            sessions += [] if owner is None else [owner]
        elif may_be_shared(queue.name):
            sessions = self.sessions.with_queues([queue])
        # All are asked: the notes of each may have to be read.
        found = [self._owes(session, queue, view) for session in sessions]
        return any(found)

    def _owes(self, session: MqttSession, queue: Queue, view: MessageView) -> bool:
        """Return whether a message of a session's queue was sent to its client."""
        if session.is_durable and session.received is None and session.client is None:
            if session.client_id not in self._loading:
                self._loading.add(session.client_id)
                self._cycle.spawn(self._load_notes(session))
            # What a former run has sent is not known yet: nothing expires for now, unless somebody
            # else is there who would be sent what was never sent.
            return not queue.consumers
        is_sent = session.resumed is not None and (
            (queue.id, view.sequence) in session.resumed.sent
        )
        return is_sent or view.deliveries > 0

    async def _load_notes(self, session: MqttSession) -> None:
        try:
            async with self.sessions.lock(session.client_id):
                if not session.is_ended:
                    await self.exactly_once.resume(session)
        finally:
            self._loading.discard(session.client_id)

    def check_no_session(self, queue: Queue) -> None:
        """Refuse to delete a queue that sessions count on.

        Raises:
            RemoteProtocolError: It is a subscription of a session.
        """
        sessions = self.sessions.with_queues([queue])
        if sessions:
            others = f" and {len(sessions) - 1} more" if len(sessions) > 1 else ""
            raise RemoteProtocolError(
                f"the queue {queue.name} is a subscription of the MQTT client "
                f"{sessions[0].client_id}{others}",
                cure="have the client unsubscribe, or force the deletion: that ends its session",
            )

    async def end_sessions(self, queues: Collection[Queue]) -> None:
        """End the sessions that have a subscription with one of these queues, before they go.

        After a power loss in between, no session is back without its queue.

        Durability: on return they are not back after a power loss.
        """
        while sessions := self.sessions.with_queues(q for q in queues if not q.is_deleted):
            await asyncio.gather(*map(self.delete, sessions))

    def _lost(self, queue: Queue) -> None:
        for session in self.sessions.with_queues([queue]):
            self._cycle.spawn(self.delete(session))

    async def delete(self, session: MqttSession) -> None:
        """End a session although its time is not over, with its connection if there is one.

        A session that has lost the queue of a subscription ends: it would go on without what was
        in the queue, and its client would not know.

        Durability: on return it is not back after a power loss.
        """
        async with self.sessions.lock(session.client_id):
            if session.client is not None:
                session.client.session_deleted()
            if self.sessions.get(session.client_id) is session:
                self.wills.release(session.client_id)
                log.info("session deleted client=%r", session.client_id)
            await self.sessions.end(session)

    async def _wait(self) -> None:
        self._cycle.touch()
        await asyncio.sleep(_WAIT_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
