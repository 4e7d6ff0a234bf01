"""The part of the core's contract for readers of ranges: queues that are read without being taken.

Owns the Protocol and its value; `abc.Core` has it, and its terms. Both implementations keep it.
None of it is used on the plain path; each call costs what it touches. `copy_range` sees what stands
in the ring, `page_copy` what stands in a closed page (`abc_pages`): the caller merges them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

RUNS_MAX: Final = 1024
"""Runs of neighbouring sequences that one `copy_range` tells of."""


class RangeCopy(NamedTuple):
    """What one `CoreRanges.copy_range` or `page_copy` copied.

    Attributes:
        records: ADD records (journal-format §3.2), each padded with zeros to a multiple of 8.
        messages: How many.
        runs: (first, last) of neighbouring sequences that are among them, ascending.
        next_sequence: Where to go on.
        is_full: The message at `next_sequence` did not fit.
        absent: (file id, slab index) that `next_sequence` needs: load it and go on. None if nothing
            is missing.
    """

    records: bytes
    messages: int
    runs: list[tuple[int, int]]
    next_sequence: int
    is_full: bool
    absent: tuple[int, int] | None


class CoreRanges(Protocol):
    """See the module's docstring."""

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
        """Copy the records of a queue's messages, ascending; nothing is changed.

        Those that are durable and that no branch holds, also what consumers hold and what is set
        aside. A record is what it would be if the message had been published alone, to this queue:
        one place, flags 2, 4 and 16 at most, the time of its arrival. So it is the same bytes
        before and after a restart, a compaction or a move to a page.

        It ends before `end`, before a message that does not fit, before one that is not in memory,
        and after `runs_max` runs.

        Args:
            queue_id: The queue.
            sequence: Where to begin.
            end: One above the last sequence that is wanted.
            max_bytes: Of records, with their padding.
            is_first_whole: The first one comes even if it is larger.
            runs_max: 1 to `RUNS_MAX`.
        """

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
        """Copy the records of messages of a closed extent where they stand; nothing is entered.

        The same bytes as `copy_range` would give, with its bounds. Those that prepared branches
        acknowledge are passed over. Of an extent that is open there is nothing: its messages stand
        in the ring. As by `page_look`, slabs of the page stay until a call finds nothing up to the
        extent's end.

        Args:
            page_id: A page that is live.
            queue_id: A queue with an extent there.
            footer: As for `page_enter`.
            sequence: Where to begin.
            end: One above the last sequence that is wanted.
            max_bytes: Of records, with their padding.
            is_first_whole: The first one comes even if it is larger.
            runs_max: 1 to `RUNS_MAX`.

        Returns:
            `next_sequence` is `end`, or one above the extent's last if that is lower, when all up
            to there was copied. `absent`: load that slab of the page; the queue is ready when that
            is done.

        Raises:
            ValueError: As for `page_enter`.
        """

    def finish_below(self, queue_id: int, end: int, max_messages: int) -> int:
        """End the messages below a sequence that no consumer and no branch holds.

        Those that stand in closed pages, which nobody reads for it, then those in the ring, each
        lowest first; deliverable ones and those set aside, as `finish`; not within a transaction.

        Args:
            queue_id: The queue.
            end: One above the last sequence that is to end.
            max_messages: Stop after so many, 1 or more; fewer than that: there are no more.

        Returns:
            How many were ended.

        Raises:
            NoRoom: For the rest; those before are ended, and the same call goes on.

        Durability: journalled like acknowledgements, durable with the block that is filling.
        """
