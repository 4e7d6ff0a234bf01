"""What the core keeps of queues, consumers, routes and connections.

Owns plain state and the few rules that need nothing else. Never touches the image. Used by the
other modules of this package.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import astuple
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference
from vespiary_codec.journal.record import ADD, PLACE, RecordFlag
from vespiary_native.abc import AckMode, LargeBody, QueueStatistics
from vespiary_native.abc_mqtt import MqttEncoding
from vespiary_native.abc_switching import SWITCHED_MAX
from vespiary_native.twin.accounts import Account
from vespiary_native.twin.amqp_sessions import AmqpLink, AmqpSession
from vespiary_native.twin.amqp_transfers import Link, Outgoing
from vespiary_native.twin.extents import NOWHERE, Extent, Extents
from vespiary_native.twin.image import Slab
from vespiary_native.twin.mqtt_packets import SentMessages

DELIVERIES_MAX = 65535
_SPECIAL: Final = RecordFlag.SPECIAL.value
SHAPE_PATIENCE = 4
"""Frames before a connection learns their shape: who sends one or two is not worth it."""


Message = tuple[Slab, int, int, int, int, int, int]
"""Where a message stands: slab, position of its properties in the slab's memory, their bytes, bytes
of the body, the flags ESCAPED, LARGE, SPECIAL and VOLATILE of its record, what one place counts for
in its file (`place_bytes`), and position of its record. A plain tuple: one is made per message."""


def place_bytes(places: int, content_bytes: int) -> int:
    """Return what a live place counts for in its file (`abc.Core.live_bytes`)."""
    return PLACE.size + (ADD.size + content_bytes) // places


class LargeMessage:
    """A body in a file, while a place refers to it, and until its end is durable.

    Attributes:
        body: Where it is.
        places: Number of live places.
        block: Block that must be durable before the body may go; None for the COMMIT to come.
    """

    __slots__ = ("block", "body", "places")

    def __init__(self, body: LargeBody) -> None:
        self.body = body
        self.places = 0
        self.block: int | None = 0

    @property
    def reference(self) -> bytes:
        """The reference to it, as records have it."""
        return encode_large_reference(LargeReference(*astuple(self.body)))


class Returned(set[int]):
    """Sequences that came back, with the lowest at hand; what went may linger in its heap."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[int] = []

    def put(self, sequence: int) -> None:
        """Take in a sequence that is not there."""
        self.add(sequence)
        if len(self._heap) > 2 * len(self) + 64:
            self._heap = list(self)
            heapify(self._heap)
        else:
            heappush(self._heap, sequence)

    def first(self) -> int:
        """Return the lowest; there must be one."""
        while self._heap[0] not in self:
            heappop(self._heap)
        return self._heap[0]


