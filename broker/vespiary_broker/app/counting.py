"""Counting the messages of a queue that match a selector, a bounded part at a time.

Owns the loop. Must never change anything. Called by `browsing`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from vespiary_broker.app.queue_walk import QueueWalk
from vespiary_broker.app.wanted_messages import WantedMessages
from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.queues import Queue

_AT_ONCE: Final = 256
_LOOKED_MAX: Final = 200_000
"""Messages looked at for one answer: its caller must not wait for ever."""


class Counted(NamedTuple):
    """Messages of a part of a queue.

    Attributes:
        messages: Those that match.
        next: Sequence behind which to go on; None at the end of the queue.
    """

    messages: int
    next: int | None


async def count_messages(
    core: Core, walk: QueueWalk, queue: Queue, after: int, wanted: WantedMessages
) -> Counted:
    """Count messages that are durable and not yet acknowledged, those in pages included.

    Args:
        core: The core.
        walk: Looks at them.
        queue: The queue.
        after: Begin behind this sequence.
        wanted: Which ones count.

    Raises:
        RemoteProtocolError: The queue was deleted meanwhile.
        PageDamaged: Messages stand in a page that is.
    """
    found, looked, at = 0, 0, after + 1

    def count(_: MessageView) -> bool:
        nonlocal found
        found += 1
        return False

    while at < core.queue_statistics(queue.id).available:
        step = await walk.step(at, _AT_ONCE, everything=True)
        seen = wanted.look(step.messages, count)
        looked += seen
        is_whole = seen == len(step.messages)
        at = step.next_sequence if is_whole else step.messages[seen].sequence
        if looked >= _LOOKED_MAX:
            return Counted(found, at - 1)
        await asyncio.sleep(0)
        if queue.is_deleted:
            break
    return Counted(found, None)
