"""Switches: routes that depend on the message, since queues or diverts have filters.

Owns the core's routes to sets of queues, one for each set that came up, and whose turn it is among
ANYCAST queues. Connections are taught the switch itself: the core hands over the headers of all
messages to it that one read has brought, Python takes the values that the filters need out of them
and chooses, and the core stages them, in one call each. A turn of the loop has only so much time
for that (`turn_time`): what is left, be it of one message with thousands of filters, follows in the
next ones. Must never look at a body. Made by `routing` and `registry`, asked by the server's
`intake` and by `transactions`; owner: the event loop.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vespiary_broker.engine.core import Core, ScanStatus
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.reach import Passes, Reach
from vespiary_broker.engine.selection.expressions import Value
from vespiary_broker.engine.selection.message_values import Extractor, StoredMessage
from vespiary_broker.engine.selection.selector import Selector
from vespiary_broker.engine.turn_time import Share, TurnTime, evaluation_us
from vespiary_broker.engine.unrouted_messages import UnroutedMessages

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address
    from vespiary_broker.engine.core import LargeBody

ROUTES_MAX: Final = 1024
"""Sets of queues whose route in the core is kept; the one that was not used for longest goes."""
_CHEAP_US: Final = 50.0
"""Filters of a message that are evaluated without a look at the time between them."""
_BEGUN_MAX: Final = 1024
"""Messages whose filters were evaluated in part; for the oldest that is done again."""


class SentMessage(Protocol):
    """What is looked at of a message on its way in."""

    @property
    def properties(self) -> bytes:
        """Its headers in canonical form."""

    @property
    def body(self) -> bytes:
        """Its body."""

    @property
    def priority(self) -> int:
        """0 to 9."""

    @property
    def is_persistent(self) -> bool:
        """Whether it goes to the journal."""

    @property
    def is_escaped(self) -> bool:
        """Whether the properties contain escapes."""

    @property
    def large(self) -> LargeBody | None:
        """Where the body is, if it is in a file."""


class _Arriving:
    """A message that has no place yet, as selectors see it."""

    __slots__ = ("_message", "is_escaped", "properties")

    sequence = 0
    deliveries = 0

    def __init__(self, message: SentMessage) -> None:
        self._message = message
        self.properties = message.properties
        self.is_escaped = message.is_escaped

    @property
    def priority(self) -> int:
        return self._message.priority

    @property
    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @property
    def is_journalled(self) -> bool:
        return self._message.is_persistent

    @property
    def body_length(self) -> int:
        message = self._message
        return len(message.body) if message.large is None else message.large.size_bytes


Verdicts = dict[Selector, bool]
"""What filters have said of a message."""


_Facts = tuple[bytes, int, bool, int]
"""What tells messages apart: properties, priority, whether it is durable, length of the body."""


def _facts(message: StoredMessage) -> _Facts:
    return message.properties, message.priority, message.is_journalled, message.body_length


class _Begun(NamedTuple):
    """The next message of a sender, which some filters were evaluated for.

    Attributes:
        switch: Which chooses for it.
        facts: The message's: of another one nothing is known.
        verdicts: What filters have said of it.
    """

    switch: Switch
    facts: _Facts
    verdicts: Verdicts


class Switches:
    """All switches of a broker.

    Attributes:
        withheld: Messages that queues did not get because of their users' permissions.
        by_handle: The switches that connections may be taught, by the core's handle.
        turn_time: What a turn of the loop has for filters.
    """

    __slots__ = ("_begun", "by_handle", "turn_time", "withheld")

    def __init__(self, turn_time: TurnTime | None = None) -> None:
        self.withheld = 0
        self.by_handle: dict[int, Switch] = {}
        self.turn_time = TurnTime() if turn_time is None else turn_time
        self._begun: OrderedDict[Hashable, _Begun] = OrderedDict()

    def send(self, core: Core, handle: int, sender: int) -> tuple[ScanStatus, int, int] | None:
        """Choose for what the core's last scan kept for a switch, and have it staged.

        Args:
            core: The core.
            handle: The switch.
            sender: The core's handle of the connection that sends.

        Returns:
            As `Core.send_switched`; all or the first of them were staged. None: this turn has no
            time for any.

        Durability: as `Core.send_switched`.
        """
        switch = self.by_handle[handle]
        routes: list[int] = []
        share = self.turn_time.share(sender)
        for message in core.switched():
            route = self._choose(switch, message, sender, share)
            if route is None:
                break
            routes.append(route)
        share.end()
        return core.send_switched(routes) if routes else None

    def choose_in_time(
        self, switch: Switch, message: StoredMessage, who: Hashable, share: Share | None = None
    ) -> int | None:
        """Return the core's route for a message; None: this turn has no time for all its filters.

        What they have said by then is kept, so thousands of them come to an end over some turns.

        Args:
            switch: Chooses.
            message: The message.
            who: Who comes again with the same message if there was no time.
            share: What it has of this turn already; None: it asks for that.
        """
        if share is not None:
            return self._choose(switch, message, who, share)
        share = self.turn_time.share(who)
        route = self._choose(switch, message, who, share)
        share.end()
        return route

    def _choose(
        self, switch: Switch, message: StoredMessage, who: Hashable, share: Share
    ) -> int | None:
        if not share.has_time:
            return None
        begun = self._begun.pop(who, None) if self._begun else None
        cost_us = switch.cost_us(message)
        if begun is None and cost_us <= _CHEAP_US:  # nearly always
            share.did(cost_us)
            return switch.choose(message)
        verdicts: Verdicts = {}
        if begun is not None and begun.switch is switch and begun.facts == _facts(message):
            verdicts = begun.verdicts
        if switch.decide(message, verdicts, share):
            return switch.choose(message, verdicts)
        self._begun[who] = _Begun(switch, _facts(message), verdicts)
        if len(self._begun) > _BEGUN_MAX:
            self._begun.popitem(last=False)
        return None


class Switch:
    """Chooses queues by message.

    Attributes:
        handle: The core's handle, which connections are taught.
        withheld: Queues that get no message because of their users' permissions.

    Args:
        core: The core.
        reach: What messages can get to.
        address: Name of the address that they are sent to.
        switches: All switches of the broker.
        unrouted: Has the core's routes, and counts what no filter lets into any queue.
    """

    __slots__ = (
        "_address", "_core", "_cost_us", "_known_extractor", "_names", "_queues", "_reach",
        "_routes", "_selectors", "_switches", "_turns", "_unrouted", "handle", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        reach: Reach,
        address: str,
        switches: Switches,
        unrouted: UnroutedMessages,
    ) -> None:
        self._core = core
        self._unrouted = unrouted
        self._address = address
        self._switches = switches
        self.handle = core.open_switch()
        switches.by_handle[self.handle] = self
        self._routes: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._turns: dict[Address, int] = {}
        self.withheld = 0
        self.lead(reach)

    def lead(self, reach: Reach) -> None:
        """Choose among other queues from now on."""
        self._queues = dict.fromkeys(reach.multicast)
        self._reach = replace(reach, multicast=self._queues)
        there = {queue.address for queue in reach.queues}
        self._turns = {key: turn for key, turn in self._turns.items() if key in there}
        self._selectors: Counter[Selector] = Counter()
        self._names: Counter[str] = Counter()
        self._cost_us = 0.0
        self._known_extractor: Extractor | None = None
        for selector in reach.selectors:
            self._add(selector)
        self._close_routes()

    def leads_to(self, queue: Queue) -> bool:
        """Whether a MULTICAST queue is one that it chooses among, not behind diverts."""
        return queue in self._queues

    def extend(self, queue: Queue) -> bool:
        """Choose among one MULTICAST queue more; the others are not looked at.

        Returns:
            False if that cannot be said without a look at all: `lead` has to be called.
        """
        if self._reach.diversions:
            return False
        self._queues[queue] = None
        if queue.traits.selector is not None:
            self._add(queue.traits.selector)
        return True

    def reduce(self, queue: Queue) -> bool:
        """Choose a MULTICAST queue no more; the others are not looked at.

        Returns:
            False if that cannot be said without a look at all: `lead` has to be called.
        """
        if self._reach.diversions or queue not in self._queues:
            return False
        del self._queues[queue]
        if queue.traits.selector is not None:
            self._remove(queue.traits.selector)
        self._close_routes()
        return True

    def _add(self, selector: Selector) -> None:
        self._selectors[selector] += 1
        if self._selectors[selector] == 1:
            self._cost_us += selector.cost_us
            if not selector.names <= self._names.keys():
                self._known_extractor = None
            self._names.update(selector.names)

    def _remove(self, selector: Selector) -> None:
        self._selectors[selector] -= 1
        if not self._selectors[selector]:
            del self._selectors[selector]
            self._cost_us -= selector.cost_us
            for name in selector.names:
                self._names[name] -= 1
                if not self._names[name]:
                    del self._names[name]
                    self._known_extractor = None

    @property
    def has_filters(self) -> bool:
        """Whether anything depends on the message."""
        return bool(self._selectors)

    @property
    def _extractor(self) -> Extractor:
        """What takes the values out of messages; made once for all changes before a message."""
        if self._known_extractor is None:
            self._known_extractor = Extractor(self._names, address=self._address)
        return self._known_extractor

    def cost_us(self, message: StoredMessage) -> float:
        """Return about what all filters cost at most for a message, in microseconds."""
        return len(self._selectors) + evaluation_us(self._cost_us, len(message.properties))

    def decide(self, message: StoredMessage, verdicts: Verdicts, share: Share) -> bool:
        """Evaluate the filters for a message, as far as this turn of the loop has time.

        Args:
            message: The message.
            verdicts: What they have said of it; takes in what they say.
            share: What there is of this turn.

        Returns:
            Whether all have been evaluated; False: to be called again in a later turn.
        """
        values: dict[str, Value] | None = None
        for selector in self._selectors:
            if selector in verdicts:
                continue
            if not share.has_time:
                return False
            if values is None:
                values = self._extractor.values_of(message)
            verdicts[selector] = selector.matches(values)
            share.did(evaluation_us(selector.cost_us, len(message.properties)))
        return True

    def handle_for(self, message: SentMessage, verdicts: Verdicts | None = None) -> int:
        """Return the core's route for a message, and take the turns that it uses up.

        Args:
            message: The message.
            verdicts: What `decide` found; None: the filters are evaluated now.
        """
        return self.choose(_Arriving(message), verdicts)

    def handle_in_time(
        self, message: SentMessage, who: Hashable, share: Share | None = None
    ) -> int | None:
        """As `handle_for`; None: this turn has no time, `who` is to call again in a later one."""
        return self._switches.choose_in_time(self, _Arriving(message), who, share)

    def is_decided(self, message: SentMessage, verdicts: Verdicts, who: Hashable) -> bool:
        """As `decide`, for a message as its sender has it.

        Args:
            message: The message.
            verdicts: As there.
            who: Who comes again if there was no time.
        """
        share = self._switches.turn_time.share(who)
        is_decided = self.decide(_Arriving(message), verdicts, share)
        share.end()
        return is_decided

    def choose(self, message: StoredMessage, verdicts: Verdicts | None = None) -> int:
        """As `handle_for`, for a message as selectors see it."""
        self._switches.withheld += self.withheld
        known = {} if verdicts is None else verdicts
        values: dict[str, Value] | None = None

        def passes(selector: Selector | None) -> bool:
            nonlocal values
            if selector is None:
                return True
            verdict = known.get(selector)
            if verdict is None:
                if values is None:
                    values = self._extractor.values_of(message)
                verdict = known[selector] = selector.matches(values)
            return verdict

        multicast: dict[int, None] = {}
        anycast: dict[Address, tuple[Queue, ...]] = {}
        self._reach.collect(passes, multicast, anycast)
        for address, choice in anycast.items():
            queue = self._next(address, choice, passes)
            if queue is not None:
                multicast[queue.id] = None
        return self._route(tuple(multicast))

    def _next(self, address: Address, choice: tuple[Queue, ...], passes: Passes) -> Queue | None:
        """Return the next queue in turn whose filter a message passes."""
        start = self._turns.get(address, 0)
        for offset in range(len(choice)):
            index = (start + offset) % len(choice)
            if passes(choice[index].traits.selector):
                self._turns[address] = index + 1
                return choice[index]
        return None

    def is_nowhere(self, handle: int) -> bool:
        """Whether a route of `handle_for` leads to no queue."""
        return self._routes.get(()) == handle

    def _route(self, queue_ids: tuple[int, ...]) -> int:
        handle = self._routes.get(queue_ids)
        if handle is not None:
            self._routes.move_to_end(queue_ids)
            return handle
        if len(self._routes) >= ROUTES_MAX:
            self._unrouted.close_route(self._routes.popitem(last=False)[1])
        handle = self._routes[queue_ids] = self._unrouted.open_route(self._address, queue_ids)
        return handle

    def close(self) -> None:
        """Give the core's routes back; connections that were taught it ask again."""
        self._close_routes()
        self._core.close_route(self.handle)
        del self._switches.by_handle[self.handle]

    def _close_routes(self) -> None:
        for handle in self._routes.values():
            self._unrouted.close_route(handle)
        self._routes.clear()
