"""Taking messages over from another broker, which is drained into this one.

Owns the waiting: for room in the journal, for memory of the address, for the flush. Must never hold
a rule: `engine.transfers` has those. Called by the HTTP API; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.address_memory import Verdict
from vespiary_broker.engine.core import LargeBody, NoRoom
from vespiary_broker.engine.queue_owners import belongs_to_other
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.subscription_names import is_last_name
from vespiary_broker.engine.subscriptions import durable_queues
from vespiary_broker.engine.transfers import Origin, Taken, TransferIntake
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.transfer import TransferFlag, TransferMessage, decode_batch
from vespiary_spec.errors import JournalFull, RemoteProtocolError
from vespiary_spec.settings import RoutingType

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.engine.registry import Registry
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.store.journal import Journal

_ROOM_S: Final = 5.0


class Transfers:
    """Takes messages over.

    Args:
        engine: The engine.
        cycle: The server's turn.
        journal: The message journal.
    """

    def __init__(self, engine: Engine, cycle: Cycle, journal: Journal) -> None:
        self._engine = engine
        self._cycle = cycle
        self._journal = journal
        self._intake = TransferIntake(engine.core, engine.registry, engine.duplicates)

    async def make_queue(self, binding: dict[str, Any], *, is_durable: bool) -> bool:
        """Make a queue as it was in the other broker, if there is none of its name.

        Args:
            binding: What the other broker's bindings say of it.
            is_durable: Whether it survives a restart.

        Returns:
            Whether it was made; one that is there stays as it is.

        Raises:
            RemoteProtocolError: The binding says too little, or a queue of this name has another
                address, or belongs to another client or user; or its subscription has another
                queue here.
        """
        registry = self._engine.registry
        try:
            name, address = str(binding["name"]), str(binding["address"])
            kind = RoutingType(binding["routing-type"])
            traits = replace(
                QueueTraits.from_binding(binding), is_configured=False, is_internal=False
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"a queue's definition is not understood: {error}") from error
        existing = registry.queue_of(address, name)
        client_id = str(binding.get("client-id", ""))
        if existing is not None:
            _check_same(existing, client_id, traits.user)
            await registry.write_queue(existing)
            return False
        _check_one_name(registry, client_id, name, traits.user)
        await registry.create_queue(
            name,
            address,
            kind,
            is_durable=is_durable,
            is_auto_created=bool(binding.get("auto-created", False)),
            client_id=client_id,
            traits=traits,
            is_trusted=True,
        )
        return True

    async def take(self, origin: Origin, queue: str, data: bytes) -> Taken:
        """Take a batch of messages over.

        Args:
            origin: Where they come from.
            queue: Name of the queue, which is there.
            data: The batch.

        Raises:
            RemoteProtocolError: There is no such queue, or the batch is none.
            LimitExceeded: A message does not fit into this journal.
            JournalFull: There is no room now.

        Durability: on return all of them survive a power loss, those that had come before included.
        """
        messages = decode_batch(data)
        if any(one.flags & TransferFlag.LARGE for one in messages):
            raise RemoteProtocolError("a large message came in a batch, without its body")
        taken = seen = 0
        for group in self._intake.pieces(messages):
            one = await self._stage(origin, queue, group, None)
            taken, seen = taken + one.taken, seen + one.seen
        await self._journal.wait_durable()
        return Taken(taken, seen)

    async def take_large(
        self, origin: Origin, queue: str, data: bytes, body: AsyncIterator[bytes]
    ) -> Taken:
        """Take a large message over.

        Args:
            origin: Where it comes from.
            queue: Name of the queue, which is there.
            data: A batch of this message alone, without its body.
            body: The pieces of its body.

        Raises:
            RemoteProtocolError: See `take`; or this broker keeps no large messages.
            StorageError: The body could not be stored.
            JournalFull: There is no room now.

        Durability: as for `take`; the body is flushed before it is referred to.
        """
        messages = decode_batch(data)
        if len(messages) != 1 or self._cycle.large is None:
            raise RemoteProtocolError("a large message comes by itself, to a broker that keeps any")
        (message,) = messages
        if self._intake.is_seen(origin, message.sequence):
            await self._journal.wait_durable()
            return Taken(0, 1)
        writer = self._cycle.large.begin()
        room = asyncio.Event()
        writer.on_room = room.set
        writer.on_failed = lambda _: room.set()  # `finish` tells it
        large: LargeBody | None = None
        is_taken = False
        try:
            async for piece in body:
                writer.put(piece)
                room.clear()
                if writer.is_full:
                    await room.wait()
            is_persistent = bool(message.flags & TransferFlag.JOURNALLED)
            large = await writer.finish(is_persistent=is_persistent)
            if large is None:
                raise JournalFull("there is no room for a large message that is handed over")
            _check_body(message, large)
            found = await self._stage(origin, queue, [message], large)
            is_taken = found.taken > 0
        finally:
            if large is None:
                writer.discard()
            elif not is_taken:
                self._cycle.large.remove([large.large_id])
        await self._journal.wait_durable()
        return found

    async def _stage(
        self, origin: Origin, name: str, group: list[TransferMessage], large: LargeBody | None
    ) -> Taken:
        """Stage a group as soon as there is room, and time for the queue's filter.

        Raises:
            JournalFull: There is none for some seconds; the rest of the group was not staged.
        """
        end_s = self._cycle.loop.time() + _ROOM_S
        taken = seen = 0
        while True:
            queue = self._queue(name)
            await self._engine.registry.write_queue(queue)  # else a crash would remove it
            self._check_room(queue)
            try:
                one = self._intake.stage(queue, origin, group, large)
            except NoRoom:
                left_s = end_s - self._cycle.loop.time()
                if left_s <= 0:
                    raise JournalFull(
                        f"the journal has no room for messages of the queue {name} now",
                        cure="let consumers take messages, or give the journal more room",
                    ) from None
                try:
                    await asyncio.wait_for(self._cycle.space(), left_s)
                except TimeoutError:
                    continue
            else:
                if any(message.flags & TransferFlag.SPECIAL for message in group):
                    self._engine.fates.special_sent()
                self._cycle.touch()
                taken, seen = taken + one.taken, seen + one.seen
                if not one.left:
                    return Taken(taken, seen)
                group = group[-one.left :]
                await asyncio.sleep(0)

    def _queue(self, name: str) -> Queue:
        queue = self._engine.registry.queues.get(name)
        if queue is None:
            raise RemoteProtocolError(f"there is no queue {name} to take messages over into")
        return queue

    def _check_room(self, queue: Queue) -> None:
        """Refuse messages of an address that has no room; none of them may be dropped.

        Raises:
            AddressFull: Its policy is FAIL.
            JournalFull: It has none now.
        """
        verdict, state = self._engine.memory.decide(queue.address)
        if state is not None and verdict is not Verdict.TAKE:
            raise JournalFull(
                f"the address {state.name} is full and takes nothing over",
                cure="let consumers take messages, or raise its max-size-bytes",
            )


def _check_same(existing: Queue, client_id: str, user: str) -> None:
    """Refuse to put messages of a subscription into that of somebody else.

    Raises:
        RemoteProtocolError: The queue belongs to another client, or to another user.
    """
    if existing.client_id != client_id or belongs_to_other(existing, user):
        raise RemoteProtocolError(
            f"the queue {existing.name} belongs to another client or user in the broker that is to "
            "take its messages",
            cure="empty and delete one of both queues",
        )


def _check_one_name(registry: Registry, client_id: str, name: str, user: str) -> None:
    """Refuse a queue of a durable subscription that has one already, with another one of its names.

    An earlier version wrote names otherwise, and a user who finds the usual name taken gets the
    last one. Of two queues its client would get one, and messages would collect in the other.

    Raises:
        RemoteProtocolError: There is one.
    """
    queues = durable_queues(registry, client_id, name.removeprefix(f"{client_id}."), user)
    if client_id:
        queues += [
            queue
            for queue in registry.queues.values()
            if queue.client_id == client_id and not queue.traits.protocol
            if is_last_name(name, user, queue.name) or is_last_name(queue.name, user, name)
        ]
    found = next((queue for queue in queues if not belongs_to_other(queue, user)), None)
    if found is not None:
        raise RemoteProtocolError(
            f"the subscription of the queue {name} has the queue {found.name} in the broker that "
            "is to take its messages",
            cure="empty and delete one of both queues",
        )


def _check_body(message: TransferMessage, large: LargeBody) -> None:
    """Compare what came with what the other broker says of it.

    Raises:
        JournalFull: Not all of it came; worth another try.
    """
    said = decode_large_reference(message.body)
    if (said.size_bytes, said.crc) != (large.size_bytes, large.crc):
        raise JournalFull(
            "a large message that is handed over did not come whole",
            measured=f"{large.size_bytes} bytes, checksum {large.crc:08x}",
            allowed=f"{said.size_bytes} bytes, checksum {said.crc:08x}",
        )