class Queue:
    """A queue: head <= next <= available <= tail.

    Attributes:
        queue_id: Its id.
        is_durable: Whether it outlives a restart.
        entries: Everything live, by sequence: staged, ready, given out, given back.
        next: Next sequence to deliver, given-back ones aside.
        available: First sequence that is not deliverable yet.
        tail: Next sequence to assign.
        staged_tail: One above the last sequence that waits for a flush.
        note: Its latest note.
        returned: Sequences given back or put back, and deliverable.
        aside: Sequences that are set aside.
        taken: Held ones that were at `next` or behind it when they were given.
        deliveries: How often a message was given out and came back, if ever.
        delivering: Number of messages given out.
        ack_block: Sequence of the block with its latest ACK record that may be extended, 0 none.
        ack_at: Position of that record in its slab.
        ack_end: One above the last sequence of its last range.
        consumers: Number of open consumers.
        attempts_max: From so many deliveries on `deliver` gives no restored message; 0: any.
        has_special: Whether a special message may be deliverable, maybe behind others.
        is_listed: Stands in the list of ready queues.
        waits_for_slab: A consumer met an absent slab.
        large: Its large messages, by sequence.
        account: What its messages count for.
        reserved: Sequences of messages that branches have added and not committed yet.
        locked: Sequences of messages that branches have acknowledged and not committed yet.
        extents: What it has in pages.
        paging: Sequences that were copied into a page which is not live yet.
    """

    __slots__ = (
        "_head",
        "_restored",
        "_restored_end",
        "account",
        "ack_at",
        "ack_block",
        "ack_end",
        "acknowledged",
        "added",
        "aside",
        "attempts_max",
        "available",
        "consumers",
        "deliveries",
        "delivering",
        "entries",
        "extents",
        "has_special",
        "is_durable",
        "is_listed",
        "kept",
        "large",
        "live_bytes",
        "locked",
        "next",
        "note",
        "paging",
        "put_back",
        "queue_id",
        "redelivered",
        "reserved",
        "resolved",
        "returned",
        "staged_tail",
        "tail",
        "taken",
        "waits_for_slab",
    )

    def __init__(self, queue_id: int, tail: int, account: Account, *, is_durable: bool) -> None:
        self.queue_id = queue_id
        self.account = account
        self.is_durable = is_durable
        self.entries: dict[int, Message] = {}
        self._head = self.next = self.available = self.tail = tail
        self.staged_tail = 0
        self.note: Note | None = None
        self.returned = Returned()
        self.aside: set[int] = set()
        self.taken: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.delivering = self.added = self.acknowledged = self.redelivered = 0
        self.put_back = self.resolved = 0
        self.live_bytes = 0
        self.ack_block = self.ack_at = self.ack_end = 0
        self.consumers = 0
        self.attempts_max = 0
        self.has_special = False
        self.is_listed = self.waits_for_slab = False
        self.reserved: set[int] = set()
        self.locked: set[int] = set()
        self._restored: list[int] = []
        self._restored_end = 0
        self.large: dict[int, LargeMessage] = {}
        self.extents = Extents()
        self.paging: set[int] = set()
        self.kept: set[int] = set()

    @property
    def is_deliverable(self) -> bool:
        """Whether a consumer would find something."""
        return bool(self.returned) or self.next < self.available or self.extents.next != NOWHERE

    @property
    def head(self) -> int:
        """Oldest unacknowledged sequence below `next`, else `next`."""
        self._head = self.first_live(self._head, self.next)
        return min(self._head, self.extents.next)

    @property
    def reach(self) -> int:
        """Consumers get what stands below: it is durable, and before all that is in pages."""
        return min(self.available, self.extents.next)

    def skip(self) -> None:
        """Let `next` pass over what is not deliverable there."""
        self.next = self.first_ready(self.next, max(self.next, self.reach))

    def first_live(self, at: int, end: int) -> int:
        """Return the first live sequence from `at` on, `end` if there is none below it."""
        entries, restored = self.entries, self._restored
        while at < end and at not in entries:
            if at >= self._restored_end:
                at += 1
                continue
            # What was restored may have any holes; behind it only finished messages are missing.
            after = bisect_left(restored, at + 1)
            at = restored[after] if after < len(restored) else self._restored_end
        return min(at, end)

    def is_free(self, sequence: int) -> bool:
        """Whether a message at `next` or behind it is there, and nobody has it."""
        return sequence in self.entries and not (
            sequence in self.reserved
            or sequence in self.locked
            or sequence in self.taken
            or sequence in self.returned
            or sequence in self.aside
        )

    def first_ready(self, at: int, end: int) -> int:
        """Return the first free sequence from `at` on, at `next` or behind it, or `end`."""
        at = self.first_live(at, end)
        while at < end and not self.is_free(at):
            at = self.first_live(at + 1, end)
        return at

    def restored(self) -> None:
        """Make everything deliverable, at the end of a recovery."""
        self._restored = sorted(self.entries)
        self._restored_end = self.tail
        self.entries = {sequence: self.entries[sequence] for sequence in self._restored}
        self._head = self._restored[0] if self._restored else self.tail
        self._head = self.next = min(self._head, self.extents.next)
        self.available = self.tail
        self.added = self.acknowledged = 0

    def put_first(self, sequence: int) -> None:
        """Make a message deliverable again, wherever it stands."""
        self.returned.put(sequence)
        self.note_special(sequence)

    def note_special(self, sequence: int) -> None:
        """Take note that a message is deliverable (again)."""
        if self.entries[sequence][4] & _SPECIAL:
            self.has_special = True

    def entered(self, sequences: list[int]) -> None:
        """Know of places that came into the ring from a page."""
        self._head = min([self._head, *sequences])
        if self._restored_end:
            self._restored = sorted(self.entries)  # what was published since is among them

    def places_of(self, extent: Extent) -> list[int]:
        """Return the live places of an extent, those that were picked included, ascending."""
        entries, page = self.entries, extent.page
        named = extent.live | extent.picked if extent.is_open else extent.picked
        ringed = [s for s in named if s in entries and entries[s][0].file is page]
        return sorted(ringed if extent.is_open else extent.live.union(ringed))

    def deliveries_of(self, sequence: int) -> int:
        """Return how often a live message was given out and came back, wherever it stands."""
        if sequence in self.entries:
            return self.deliveries.get(sequence, 0)
        extent = self.extents.holding(sequence)
        return extent.deliveries.get(sequence, 0) if extent is not None else 0

    def restore_deliveries(self, sequence: int, deliveries: int) -> None:
        """Know how often a message was given out before a recovery."""
        self.deliveries.pop(sequence, None)
        if deliveries:
            self.deliveries[sequence] = min(deliveries, DELIVERIES_MAX)

    def count_delivery(self, sequence: int) -> int:
        """Count a message as delivered once more; return how often it has been now."""
        deliveries = min(self.deliveries.get(sequence, 0) + 1, DELIVERIES_MAX)
        self.deliveries[sequence] = deliveries
        return deliveries

    def give_back(self, sequence: int) -> None:
        """Take back a message that was given out."""
        self.taken.discard(sequence)
        self.put_first(sequence)
        self.delivering -= 1
        self.redelivered += 1

    def statistics(self) -> QueueStatistics:
        """Return the counters."""
        live = len(self.entries)
        # Those behind `available` wait for their flush like all others there.
        prepared = len(self.locked) + sum(at < self.available for at in self.reserved)
        return QueueStatistics(
            head=self.head,
            next=self.next,
            available=self.available,
            tail=self.tail,
            ready=live
            - self.delivering
            - prepared
            - len(self.aside)
            - (self.tail - self.available),
            delivering=self.delivering,
            prepared=prepared,
            aside=len(self.aside),
            added=self.added,
            acknowledged=self.acknowledged,
            redelivered=self.redelivered,
            put_back=self.put_back,
            resolved=self.resolved,
            live_bytes=self.live_bytes,
            paged=self.extents.places,
            paged_prepared=self.extents.locked,
        )


