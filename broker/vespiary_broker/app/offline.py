"""Work on a broker's data that needs its journal open for writing, without serving anybody.

Owns: opening bindings and journal as a start does, and letting go of them. Must never listen, and
never open a journal whose queues it does not know: messages of unknown queues are void. Called by
the command line.
"""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path

from vespiary_broker.app.broker import BrokerApp
from vespiary_broker.app.duplicate_ids import make_duplicate_ids
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.store.counters import JournalStatistics
from vespiary_broker.store.writer import MessageJournal
from vespiary_spec.settings import Configuration

_RECLAIM_S = 0.05
_QUIET_S = 0.3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What an offline compaction did.

    Attributes:
        before: The journal when it was opened.
        after: The journal when nothing was left to do.
        is_complete: Whether it came to an end; False: the disk is full.
    """

    before: JournalStatistics
    after: JournalStatistics
    is_complete: bool


async def compact(configuration: Configuration, data: Path) -> Compacted:
    """Empty all files that are worth it, without a budget.

    Args:
        configuration: The broker's.
        data: Its data folder.

    Raises:
        VespiaryError: A folder is locked, a volume is refused, or the journal is damaged.

    Durability: on return what was moved is durable, and the files that it left are free.
    """
    app = BrokerApp(configuration, base=data)
    async with AsyncExitStack() as stack:
        opened = await app.open_stores(stack)
        options = dataclasses.replace(
            opened.options,
            compact_min_files=0,
            compact_bytes_per_s=1 << 40,
            reclaim_period_s=_RECLAIM_S,
        )
        duplicates = make_duplicate_ids(configuration)
        journal = await MessageJournal.open(
            options,
            queue_ids=durable_queue_ids(opened.bindings.snapshot()),
            parts=opened.parts,
            kept=duplicates,
        )
        stack.push_async_callback(journal.close)
        duplicates.start(journal.core, lambda _: True)
        before = journal.statistics()
        is_complete = await journal.compact()
        after = journal.statistics()
        while True:  # the keeper frees what was emptied, checkpoint by checkpoint
            await asyncio.sleep(_QUIET_S)
            freed, after = after.files_reclaimed, journal.statistics()
            if after.files_reclaimed == freed:
                return Compacted(before=before, after=after, is_complete=is_complete)
