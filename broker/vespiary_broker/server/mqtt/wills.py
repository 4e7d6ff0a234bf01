"""Wills: messages that the broker sends for clients that are gone.

Owns the notes of wills, those that wait for their delay, and the sending. Called by the clients'
handlers and the hub; owner: the event loop.

The will of a session that outlives its connection is a note in a queue of the broker's own before
CONNACK leaves, and the note ends in the transaction that sends it, or when its client withdraws it.
So a will is sent once, whether the broker is stopped, killed or goes on; after a restart those
wait on whose time has not come (MQTT 5.0 §3.1.2.5 lets a server send them only then).

Source: MQTT 5.0 §3.1.2.5 and §3.1.3.2.2.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.address_memory import Verdict
from vespiary_broker.engine.core import MessageView, NoRoom
from vespiary_broker.engine.joint_staging import End, Note, stage_jointly
from vespiary_broker.engine.names import Sender
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.publishing import Target, find_target, make_target
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.transactions import Outgoing, is_decided, publish
from vespiary_broker.server.mqtt.outgoing import outgoing_of
from vespiary_broker.server.mqtt.retained import Retained
from vespiary_broker.server.mqtt.sessions import NEVER_S, MqttSession, MqttSessions
from vespiary_broker.server.mqtt.subscription_queues import PROTOCOL
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_broker.server.note_queues import NoteQueues
from vespiary_codec.wire.mqtt import MqttDecoder, MqttLimits, Publish, Version, encode
from vespiary_codec.wire.stomp.escapes import escape
from vespiary_spec.errors import VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle

_NAME: Final = "wills"
_KEY: Final = "will-id"
_TEXT_MAX: Final = 65_535
_LIMITS: Final = MqttLimits(
    packet_bytes=268_435_455 + 5,
    topic_bytes=_TEXT_MAX,
    topic_levels=_TEXT_MAX,
    user_properties=_TEXT_MAX,
)
"""A note was held to the limits of its client's listener when it came."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Will:
    """The will of one connection.

    Attributes:
        client_id: Its client.
        user: In whose name it is sent.
        message: What to send.
        delay_s: Seconds that the client has to come back.
        note: Sequence of its note; 0: there is none.
    """

    client_id: str
    user: str
    message: Publish
    delay_s: int
    note: int = 0


def wait_s(will: Will, session: MqttSession) -> int:
    """Return how long a will waits behind the end of a connection: not beyond its session."""
    if session.expiry_s == NEVER_S:
        return will.delay_s
    return min(will.delay_s, session.expiry_s)


