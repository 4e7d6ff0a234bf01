"""Acts of a journal's life in which Python decides over messages: ends, moves, sets aside.

Called by `journal_lives`, whose table of acts they are in; marks as in `power_cuts`. What a message
is, these acts learn from the core alone (`abc_inspection`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from vespiary_native.abc import DeliverStatus, NoRoom
from vespiary_testkit.journal_workload import QUEUES, Key

if TYPE_CHECKING:
    from vespiary_testkit.journal_lives import Life


class Tries:
    """Reads slabs back; one that never comes (a file that is gone) fails the life, not its time."""

    def __init__(self) -> None:
        self._failed = 0

    async def load(self, life: Life, file_id: int, slab: int) -> None:
        """Read a slab back.

        Raises:
            AssertionError: Too many could not be read.
        """
        if not await life.journal.load_slab(file_id, slab):
            self._failed += 1
            assert self._failed < 1000, f"slab {slab} of file {file_id} does not come back"
            await asyncio.sleep(0)

    async def open_page(self, life: Life) -> None:
        """Have the page opened that a consumer stands in front of.

        Raises:
            AssertionError: That was tried too often.
        """
        self._failed += 1
        assert self._failed < 1000, f"a page does not open: {life.pages.pager.statistics()}"
        life.pages.pager.serve()
        await asyncio.sleep(0.0005)


async def look(life: Life, queue_id: int) -> list[Key]:
    """Return the deliverable messages of a queue; what is not in memory is read back."""
    found: list[Key] = []
    sequence = 0
    tries = Tries()
    async with life.pages.opened(queue_id):
        while sequence < life.core.queue_statistics(queue_id).available:
            seen = life.core.look(queue_id, sequence, life.chance.choice((1, 5, 100)))
            assert seen.absent is not None or seen.next_sequence > sequence
            found += [(queue_id, view.sequence) for view in seen.messages]
            sequence = seen.next_sequence
            if seen.absent is not None:
                await tries.load(life, *seen.absent)
    waiting = sorted(key for key in life.waiting if key[0] == queue_id)
    assert found == waiting, "what is seen is what was confirmed and not taken"
    return found


async def give_special(life: Life, consumer: int, queue_id: int) -> list[Key]:
    """Give a consumer all special messages of a queue, at which `deliver` stops."""
    given: list[Key] = []
    sequence = 0
    tries = Tries()
    while sequence < life.core.queue_statistics(queue_id).available:
        seen = life.core.look(queue_id, sequence, 100, special_only=True)
        for view in seen.messages:
            await give_one(life, consumer, queue_id, view.sequence)
            given.append((queue_id, view.sequence))
        sequence = seen.next_sequence
        if seen.absent is not None:
            await tries.load(life, *seen.absent)
    life.core.specials_seen(queue_id)
    return given


async def give_one(life: Life, consumer: int, queue_id: int, sequence: int) -> None:
    """Give a consumer a message; what is not in memory is read back."""
    tries = Tries()
    while True:
        status, count, passed, _ = life.core.give(consumer, [sequence], 1)
        if status is DeliverStatus.LARGE:
            assert life.core.give_large(consumer, sequence) is not None
            return
        if status is not DeliverStatus.ABSENT:
            assert (status, count, passed) == (DeliverStatus.DRAINED, 1, 1)
            return
        await tries.load(life, *life.core.absent_for(queue_id, sequence))


async def end_unheld(life: Life) -> None:
    """End some messages that nobody holds, as if they had expired."""
    queue_id = life.chance.choice(QUEUES)
    keys = [key for key in await look(life, queue_id) if life.chance.random() < 0.4]
    for key in keys:
        life.disk.mark(f"acking {key[0]} {key[1]}")
    try:
        assert life.core.finish(queue_id, [sequence for _, sequence in keys]) == len(keys)
    except NoRoom:
        # Some are ended, those in front; the journal says which, and the core too.
        left = {view.sequence for view in life.core.look(queue_id, 0, 10**6).messages}
        life.waiting.difference_update(key for key in keys if key[1] not in left)
        await life.journal.wait_durable()
        return
    life.waiting.difference_update(keys)
    await life.journal.wait_durable()
    life.acknowledged(keys)


async def move(life: Life) -> None:
    """Move messages to a queue in one transaction: held ones, and ones that nobody holds."""
    await life.receive()
    held = life.chance.sample(life.held, min(len(life.held), life.chance.randrange(3)))
    sent = [key for _ in range(3) for key in life.try_publish()]
    await life.journal.wait_durable()
    life.confirm(sent)
    unheld = (await look(life, life.chance.choice(QUEUES)))[:2]
    life.transaction += 1
    number, ends = life.transaction, held + unheld
    try:
        life.core.begin(number, len(ends) * 10_000, 3 * len(ends))
    except NoRoom:
        return
    added: list[Key] = []
    for key in ends:
        added += life.publish(number)
        life.disk.mark(f"acking {key[0]} {key[1]}")
        life.disk.mark(f"acks {number} {key[0]} {key[1]}")
        if key in held:
            count = life.core.finish_held(life.consumers[key[0]], key[1], transaction=number)
        else:
            count = life.core.finish(key[0], [key[1]], transaction=number)
        assert count == 1, key
    life.core.commit(number)
    await life.journal.wait_durable()
    life.disk.mark(f"settled {number}")
    life.held = [key for key in life.held if key not in set(ends)]
    life.waiting.difference_update(ends)
    life.confirm(added)
    life.acknowledged(ends)


async def set_aside(life: Life) -> None:
    """Set messages aside, while others go and the compaction moves them, then put them back."""
    queue_id = life.chance.choice(QUEUES)
    keys = [key for key in await look(life, queue_id) if life.chance.random() < 0.3]
    for _, sequence in keys:
        assert life.core.set_aside(queue_id, sequence)
    life.waiting.difference_update(keys)
    await life.receive()
    assert not life.held or not set(life.held) & set(keys)
    await asyncio.sleep(life.chance.choice((0.0005, 0.03)))
    assert life.core.queue_statistics(queue_id).aside == len(keys)
    for _, sequence in keys:
        assert life.core.put_back(queue_id, sequence)
    life.waiting.update(keys)
