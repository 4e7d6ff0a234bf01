"""The addresses by name, with their routes, and which of them a wildcard address covers.

Owns these links. Must never make or bind an address. Called by `registry`; owner: the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from vespiary_broker.engine.address_settings import AddressSettingsTable
from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.core import Core
from vespiary_broker.engine.diverts import Diverts
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.ports import Spawn
from vespiary_broker.engine.queue_traits import RETIRED
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.ranks import Ranks
from vespiary_broker.engine.reach import Reach
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.switching import Switches
from vespiary_broker.engine.turn_time import LOOK_US, NEXT_TURN
from vespiary_broker.engine.unrouted_messages import UnroutedMessages
from vespiary_broker.engine.wildcards import Pattern, WildcardTable, is_hidden
from vespiary_spec.settings import RoutingType

STEP_ADDRESSES: Final = 100
"""See `AddressTable.step_addresses`."""
_MATCH_US: Final = 5.0
"""What it costs to match a name with a pattern."""


class AddressTable:
    """The table.

    Invariant: the routes of a plain address lead to its queues, to those of the wildcard addresses
        that cover it, and to where its diverts lead; a wildcard address has no routes.

    Attributes:
        by_name: The addresses by name.
        step_addresses: Addresses whose routes are changed in one turn at most; fewer if there is no
            time left.

    Args:
        core: The core.
        rules: What wildcards look like, and the clock.
        diverts: Where messages go instead or as well.
        switches: All switches of the broker.
        unrouted: Counts what no queue accepts.
        settings: The settings of the addresses.
        takes_from: Whether the user of a queue lets it take messages of an address.
        spawn: Makes routes plain again in the background.
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
        spawn: Spawn,
    ) -> None:
        self.by_name: dict[str, Address] = {}
        self.step_addresses = STEP_ADDRESSES
        self._core = core
        self._unrouted = unrouted
        self._diverts = diverts
        self._switches = switches
        self._settings = settings
        self._takes_from = takes_from
        self._spawn = spawn
        self._plain: dict[str, Address] = {}
        self._unfiltered: dict[Address, None] = {}  # whose switches have no filters any more
        self._is_tidying = False
        self._syntax = rules.syntax
        self._clock_s = rules.clock_s
        self._pause = rules.pause
        self._coming: Counter[int] = Counter()  # how often senders are being led to a queue
        self._changing: Counter[str] = Counter()  # queues with other traits in steps, by client
        self._ranks = Ranks(takes_from)
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
            address.wildcards = dict.fromkeys(self._wildcards.covering(name))
        return (queue for queue in address.sources() if self._takes_from(queue, name))

    def admit(self, address: Address) -> None:
        """Put an address into the table, and in touch with those whose names cover each other."""
        pattern = self._enter_address(address)
        if pattern is not None:
            for other in self._plain.values():
                self._cover(address, pattern, other)

    async def admit_in_steps(self, address: Address) -> None:
        """As `admit`: there may be very many addresses that a wildcard may cover.

        Many wildcards may cover a plain one. It may have left the table meanwhile. Addresses are
        admitted one after the other (`Registry` has a lock for that).
        """
        if not self._syntax.is_wildcard(address.name):
            await self._wildcards.find(address.name, self._switches.turn_time)
        pattern = self._enter_address(address)
        if pattern is None:
            return
        others = list(self._plain.values())
        try:
            async for other in self._in_steps(others, _MATCH_US, len(others)):
                if self.by_name.get(address.name) is not address:
                    return
                if self.by_name.get(other.name) is other:
                    self._cover(address, pattern, other)
        except BaseException:  # it stays in the table, for others
            if self.by_name.get(address.name) is address:
                for other in self._plain.values():
                    self._cover(address, pattern, other)
            raise

    def _enter_address(self, address: Address) -> Pattern | None:
        """Put an address into the table; return the pattern that it is, None if it is plain."""
        self.by_name[address.name] = address
        address.idle_since_s = self._clock_s()
        if not self._syntax.is_wildcard(address.name):
            self._plain[address.name] = address
            address.wildcards = dict.fromkeys(self._wildcards.covering(address.name))
            return None
        address.is_wildcard = True
        self._wildcards.add(address)
        return Pattern(address.name, self._syntax)

    def _cover(self, address: Address, pattern: Pattern, other: Address) -> None:
        """Put a wildcard address in touch with a plain one if it covers that."""
        if pattern.is_match(other.name) and not is_hidden(other.name, address.name, self._syntax):
            other.wildcards[address] = None
            if other.routes:
                address.routed[other] = None

    def enter(self, queue: Queue) -> None:
        """Put a queue into its address; senders are led to it by `lead_to`."""
        queue.address.queues[queue.name] = queue
        self.rank_changed(queue)

    def rank_changed(self, queue: Queue) -> None:
        """Take note of a queue's rank; `refresh_routes` has to follow."""
        self._ranks.changed(queue)

    def part(self, address: Address) -> None:
        """Take an address without queues out of the table."""
        del self.by_name[address.name]
        for route in address.routes.values():
            route.close()
        address.routes.clear()
        self._diverts.forget(address.name)
        for wildcard in address.wildcards:
            wildcard.routed.pop(address, None)
        self._unfiltered.pop(address, None)
        if not address.is_wildcard:
            del self._plain[address.name]
            return
        self._wildcards.remove(address)
        address.routed.clear()
        for other in self._plain.values():
            other.wildcards.pop(address, None)

    def refresh_routes(self, address: Address) -> None:
        """Lead senders to the queues that an address has now, itself or through others."""
        for other in address.routed:
            self.refresh_routes(other)
        self._lead_others(address)

    async def refresh_in_steps(self, queue: Queue) -> None:
        """Lead senders as the rank of a queue, and whether it is no-local, are now, in steps."""
        address = queue.address
        self._changing[queue.client_id] += 1
        try:
            with self._leading_to(queue):
                async for other in self._in_steps(list(address.routed)):
                    if queue.is_deleted:
                        return  # who deleted it has led senders away
                    if other in address.routed:
                        self._lead_others(other)
        finally:
            self._changing[queue.client_id] -= 1
            if not self._changing[queue.client_id]:
                del self._changing[queue.client_id]
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
            async for other in self._in_steps(list(address.routed)):
                if queue.is_deleted or not queue.is_open:
                    return  # who closed it has led senders away
                if other in address.routed:
                    self._lead_to(other, queue)
        self._lead_to(address, queue)
        self._lead_diverted(address)

    async def _in_steps(
        self,
        addresses: list[Address],
        cost_us: float = LOOK_US,
        most: int | None = None,
    ) -> AsyncIterator[Address]:
        """Yield addresses that something is done with, as many in a turn as it has time for.

        Args:
            addresses: All of them.
            cost_us: About what it costs for one.
            most: Most of a turn; None: `step_addresses`.
        """
        most = self.step_addresses if most is None else most
        if len(addresses) == 1:
            yield addresses[0]  # it is not waited for time: nobody may wait for who does not ask
        if len(addresses) < 2:
            return
        turn_time = self._switches.turn_time
        share = turn_time.share(id(addresses))
        for count, address in enumerate(addresses, 1):
            yield address
            share.did(cost_us)
            if count == len(addresses) or (count % most and share.has_time):
                continue
            share.end()
            await self._pause()
            while not (share := turn_time.share(id(addresses))).has_time:
                await self._pause()
        share.end()

    def _lead_to(self, address: Address, queue: Queue) -> None:
        """Lead the routes of one address to one queue more."""
        if not address.routes or queue.traits.rank == RETIRED:
            return
        is_plain = (
            queue.routing_type is RoutingType.MULTICAST
            and not self._diverts.is_root(address.name)
            and (queue.is_written or not self._settings.keeps_unrouted(address.name))
            and queue.client_id not in self._changing
        )
        if is_plain and not self._takes_from(queue, address.name):
            for kind, route in address.routes.items():
                if kind is not RoutingType.ANYCAST:
                    route.withhold(route.withheld + 1)
            return
        rival = self._ranks.first_rival(address, queue) if is_plain else None
        is_led = rival is None or not self._coming[rival.id]  # senders may not be led to that yet
        is_first = rival is not None and not self._ranks.is_outranked(queue, rival)
        if not is_plain or is_first or not is_led:
            self._lead(address)
        elif rival is None:
            self._extend(address, queue)

    def _extend(self, address: Address, queue: Queue) -> None:
        """Lead to one MULTICAST queue more that has no rivals."""
        for kind, route in address.routes.items():
            if kind is not RoutingType.ANYCAST and not route.extend(queue):
                route.lead(self._reach(address, kind))

    async def queue_written(self, queue: Queue) -> None:
        """Lead senders to a queue that was written where they were not led before, in steps.

        It has its rank among those of its client now.
        """
        address = queue.address
        self._ranks.changed(queue)
        with self._leading_to(queue):
            async for other in self._in_steps([*address.routed, address]):
                if queue.is_deleted:
                    return  # who deleted it has led senders away
                rival = self._ranks.first_rival(other, queue)
                is_first = rival is not None and not self._ranks.is_outranked(queue, rival)
                if is_first or self._settings.keeps_unrouted(other.name):
                    self._lead(other)
        self._lead_diverted(address)

    async def wait_led(self, queue: Queue) -> None:
        """Wait until senders are led to a queue from everywhere, by whoever does that now."""
        while self._coming[queue.id]:
            await self._pause()

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
        if queue.traits.rank == RETIRED and not self._coming[queue.id]:
            return  # nobody is led to it
        self._ranks.changed(queue)
        is_everywhere = queue.is_open and queue.is_written and not self._coming[queue.id]
        if queue.routing_type is not RoutingType.MULTICAST or not is_everywhere:
            self.refresh_routes(address)
            return
        for other in (*address.routed, address):
            self._lead_away(other, queue)
        self._lead_diverted(address)

    def _lead_away(self, address: Address, queue: Queue) -> None:
        """Lead the routes of one address away from a MULTICAST queue that is about to go."""
        if not address.routes:
            return
        if self._diverts.is_root(address.name) or queue.client_id in self._changing:
            self._lead(address)
            return
        if not self._takes_from(queue, address.name):
            for kind, route in address.routes.items():
                if kind is not RoutingType.ANYCAST:
                    route.withhold(max(0, route.withheld - 1))
            return
        rival = self._ranks.first_rival(address, queue)
        if rival is not None and self._ranks.is_outranked(queue, rival):
            if self._coming[rival.id]:
                self._lead(address)  # senders may not be led to that one yet
            return  # that one has taken its messages
        if rival is not None and self._settings.keeps_unrouted(address.name):
            self._lead(address)  # it may have to be written first
            return
        for kind, route in address.routes.items():
            if kind is RoutingType.ANYCAST:
                continue
            if not route.reduce(queue) or (rival and not route.extend(rival)):
                route.lead(self._reach(address, kind))
            elif route.switch is not None and not route.switch.has_filters:
                self._tidy(address)

    def _tidy(self, address: Address) -> None:
        """Make routes plain again soon: what is left has no filters, but there may be very much."""
        self._unfiltered[address] = None
        if not self._is_tidying:
            self._is_tidying = True
            self._spawn(self._tidy_all())

    async def _tidy_all(self) -> None:
        try:
            while self._unfiltered:
                share = self._switches.turn_time.share(self)
                if not share.has_time:
                    await NEXT_TURN
                    continue
                address = self._unfiltered.popitem()[0]
                for kind, route in address.routes.items():
                    if route.switch is not None and not route.switch.has_filters:
                        route.lead(self._reach(address, kind))
                share.end()
        finally:
            self._is_tidying = False

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

    async def refresh_diverted(self, name: str) -> None:
        """Lead senders elsewhere, in steps, after a divert has changed.

        Args:
            name: The address that it stands or stood at; may be a wildcard.
        """
        is_wildcard = self._syntax.is_wildcard(name)
        found = dict.fromkeys(self._diverts.roots_of(name, is_wildcard=is_wildcard))
        if is_wildcard:
            pattern = Pattern(name, self._syntax)
            found.update((one, None) for one in self._plain if pattern.is_match(one))
        found[name] = None
        addresses = [self._plain[n] for n in found if n in self._plain]
        try:
            async for address in self._in_steps(addresses):
                self._lead(address)
        except BaseException:  # the divert has changed, whatever becomes of who asked for that
            for address in addresses:
                self._lead(address)
            raise

    def _lead(self, address: Address) -> None:
        if self.by_name.get(address.name) is not address:
            return  # it has gone in the middle of steps; there may be another one of its name
        self._diverts.forget(address.name)
        for routing_type, route in address.routes.items():
            route.lead(self._reach(address, routing_type))
