"""Retroactive addresses: queues that are made later begin with the latest messages.

Owns the queue that keeps these messages, one for each address with `retroactive-message-count`, and
the copying from there. It is a queue of the address like others: a ring, durable, non-destructive,
internal (nothing deletes it by itself). So what it keeps is written once, with all other places of
a message, and is there after a restart. (The reference system has a divert and an address of its
own for that.) Called by `registry`, while its lock is held; owner: the event loop.

Order: what was kept is copied before the new queue takes anything, up to the moment in which
nothing sent to the address waits for the disk. Where producers never leave such a moment, the last
few come behind the first ones that were sent to the new queue itself.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import Core, MessageView, NoRoom
from vespiary_broker.engine.lanes import SEQUENCE_MASK
from vespiary_broker.engine.matching import SelectorMatch
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.turn_time import Share
from vespiary_spec.settings import RoutingType

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address
    from vespiary_broker.engine.registry import Registry

_LOOK_MESSAGES: Final = 256
_BATCHES_A_TURN: Final = 16
_QUIET_TRIES: Final = 20
"""How often a moment is waited for in which nothing is on its way to the disk."""
_WAITS_MAX: Final = 2000
"""How often what is missing (memory, room) is waited for; then the rest is left out."""

log = logging.getLogger(__name__)


async def _at_once() -> None:
    """Wait for nothing."""


@dataclass(eq=False, slots=True)
class Copying:
    """The copying into one new queue.

    Attributes:
        source: Where from.
        queue: Where to.
        route: The core's route there.
        match: The new queue's filter; None: there is none.
        cursor: Next sequence of the source to look at.
        end: Sequence at which what the new queue gets by itself begins; 0: not known yet.
        waits: How often something was waited for.
        is_out_of_time: Whether this turn of the loop has no time for more filters.
    """

    source: Queue
    queue: Queue
    route: int
    match: SelectorMatch | None
    cursor: int = 0
    end: int = 0
    waits: int = 0
    is_out_of_time: bool = False


class Retroactive:
    """Keeps messages for queues to come, and copies them there.

    Attributes:
        touch: Has what was staged written; the application sets it.

    Args:
        core: The core.
        registry: Addresses and queues.
    """

    def __init__(self, core: Core, registry: Registry) -> None:
        self.touch: Callable[[], None] = lambda: None
        self._core = core
        self._registry = registry
        self._wait: Callable[[], Awaitable[None]] = _at_once
        self._load_slab: Callable[[int, int], None] = lambda _file, _slab: None

    def waits_with(
        self, wait: Callable[[], Awaitable[None]], load_slab: Callable[[int, int], None]
    ) -> None:
        """Set what is done while something is missing.

        Args:
            wait: Waits for a little while, in which staged messages are written.
            load_slab: Begins to read a slab that is not in memory.
        """
        self._wait = wait
        self._load_slab = load_slab

    @staticmethod
    def name_for(address: str) -> str:
        """Return the name of the queue that keeps the messages of an address."""
        return f"$.vespiary.internal.{address}.queue.multicast.retro"

    def _count(self, address: Address) -> int:
        """Return how many messages of an address are kept."""
        if address.is_wildcard or RoutingType.MULTICAST not in address.routing_types:
            return 0
        return self._registry.settings_for(address.name).retroactive_message_count or 0

    async def keep(self, address: Address) -> None:
        """Begin to keep messages of an address, if its settings say so and nothing does yet.

        Durability: on return what is sent from then on is kept over a power loss.
        """
        if self._count(address):
            name = self.name_for(address.name)
            if name not in self._registry.queues:
                await self._registry.make_internal(name, address)

    async def begin(self) -> None:
        """Do at the start what other settings ask for: keep, or keep no more.

        Durability: as `keep`; what is not kept any more goes in the background.
        """
        for address in list(self._registry.addresses.values()):
            kept = self._registry.queues.get(self.name_for(address.name))
            if kept is not None and not self._count(address) and not kept.consumers:
                self._registry.drop_queue(kept)
            elif not self._registry.syntax.is_wildcard(address.name):
                await self.keep(address)

    def _source_for(self, queue: Queue) -> Queue | None:
        if queue.traits.is_internal or queue.routing_type is not RoutingType.MULTICAST:
            return None
        return queue.address.queues.get(self.name_for(queue.address.name))

    async def fill(self, queue: Queue) -> Copying | None:
        """Copy what is kept into a queue that is open in the core, and takes nothing else yet.

        Between its end and the opening of the queue to senders nothing may be sent.

        Args:
            queue: The queue.

        Returns:
            What `end` finishes; None: there is nothing to copy.

        Durability: staged; durable with whatever is staged later.
        """
        source = self._source_for(queue)
        if source is None:
            return None
        selector = queue.traits.selector
        match = None if selector is None else SelectorMatch(selector.text, queue.address.name)
        route = self._core.open_route([queue.id])
        copying = Copying(source, queue, route, match)
        for _ in range(_QUIET_TRIES):
            if self._is_quiet(source):
                break
            await self._wait()
        await self._skip_excess(copying)
        for _ in range(_QUIET_TRIES):
            await self._copy(copying)
            if source.is_deleted or queue.is_deleted:
                return copying
            if self._is_quiet(source):
                break
            await self._wait()
        copying.end = self._core.queue_statistics(source.id).tail
        return copying

    def _is_quiet(self, source: Queue) -> bool:
        """Return whether no message of a queue is on its way to the disk."""
        statistics = self._core.queue_statistics(source.id)
        return statistics.tail == statistics.available

    async def end(self, copying: Copying) -> None:
        """Copy the rest: what was on its way to the disk when the queue was opened to senders.

        Durability: as `fill`.
        """
        while copying.cursor < copying.end and not copying.source.is_deleted:
            await self._copy(copying, copying.end)
            if copying.cursor >= copying.end or not await self._may_wait(copying):
                break
        self._core.close_route(copying.route)
        self.touch()

    async def _skip_excess(self, copying: Copying) -> None:
        """Begin at the latest messages: the queue gives those before up soon.

        After a kill they may be there again, and not in memory.
        """
        source = copying.source
        while not source.is_deleted:
            excess = self._core.queue_statistics(source.id).ready - source.kind.ring_size
            absent = self._skip(copying, excess)
            if absent is None:
                return
            self._load_slab(*absent)
            if not await self._may_wait(copying):
                return

    def _skip(self, copying: Copying, excess: int) -> tuple[int, int] | None:
        """Pass over the first messages; return the slab that is missing to go on."""
        copying.cursor = 0
        end = self._core.queue_statistics(copying.source.id).available
        while excess > 0 and copying.cursor < end:
            found = self._core.look(copying.source.id, copying.cursor, min(excess, _LOOK_MESSAGES))
            excess -= len(found.messages)
            copying.cursor = found.next_sequence
            if excess > 0 and found.absent is not None:
                return found.absent
        return None

    async def _copy(self, copying: Copying, end: int = SEQUENCE_MASK) -> None:
        """Copy what is durable now, up to a sequence; without waiting if that is little."""
        source, batches = copying.source, 0
        while not source.is_deleted and not copying.queue.is_deleted:
            end_now = min(self._core.queue_statistics(source.id).available, end)
            if copying.cursor >= end_now:
                return
            if self._copy_some(copying, end_now):
                batches += 1
                if batches % _BATCHES_A_TURN == 0 or copying.is_out_of_time:
                    copying.is_out_of_time = False
                    await self._wait()
            elif not await self._may_wait(copying):
                copying.cursor = end_now

    def _copy_some(self, copying: Copying, end: int) -> bool:
        """Copy a few messages before `end`; False: something is missing to go on."""
        found = self._core.look(copying.source.id, copying.cursor, _LOOK_MESSAGES, everything=True)
        share = self._registry.switches.turn_time.share(copying.queue)
        try:
            for message in found.messages:
                if message.sequence >= end:
                    copying.cursor = end
                    return True
                if not share.has_time:
                    copying.is_out_of_time = True
                    return True
                if not self._publish(copying, message, share):
                    return False
                copying.cursor = message.sequence + 1
        finally:
            share.end()
        copying.cursor = max(copying.cursor, min(found.next_sequence, end))
        if found.absent is None or copying.cursor >= end:
            return True
        self._load_slab(*found.absent)
        return False

    async def _may_wait(self, copying: Copying) -> bool:
        """Wait for what is missing; False: that has been long enough."""
        copying.waits += 1
        if copying.waits > _WAITS_MAX:
            log.warning(
                "a new queue does not begin with all that its address keeps queue=%r",
                copying.queue.name,
            )
            return False
        await self._wait()
        return True

    def _publish(self, copying: Copying, message: MessageView, share: Share) -> bool:
        """Copy a message, if the queue wants it; False: there is no room now."""
        match = copying.match
        if match is not None:
            share.did(match.cost_us(message))
            if not match.wants(message):
                return True
        body = self._core.body(copying.source.id, message.sequence)
        if body is None:
            return True  # it went meanwhile
        try:
            self._core.publish(
                copying.route,
                message.properties,
                body,
                persistent=message.is_journalled,
                protocol=message.protocol,
                priority=message.priority,
                escaped=message.is_escaped,
                large=message.is_large,
                special=message.is_special,
            )
        except NoRoom:
            return False
        return True
