"""Ends what queues of wildcard subscriptions hold and their users may not have any more.

Owns the walk, in bounded turns of the event loop, as a task of its own for each queue. From the
moment in which permissions change such a queue takes nothing that its user may not have
(`engine.address_table`), and its consumers get nothing of it (`engine.guards`). So this only gives
the room back, and then lets the queue be dispatched as if it had no guard. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from vespiary_broker.app.queue_walk import Pages, QueueWalk
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.guards import Guard
from vespiary_broker.engine.stream_gaps import GapReason
from vespiary_spec.errors import VespiaryError
from vespiary_spec.settings import Permission

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.store.journal import Journal

_AT_ONCE: Final = 256
_WALKS_MAX: Final = 2
"""Queues that are walked at a time: each takes a step in every turn of the loop."""
_AGAIN_S: Final = 1.0
_AGAIN_S_MAX: Final = 300.0

log = logging.getLogger(__name__)


class Withholding:
    """Ends messages that users of wildcard subscriptions may not have any more.

    Args:
        engine: The engine.
        cycle: The server's turn.
        journal: The message journal.
        pages: Opens pages; None: there are none.
        again_s: Seconds until the first look at what consumers have, and may give back.
    """

    def __init__(
        self,
        engine: Engine,
        cycle: Cycle,
        journal: Journal,
        pages: Pages | None,
        again_s: float = _AGAIN_S,
    ) -> None:
        self._engine = engine
        self._cycle = cycle
        self._journal = journal
        self._pages = pages
        self._again_s = again_s
        self._walks = asyncio.Semaphore(_WALKS_MAX)
        self._asked: dict[int, int] = {}  # how often, by number of the queue that is walked
        engine.registry.guards.on_unfiltered = self.begin

    def begin(self, queue: Queue) -> None:
        """Begin to end messages of a queue that takes only what its user may consume."""
        is_running = queue.id in self._asked
        self._asked[queue.id] = self._asked.get(queue.id, 0) + 1
        if not is_running:
            self._cycle.spawn(self._run(queue))

    async def _run(self, queue: Queue) -> None:
        """End what is withheld, until nothing is left of it.

        Permissions that change meanwhile may forbid what was passed. What a consumer has, or a
        transaction, may come back to the queue: that is looked at again, ever more rarely. A user
        who is gone, or may have all or nothing now, ends the walk: who comes back begins another.

        Durability: journalled as acknowledgements are; after a crash before that what was ended is
            back, and is withheld again.
        """
        try:
            asked, is_clean, wait_s = 0, False, self._again_s
            while not (is_clean and asked == self._asked[queue.id]):
                if asked == self._asked[queue.id]:
                    await asyncio.sleep(wait_s)
                    wait_s = min(2 * wait_s, _AGAIN_S_MAX)
                asked = self._asked[queue.id]
                async with self._walks:
                    is_clean = await self._end_withheld(queue, queue.unfiltered_below)
                if queue.is_deleted or not self._is_split(queue):
                    return
            for queue_id in self._engine.registry.guards.filtered(queue):
                self._engine.dispatcher.poke(queue_id)
            self._cycle.touch()
        except VespiaryError as error:  # its guard stays, so nothing is given that may not be
            log.warning("withheld messages stay queue=%r reason=%r", queue.name, str(error))
        finally:
            del self._asked[queue.id]

    def _is_split(self, queue: Queue) -> bool:
        """Return whether the user of a queue may have some of what its address covers, not all.

        Of a user who is gone nothing is known: what is in the queue stays as it is.
        """
        user, name = queue.traits.user, queue.address.name
        return self._engine.registry.permissions.is_split(user, Permission.CONSUME, name)

    async def _end_withheld(self, queue: Queue, end: int) -> bool:
        """End messages below a sequence; return whether none is left, not even with a consumer."""
        registry, core = self._engine.registry, self._engine.core
        guard = Guard(registry, queue, queue.traits.user, Permission.CONSUME)
        walk = QueueWalk(core, self._journal, self._pages, queue)
        is_clean, at, ended = True, 0, 0
        try:
            while at < end:
                step = await walk.step(at, _AT_ONCE, everything=True)
                if not self._is_split(queue):
                    break
                withheld = [
                    view for view in step.messages if view.sequence < end and not guard.wants(view)
                ]
                free = [each.sequence for each in withheld if not (each.is_held or each.is_aside)]
                is_clean &= len(free) == len(withheld)
                if free and not await self._finish(walk, queue, free):
                    continue
                ended += len(free)
                at = step.next_sequence
                if at >= core.queue_statistics(queue.id).tail:
                    break
                await asyncio.sleep(0)
        finally:
            walk.leave()
            self._note(queue, ended)
        return is_clean

    async def _finish(self, walk: QueueWalk, queue: Queue, sequences: list[int]) -> bool:
        """End messages; False: there was no room, and what was seen may have changed."""
        walk.take_in(sequences)
        queue.note_left(GapReason.REMOVED, sequences)
        try:
            self._engine.core.finish(queue.id, sequences)
        except NoRoom:
            await self._cycle.space()
            return False
        self._cycle.touch()
        return True

    def _note(self, queue: Queue, count: int) -> None:
        if not count:
            return
        self._engine.registry.permissions.withheld += count
        log.info(
            "messages ended that the user of a subscription may not consume any more"
            " queue=%r user=%r messages=%d",
            queue.name,
            queue.traits.user,
            count,
        )
