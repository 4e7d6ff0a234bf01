"""What administrators change about queues and addresses that exist: pausing, traits, routing types.

Owns these acts. Must never hold a rule of its own: the engine's registry has those. Called by the
HTTP API; owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.app import states
from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.queue_changes import QueueWishes, changed_traits
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
        await self._engine.registry.pausing.pause_queue(queue, is_paused=True, is_kept=is_kept)
        return states.queue_state(self._engine, queue, self._cycle.stalls)

    async def resume_queue(self, name: str) -> states.QueueState:
        """Go on giving a queue's messages to its consumers.

        Raises:
            RemoteProtocolError: There is none of that name.

        Durability: on return a restart does not pause it again.
        """
        queue = self._queue(name)
        await self._engine.registry.pausing.pause_queue(queue, is_paused=False)
        self._engine.dispatcher.poke(queue.id)
        self._cycle.touch()
        return states.queue_state(self._engine, queue, self._cycle.stalls)

    async def pause_address(self, name: str, *, is_kept: bool) -> states.AddressState:
        """Give nothing more of all queues of an address to consumers, also of queues to come.

        Args:
            name: Its name.
            is_kept: Whether a restart leaves it paused.

        Raises:
            RemoteProtocolError: There is none of that name.

        Durability: with `is_kept` it is paused after a power loss too.
        """
        address = self._address(name)
        await self._engine.registry.pausing.pause_address(address, is_paused=True, is_kept=is_kept)
        return states.address_state(self._engine, self._cycle, address)

    async def resume_address(self, name: str) -> states.AddressState:
        """Go on giving messages of an address to consumers; queues paused themselves stay so.

        Raises:
            RemoteProtocolError: There is none of that name.

        Durability: on return a restart does not pause it again.
        """
        address = self._address(name)
        await self._engine.registry.pausing.pause_address(address, is_paused=False)
        for queue in address.queues.values():
            self._engine.dispatcher.poke(queue.id)
        self._cycle.touch()
        return states.address_state(self._engine, self._cycle, address)

    async def change_queue(self, name: str, wishes: QueueWishes) -> states.QueueState:
        """Change what is particular about a queue; consumers that it has stay.

        Args:
            name: Its name.
            wishes: What to change.

        Raises:
            ConfigError: What the queue would be contradicts itself.
            InvalidSelector: The filter is none.
            RemoteProtocolError: There is none of that name, or that cannot change now.

        Durability: on return a durable queue has it after a power loss too.
        """
        queue = self._queue(name)
        registry = self._engine.registry
        settings = registry.settings_for(queue.address.name)
        traits = changed_traits(self._engine.core, queue, wishes, settings)
        await registry.change_traits(queue, traits)
        if not queue.is_deleted:
            if not queue.consumers:
                registry.usage.purge_closed(queue)
            self._engine.dispatcher.poke(queue.id)
        self._cycle.touch()
        return states.queue_state(self._engine, queue, self._cycle.stalls)

    async def change_address(self, name: str, routing_types: set[RoutingType]) -> object:
        """Give an address these routing types and no others.

        Args:
            name: Its name.
            routing_types: At least one.

        Raises:
            RemoteProtocolError: There is none of that name, or a queue of it has another type.

        Durability: on return it has them after a power loss too.
        """
        address = self._address(name)
        await self._engine.registry.set_routing_types(address, routing_types)
        return states.address_state(self._engine, self._cycle, address)

    def _address(self, name: str) -> Address:
        address = self._engine.registry.addresses.get(name)
        if address is None:
            raise RemoteProtocolError(f"there is no address {name}")
        return address

    def _queue(self, name: str) -> Queue:
        queue = self._engine.registry.queues.get(name)
        if queue is None:
            raise RemoteProtocolError(f"there is no queue {name}")
        return queue
