"""What all MQTT clients share: sessions, retained messages, wills, and what is noted of QoS 2.

Owns how these parts are put together, and the clock by which sessions expire. Called by the
clients' handlers and by `app`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.ports import Bindings
from vespiary_broker.server.mqtt.exactly_once import ExactlyOnce
from vespiary_broker.server.mqtt.retained import Retained
from vespiary_broker.server.mqtt.sessions import MqttSession, MqttSessions
from vespiary_broker.server.mqtt.subscription_queues import SubscriptionQueues
from vespiary_broker.server.mqtt.sys_topics import PERIOD_S, SysTopics
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_broker.server.mqtt.wills import Wills
from vespiary_broker.server.note_queues import NoteQueues

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
        self.retained = Retained(notes, self.topics, self._give_way)
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
        self._cycle = cycle
        self._telling: asyncio.TimerHandle | None = None
        self._scan: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take the sessions from the bindings, and begin to watch those that expire.

        Raises:
            ValueError: A session is not what this version writes; names its key.
        """
        self.sessions.restore()
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
        self._scan = self._cycle.loop.call_later(_SCAN_S, self._expire)
        for session in self.sessions.take_due():
            self._cycle.spawn(self._end(session))

    async def _end(self, session: MqttSession) -> None:
        """End a session whose time is over, unless its client has come back."""
        async with self.sessions.lock(session.client_id):
            if session.client is None and self.sessions.get(session.client_id) is session:
                self.wills.release(session.client_id)
                await self.sessions.end(session)
                self.sessions.expired += 1
                log.info("session expired client=%r", session.client_id)

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

    async def _wait(self) -> None:
        self._cycle.touch()
        await asyncio.sleep(_WAIT_S)

    async def _give_way(self) -> None:
        await asyncio.sleep(0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
