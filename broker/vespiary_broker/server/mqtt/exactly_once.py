"""QoS 2 over a restart: which messages a client was sent, and which it has sent.

Owns the notes of each durable session, in two queues of the broker's own. Must never send anything.
Called by `delivering` and `publishing`; owner: the event loop.

To the client (queue out.CLIENT, one note by packet id):
    sent      durable before the PUBLISH leaves: after a restart the message goes out under the same
              id, so a client that has it knows it;
    released  durable, together with the acknowledgement of the message, before the PUBREL leaves:
              after a restart the PUBREL is sent again.
From the client (queue in.CLIENT): a note stands in one transaction with the message, and goes before
the PUBCOMP leaves: a PUBLISH that comes again in between is not stored again.

Source: MQTT 5.0 §4.3.3 and §4.4.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from vespiary_broker.engine.core import MessageView
from vespiary_broker.engine.joint_staging import End, Note, Taken, stage_jointly
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.server.mqtt.in_flight import Known, Place, Resumed
from vespiary_broker.server.mqtt.sessions import MqttSession
from vespiary_broker.server.note_queues import NoteQueues

_KEY: Final = "packet-id"
_HEX_BYTES_MAX: Final = 256
"""Longest client id that stands in a name as it is."""
_SENT: Final = b"packet-id:%d\nqueue-id:%d\nsequence:%d\n"
_RELEASED: Final = b"packet-id:%d\n"
_RECEIVED: Final = b"packet-id:%d\n"


def _word(client_id: str) -> str:
    """Return a client id as a word that is short enough for a name."""
    data = client_id.encode()
    return data.hex() if len(data) <= _HEX_BYTES_MAX else f"sha256-{sha256(data).hexdigest()}"


def _out(client_id: str) -> str:
    return f"out.{_word(client_id)}"


def _in(client_id: str) -> str:
    return f"in.{_word(client_id)}"


def _number(view: MessageView, name: bytes) -> int:
    text = value_of(view.properties, name) or ""
    return int(text) if text.isdecimal() else 0


class ExactlyOnce:
    """The notes.

    Args:
        notes: Where they stand.
    """

    def __init__(self, notes: NoteQueues) -> None:
        self._notes = notes

    async def resume(self, session: MqttSession) -> None:
        """Read what is noted of a session, if that was not done since the broker's start."""
        incoming = self._notes.find(_in(session.client_id))
        if session.received is None:
            received = {}
            if incoming is not None:
                async for view in self._notes.notes(incoming):
                    received[_number(view, b"packet-id")] = view.sequence
            session.received = received
        outgoing = self._notes.find(_out(session.client_id))
        if session.resumed is None and outgoing is not None:
            session.resumed = await self._resume(outgoing)

    async def begin_sending(self, session: MqttSession) -> None:
        """Make the place for notes of messages that a client is sent with QoS 2.

        Raises:
            VespiaryError: It cannot be made.

        Durability: on return it survives a power loss.
        """
        if session.is_durable:
            await self._notes.make(_out(session.client_id), _KEY)

    async def begin_receiving(self, session: MqttSession) -> None:
        """Make the place for notes of messages that a client sends with QoS 2.

        Raises:
            VespiaryError: It cannot be made.

        Durability: on return it survives a power loss.
        """
        if session.is_durable:
            await self._notes.make(_in(session.client_id), _KEY)

    def is_receiving(self, session: MqttSession) -> bool:
        """Whether a message of QoS 2 can be noted."""
        return not session.is_durable or self._notes.find(_in(session.client_id)) is not None

    async def _resume(self, outgoing: Queue) -> Resumed:
        resumed = Resumed()
        sent: dict[int, tuple[Place, int]] = {}
        async for view in self._notes.notes(outgoing):
            packet_id, queue_id = _number(view, b"packet-id"), _number(view, b"queue-id")
            resumed.released.pop(packet_id, None)
            sent.pop(packet_id, None)
            if queue_id:
                sent[packet_id] = ((queue_id, _number(view, b"sequence")), view.sequence)
            else:
                resumed.released[packet_id] = view.sequence
        resumed.sent = {
            place: Known(packet_id, 2, note) for packet_id, (place, note) in sent.items()
        }
        return resumed

    def forget(self, session: MqttSession) -> list[str]:
        """Drop what is noted of a session that ends; return keys for `wait_removed`."""
        names = (_out(session.client_id), _in(session.client_id))
        return [key for name in names if (key := self._notes.drop(name))]

    # --- to the client --------------------------------------------------------------------------

    def note_sent(self, session: MqttSession, packet_id: int, place: Place) -> int:
        """Note that a message is about to be sent; return the note's sequence, 0 for none.

        Raises:
            NoRoom: Nothing was staged.

        Durability: staged; the PUBLISH has to wait for it.
        """
        queue = self._notes.find(_out(session.client_id)) if session.is_durable else None
        if queue is None:
            return 0
        note = Note(queue, _SENT % (packet_id, *place))
        return self._stage([note])

    def note_released(
        self, session: MqttSession, packet_id: int, consumer: Consumer, sequence: int, note: int
    ) -> int:
        """Acknowledge a message that the client has, and note that it may forget its id.

        Args:
            session: Of the client.
            packet_id: The id.
            consumer: Who holds the message.
            sequence: The message.
            note: What `note_sent` returned.

        Returns:
            The sequence of the new note; 0 for none.

        Raises:
            NoRoom: Nothing was staged.

        Durability: staged; the PUBREL has to wait for it.
        """
        queue = self._notes.find(_out(session.client_id)) if session.is_durable else None
        taken = Taken(consumer, sequence)
        if queue is None:
            return self._stage([taken])
        released = Note(queue, _RELEASED % packet_id)
        return self._stage([released, taken, End(queue, [note] if note else [])])

    def end_note(self, session: MqttSession, note: int) -> None:
        """End what is noted of a message: the client is done with it.

        Raises:
            NoRoom: Nothing was staged.

        Durability: staged.
        """
        queue = self._notes.find(_out(session.client_id)) if note else None
        if queue is not None:
            self._notes.core.finish(queue.id, [note])

    # --- from the client ------------------------------------------------------------------------

    def received_note(self, session: MqttSession, packet_id: int) -> Note | None:
        """Return the note that goes with a message of QoS 2; None: there is no need of one."""
        queue = self._notes.find(_in(session.client_id)) if session.is_durable else None
        return None if queue is None else Note(queue, _RECEIVED % packet_id)

    def end_received(self, session: MqttSession, packet_id: int) -> bool:
        """Forget an id that the client releases; return whether it was known.

        Raises:
            NoRoom: Nothing was staged.

        Durability: staged; the PUBCOMP has to wait for it.
        """
        received = session.received or {}
        if packet_id not in received:
            return False
        queue = self._notes.find(_in(session.client_id))
        if queue is not None and received[packet_id]:
            self._notes.core.finish(queue.id, [received[packet_id]])
        del received[packet_id]
        return True

    def _stage(self, acts: Sequence[Note | End | Taken]) -> int:
        _, sequences = stage_jointly(self._notes.core, self._notes.registry, None, acts)
        return sequences[0] if sequences else 0
