"""Queues of one client that stand in for one another: which of them takes a message.

Owns the queues with ranks (`QueueTraits.rank`), by client, in the order in which `reach` prefers
them. A client may have thousands that take the same messages, and thousands that do not: neither is
gone through for each of its subscriptions. Must never lead anybody anywhere. Asked by
`address_table`; owner: the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.queue_traits import RETIRED
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.reach import place_of

_TRIED_MAX: Final = 16
"""Queues of a client that are tried in their order before it is asked which cover the address."""


class _OfClient:
    """The queues of one client.

    Attributes:
        by_address: They by the address that they stand in.
        by_place: They by whether they are written, and by rank; oldest first.
    """

    __slots__ = ("by_address", "by_place")

    def __init__(self) -> None:
        self.by_address: dict[Address, dict[Queue, None]] = {}
        self.by_place: dict[tuple[bool, int], OrderedDict[Queue, None]] = {}

    def in_order(self) -> Iterator[Queue]:
        """Yield them, the highest first."""
        for place in sorted(self.by_place, reverse=True):
            yield from self.by_place[place]


class Ranks:
    """All queues with ranks that take messages.

    Args:
        takes_from: Whether the user of a queue lets it take messages of an address.
    """

    def __init__(self, takes_from: Callable[[Queue, str], bool]) -> None:
        self._takes_from = takes_from
        self._clients: dict[str, _OfClient] = {}
        self._places: dict[Queue, tuple[bool, int]] = {}

    def changed(self, queue: Queue) -> None:
        """Take note that a queue is new, was written, has another rank, or is gone."""
        place = self._places.pop(queue, None)
        if place is not None:
            self._leave(queue, place)
        rank = queue.traits.rank
        if rank in (None, RETIRED) or queue.is_deleted:
            return
        assert rank is not None
        place = self._places[queue] = (queue.is_written, rank)
        client = self._clients.setdefault(queue.client_id, _OfClient())
        client.by_address.setdefault(queue.address, {})[queue] = None
        queues = client.by_place.setdefault(place, OrderedDict())
        is_last = not queues or next(reversed(queues)).id < queue.id
        queues[queue] = None
        if not is_last:
            client.by_place[place] = OrderedDict.fromkeys(sorted(queues, key=lambda one: one.id))

    def _leave(self, queue: Queue, place: tuple[bool, int]) -> None:
        client = self._clients[queue.client_id]
        del client.by_place[place][queue]
        if not client.by_place[place]:
            del client.by_place[place]
        of_address = client.by_address[queue.address]
        del of_address[queue]
        if not of_address:
            del client.by_address[queue.address]
            if not client.by_address:
                del self._clients[queue.client_id]

    def first_rival(self, address: Address, queue: Queue) -> Queue | None:
        """Return which other queue of its client comes first for the messages of an address.

        Args:
            address: A plain address.
            queue: A queue that covers it, or did.

        Returns:
            It; None: there is no other, or the queue has no rank.
        """
        client = None if queue.traits.rank is None else self._clients.get(queue.client_id)
        if client is None:
            return None
        for other in islice(client.in_order(), _TRIED_MAX):
            if self._is_rival(other, address, queue):
                return other
        covering = (address, *address.wildcards)
        owners = min(client.by_address, covering, key=len)
        found = (each for owner in owners for each in client.by_address.get(owner, ()))
        rivals = (each for each in found if self._is_rival(each, address, queue))
        return max(rivals, key=_place, default=None)

    def is_outranked(self, queue: Queue, rival: Queue | None) -> bool:
        """Return whether a rival takes the messages, not the queue itself."""
        return rival is not None and _place(rival) > _place(queue)

    def _is_rival(self, other: Queue, address: Address, queue: Queue) -> bool:
        return (
            other is not queue
            and (other.address is address or other.address in address.wildcards)
            and other.is_open
            and self._takes_from(other, address.name)
        )


def _place(queue: Queue) -> tuple[bool, int, int]:
    rank = queue.traits.rank
    assert rank is not None
    return place_of(queue, rank)
