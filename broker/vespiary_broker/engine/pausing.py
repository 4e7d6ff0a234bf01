"""Pausing: queues, and addresses with all their queues, that give their consumers nothing for now.

Owns both marks and what of them a restart finds again. Must never serve a queue: `dispatch` asks
`Queue.is_held`, and has to be poked when a queue goes on. The two marks are apart: a queue that was
paused itself stays so when its address goes on. Called by `app.naming_acts`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.queues import Queue


class Pausing:
    """Pauses, and goes on.

    Args:
        write_queue: Writes a queue to the bindings again, if it stands there.
        bind_address: Writes an address to the bindings, which does not go by itself from then on.
        note_unused: Called with an address that may go by itself again.
    """

    def __init__(
        self,
        write_queue: Callable[[Queue], Awaitable[None]],
        bind_address: Callable[[Address], Awaitable[None]],
        note_unused: Callable[[Address], None],
    ) -> None:
        self._write_queue = write_queue
        self._bind_address = bind_address
        self._note_unused = note_unused

    async def pause_queue(self, queue: Queue, *, is_paused: bool, is_kept: bool = False) -> None:
        """Stop or begin giving a queue's messages to its consumers.

        Args:
            queue: The queue.
            is_paused: Whether to stop.
            is_kept: Whether a restart leaves it paused; for durable queues only.

        Durability: on return what a restart does survives a power loss.
        """
        was_kept = queue.is_pause_kept
        queue.is_paused = is_paused
        queue.is_pause_kept = is_paused and is_kept and queue.is_durable
        if queue.is_pause_kept is not was_kept:
            await self._write_queue(queue)

    async def pause_address(
        self, address: Address, *, is_paused: bool, is_kept: bool = False
    ) -> None:
        """Stop or begin giving messages of all queues of an address, also of queues to come.

        One that a restart leaves paused does not go by itself any more; one that is paused until a
        restart does not as long as it is.

        Args:
            address: The address.
            is_paused: Whether to stop.
            is_kept: Whether a restart leaves it paused.

        Raises:
            RemoteProtocolError: It has gone meanwhile.

        Durability: on return what a restart does survives a power loss.
        """
        was_kept = address.is_pause_kept
        address.is_paused = is_paused
        address.is_pause_kept = is_paused and is_kept
        self._note_unused(address)
        if address.is_pause_kept is not was_kept:
            await self._bind_address(address)