class Route:
    """Queues that a destination leads to.

    Attributes:
        unrouted: Messages that were sent to it while it had none, and that nobody took note of yet.
    """

    __slots__ = ("handle", "has_durable", "is_open", "is_switch", "queues", "unrouted", "withheld")

    def __init__(self, handle: int, queues: list[Queue], *, is_switch: bool = False) -> None:
        self.handle = handle
        self.is_open = True
        self.is_switch = is_switch
        self.unrouted = 0
        self.withheld = 0
        self.set(queues)

    def set(self, queues: list[Queue]) -> None:
        """Replace the queues."""
        self.queues = queues
        self.has_durable = any(queue.is_durable for queue in queues)


class SendPlan(NamedTuple):
    """What is known of all SEND frames whose headers differ in receipt and content-length only."""

    route: Route
    properties: bytes
    is_persistent: bool
    priority: int
    flags: int
    lines: int
    longest_line: int
    protocol: int = 1


class SendShape(NamedTuple):
    """How the headers of one SEND frame stood, so that the next one like it is read in one step."""

    match: Callable[[bytearray, int, int], re.Match[bytes] | None]
    plan: SendPlan
    receipt_group: int
    length_group: int


class Connection:
    """A connection's fast path, and the receipts that wait for it.

    Attributes:
        handle: Its handle.
        is_open: Not closed.
        is_ready: Logged in: the fast path is on.
        is_mqtt: It is one of MQTT, and logged in.
        is_amqp: It is one of AMQP, and logged in.
        version: 10, 11 or 12; of MQTT 3, 4 or 5.
        packet_bytes_max: Largest packet of MQTT, or frame of AMQP.
        unanswered_max: Messages of QoS 1 that may wait for an answer.
        topics: What is known of messages to a topic, by QoS.
        sent: Packet ids of MQTT that the core gave out.
        sessions: Those of AMQP that are known, by channel.
        taken: Messages that were taken of links of AMQP.
        safe_bytes: Headers of no more than this are within all limits, their number aside.
        taught: Routes by destination.
        plans: SEND frames seen, by their header lines.
        shape: A SEND frame seen, to compare the next one with.
        shape_misses: Frames that were not of that shape, since it was learnt.
        shape_patience: How many of them until another shape is learnt.
        consumers: Its consumers by queue id.
        last_block: Block of the latest record that it staged.
        note: Its latest note.
        notes_pending: Number of notes that wait.
        output: Receipts that may leave.
        is_partial: Part of a frame was seen; then the next three say how much of it.
        need: Bytes of an incomplete frame in all, 0 unknown.
        scanned: Bytes of an incomplete frame before its last, incomplete header line.
        body_scanned: Bytes of an incomplete frame's body that hold no NUL.
        switched_max: SENDs that a scan keeps for a switch.
    """

    __slots__ = (
        "body_max",
        "body_scanned",
        "consumers",
        "handle",
        "header_line_max",
        "header_lines_max",
        "headers_max",
        "is_amqp",
        "is_mqtt",
        "is_open",
        "is_partial",
        "is_ready",
        "last_block",
        "need",
        "note",
        "notes_pending",
        "output",
        "packet_bytes_max",
        "plans",
        "safe_bytes",
        "scanned",
        "sent",
        "sessions",
        "shape",
        "shape_misses",
        "shape_patience",
        "switched_max",
        "taken",
        "taught",
        "topics",
        "unanswered_max",
        "version",
    )

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.switched_max = SWITCHED_MAX
        self.is_open = True
        self.is_ready = self.is_partial = False
        self.version = 0
        self.safe_bytes = 0
        self.header_lines_max = self.header_line_max = self.headers_max = self.body_max = 0
        self.is_mqtt = self.is_amqp = False
        self.packet_bytes_max = self.unanswered_max = 0
        self.sent = SentMessages()
        self.sessions: dict[int, AmqpSession] = {}
        self.taken: dict[AmqpLink, int] = {}
        self.topics: dict[bytes, tuple[SendPlan, SendPlan]] = {}
        self.taught: dict[bytes, Route] = {}
        self.plans: dict[bytes, SendPlan | None] = {}
        self.shape: SendShape | None = None
        self.shape_misses = 0
        self.shape_patience = SHAPE_PATIENCE
        self.consumers: dict[int, list[Consumer]] = {}
        self.last_block = 0
        self.note: Note | None = None
        self.notes_pending = 0
        self.output: list[bytes] = []
        self.need = self.scanned = self.body_scanned = 0

    def forget_plans(self) -> None:
        """Forget what is known of frames: what they lead to has changed."""
        self.plans.clear()
        self.shape = None
        self.shape_misses = 0
        self.shape_patience = SHAPE_PATIENCE

    def frame_taken(self) -> None:
        """Forget how far the frame was scanned."""
        self.is_partial = False
        self.need = self.scanned = self.body_scanned = 0

    def holder(self, queue_id: int, sequence: int) -> Consumer | None:
        """Return the consumer that holds a message."""
        for consumer in self.consumers.get(queue_id, ()):
            if sequence in consumer.held:
                return consumer
        return None


