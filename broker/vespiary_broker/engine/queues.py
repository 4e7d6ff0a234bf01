"""Queues and their consumers, as the engine sees them, and the numbers of queues.

Owns the names and links; counters and messages belong to the core. Must never call the core.
Used by `registry`, `routing`, `dispatch` and `subscriptions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.names import Sender
from vespiary_broker.engine.ports import Bindings, JsonObject, Output
from vespiary_broker.engine.queue_kinds import ORDINARY, QueueKind
from vespiary_broker.engine.queue_traits import NO_TRAITS, QueueTraits
from vespiary_broker.engine.rota import Rota
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address
    from vespiary_broker.engine.claims import Claims
    from vespiary_broker.engine.core import MessageView
    from vespiary_broker.engine.examined import ExaminedQueue
    from vespiary_broker.engine.guards import Guard
    from vespiary_broker.engine.lanes import Match
    from vespiary_broker.engine.routing import Route
    from vespiary_broker.engine.stream_gaps import GapReason
    from vespiary_broker.engine.streams import Stream
    from vespiary_broker.engine.upkeep import Upkeep
    from vespiary_broker.engine.views import View, Views
    from vespiary_codec.journal.page_sketch import PageSketch

QUEUE_ID_COUNTER: Final = "counter/queue-id"
_QUEUE_ID_END: Final = 2**31
_RESERVED_AT_ONCE: Final = 1024

MOVED: Final = "moved"
"""Messages left because an administrator moved them to another queue."""
CHANGED: Final = "changed"
"""Messages left because an administrator changed them: others in the same queue replace them."""


@dataclass(eq=False, slots=True)
class Consumer:
    """One subscription of a connection to a queue.

    Attributes:
        handle: The core's handle.
        queue: The queue.
        output: The connection that its messages go to.
        mode: Acknowledgement mode.
        subscription: Id that the client gave it.
        credit: Messages that may be out unacknowledged, as the core counts them.
        match: Its selector; None takes all.
        guard: Withholds messages of a wildcard address that its user may not consume; None: nothing
            is to be withheld.
        priority: It is served before those with a lower one.
        is_exclusive: Whether it is to be the only one that is served.
        is_open: False once it was closed; its handle must not be used then.
        given: Messages that it was given so far.
        given_back: Messages of these that came back while it was open.
        view: What it has seen of a non-destructive queue; None: it takes what it is given.
        claims: What open transactions acknowledge of its messages: `claims` reads and writes it.
        encode: Turns messages as they are stored (`vespiary_codec.stored_message`) into what goes
            to its connection; None: the core encodes them itself.
        is_core_encoding: Whether the core encodes those nevertheless that it can (`encode_mqtt`,
            `encode_amqp`).
        is_core_settling: Whether the core acknowledges some of them as it gives them.
        on_encoded: Called with how many messages the core has encoded; None: nobody counts.
        client_credit: Returns how many more messages its client takes now, by a credit or a window
            of its protocol (None: without limit); None: the protocol has neither, and `credit`
            less what it holds is what it takes.
        user: Who consumes; empty is nobody.
        is_trusted: Whether it is the broker's own, which needs no permission.
    """

    handle: int
    queue: Queue
    output: Output
    mode: AckMode
    subscription: str
    credit: int
    match: Match | None = None
    priority: int = 0
    is_exclusive: bool = False
    is_open: bool = True
    given: int = 0
    given_back: int = 0
    view: View | None = None
    claims: dict[Claims, int] = field(default_factory=dict)
    encode: Callable[[bytes], bytes] | None = None
    is_core_encoding: bool = False
    is_core_settling: bool = False
    on_encoded: Callable[[int], None] | None = None
    client_credit: Callable[[], int | None] | None = None
    user: str = ""
    is_trusted: bool = False
    guard: Guard | None = None

    def end(self) -> None:
        """Close it and drop its references to its client, so that reference counting frees both."""
        self.is_open = False
        self.encode = self.on_encoded = self.client_credit = None

    @property
    def wanted(self) -> Match | None:
        """What it is given: what matches its selector, and is not withheld."""
        if self.guard is None or self.match is None:
            return self.guard or self.match
        return Both(self.guard, self.match)


class Both:
    """What two matches both take; keeps `lanes.Match`.

    Attributes:
        text: Their texts.

    Args:
        one: The one that is asked first.
        other: The other.
    """

    def __init__(self, one: Match, other: Match) -> None:
        self.text = f"{one.text}\0{other.text}"
        self._one = one
        self._other = other

    def wants(self, message: MessageView) -> bool:
        """Return whether a message matches."""
        return self._one.wants(message) and self._other.wants(message)

    def cost_us(self, message: MessageView) -> float:
        """Return about what `wants` costs at most, in microseconds."""
        return self._one.cost_us(message) + self._other.cost_us(message)

    def may_match(self, sketch: PageSketch) -> bool:
        """Return whether a message of a page may match; False: none does."""
        return self._one.may_match(sketch) and self._other.may_match(sketch)


@dataclass(eq=False, slots=True)
class Queue:
    """A queue.

    Invariant: it stands in the registry's tables and in its address as long as `is_deleted` is
        False.

    Attributes:
        id: Its number, 1 to 2**31 - 1; never used twice.
        name: Its name, unique in the broker.
        address: The address that it belongs to.
        routing_type: ANYCAST: the address gives each message to one such queue; MULTICAST: to all.
        is_durable: Whether queue and messages survive a restart.
        is_auto_created: Whether it goes when it is empty and unused, if the settings say so.
        is_temporary: Whether it goes with its only consumer, with all that is in it.
        client_id: Client that a durable subscription belongs to; empty otherwise.
        connection: Handle of the only connection that may consume from it, since it was made for
            that one; None: any may.
        traits: What is particular about it.
        idle_since_s: When its last consumer went, or when it was made or read back.
        was_used: Whether it ever had a consumer.
        is_open: Whether it takes messages: False while it has no consumer and is one of those
            that are purged then.
        is_paused: Whether it was told to give nothing for now; see `is_held`.
        is_pause_kept: Whether a restart leaves it paused.
        consumers: Those that share its messages.
        turn: Index of the consumer that is served next.
        route: The route to this queue alone; None until it is asked for.
        kind: What kind of queue it is.
        rota: Which of its consumers are served.
        upkeeps: Rules by which it gives up messages by itself.
        examined: Index of its messages while Python decides their order; None while it is plain.
        views: What consumers have seen, if it is non-destructive; None: they take its messages.
        delivered: Messages given to consumers since the start, again those that came back.
        departures: Messages that left it by no consumer since the start, by reason; None: none.
        departures_of_all: The same of all queues together: those of the registry that has it.
        unmovable: How often its messages could not be moved and are delivered again.
        attempts_max: `max-delivery-attempts` as of its latest consumer; 0: any number.
        stream: The stream that reads it, which no consumer may; None: there is none.
        unfiltered_below: Of a queue that takes only what its user may consume: the sequence below
            which messages came while that was something else.
        is_awaited: Whether a consumer is about to replace the last one, so that it is not unused.
        is_written: Whether the bindings have it; always True if it is not durable.
        is_deleted: Whether it is gone.
    """

    id: int
    name: str
    address: Address
    routing_type: RoutingType
    is_durable: bool
    is_auto_created: bool
    is_temporary: bool = False
    client_id: str = ""
    connection: int | None = None
    traits: QueueTraits = NO_TRAITS
    idle_since_s: float = 0.0
    was_used: bool = False
    is_open: bool = True
    is_paused: bool = False
    is_pause_kept: bool = False
    consumers: list[Consumer] = field(default_factory=list)
    turn: int = 0
    route: Route | None = None
    kind: QueueKind = ORDINARY
    upkeeps: tuple[Upkeep, ...] = ()
    examined: ExaminedQueue | None = None
    views: Views | None = None
    delivered: int = 0
    departures: dict[str, int] | None = None
    departures_of_all: Counter[str] = field(default_factory=Counter)
    unmovable: int = 0
    attempts_max: int = 0
    stream: Stream | None = None
    unfiltered_below: int = 0
    is_awaited: bool = False
    is_written: bool = True
    is_deleted: bool = False
    rota: Rota = field(default_factory=Rota, init=False)

    @property
    def is_held(self) -> bool:
        """Whether its consumers get nothing for now: it is paused, or its address is."""
        return self.is_paused or self.address.is_paused

    @property
    def is_looked_at(self) -> bool:
        """Whether Python looks at its messages, so that all of them have to be in its ring."""
        return self.examined is not None or bool(self.upkeeps)

    def check_same(self, routing_type: RoutingType, client_id: str, protocol: str) -> None:
        """Refuse a wish for a queue of its name that is not what it is.

        Raises:
            RemoteProtocolError: It has another type, or is another client's or protocol's.
        """
        if self.routing_type is not routing_type:
            raise RemoteProtocolError(
                f"the queue {self.name} exists with routing type {self.routing_type}",
                measured=str(routing_type),
            )
        if self.client_id != client_id or self.traits.protocol != protocol:
            raise RemoteProtocolError(f"the queue {self.name} belongs to another subscription")

    def is_closed_to(self, sender: Sender) -> bool:
        """Whether it does not take what a session sends: it is its own, and has `no-local`."""
        if not self.traits.is_no_local:
            return False
        if self.client_id:
            return self.client_id == sender.client_id
        return self.traits.subscriber is sender

    def count_departed(self, reason: str, count: int) -> None:
        """Count messages that left it by no consumer.

        Args:
            reason: Why: one of `moves.Reason`, MOVED or CHANGED.
            count: How many.
        """
        if self.departures is None:
            self.departures = {}
        self.departures[reason] = self.departures.get(reason, 0) + count
        self.departures_of_all[reason] += count

    def departed(self, reason: str) -> int:
        """Return how many messages left it for a reason since the start."""
        return 0 if self.departures is None else self.departures.get(reason, 0)

    @property
    def departed_in_all(self) -> int:
        """Messages that left it since the start, and that no consumer acknowledged."""
        return 0 if self.departures is None else sum(self.departures.values())

    def note_left(self, reason: GapReason, sequences: Iterable[int]) -> None:
        """Tell the stream that reads it, if any, why messages leave it.

        Args:
            reason: Why.
            sequences: Those of the messages.
        """
        if self.stream is not None:
            self.stream.note_left(reason, sequences)

    @property
    def key(self) -> str:
        """Its key in the bindings."""
        return f"queue/{self.id}"

    def to_binding(self) -> JsonObject:
        """Return its value in the bindings."""
        value: JsonObject = {
            "name": self.name,
            "address": self.address.name,
            "routing-type": str(self.routing_type),
            "auto-created": self.is_auto_created,
        }
        if self.client_id:
            value["client-id"] = self.client_id
        if self.is_pause_kept:
            value["paused"] = True
        return value | self.traits.to_binding()


class QueueIds:
    """Gives out queue numbers; reserves them in the bindings by the thousand.

    So numbers of queues that are in no binding (the non-durable ones) are never used again
    either, not even after a crash.

    Args:
        bindings: Where the counter is kept.
        first_unused: Value of the counter in the bindings, or 1.
    """

    def __init__(self, bindings: Bindings, first_unused: int = 1) -> None:
        self._bindings = bindings
        self._next = first_unused
        self._reserved_end = first_unused

    async def take(self) -> int:
        """Return a number that was never used.

        Raises:
            OverflowError: All numbers were used.

        Durability: on return the number will not be given out again, not even after a power loss.
        """
        if self._next >= self._reserved_end:
            if self._next >= _QUEUE_ID_END:
                raise OverflowError(f"all {_QUEUE_ID_END} queue numbers were used")
            await self.reserve()
        queue_id = self._next
        self._next += 1
        return queue_id

    @property
    def are_few(self) -> bool:
        """Whether it is time to `reserve`, so that `take` never waits."""
        return self._reserved_end - self._next < _RESERVED_AT_ONCE // 2

    async def reserve(self) -> None:
        """Reserve the next numbers, unless all are reserved.

        Durability: on return those below the new end are given out by this run alone.
        """
        end = min(self._reserved_end + _RESERVED_AT_ONCE, _QUEUE_ID_END)
        await self._bindings.put(QUEUE_ID_COUNTER, {"next": end})
        self._reserved_end = max(end, self._reserved_end)