class Wills:
    """The wills of clients that are gone.

    Attributes:
        sent: How many were sent.

    Args:
        cycle: What all connections share.
        topics: Says which address a topic is.
        notes: Where those stand that survive a restart.
        retained: The retained messages.
    """

    def __init__(
        self, cycle: Cycle, topics: TopicMapping, notes: NoteQueues, retained: Retained
    ) -> None:
        self.sent = 0
        self._cycle = cycle
        self._topics = topics
        self._notes = notes
        self._retained = retained
        self._waiting: dict[str, tuple[Will, Any]] = {}
        self._loading = asyncio.Lock()
        self._is_loaded = False

    @property
    def waiting(self) -> int:
        """How many wait for their delay."""
        return len(self._waiting)

    # --- notes ----------------------------------------------------------------------------------

    async def load(self, sessions: MqttSessions, now_ms: int) -> None:
        """Take up the wills that a former run of the broker has left, the first time.

        Args:
            sessions: The sessions, of which nobody has connected yet.
            now_ms: Milliseconds since 1970.
        """
        async with self._loading:
            queue = self._notes.find(_NAME)
            if self._is_loaded:
                return
            if queue is not None:
                async for view in self._notes.notes(queue):
                    body = await self._notes.body(queue, view.sequence)
                    if body is not None:
                        self._read(queue, view, body, sessions, now_ms)
            self._is_loaded = True

    def _read(
        self, queue: Queue, view: MessageView, body: bytes, sessions: MqttSessions, now_ms: int
    ) -> None:
        """Take up the will of a note."""
        try:
            will = _will_of(view, body)
        except (VespiaryError, ValueError) as error:
            log.warning("a will cannot be read and is dropped reason=%r", str(error))
            with suppress(NoRoom):  # the next start does
                self._notes.core.finish(queue.id, [view.sequence])
            return
        session = sessions.get(will.client_id)
        due_ms = now_ms
        if session is not None:
            due_ms = session.away_since_ms + wait_s(will, session) * 1000
        self.leave(will, (due_ms - now_ms) / 1000)

    async def keep(self, will: Will) -> None:
        """Note the will of a session that outlives its connection.

        Raises:
            VespiaryError: It cannot be noted.

        Durability: on return it survives a power loss.
        """
        queue = await self._notes.make(_NAME, _KEY)
        lines = {
            _KEY: secrets.token_hex(8),
            "client-id": will.client_id,
            "user": will.user,
            "delay": str(will.delay_s),
        }
        text = "".join(f"{name}:{escape(value, '1.2')}\n" for name, value in lines.items())
        said = will.message
        packet = Publish(
            said.topic,
            said.payload,
            said.qos,
            said.retain,
            packet_id=1 if said.qos else 0,
            properties=said.properties,
        )
        note = Note(queue, text.encode(), encode(packet, Version.V5))
        while True:
            try:
                _, (will.note,) = stage_jointly(
                    self._notes.core, self._notes.registry, None, [note]
                )
            except NoRoom:
                await self._cycle.space()
            else:
                break
        await self._cycle.durable()

    def drop(self, will: Will) -> None:
        """Forget a will that is not to be sent.

        Durability: staged as soon as there is room; after a crash before that it may be sent.
        """
        queue = self._queue_of(will)
        if queue is None:
            return
        try:
            self._notes.core.finish(queue.id, [will.note])
        except NoRoom:
            self._cycle.spawn(self._drop_with_room(will))
        else:
            self._cycle.touch()

    async def _drop_with_room(self, will: Will) -> None:
        await self._cycle.space()
        if not self._cycle.failure:
            self.drop(will)

    def _queue_of(self, will: Will) -> Queue | None:
        return self._notes.find(_NAME) if will.note else None

    # --- who is gone ----------------------------------------------------------------------------

    def leave(self, will: Will, delay_s: float) -> None:
        """Send a will after a delay, unless its client comes back before.

        Args:
            will: The will.
            delay_s: Seconds; 0 for now.
        """
        if delay_s <= 0:
            self._cycle.spawn(self._send(will))
            return
        timer = self._cycle.loop.call_later(delay_s, self.release, will.client_id)
        self._waiting[will.client_id] = (will, timer)

    def withdraw(self, client_id: str) -> None:
        """Forget the will of a client that has come back."""
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            waiting[1].cancel()
            self.drop(waiting[0])

    def release(self, client_id: str) -> None:
        """Send a client's will that waits, if there is one: its time has come."""
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            waiting[1].cancel()
            self._cycle.spawn(self._send(waiting[0]))

    def close(self) -> None:
        """Wait for none of them any more: the broker stops, and the notes are there."""
        for _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    # --- sending --------------------------------------------------------------------------------

    async def _send(self, will: Will) -> None:
        try:
            if will.message.retain:
                await self._retained.ready()
            is_sent = await self._stage(will)
        except VespiaryError as error:
            self._cycle.client_lines.note(
                *("a will was not sent client=%r reason=%r", will.client_id, str(error)),
                listener=PROTOCOL,
                now_s=self._cycle.loop.time(),
                level=logging.WARNING,
            )
            is_sent = False
        if not is_sent and not self._cycle.failure:
            self.drop(will)

    async def _stage(self, will: Will) -> bool:
        """Stage a will as soon as there is room; a full address drops it or takes it."""
        cycle, sender = self._cycle, Sender(will.client_id)
        registry, memory = cycle.engine.registry, cycle.engine.memory
        message = outgoing_of(cycle, self._topics, will.message, will.user, sender)
        while not cycle.failure:
            target = find_target(registry, message.destination)
            if target is None:
                target = await make_target(registry, message.destination)
            address = registry.addresses.get(message.destination.address)
            if address is not None and not memory.is_open(target.route, address):
                verdict, state = memory.decide(address)
                if state is not None and verdict is Verdict.DROP:
                    memory.drop(state)
                    return False
            if not is_decided(message, target, (Wills, will.client_id)):
                await asyncio.sleep(0)
                continue
            try:
                self._stage_with_notes(will, message, target)
            except NoRoom:
                await cycle.space()
                continue
            self.sent += 1
            cycle.touch()
            return True
        return False

    def _stage_with_notes(self, will: Will, message: Outgoing, target: Target) -> None:
        """Stage a will, what is retained of it, and the end of its note, all or nothing.

        Raises:
            NoRoom: Nothing was staged.
        """
        core, registry = self._notes.core, self._notes.registry
        topic, acts = will.message.topic, list[Note | End]()
        queue = self._queue_of(will)
        if queue is not None:
            acts.append(End(queue, [will.note]))
        if will.message.retain:
            acts += self._retained.acts(topic, message)
        if not acts:
            publish(core, registry.large_bodies, message, target)
            return
        _, sequences = stage_jointly(core, registry, (message, target), acts)
        if will.message.retain:
            sequence = sequences[-1] if message.body else 0
            self._retained.staged(topic, sequence, message.properties)


def _will_of(view: MessageView, body: bytes) -> Will:
    """Return the will of a note.

    Raises:
        VespiaryError: Its body is no packet.
        ValueError: It is no will.
    """
    decoder = MqttDecoder(_LIMITS, role="client", version=Version.V5)
    decoder.feed(body)
    packet = decoder.next_packet()
    if not isinstance(packet, Publish):
        raise ValueError("its body is no PUBLISH")  # noqa: TRY004
    client_id, user = (value_of(view.properties, name) or "" for name in (b"client-id", b"user"))
    delay = value_of(view.properties, b"delay") or "0"
    return Will(client_id, user, packet, int(delay), view.sequence)