class Note:
    """What a durable block releases: messages of a queue, or receipts of a connection."""

    __slots__ = ("block", "connection", "queue", "receipts", "tail")

    def __init__(
        self, block: int, *, queue: Queue | None = None, connection: Connection | None = None
    ) -> None:
        self.block = block
        self.queue = queue
        self.tail = 0
        self.connection = connection
        self.receipts: list[bytes] = []


class Consumer:
    """A consumer of a queue.

    Attributes:
        handle: Its handle.
        connection: Whose it is.
        queue: Of which.
        mode: Acknowledgement mode.
        credit: Messages that may be out.
        version: 10, 11 or 12.
        held: Messages given out to it and not acknowledged, in the order of giving.
        subscription: The value of its `subscription` header, escaped.
        prefix: `MESSAGE` and the headers up to the sequence in `message-id`.
        ack_prefix: What stands between the sequences of `message-id` and `ack`; None without `ack`.
        encoding: How `deliver` encodes its messages as packets of MQTT; None: it does not.
        amqp: Its link of AMQP; None: it has none.
    """

    __slots__ = (
        "ack_prefix",
        "amqp",
        "connection",
        "credit",
        "encoding",
        "handle",
        "held",
        "mode",
        "prefix",
        "queue",
        "subscription",
        "version",
    )

    def __init__(
        self,
        handle: int,
        connection: Connection,
        queue: Queue,
        mode: AckMode,
        credit: int,
        subscription: bytes,
        version: int,
    ) -> None:
        self.handle = handle
        self.connection = connection
        self.queue = queue
        self.mode = mode
        self.credit = credit
        self.version = version
        self.held: dict[int, Message] = {}
        self.encoding: MqttEncoding | None = None
        self.amqp: Link | None = None
        self.subscription = subscription
        self.prefix = b"MESSAGE\nsubscription:%b\nmessage-id:%d-" % (subscription, queue.queue_id)
        has_ack = version == 12 and mode is not AckMode.AUTO
        self.ack_prefix = b"\nack:%d-" % queue.queue_id if has_ack else None

    @property
    def outgoing(self) -> Outgoing | None:
        """What the session of its link sends; None: it has no link, or that is not known."""
        if self.amqp is None:
            return None
        session = self.connection.sessions.get(self.amqp.encoding.channel)
        return None if session is None else session.out

    @property
    def has_credit(self) -> bool:
        """Whether it may be given one more; those of AUTO always may."""
        if self.mode is AckMode.AUTO:
            return True
        if len(self.held) >= self.credit:
            return False
        if self.amqp is None:
            return True
        session = self.outgoing
        return session is not None and session.room > 0 and self.amqp.credit > 0

    def given(self) -> None:
        """Take note that it was given one more."""
        if self.amqp is not None:
            session = self.outgoing
            assert session is not None
            session.room -= 1
            self.amqp.credit -= 1

    def held_up_to(self, sequence: int) -> list[int]:
        """Return what an ACK or NACK of a held message means, in the order of giving."""
        if self.mode is not AckMode.CLIENT:
            return [sequence]
        covered = []
        for held in self.held:
            covered.append(held)
            if held == sequence:
                break
        return covered
