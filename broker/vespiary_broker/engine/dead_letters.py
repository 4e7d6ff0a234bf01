"""Where dead letters and expired messages go: an address, and its queues, made if need be.

Owns the rule, by the settings of the address that a message stood in. Must never touch a message:
`moves` does. Called by `moves`, and by `publishing` for messages that no queue takes; owner: the
event loop.

The rule
    No address is named: they are dropped (as in the reference system).
    One is named that has queues: they get the messages as if these had been sent there.
    One is named that has none: it is made, as an ANYCAST queue of the same name. If that cannot be
        (it may not be created, there are too many queues, the disk is full), dead letters stay
        where they are and may be delivered again, and what has expired waits; making it is tried
        again after a second, then less and less often, up to once a minute. (The reference system
        drops them.)
    One is named that has queues, none of which is written yet (`Registry.create_queue`): they are
        written, and the messages wait for that.
    `auto-create-…-resources`: each original address has a queue of its own in that address, with a
        filter that lets its messages in (`_AMQ_ORIG_ADDRESS`).
        What was moved before names the address that it stood in last, so that this queue takes it.
    A message that stands in its dead letter address already stays there, however often it is
        delivered: there is no safer place. What expires in its expiry address is dropped.
    One that no queue there takes (by their filters) stays where it is, and may be delivered again;
        what has expired is dropped. (The reference system drops both.)
    An address that is full does by its policy (decision 0013): PAGE takes them, DROP drops and
        counts them, BLOCK leaves them set aside until there is room. FAIL has dead letters
        delivered again, and what has expired wait. What an administrator puts back (`retry`) is
        never dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from vespiary_broker.engine.address_memory import AddressMemory, Verdict
from vespiary_broker.engine.message_times import EXPIRY_RULES, has_expiry_rules
from vespiary_broker.engine.moves import NoPlace, Place, Reason, Shed
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.original_headers import ORIGINAL_ADDRESS
from vespiary_broker.engine.ports import Spawn
from vespiary_broker.engine.publishing import make_target
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.returns import UnroutedTarget
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_spec.errors import AddressFull, VespiaryError
from vespiary_spec.settings import AddressSettings, RoutingType

_RETRY_MS: Final = 1000
_RETRY_MAX_MS: Final = 60_000

log = logging.getLogger(__name__)


class _Rule(NamedTuple):
    """What the settings of an address say of one reason."""

    address: str
    is_automatic: bool
    prefix: str
    suffix: str


def _rule(settings: AddressSettings, reason: Reason) -> _Rule:
    if reason is Reason.EXPIRED:
        return _Rule(
            settings.expiry_address or "",
            bool(settings.auto_create_expiry_resources),
            settings.expiry_queue_prefix or "",
            settings.expiry_queue_suffix or "",
        )
    return _Rule(
        settings.dead_letter_address or "",
        bool(settings.auto_create_dead_letter_resources),
        settings.dead_letter_queue_prefix or "",
        settings.dead_letter_queue_suffix or "",
    )


class _Refusal(NamedTuple):
    """A place that could not be had: when that is tried again, and how long it was waited for."""

    until_ms: int
    wait_ms: int


def _own(rule: _Rule, origin: str) -> str:
    """Return the name of the queue that an original address has of its own; empty: none."""
    return f"{rule.prefix}{origin}{rule.suffix}" if rule.is_automatic else ""


class DeadLetters:
    """Finds and makes the places of messages that leave their queues.

    Args:
        registry: What exists.
        memory: Says which addresses are full.
        spawn: Runs the making of a place in the background.
        on_made: Called when a place was made, or could not be.
        steady_ms: Milliseconds of a clock that nobody sets.
    """

    def __init__(
        self,
        registry: Registry,
        memory: AddressMemory,
        spawn: Spawn,
        on_made: Callable[[], None],
        steady_ms: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._memory = memory
        self._spawn = spawn
        self._on_made = on_made
        self._making: set[tuple[str, str]] = set()
        self._steady_ms = steady_ms
        self._refused: dict[tuple[str, str], _Refusal] = {}

    def find(self, queue: Queue, reason: Reason, to: str = "") -> Place | Shed | NoPlace:
        """Return where messages of a queue go (see `moves.Places.find`)."""
        place = self._back(to) if reason is Reason.RETRIED else self._place(queue, reason)
        return self._admit(place, queue, reason) if isinstance(place, Place) else place

    def target(self, queue: Queue, reason: Reason, to: str = "") -> str:
        """Return the name of what messages would go to (see `moves.Places.target`)."""
        return to or _rule(self._registry.settings_for(queue.address.name), reason).address

    def _admit(self, place: Place, queue: Queue, reason: Reason) -> Place | Shed | NoPlace:
        """Return what the policy of a place says, if it is full."""
        address = self._registry.addresses.get(place.address)
        if address is None or address is queue.address:
            return place
        try:
            verdict, state = self._memory.decide(address)
        except AddressFull:
            # What has expired is given to nobody, so it waits.
            return NoPlace.FULL if reason is Reason.EXPIRED else NoPlace.REFUSED
        if state is None:
            return place
        if verdict is not Verdict.DROP:
            return NoPlace.FULL
        if reason is Reason.RETRIED:
            return NoPlace.REFUSED  # who asked for it wants to keep it
        return Shed(place.address, partial(self._memory.drop, state))

    def _place(self, queue: Queue, reason: Reason) -> Place | NoPlace:
        origin = queue.address.name
        rule = _rule(self._registry.settings_for(origin), reason)
        if not rule.address:
            return NoPlace.DROPPED
        if rule.address == origin:
            return NoPlace.DROPPED if reason is Reason.EXPIRED else NoPlace.KEPT
        place = self._find(rule, origin)
        if place is NoPlace.LATER and reason is Reason.DELIVERIES:
            return NoPlace.KEPT
        return place

    def _back(self, name: str) -> Place | NoPlace:
        queue = self._registry.queues.get(name)
        if queue is None:
            return NoPlace.KEPT
        if not queue.is_written:  # a crash would remove it, with what it took
            key = (queue.address.name, name)
            if key not in self._making:
                self._making.add(key)
                self._spawn(self._write(key, queue))
                if key not in self._making:  # it needed no waiting
                    return self._back(name)
            return NoPlace.WAITING
        return Place(queue.address.name, self._registry.queue_route(queue))

    async def _write(self, key: tuple[str, str], queue: Queue) -> None:
        try:
            await self._registry.write_queue(queue)
        except VespiaryError:
            pass  # it is gone, so its messages stay; its subscriber reports why
        finally:
            self._making.discard(key)
            self._on_made()

    def unrouted_target(self, address: str) -> UnroutedTarget | None:
        """Return where a message goes that no queue of its address takes (see `Unrouted`)."""
        settings = self._registry.settings_for(address)
        rule = _rule(settings, Reason.DELIVERIES)
        if not settings.send_to_dla_on_no_route or rule.address in ("", address):
            return None
        own = _own(rule, address)
        route = self._route(rule, own)
        if route is None and self._is_refused((rule.address, own)):
            return None
        return UnroutedTarget(rule.address, route)

    async def make_unrouted(self, address: str) -> None:
        """Make the place for them (see `Unrouted`)."""
        rule = _rule(self._registry.settings_for(address), Reason.DELIVERIES)
        await self._make((rule.address, _own(rule, address)), address)

    def _find(self, rule: _Rule, origin: str) -> Place | NoPlace:
        own = _own(rule, origin)
        route = self._route(rule, own)
        key = (rule.address, own)
        if route is not None:
            self._refused.pop(key, None)
            return self._to(rule, own, origin, route)
        if self._is_refused(key):
            return NoPlace.LATER
        if key not in self._making:
            self._making.add(key)
            self._spawn(self._make(key, origin))
            if key not in self._making:  # it needed no waiting
                route = self._route(rule, own)
                if route is None:
                    return NoPlace.LATER
                return self._to(rule, own, origin, route)
        return NoPlace.WAITING

    def _to(self, rule: _Rule, own: str, origin: str, route: Route) -> Place:
        """Return a place that is there.

        Messages expire there by what is said of its address alone: what holds for the address that
        they come from as well was not said of dead or expired ones.
        """
        settings = self._registry.settings_for(rule.address)
        is_expiring = has_expiry_rules(settings) and self._registry.is_said_apart(
            EXPIRY_RULES, rule.address, origin
        )
        return Place(rule.address, route, origin if own else "", settings if is_expiring else None)

    def _is_refused(self, key: tuple[str, str]) -> bool:
        """Whether a place could not be made, and it is not time yet to try again."""
        refusal = self._refused.get(key)
        return refusal is not None and self._steady_ms() < refusal.until_ms

    def _refuse(self, key: tuple[str, str], error: VespiaryError) -> None:
        before = self._refused.get(key)
        wait_ms = _RETRY_MS if before is None else min(2 * before.wait_ms, _RETRY_MAX_MS)
        self._refused[key] = _Refusal(self._steady_ms() + wait_ms, wait_ms)
        if before is None:
            address, own = key
            log.warning(
                "the place for dead or expired messages cannot be made, so they stay where they "
                "are; it is tried again address=%s queue=%s reason=%r",
                address,
                own or address,
                str(error),
            )

    def _route(self, rule: _Rule, own: str) -> Route | None:
        """Return the route to a place if all of it is there, and takes messages."""
        address = self._registry.addresses.get(rule.address)
        if address is None or not address.queues or (own and own not in address.queues):
            return None
        route = self._registry.route_of(address, None)
        if not route.places_max and self._registry.queues_to_come(address):
            return None
        return route

    async def _make(self, key: tuple[str, str], origin: str) -> None:
        """Make a place, or note that it may not be made."""
        address, own = key
        try:
            await self._write_queues(address)
            place = self._registry.addresses.get(address)
            queues = {} if place is None else place.queues
            if own and own not in queues:
                quoted = origin.replace("'", "''")
                traits = QueueTraits(selector=compile_filter(f"{ORIGINAL_ADDRESS} = '{quoted}'"))
                await self._registry.create_queue(
                    own, address, RoutingType.MULTICAST, is_auto_created=True, traits=traits
                )
            elif not queues:
                destination = Destination(address, None, RoutingType.ANYCAST, is_trusted=True)
                await make_target(self._registry, destination)
        except VespiaryError as error:
            self._refuse(key, error)
        else:
            self._refused.pop(key, None)
        finally:
            self._making.discard(key)
            self._on_made()

    async def _write_queues(self, name: str) -> None:
        """Write the queues of an address that are not written, and lead messages to them.

        Durability: on return those that are still there survive a power loss.
        """
        address = self._registry.addresses.get(name)
        if address is None:
            return
        for queue in self._registry.queues_to_come(address):
            with suppress(VespiaryError):  # one that cannot be written is gone
                await self._registry.write_queue(queue)
        if self._registry.addresses.get(name) is address:
            self._registry.refresh_routes(address)
