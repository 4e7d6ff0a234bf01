"""What administrators change about queues and addresses that exist: pausing, traits, routing types.

Owns these acts. Must never hold a rule of its own: the engine's registry has those. Called by the
HTTP API; owner: the event loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vespiary_broker.app import states
from vespiary_broker.engine.queues import Queue
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.server.cycle import Cycle


class NamingActs:
    """The acts.

    Args:
        engine: The engine.
        cycle: Has the work of a turn done.
    """

    def __init__(self, engine: Engine, cycle: Cycle) -> None:
        self._engine = engine
        self._cycle = cycle

    async def pause_queue(self, name: str, *, is_kept: bool) -> states.QueueState:
        """Give nothing more of a queue to its consumers; what they hold they may acknowledge.

        Args:
            name: Its name.
            is_kept: Whether a restart leaves it paused.

        Raises:
            RemoteProtocolError: There is none of that name, or it does not survive a restart.

        Durability: with `is_kept` it is paused after a power loss too.
        """
        queue = self._queue(name)
        if is_kept and not queue.is_durable:
            raise RemoteProtocolError(
                f"the queue {name} does not survive a restart, and its pause cannot either",
                cure="pause it without persist",
            )
        await self._engine.registry.pause(queue, is_paused=True, is_kept=is_kept)
        return states.queue_state(self._engine, queue)

    async def resume_queue(self, name: str) -> states.QueueState:
        """Go on giving a queue's messages to its consumers.

        Raises:
            RemoteProtocolError: There is none of that name.

        Durability: on return a restart does not pause it again.
        """
        queue = self._queue(name)
        await self._engine.registry.pause(queue, is_paused=False)
        self._engine.dispatcher.poke(queue.id)
        self._cycle.touch()
        return states.queue_state(self._engine, queue)

    async def change_queue(
        self, name: str, *, max_consumers: int | None, is_purged_when_unused: bool | None
    ) -> states.QueueState:
        """Change what is particular about a queue; consumers that it has stay.

        Args:
            name: Its name.
            max_consumers: Most consumers, -1 for any number; None leaves it.
            is_purged_when_unused: Whether it is emptied without consumers; None leaves it.

        Raises:
            RemoteProtocolError: There is none of that name.

        Durability: on return a durable queue has it after a power loss too.
        """
        queue = self._queue(name)
        traits = queue.traits
        if max_consumers is not None:
            traits = replace(traits, max_consumers=max_consumers)
        if is_purged_when_unused is not None:
            traits = replace(traits, is_purged_when_unused=is_purged_when_unused)
        await self._engine.registry.change_traits(queue, traits)
        if not queue.consumers and not queue.is_deleted:
            self._engine.registry.usage.purge_closed(queue)
        self._cycle.touch()
        return states.queue_state(self._engine, queue)

    async def change_address(self, name: str, routing_types: set[RoutingType]) -> object:
        """Give an address these routing types and no others.

        Args:
            name: Its name.
            routing_types: At least one.

        Raises:
            RemoteProtocolError: There is none of that name, or a queue of it has another type.

        Durability: on return it has them after a power loss too.
        """
        address = self._engine.registry.addresses.get(name)
        if address is None:
            raise RemoteProtocolError(f"there is no address {name}")
        await self._engine.registry.set_routing_types(address, routing_types)
        return states.address_state(self._engine, address)

    def _queue(self, name: str) -> Queue:
        queue = self._engine.registry.queues.get(name)
        if queue is None:
            raise RemoteProtocolError(f"there is no queue {name}")
        return queue
