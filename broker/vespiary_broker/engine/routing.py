"""Routes: the core's handles for where the messages of an address go, kept in step with it.

Owns these handles. With at most one ANYCAST queue for each address, and no filters, there is one
route of the core, which connections are taught, so the core routes without asking. With several
there is one route for each turn; nobody is taught, and the engine takes them in turn. With filters
on queues or diverts a `Switch` chooses by message. Called by `registry`.

A subscriber that does not want what it sends itself (`no-local`) has a route of its own there,
without its queues; all others keep theirs, and are taught it as ever.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.names import Sender
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.reach import Reach
from vespiary_broker.engine.switching import SentMessage, Switch, Switches
from vespiary_broker.engine.turn_time import Share
from vespiary_broker.engine.unrouted_messages import UnroutedMessages

NOWHERE: Final = -1
"""In place of a route: no queue takes the message."""


@dataclass(slots=True)
class _Partings:
    """What is kept of a route that is not the same for all senders.

    Attributes:
        queues: Those that do not take what their subscribers send.
        reach: What messages of others can get to.
        routes: Routes without some of the queues, by their numbers.
    """

    queues: tuple[Queue, ...]
    reach: Reach
    routes: dict[frozenset[int], Route] = field(default_factory=dict)


class Route:
    """Where the messages of an address go, for one routing type.

    Invariant: a connection knows `handles[0]` only while it is the only one, and there is no
        switch; or the switch's handle, as long as there is one.

    Attributes:
        places_max: Most queues that a message can get to.
        withheld: Queues that do not get it because of their users' permissions.
        switch: Chooses by message; None where all messages are alike.

    Args:
        core: The core.
        reach: What messages can get to.
        address: Name of the address that they are sent to.
        switches: All switches of the broker.
        unrouted: Has the core's routes, and counts what is sent to those without queues.
    """

    __slots__ = (
        "_address", "_core", "_handles", "_partings", "_switches", "_turn", "_unrouted",
        "places_max", "switch", "withheld",
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
        self._handles: list[int] = []
        self._turn = 0
        self._partings: _Partings | None = None
        self.places_max = self.withheld = 0
        self.switch: Switch | None = None
        self.lead(reach)

    @property
    def is_teachable(self) -> bool:
        """Whether connections may be taught a handle: all messages go one way, or by the switch."""
        return len(self._handles) == 1 or self.switch is not None

    @property
    def is_plain(self) -> bool:
        """Whether there is one route of the core, the same for all messages and senders."""
        return len(self._handles) == 1 and self.switch is None and self._partings is None

    def next_handle(self) -> int:
        """Return the core's route for the next message; -1 if the switch has to be asked."""
        handles = self._handles
        if len(handles) == 1:
            return handles[0]
        if self.switch is not None:
            return -1
        self._turn = (self._turn + 1) % len(handles)
        return handles[self._turn]

    def handle_in_time(
        self, message: SentMessage, who: Hashable, share: Share | None = None
    ) -> int | None:
        """Return the core's route for one message that is not sent by a client.

        Args:
            message: The message.
            who: Who comes again with the same message if there was no time.
            share: What it has of this turn already; None: it asks for that.

        Returns:
            The route; `NOWHERE`: no queue takes it. None: this turn of the loop has no time for
            all filters; to be called again in a later one.
        """
        if not self.places_max:
            return NOWHERE
        if self.switch is None:
            return self.next_handle()
        handle = self.switch.handle_in_time(message, who, share)
        return NOWHERE if handle is not None and self.switch.is_nowhere(handle) else handle

    def seen_by(self, sender: Sender | None) -> Route:
        """Return the route for what a session sends: without its own queues with `no-local`."""
        partings = self._partings
        if partings is None or sender is None:
            return self
        own = frozenset(queue.id for queue in partings.queues if queue.is_closed_to(sender))
        if not own:
            return self
        route = partings.routes.get(own)
        if route is None:
            reach = partings.reach.without(own)
            route = Route(self._core, reach, self._address, self._switches, self._unrouted)
            partings.routes[own] = route
        return route

    def _part(self, reach: Reach) -> None:
        """Take note of the queues that do not take what their subscribers send."""
        queues = tuple(queue for queue in reach.queues if queue.traits.is_no_local)
        before = () if self._partings is None else self._partings.queues
        if not set(queues).issubset(before):
            self._close_handles()  # their subscribers were taught what leads there
            self._close_switch()
        self._close_partings()
        if queues:
            self._partings = _Partings(queues, reach)

    def lead(self, reach: Reach) -> None:
        """Lead to other queues; connections that were taught ask again where that is needed."""
        had_queues = self.places_max > 0
        self.places_max = len({queue.id for queue in reach.queues})
        self._part(reach)
        if next(reach.selectors, None) is not None:
            self._close_handles()
            if self.switch is None:
                self.switch = Switch(
                    self._core, reach, self._address, self._switches, self._unrouted
                )
            else:
                self.switch.lead(reach)
            self.withhold(reach.withheld)
            return
        self._close_switch()
        groups = reach.groups()
        # An exclusive divert may lead nowhere, whatever queues the address has.
        self.places_max = max(map(len, groups))
        if had_queues and not self.places_max:
            self._close_handles()  # some senders are told now that no queue takes their messages
        self._set_groups(groups)
        self.withhold(reach.withheld)

    def lead_anew(self, reach: Reach) -> None:
        """Lead to queues; every connection that was taught it asks again."""
        self.close()
        self.lead(reach)

    def extend(self, queue: Queue) -> bool:
        """Lead to one MULTICAST queue more, whatever there is already; nothing else is looked at.

        Returns:
            False if that cannot be said without a look at the others: `lead` has to be called.
        """
        traits = queue.traits
        if self._partings is not None or traits.is_no_local:
            return False
        if self.switch is not None:
            if not self.switch.leads_to(queue):
                if not self.switch.extend(queue):
                    return False
                self.places_max += 1
            return True
        if not self.is_plain or traits.selector is not None:
            return False
        self.places_max += self._core.extend_route(self._handles[0], queue.id)
        return True

    def reduce(self, queue: Queue) -> bool:
        """Lead no more to a MULTICAST queue that the core is about to take out of its routes.

        Returns:
            False if that cannot be said without a look at the others: `lead` has to be called.
        """
        if self._partings is not None:
            return False
        if not (self.is_plain if self.switch is None else self.switch.reduce(queue)):
            return False
        self.places_max -= 1
        return True

    def withhold(self, queues: int) -> None:
        """Count every message as withheld from so many queues from now on."""
        self.withheld = queues
        if self.switch is not None:
            self.switch.withheld = queues
        for handle in self._handles:
            self._core.withhold(handle, queues)

    def _set_groups(self, groups: list[list[int]]) -> None:
        handles, unrouted = self._handles, self._unrouted
        if len(handles) == 1 and len(groups) > 1:
            unrouted.close_route(handles.pop())
        while len(handles) > len(groups):
            unrouted.close_route(handles.pop())
        for handle, group in zip(handles, groups, strict=False):
            self._core.set_route(handle, group)
        more = groups[len(handles) :]
        handles.extend(unrouted.open_route(self._address, group) for group in more)

    def _close_handles(self) -> None:
        for handle in self._handles:
            self._unrouted.close_route(handle)
        self._handles.clear()

    def _close_partings(self) -> None:
        if self._partings is not None:
            for route in self._partings.routes.values():
                route.close()
            self._partings = None

    def close(self) -> None:
        """Forget it; connections that were taught it ask again."""
        self._close_partings()
        self._close_handles()
        self._close_switch()

    def _close_switch(self) -> None:
        if self.switch is not None:
            self.switch.close()
            self.switch = None
