"""Switches: routes that depend on the message, since queues or diverts have filters.

Owns the routes to sets of queues, one for each set that came up, and whose turn it is among ANYCAST
queues. Connections are taught the switch itself: the core hands over the headers of all
messages to it that one read has brought, Python takes the values that the filters need out of them
and chooses, and the core stages them, in one call each. Must never look at a body. Made by
`routing` and `registry`, asked by the server's `intake` and by `transactions`; owner: the event
loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from vespiary_broker.engine.core import Core, ScanStatus
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.reach import Passes, Reach
from vespiary_broker.engine.selection.message_values import Extractor, StoredMessage
from vespiary_broker.engine.selection.selector import Selector
from vespiary_broker.engine.unrouted_messages import UnroutedMessages

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


class Switches:
    """All switches of a broker.

    Attributes:
        withheld: Messages that queues did not get because of their users' permissions.
        by_handle: The switches that connections may be taught, by the core's handle.
    """

    __slots__ = ("by_handle", "withheld")

    def __init__(self) -> None:
        self.withheld = 0
        self.by_handle: dict[int, Switch] = {}

    def send(self, core: Core, handle: int) -> tuple[ScanStatus, int, int]:
        """Choose for what the core's last scan kept for a switch, and have it staged.

        Args:
            core: The core.
            handle: The switch.

        Returns:
            As `Core.send_switched`.
        """
        switch = self.by_handle[handle]
        return core.send_switched([switch.choose(message) for message in core.switched()])


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
        "_address", "_core", "_extractor", "_reach", "_routes", "_switches", "_turns", "_unrouted",
        "handle", "withheld",
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
        self._reach = reach
        there = {queue.address for queue in reach.queues}
        self._turns = {key: turn for key, turn in self._turns.items() if key in there}
        names = frozenset[str]().union(*(selector.names for selector in reach.selectors))
        self._extractor = Extractor(names, address=self._address)
        self._close_routes()

    def handle_for(self, message: SentMessage) -> int:
        """Return the core's route for a message, and take the turns that it uses up."""
        return self.choose(_Arriving(message))

    def choose(self, message: StoredMessage) -> int:
        """As `handle_for`, for a message as selectors see it."""
        values = self._extractor.values_of(message)
        self._switches.withheld += self.withheld

        def passes(selector: Selector | None) -> bool:
            return selector is None or selector.matches(values)

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
