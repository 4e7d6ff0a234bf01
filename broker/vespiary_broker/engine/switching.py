"""Switches: routes that depend on the message, since queues or diverts have filters.

Owns the core's routes to sets of queues, one for each set that came up, and whose turn it is among
ANYCAST queues. Nobody is taught such a route: each message comes to Python, which takes the values
that the filters need out of it and chooses. Must never look at a body. Made by `routing` and
`registry`, asked by `transactions`; owner: the event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.reach import Passes, Reach
from vespiary_broker.engine.selection.message_values import Extractor
from vespiary_broker.engine.selection.selector import Selector

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address
    from vespiary_broker.engine.core import LargeBody

ROUTES_MAX: Final = 1024
"""Sets of queues whose route in the core is kept; the one that was not used for longest goes."""


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


class SwitchCounters:
    """What all switches of a broker count together.

    Attributes:
        unrouted: Messages that no filter let into any queue.
    """

    __slots__ = ("unrouted",)

    def __init__(self) -> None:
        self.unrouted = 0


class Switch:
    """Chooses queues by message.

    Args:
        core: The core.
        reach: What messages can get to.
        address: Name of the address that they are sent to.
        counters: Where what goes nowhere is counted.
    """

    __slots__ = ("_address", "_core", "_counters", "_extractor", "_reach", "_routes", "_turns")

    def __init__(self, core: Core, reach: Reach, address: str, counters: SwitchCounters) -> None:
        self._core = core
        self._address = address
        self._counters = counters
        self._routes: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._turns: dict[Address, int] = {}
        self.lead(reach)

    def lead(self, reach: Reach) -> None:
        """Choose among other queues from now on."""
        self._reach = reach
        names = frozenset[str]().union(*(selector.names for selector in reach.selectors))
        self._extractor = Extractor(names, address=self._address)
        self.close()

    def handle_for(self, message: SentMessage) -> int:
        """Return the core's route for a message, and take the turns that it uses up."""
        values = self._extractor.values_of(_Arriving(message))

        def passes(selector: Selector | None) -> bool:
            return selector is None or selector.matches(values)

        multicast: dict[int, None] = {}
        anycast: dict[Address, tuple[Queue, ...]] = {}
        self._reach.collect(passes, multicast, anycast)
        for address, choice in anycast.items():
            queue = self._next(address, choice, passes)
            if queue is not None:
                multicast[queue.id] = None
        if not multicast:
            self._counters.unrouted += 1
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
            self._core.close_route(self._routes.popitem(last=False)[1])
        handle = self._routes[queue_ids] = self._core.open_route(list(queue_ids))
        return handle

    def close(self) -> None:
        """Give the core's routes back."""
        for handle in self._routes.values():
            self._core.close_route(handle)
        self._routes.clear()
