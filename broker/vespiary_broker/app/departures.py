"""What an administrator has messages of a queue do: retry, become dead letters, expire.

Owns the waiting: for memory, for room, until all is durable. The rules are the engine's
(`engine.departures`). Called by `administration`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.departures import check_departure, depart
from vespiary_broker.engine.moves import Reason

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.store.journal import Journal

_LOOK_AGAIN_S: Final = 0.01


async def move_waiting(
    engine: Engine, cycle: Cycle, journal: Journal, queue: Queue, reason: Reason
) -> int:
    """Move all messages that wait in a queue; return how many left it.

    Args:
        engine: The engine.
        cycle: The server's turn.
        journal: The journal.
        queue: The queue.
        reason: Where to, and why.

    Raises:
        RemoteProtocolError: There is nowhere to go.
        WriterFailed: The journal has failed.

    Durability: on return the messages are at their new place, also after a power loss.
    """
    mover = engine.fates.mover
    check_departure(mover, queue, reason)
    before = mover.moved[reason] + mover.dropped[reason]
    for _, absent in depart(engine.core, mover, queue, reason):
        if absent is not None:
            await journal.load_slab(*absent)
        cycle.touch()
        await asyncio.sleep(0)
    while mover.pending(queue.id) and not queue.is_deleted:
        cycle.touch()
        await asyncio.sleep(_LOOK_AGAIN_S)
    await journal.wait_durable()
    return mover.moved[reason] + mover.dropped[reason] - before
