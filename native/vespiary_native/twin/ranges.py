"""What a reader of ranges of a queue needs: copies of records, and the end of all below a sequence.

Owns the contract of `abc_ranges.CoreRanges`, as a mix-in of `TwinCore`. Never decides who reads
what: that is the engine. Called through `TwinCore`.
"""

from __future__ import annotations

from vespiary_native.abc_ranges import RUNS_MAX, RangeCopy
from vespiary_native.twin.pages import Pages
from vespiary_native.twin.range_copying import RangeCopying
from vespiary_native.twin.state import Queue
from vespiary_native.twin.tables import Tables


class TwinRanges(Tables):
    """See `abc_ranges.CoreRanges`."""

    _pages: Pages

    def copy_range(
        self,
        queue_id: int,
        sequence: int,
        end: int,
        max_bytes: int,
        *,
        is_first_whole: bool = False,
        runs_max: int = RUNS_MAX,
    ) -> RangeCopy:
        """See `CoreRanges.copy_range`."""
        queue = self._queue(queue_id)
        if not 1 <= runs_max <= RUNS_MAX:
            raise ValueError(f"runs_max {runs_max} is not from 1 to {RUNS_MAX}")
        limit = min(end, queue.available)
        at = max(sequence, _begin(queue))
        copying = RangeCopying(
            queue_id, max_bytes, is_first_whole=is_first_whole, runs_max=runs_max
        )
        absent = None
        while (at := queue.first_live(at, limit)) < limit:
            if at in queue.reserved or at in queue.locked:
                at += 1
                continue
            message = queue.entries[at]
            slab = message[0]
            if slab.view is None:
                queue.waits_for_slab = True
                assert slab.file is not None
                absent = slab.file.file_id, slab.index
                break
            if not copying.put(at, message):
                break
            at += 1
        return copying.result(min(at, limit), absent)

    def page_copy(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequence: int,
        end: int,
        max_bytes: int,
        *,
        is_first_whole: bool = False,
        runs_max: int = RUNS_MAX,
    ) -> RangeCopy:
        """See `CoreRanges.page_copy`."""
        if not 1 <= runs_max <= RUNS_MAX:
            raise ValueError(f"runs_max {runs_max} is not from 1 to {RUNS_MAX}")
        copying = RangeCopying(
            queue_id, max_bytes, is_first_whole=is_first_whole, runs_max=runs_max
        )
        return self._pages.copy(page_id, queue_id, footer, sequence, end, copying)

    def finish_below(self, queue_id: int, end: int, max_messages: int) -> int:
        """See `CoreRanges.finish_below`.

        Durability: durable with the block that is filling.
        """
        queue = self._queue(queue_id)
        self._check_transaction(0)
        done = self._pages.finish(queue, end, max_messages)
        limit, at = min(end, queue.available), _begin(queue)
        try:
            while done < max_messages and (at := queue.first_live(at, limit)) < limit:
                is_free = at in queue.returned or (at >= queue.next and queue.is_free(at))
                if is_free or at in queue.aside:
                    self._staging.finish(queue, at, queue.entries[at])
                    queue.returned.discard(at)
                    queue.aside.discard(at)
                    done += 1
                at += 1
        finally:
            queue.skip()
        return done


def _begin(queue: Queue) -> int:
    """Return the first sequence that may be live."""
    return min(queue.head, queue.returned.first()) if queue.returned else queue.head
