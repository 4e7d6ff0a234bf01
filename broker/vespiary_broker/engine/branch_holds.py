"""What prepared branches hold in a queue, wherever it stands.

Owns the question. A queue's counter `prepared` leaves out what is not available yet and what stands
in a page that is not open; a queue may not go while there is any of it. Must never change anything.
Asked by `usage` and `registry` before a queue is deleted; owner: the event loop.
"""

from __future__ import annotations

from vespiary_broker.engine.core import Core


def held_by_branches(core: Core, queue_id: int) -> int:
    """Return how many messages of a queue prepared branches have added or acknowledged.

    Those of branches that are ending count until that is durable.

    Args:
        core: The core.
        queue_id: The queue.
    """
    return sum(
        member.queue_id == queue_id and not member.is_missing
        for branch in core.branches()
        for member in core.branch_members(branch.transaction)
    )
