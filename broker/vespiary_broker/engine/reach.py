"""Which queues the messages of an address can get to, before anybody looks at a message.

Owns the rule (the reference system's): a message goes to every MULTICAST queue and to one of the
ANYCAST queues of each address, in turn; queues of wildcard addresses that cover the address count
as well, and so does where its diverts lead. An exclusive divert that takes a message is all that
gets it. Of the queues of one client that have ranks (`QueueTraits.rank`) one takes the message, so
the client gets it once. Must never call the core. Made by `registry`, read by `routing` and
`switching`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.queue_traits import RETIRED
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.selector import Selector
from vespiary_spec.settings import RoutingType

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address

_TURNS_MAX: Final = 256
"""Most sets of queues that senders take in turn; with more, some come more often than others."""

Passes = Callable[[Selector | None], bool]
"""Whether a message passes a filter; None is no filter."""


@dataclass(frozen=True, slots=True)
class Diversion:
    """A divert, from where it stands.

    Attributes:
        selector: Its filter; None if it takes every message.
        is_exclusive: Whether a message that it takes goes nowhere else.
        reach: Where it leads.
    """

    selector: Selector | None
    is_exclusive: bool
    reach: Reach


@dataclass(frozen=True, slots=True)
class Reach:
    """Queues that messages can get to.

    Attributes:
        multicast: Queues that get every message that passes their filters.
        anycast: Sets of queues of which one gets it.
        diversions: Diverts, oldest first.
        withheld: Queues that get no message because their users may not consume at the address;
            those behind diverts are not counted.
    """

    multicast: Collection[Queue]
    anycast: tuple[tuple[Queue, ...], ...]
    diversions: tuple[Diversion, ...] = ()
    withheld: int = 0

    @property
    def selectors(self) -> Iterator[Selector]:
        """Yield the filters that a message may have to pass."""
        for queue in self.queues:
            if queue.traits.selector is not None:
                yield queue.traits.selector
        for diversion in self._all_diversions:
            if diversion.selector is not None:
                yield diversion.selector

    @property
    def queues(self) -> Iterator[Queue]:
        """Yield every queue that a message may get to; one may come more than once."""
        yield from self.multicast
        for choice in self.anycast:
            yield from choice
        for diversion in self.diversions:
            yield from diversion.reach.queues

    @property
    def _all_diversions(self) -> Iterator[Diversion]:
        for diversion in self.diversions:
            yield diversion
            yield from diversion.reach._all_diversions

    def collect(
        self, passes: Passes, multicast: dict[int, None], anycast: dict[Address, tuple[Queue, ...]]
    ) -> None:
        """Add the queues that a message gets to; each once, however many diverts lead there.

        Args:
            passes: Says which filters it passes.
            multicast: Numbers of MULTICAST queues that it goes to.
            anycast: Sets of ANYCAST queues of which it goes to one that it passes the filter of.
        """
        is_taken = False
        for diversion in self.diversions:
            if diversion.is_exclusive and passes(diversion.selector):
                is_taken = True
                diversion.reach.collect(passes, multicast, anycast)
        if is_taken:
            return
        for queue in self.multicast:
            if passes(queue.traits.selector):
                multicast[queue.id] = None
        for choice in self.anycast:
            anycast.setdefault(choice[0].address, choice)
        for diversion in self.diversions:
            if not diversion.is_exclusive and passes(diversion.selector):
                diversion.reach.collect(passes, multicast, anycast)

    def without(self, queue_ids: frozenset[int]) -> Reach:
        """Return the same without some queues, wherever diverts lead."""
        anycast = (
            tuple(queue for queue in choice if queue.id not in queue_ids) for choice in self.anycast
        )
        return Reach(
            tuple(queue for queue in self.multicast if queue.id not in queue_ids),
            tuple(choice for choice in anycast if choice),
            tuple(replace(one, reach=one.reach.without(queue_ids)) for one in self.diversions),
            self.withheld,
        )

    def groups(self) -> list[list[int]]:
        """Return the sets of queue numbers that messages go to in turn; at least one, maybe empty.

        There must be no filters.
        """
        multicast: dict[int, None] = {}
        anycast: dict[Address, tuple[Queue, ...]] = {}
        self.collect(lambda _: True, multicast, anycast)
        choices = [[queue.id for queue in choice] for choice in anycast.values()]
        sizes = [len(choice) for choice in choices]
        turns = math.lcm(*sizes)
        if turns > _TURNS_MAX:
            turns = max(sizes)
        return [
            [*multicast, *(choice[turn % len(choice)] for choice in choices)]
            for turn in range(turns)
        ]


def reach_of(
    queues: Iterable[Queue],
    routing_type: RoutingType | None,
    diversions: Iterable[Diversion] = (),
) -> Reach:
    """Return what messages can get to.

    Args:
        queues: The queues of an address, and of the wildcard addresses that cover it.
        routing_type: What senders ask for; None is both.
        diversions: The diverts of the address.
    """
    multicast: list[Queue] = []
    anycast: dict[Address, list[Queue]] = {}
    for queue in queues:
        if routing_type not in (None, queue.routing_type):
            continue
        if queue.routing_type is RoutingType.MULTICAST:
            multicast.append(queue)
        else:
            anycast.setdefault(queue.address, []).append(queue)
    return Reach(
        tuple(_without_outranked(multicast)),
        tuple(tuple(choice) for choice in anycast.values()),
        tuple(diversions),
    )


def _without_outranked(queues: list[Queue]) -> list[Queue]:
    """Return queues without those of a client that another one of it stands in for."""
    highest: dict[str, tuple[bool, int, int]] = {}
    for queue in queues:
        rank = queue.traits.rank
        if rank is not None and rank != RETIRED:
            place = place_of(queue, rank)
            highest[queue.client_id] = max(place, highest.get(queue.client_id, place))
    if not highest:
        return [queue for queue in queues if queue.traits.rank is None]
    return [
        queue
        for queue in queues
        if queue.traits.rank is None
        or highest.get(queue.client_id) == place_of(queue, queue.traits.rank)
    ]


def place_of(queue: Queue, rank: int) -> tuple[bool, int, int]:
    """Return what queues of one client are compared by; the highest takes the message.

    A queue that is not written is gone after a crash, so it takes nothing that another one wants.
    """
    return (queue.is_written, rank, -queue.id)


def reach_of_queue(queue: Queue) -> Reach:
    """Return what messages for one queue alone can get to: it, while it takes any."""
    return reach_of([queue] if queue.is_open else [], None)
