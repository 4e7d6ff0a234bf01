"""Packet ids of one client's messages of QoS 1 and 2: what was sent and is not done with.

Owns the window of those that Python sends, and which of the ids they have; the core gives them out.
Must never send or acknowledge anything. A message that comes again on a later
connection keeps its id (MQTT 5.0 §4.4), whoever sent it first: what the client got before is known
by it. Called by `delivering`; owner: the connection, and between two connections the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vespiary_broker.engine.queues import Consumer

WINDOW_MAX: Final = 32_767
"""Most messages that may be out. As many more may wait to be sent again with the ids they had."""
Place = tuple[int, int]
"""Number of a queue, and a sequence in it."""


class Known(NamedTuple):
    """What is known of a message that was sent on an earlier connection and not acknowledged.

    Attributes:
        packet_id: Its packet ID.
        qos: 1 or 2.
        note: Sequence of what is noted about it; 0: nothing is.
    """

    packet_id: int
    qos: int
    note: int = 0


@dataclass(slots=True)
class Held:
    """A message that was sent.

    Attributes:
        consumer: Who holds it; None: it was acknowledged by PUBREC, and is only released.
        place: Where it stands.
        qos: 1 or 2.
        note: Sequence of what is noted about it; 0: nothing is.
    """

    consumer: Consumer | None
    place: Place
    qos: int
    note: int = 0


@dataclass(slots=True)
class Resumed:
    """What is left of a connection for the next one.

    Attributes:
        sent: Messages that were sent and not acknowledged.
        released: Ids of messages of QoS 2 that the client has, and may forget: their notes.
    """

    sent: dict[Place, Known] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)


class InFlight:
    """What one connection was sent.

    Attributes:
        take_id: Returns an id that nothing has.
        on_freed: Called with an id when nothing has it any more.
        on_changed: Called when `room` is another one.

    Args:
        maximum: Messages that may be out; more than `WINDOW_MAX` counts as that.
        resumed: What an earlier connection has left.
    """

    def __init__(self, maximum: int, resumed: Resumed | None) -> None:
        self.take_id: Callable[[], int]
        self.on_freed: Callable[[int], None] = lambda _: None
        self.on_changed: Callable[[], None] = lambda: None
        self._maximum = min(maximum, WINDOW_MAX)
        self._held: dict[int, Held] = {}
        self._again = resumed.sent if resumed is not None else {}
        if resumed is not None:
            for packet_id, note in resumed.released.items():
                self._held[packet_id] = Held(None, (0, 0), 2, note)

    @property
    def ids(self) -> list[int]:
        """Ids that are in use."""
        return [*self._held, *(known.packet_id for known in self._again.values())]

    @property
    def room(self) -> int:
        """Messages that may be sent now; may be below 0 after a resumption."""
        return self._maximum - len(self._held)

    def known_below(self, queue_id: int) -> int:
        """Return the sequence from which on no message of a queue was sent before."""
        known = (sequence for number, sequence in self._again if number == queue_id)
        return max(known, default=-1) + 1

    def begun_below(self, queue_id: int) -> int:
        """Return the sequence below which messages of a queue may be on their way; 0: none is."""
        places = (held.place for held in self._held.values() if held.consumer is not None)
        begun = (sequence for number, sequence in places if number == queue_id)
        return max(max(begun, default=-1) + 1, self.known_below(queue_id))

    def released(self) -> Iterator[int]:
        """Yield the ids that wait for PUBCOMP."""
        return (packet_id for packet_id, held in self._held.items() if held.consumer is None)

    def add(self, consumer: Consumer, sequence: int, qos: int) -> tuple[int, bool]:
        """Take an id for a message.

        Args:
            consumer: Who holds it.
            sequence: Its sequence in the consumer's queue.
            qos: 1 or 2.

        Returns:
            The id, and whether the message was sent before with it.
        """
        place = (consumer.queue.id, sequence)
        known = self._again.pop(place, None)
        note = 0
        if known is not None:
            packet_id, note = known.packet_id, known.note
        else:
            packet_id = self.take_id()
            assert packet_id, "the window is smaller than the number of ids"
        self._held[packet_id] = Held(consumer, place, qos, note)
        self.on_changed()
        return packet_id, known is not None

    def get(self, packet_id: int) -> Held | None:
        """Return what has an id."""
        return self._held.get(packet_id)

    def pop(self, packet_id: int) -> None:
        """Give an id free."""
        del self._held[packet_id]
        self.on_freed(packet_id)
        self.on_changed()

    def gone(self, queue_id: int, before: int) -> list[Known]:
        """Return messages of a queue that will not come again, and forget them.

        A queue gives its messages in order, those that came back first: what has not come when a
        later one does was ended meanwhile.

        Args:
            queue_id: The queue.
            before: A sequence that is given now.
        """
        if not self._again:
            return []
        places = [each for each in self._again if each[0] == queue_id and each[1] < before]
        found = [self._again.pop(place) for place in places]
        for known in found:
            self.on_freed(known.packet_id)
        return found

    def leave(self) -> Resumed:
        """Return what the next connection of the session has to know."""
        resumed = Resumed(dict(self._again))
        for packet_id, held in self._held.items():
            if held.consumer is None:
                resumed.released[packet_id] = held.note
            else:
                resumed.sent[held.place] = Known(packet_id, held.qos, held.note)
        return resumed
