"""The addresses by name, with their routes, and which of them a wildcard address covers.

Owns these links. Must never make or bind an address. Called by `registry`; owner: the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from vespiary_broker.engine.address_settings import AddressSettingsTable
from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.core import Core
from vespiary_broker.engine.diverts import Diverts
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.queue_traits import RETIRED
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.reach import Reach
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.switching import Switches
from vespiary_broker.engine.unrouted_messages import UnroutedMessages
from vespiary_broker.engine.wildcards import Pattern, WildcardTable, is_hidden
from vespiary_spec.settings import RoutingType

STEP_ADDRESSES: Final = 100
"""Addresses whose routes are changed in one turn: about a millisecond."""


class AddressTable:
    """The table.

    Invariant: the routes of a plain address lead to its queues, to those of the wildcard addresses
        that cover it, and to where its diverts lead; a wildcard address has no routes.

    Attributes:
        by_name: The addresses by name.

    Args:
        core: The core.
        rules: What wildcards look like, and the clock.
        diverts: Where messages go instead or as well.
        switches: All switches of the broker.
        unrouted: Counts what no queue accepts.
        settings: The settings of the addresses.
        takes_from: Whether the user of a queue lets it take messages of an address.
    """

    def __init__(
        self,
        core: Core,
        rules: NamingRules,
        diverts: Diverts,
        switches: Switches,
        unrouted: UnroutedMessages,
        settings: AddressSettingsTable,
        takes_from: Callable[[Queue, str], bool],
    ) -> None:
        self.by_name: dict[str, Address] = {}
        self._core = core
        self._unrouted = unrouted
        self._diverts = diverts
        self._switches = switches
        self._settings = settings
        self._takes_from = takes_from
        self._syntax = rules.syntax
        self._clock_s = rules.clock_s
        self._pause = rules.pause
        self._coming: Counter[int] = Counter()  # how often senders are being led to a queue
        self._ranked: dict[str, Counter[Address]] = {}  # where each client has queues with ranks
        self._wildcards = WildcardTable(rules.syntax)

    def route_of(self, address: Address, routing_type: RoutingType | None) -> Route:
        """Return the route of a plain address for what senders ask for."""
        route = address.routes.get(routing_type)
        if route is None:
            reach = self._reach(address, routing_type)
            route = Route(self._core, reach, address.name, self._switches, self._unrouted)
            address.routes[routing_type] = route
            for wildcard in address.wildcards:
                wildcard.routed[address] = None
        return route

    def _reach(self, address: Address, routing_type: RoutingType | None) -> Reach:
        """Return what messages of an address can get to now.

        A queue that is not written is gone after a crash, with what it took. So where a message
        that no queue takes is kept somewhere else, a queue takes none before it is written.
        """
        reach = self._diverts.reach(address.name, routing_type, self._sources)
        withheld = sum(
            routing_type in (None, queue.routing_type) and not self._takes_from(queue, address.name)
            for queue in address.sources()
        )
        if withheld:
            reach = replace(reach, withheld=withheld)
        if not self._settings.keeps_unrouted(address.name):
            return reach
        unwritten = frozenset(queue.id for queue in reach.queues if not queue.is_written)
        return reach.without(unwritten) if unwritten else reach

    def queues_to_come(self, address: Address) -> list[Queue]:
        """Return the queues that an address' messages will get to, but may not get to yet.

        They are not written, or senders are not led to all of them yet.
        """
        reach = self._diverts.reach(address.name, None, self._sources)
        return [queue for queue in reach.queues if not queue.is_written or self._coming[queue.id]]

    def _sources(self, name: str) -> Iterator[Queue]:
        """Return the queues that messages to an address can go to, whether or not it exists."""
        address = self.by_name.get(name)
        if address is None:
            address = Address(name, set(), is_auto_created=True)
            address.wildcards = self._wildcards.covering(name)
        return (queue for queue in address.sources() if self._takes_from(queue, name))

    def admit(self, address: Address) -> None:
        """Put an address into the table, and in touch with those whose names cover each other."""
        self.by_name[address.name] = address
        address.idle_since_s = self._clock_s()
        if not self._syntax.is_wildcard(address.name):
            address.wildcards = self._wildcards.covering(address.name)
            return
        address.is_wildcard = True
        self._wildcards.add(address)
        pattern = Pattern(address.name, self._syntax)
        for other in self.by_name.values():
            if (
                not other.is_wildcard
                and pattern.is_match(other.name)
                and not is_hidden(other.name, address.name, self._syntax)
            ):
                other.wildcards += (address,)
                if other.routes:
                    address.routed[other] = None

    def enter(self, queue: Queue) -> None:
        """Put a queue into its address; senders are led to it by `lead_to`."""
        queue.address.queues[queue.name] = queue
        self.rank_changed(queue, None)

    def rank_changed(self, queue: Queue, before: int | None) -> None:
        """Take note of a queue's rank; `refresh_routes` has to follow.

        Args:
            queue: The queue.
            before: The rank that it had.
        """
        change = (queue.traits.rank is not None) - (before is not None)
        if change:
            self._count_ranked(queue, change)

    def _count_ranked(self, queue: Queue, change: int) -> None:
        addresses = self._ranked.setdefault(queue.client_id, Counter())
        addresses[queue.address] += change
        if not addresses[queue.address]:
            del addresses[queue.address]
        if not addresses:
            del self._ranked[queue.client_id]

    def _has_rival(self, address: Address, queue: Queue) -> bool:
        """Return whether another queue of its client may take messages of an address instead."""
        if queue.traits.rank is None:
            return False
        ranked = self._ranked.get(queue.client_id)
        if ranked is None:
            return False
        return any(  # of those that cover the address: a client may have very many others
            ranked[owner] > (owner is queue.address and not queue.is_deleted)
            for owner in (address, *address.wildcards)
        )

    def part(self, address: Address) -> None:
        """Take an address without queues out of the table."""
        del self.by_name[address.name]
        for route in address.routes.values():
            route.close()
        address.routes.clear()
        self._diverts.forget(address.name)
        for wildcard in address.wildcards:
            wildcard.routed.pop(address, None)
        if address.is_wildcard:
            self._wildcards.remove(address)
            address.routed.clear()
            for other in self.by_name.values():
                if address in other.wildcards:
                    other.wildcards = tuple(w for w in other.wildcards if w is not address)

    def refresh_routes(self, address: Address) -> None:
        """Lead senders to the queues that an address has now, itself or through others."""
        for other in address.routed:
            self.refresh_routes(other)
        self._lead_others(address)

    async def lead_to(self, queue: Queue) -> None:
        """Lead senders to a queue that is new, in steps: a wildcard may cover very many addresses.

        Meanwhile it gets messages of some of them: nobody was told yet that it is there. Where all
        messages go to all queues, the others are not looked at: there may be very many.
        """
        address = queue.address
        if not queue.is_open:
            return
        with self._leading_to(queue):
            for count, other in enumerate(list(address.routed), 1):
                if other in address.routed:
                    self._lead_to(other, queue)
                if count % STEP_ADDRESSES == 0:
                    await self._pause()
                if queue.is_deleted or not queue.is_open:
                    return  # who closed it has led senders away
        self._lead_to(address, queue)
        self._lead_diverted(address)

    def _lead_to(self, address: Address, queue: Queue) -> None:
        """Lead the routes of one address to one queue more."""
        if (
            queue.routing_type is not RoutingType.MULTICAST
            or self._diverts.is_root(address.name)
            or self._has_rival(address, queue)
            or (not queue.is_written and self._settings.keeps_unrouted(address.name))
        ):
            self._lead(address)
            return
        is_taken = self._takes_from(queue, address.name)
        for kind, route in address.routes.items():
            if kind is RoutingType.ANYCAST:
                continue
            if not is_taken:
                route.withhold(route.withheld + 1)
            elif not route.extend(queue):
                route.lead(self._reach(address, kind))

    async def queue_written(self, queue: Queue) -> None:
        """Lead senders to a queue that was written where they were not led before, in steps.

        It has its rank among those of its client now.
        """
        address = queue.address
        with self._leading_to(queue):
            for count, other in enumerate([*address.routed, address], 1):
                if self._has_rival(other, queue) or self._settings.keeps_unrouted(other.name):
                    self._lead(other)
                if count % STEP_ADDRESSES == 0:
                    await self._pause()
                if queue.is_deleted:
                    return  # who deleted it has led senders away
        self._lead_diverted(address)

    @contextmanager
    def _leading_to(self, queue: Queue) -> Iterator[None]:
        """Note that some senders are not led to a queue yet; after an error, lead all of them."""
        self._coming[queue.id] += 1
        try:
            yield
        except BaseException:
            self.refresh_routes(queue.address)
            raise
        finally:
            self._coming[queue.id] -= 1
            if not self._coming[queue.id]:
                del self._coming[queue.id]

    def lead_away(self, queue: Queue) -> None:
        """Lead senders away from a queue that is about to be dropped from the core.

        The core takes it out of its routes by itself. That is all for a plain route to MULTICAST
        queues, so a subscription ends fast, whatever its wildcard covers, and however many others
        there are.
        """
        address = queue.address
        if queue.traits.rank is not None:
            self._count_ranked(queue, -1)
            if queue.traits.rank == RETIRED:
                return  # nobody is led to it
        is_everywhere = queue.is_open and queue.is_written and not self._coming[queue.id]
        if queue.routing_type is not RoutingType.MULTICAST or not is_everywhere:
            self.refresh_routes(address)
            return
        for other in (*address.routed, address):
            routes = other.routes.items()
            is_plain = all(
                route.is_plain for kind, route in routes if kind is not RoutingType.ANYCAST
            )
            if not is_plain or self._diverts.is_root(other.name) or self._has_rival(other, queue):
                self._lead(other)
                continue
            is_taken = self._takes_from(queue, other.name)
            for kind, route in routes:
                if kind is RoutingType.ANYCAST:
                    continue
                if is_taken:
                    route.places_max -= 1
                else:
                    route.withhold(max(0, route.withheld - 1))
        self._lead_diverted(address)

    def _lead_others(self, address: Address) -> None:
        """Change the routes of an address itself, and of those that diverts lead here."""
        self._lead(address)
        self._lead_diverted(address)

    def _lead_diverted(self, address: Address) -> None:
        """Change the routes of the addresses whose messages diverts lead to this one."""
        for name in self._diverts.roots_of(address.name, is_wildcard=address.is_wildcard):
            if name in self.by_name and name != address.name:
                self._lead(self.by_name[name])

    def lead_anew(self) -> None:
        """Have all senders ask again where their messages go: settings have changed."""
        for address in self.by_name.values():
            for route in address.routes.values():
                route.close()
            self._lead(address)

    def refresh_all_routes(self) -> None:
        """Lead senders elsewhere after diverts have changed."""
        for address in self.by_name.values():
            self._lead(address)

    def _lead(self, address: Address) -> None:
        self._diverts.forget(address.name)
        for routing_type, route in address.routes.items():
            route.lead(self._reach(address, routing_type))
