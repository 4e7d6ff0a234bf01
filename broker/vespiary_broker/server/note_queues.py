"""Queues in which the broker keeps what it must remember of clients over a restart.

Owns how such a queue is made, written and read back. Each note is a message of its own in a durable
queue that no client sees: what MQTT retains, which messages of QoS 2 were received, which are on
their way out, which deliveries of AMQP their sender has not settled. So notes are journalled,
compacted and recovered as all messages are. The queues are last-value queues by the header that
names a note, so all of one stands in the core's ring. Called by MQTT's `retained`, `exactly_once`
and `wills`, and by AMQP's `unsettled`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.names import OWN_PREFIX
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.turn_time import Stint
from vespiary_spec.settings import RoutingType

_LOOK_MESSAGES: Final = 32
_NOTE_US: Final = 20.0


class NoteQueues:
    """What note queues need of the broker.

    Args:
        core: The core.
        registry: Addresses and queues.
        load_slab: Begins to read a slab that is not in memory.
        wait: Waits for a little while, in which slabs are loaded.
    """

    def __init__(
        self,
        core: Core,
        registry: Registry,
        load_slab: Callable[[int, int], None],
        wait: Callable[[], Awaitable[None]],
    ) -> None:
        self.core = core
        self.registry = registry
        self._load_slab = load_slab
        self._wait = wait

    def find(self, name: str) -> Queue | None:
        """Return the queue of a name; None if nothing was written to it yet."""
        return self.registry.queues.get(OWN_PREFIX + name)

    async def make(self, name: str, key: str) -> Queue:
        """Return the queue of a name, made if need be.

        Args:
            name: Its name, without the prefix.
            key: Header that names a note: of one name the latest counts.

        Raises:
            VespiaryError: It cannot be made.

        Durability: on return it survives a power loss.
        """
        queue = self.find(name)
        if queue is not None:
            return queue
        traits = QueueTraits(
            is_internal=True,
            is_purged_when_unused=False,
            kind=(("last-value", True), ("last-value-key", key)),
        )
        full = OWN_PREFIX + name
        return await self.registry.create_queue(full, full, RoutingType.MULTICAST, traits=traits)

    def drop(self, name: str) -> str:
        """Delete the queue of a name with all notes; return its key for `wait_removed`.

        Durability: as of `Registry.drop_queue`.
        """
        queue = self.find(name)
        if queue is None:
            return ""
        self.registry.drop_queue(queue)
        return queue.key

    async def notes(self, queue: Queue) -> AsyncIterator[MessageView]:
        """Yield all notes of a queue, the oldest first, over as many turns as that needs.

        Waits for what is not in memory.
        """
        at, stint = 0, Stint(self.registry.switches.turn_time)
        while not queue.is_deleted:
            await stint.time()
            found = self.core.look(queue.id, at, _LOOK_MESSAGES, everything=True)
            for view in found.messages:
                yield view
            stint.did(_NOTE_US * (1 + len(found.messages)))
            at = found.next_sequence
            if found.absent is not None:
                self._load_slab(*found.absent)
                await self._rest(stint)
            elif at >= self.core.queue_statistics(queue.id).available:
                break
        stint.end()

    async def body(self, queue: Queue, sequence: int, stint: Stint | None = None) -> bytes | None:
        """Return the body of a note, once it is durable; None if it is gone.

        Args:
            queue: The queue of the note.
            sequence: The note's sequence there.
            stint: Of who asks: ended where this waits; None: none is going on.
        """
        while not queue.is_deleted:
            if sequence >= self.core.queue_statistics(queue.id).available:
                await self._rest(stint)
                continue
            body = self.core.body(queue.id, sequence)
            if body is not None:
                return body
            absent = self.core.absent_for(queue.id, sequence)
            if absent == (0, 0):
                return None
            self._load_slab(*absent)
            await self._rest(stint)
        return None

    async def _rest(self, stint: Stint | None) -> None:
        if stint is not None:
            stint.end()
        await self._wait()
