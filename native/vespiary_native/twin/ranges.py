"""What a reader of ranges of a queue needs: copies of records, and the end of all below a sequence.

Owns the contract of `abc_ranges.CoreRanges`, as a mix-in of `TwinCore`. Never decides who reads
what: that is the engine. Called through `TwinCore`.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.journal.record import ADD, PLACE, RecordFlag, RecordType, align8
from vespiary_native.abc_ranges import RUNS_MAX, RangeCopy
from vespiary_native.twin.state import Message, Queue
from vespiary_native.twin.tables import Tables

_KEPT: Final = RecordFlag.ESCAPED | RecordFlag.LARGE | RecordFlag.SPECIAL


class TwinRanges(Tables):
    """See `abc_ranges.CoreRanges`."""

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
        records: list[bytes] = []
        runs: list[tuple[int, int]] = []
        used, is_full, absent = 0, False, None
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
            length = align8(ADD.size + PLACE.size + message[2] + message[3])
            if used + length > max_bytes and (records or not is_first_whole):
                is_full = True
                break
            if not runs or runs[-1][1] != at - 1:
                if len(runs) == runs_max:
                    break
                runs.append((at, at))
            runs[-1] = runs[-1][0], at
            records.append(_copy(queue_id, at, message).ljust(length, b"\0"))
            used += length
            at += 1
        return RangeCopy(b"".join(records), len(records), runs, min(at, limit), is_full, absent)

    def finish_below(self, queue_id: int, end: int, max_messages: int) -> int:
        """See `CoreRanges.finish_below`.

        Durability: durable with the block that is filling.
        """
        queue = self._queue(queue_id)
        self._check_transaction(0)
        limit, at, done = min(end, queue.available), _begin(queue), 0
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


def _copy(queue_id: int, sequence: int, message: Message) -> bytes:
    """Return a message's record with this one place."""
    slab, at, properties_bytes, body_bytes, flags, _, record_at = message
    view = slab.view
    assert view is not None
    _, _, _, protocol, priority, arrival_ms, _, _, _ = ADD.unpack_from(view, record_at)
    content = bytes(view[at : at + properties_bytes + body_bytes])
    head = ADD.pack(
        ADD.size + PLACE.size + len(content),
        RecordType.ADD,
        flags & _KEPT,
        protocol,
        priority,
        arrival_ms,
        body_bytes,
        properties_bytes,
        1,
    )
    return head + PLACE.pack(queue_id, 0, sequence) + content
