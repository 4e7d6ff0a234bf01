"""The part of the core's contract that is about pages: waiting messages moved out of the journal.

Owns the Protocol; `abc.Core` has it, and its terms. Both implementations keep it. Which messages
are moved, when, and all I/O is decided by `vespiary_broker.store.paging`.

A message is always confirmed by the journal. Those of an address that wait are then *moved*: their
records are copied into a page, the page's file is written and flushed, and one PAGE record in the
journal says that their places stand there now. Until that record is staged nothing has changed;
from then on the queues' rings have no entries for them, and the journal's files may go when that
record is durable. A place comes back when its extent is entered: then it is like any other, and is
acknowledged by ordinary records.

Terms
    page     a file of blocks, with an index at its end (journal-format §7). Its file id, for
             `absent_slab`, `load_begin`, `load_done`, `live_places` and `cancels`, is
             `block_file_id(page id)`. All calls here take the page id.
    extent   what one queue has in one page: closed, or open (entered): then it stands in the ring.
    driver   the queue whose waiting messages are walked, oldest first.

What holds
    - Only deliverable places that nobody was given since they came, that are not set aside and that
      no branch has, are moved; places of a record that may not move stay where they are.
    - `deliver` gives nothing while a lower place that is not done stands in a closed extent: it
      says `DeliverStatus.PAGED`. `next`, `head` and the order of delivery are as if all were in the
      ring; `QueueStatistics.ready` and `live_bytes`, and accounts, count the ring alone.
    - `live_places` of a journal file counts one for each page whose latest PAGE record stands in
      it. That record's file depends on those that the places stood in before, and on that of the
      PAGE record before it; the file of an acknowledgement or count on the page (`cancels` has its
      file id) until `page_restage` or `page_forget`; that of a PAGE_DONE on that of the PAGE.
    - After a recovery all extents are closed.

`ValueError`: the page is not known, or not in a state that the call is for; nothing is changed.
"""

from __future__ import annotations

from typing import Protocol

from vespiary_native.values_inspection import Look
from vespiary_native.values_pages import ExtentFacts, PageFacts, PageFill, PagePiece


class CorePages(Protocol):
    """See the module's docstring."""

    # --- out --------------------------------------------------------------------------------------
    def page_open(self, page_id: int, salt: int, size_bytes: int, queue_ids: list[int]) -> None:
        """Begin a page; its memory is taken from the image as it grows.

        Args:
            page_id: 1 to 2**62 - 1, never used before in this journal.
            salt: 64 random bits.
            size_bytes: Bound of the file, its index included; a multiple of 4096 from 16384 on. A
                first message fits, however large it is.
            queue_ids: Queues whose places it takes: those of one address.
        """

    def page_fill(
        self,
        page_id: int,
        queue_id: int,
        sequence: int,
        up_to_sequence: int,
        max_bytes: int,
        max_places: int,
    ) -> PageFill:
        """Copy waiting messages of a queue into a page; the queues do not change.

        Each is copied once, with all its places in the page's queues that may move. A place is in
        one page at most.

        Args:
            page_id: A page that is being filled.
            queue_id: The driver.
            sequence: Go on from here; what is below `next` is passed over.
            up_to_sequence: Leave this one and those behind it.
            max_bytes: Stop after this many bytes of records.
            max_places: Look at this many sequences at most.

        Raises:
            NoRoom: No slab of memory for the first message; nothing was copied.
        """

    def page_keep(self, queue_id: int, sequences: list[int], *, is_kept: bool) -> None:
        """Have places of a queue stay in the ring, or let them go again.

        Those that are kept are neither copied by `page_fill` nor moved by `page_commit`, though
        they were copied before.
        """

    def page_close(self, page_id: int) -> list[PagePiece]:
        """End a page: return what is to be written behind its header, in order.

        The last piece, its index, ends the file. [] if nothing was copied: abandon it.

        Raises:
            NoRoom: No slab of memory for the seal; try again.
        """

    def page_commit(self, page_id: int) -> int:
        """Stage the PAGE record: places that still wait stand in the page from now on.

        Returns:
            The sequence of the record's block; 0 if no place waits any more: then the page is
            forgotten as by `page_abandon`.

        Raises:
            NoRoom: No slab or no journal file for the record; nothing was changed.
            ValueError: Also if a transaction is being staged, or no journal file can hold it.

        Durability: call only after the file, its name and its folder were flushed.
        """

    def page_abandon(self, page_id: int) -> None:
        """Forget a page that was not committed; its places stay where they are."""

    # --- in ---------------------------------------------------------------------------------------
    def page_wanted(self) -> list[tuple[int, int]]:
        """Return (queue id, page id) where `deliver` said PAGED, each queue once since the last.

        In any order. The page is the one with the queue's next place.
        """

    def page_enter(self, page_id: int, queue_id: int, footer: bytes) -> int:
        """Have the places of a closed extent in the ring; return how many.

        Their slabs are loaded as those of journal files are. Places below `next` are returned ones.

        Args:
            page_id: A page that is live.
            queue_id: A queue with an extent there.
            footer: The file from the end of its blocks on; the caller has verified its checksums.

        Raises:
            ValueError: Also if the index lacks a place, or points outside the page: it is damaged.
        """

    def page_leave(self, page_id: int, queue_id: int) -> bool:
        """Close an extent again; False if one of its places is held, set aside, or a branch's."""

    def page_look(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequence: int,
        max_messages: int,
        *,
        min_priority: int = 0,
    ) -> Look:
        """Return messages of a closed extent where they stand; nothing is entered.

        As `CoreInspection.look`, with its bounds; those that prepared branches acknowledge are
        passed over. Of an extent that is open there is nothing: its messages stand in the ring.
        Slabs of the page that were loaded stay until a look finds nothing up to the extent's end.

        Args:
            page_id: A page that is live.
            queue_id: A queue with an extent there.
            footer: As for `page_enter`.
            sequence: Where to begin.
            max_messages: 1 or more.
            min_priority: Pass over those below it, without looking at their records.

        Returns:
            `next_sequence` is one above the extent's last when its end was reached. `absent`: load
            that slab of the page; the queue is ready when that is done.

        Raises:
            ValueError: As for `page_enter`.
        """

    def page_bodies(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequences: list[int],
        max_bytes: int,
    ) -> list[bytes]:
        """Return stored bodies of messages of a closed extent, of the first of some sequences.

        It ends before one that `page_look` would not return, or whose slab is not in memory.

        Args:
            page_id: A page that is live.
            queue_id: A queue with an extent there.
            footer: As for `page_enter`.
            sequences: Ascending.
            max_bytes: End before they are more than this together; the first one comes in any case.

        Raises:
            ValueError: As for `page_enter`.
        """

    def page_pick(self, page_id: int, queue_id: int, footer: bytes, sequences: list[int]) -> int:
        """Have single places of a closed extent in the ring; the others stay where they are.

        Those that are not there (any more), and those that prepared branches acknowledge, are
        passed over. The extent stays closed; the places that were picked are like any in the ring.

        Args:
            page_id: A page that is live.
            queue_id: A queue with an extent there.
            footer: As for `page_enter`.
            sequences: Ascending.

        Returns:
            How many.

        Raises:
            ValueError: As for `page_enter`.
        """

    # --- the end ----------------------------------------------------------------------------------
    def page_done(self) -> list[int]:
        """Return the pages without a live place, the ends of which are durable; ascending."""

    def page_end(self, page_id: int) -> int:
        """Stage the PAGE_DONE record of a page that is done; return its block's sequence.

        Raises:
            NoRoom: No slab or no journal file for the record.

        Durability: the file may go once that block is durable. Then call `page_forget`.
        """

    def page_forget(self, page_id: int) -> None:
        """Forget a page whose end is durable, and whose file is gone.

        Raises:
            ValueError: Also while a slab of it is being loaded.
        """

    def page_restage(self, page_id: int) -> int:
        """Stage the PAGE record of a live page anew, with what is left; return its block.

        Then the file of the one before, and those of acknowledgements so far, need not wait for the
        page. How often places were given out may be lost where there are very many of these.

        Raises:
            NoRoom: No slab or no journal file for the record; or a branch with places of the page
                is ending and its end not durable.
        """

    # --- questions --------------------------------------------------------------------------------
    def pages(self) -> list[PageFacts]:
        """Return what is known of all pages, by id."""

    def extents(self, queue_id: int, begin: int = 0, most: int | None = None) -> list[ExtentFacts]:
        """Return what a queue has in pages, by first sequence and page.

        Args:
            queue_id: A queue.
            begin: Leave out so many of them: there may be thousands.
            most: Return no more; None: all.
        """

    def extent_index(self, queue_id: int, sequence: int) -> int:
        """Return how many of `extents` stand in front of the first that may hold a sequence.

        All of those, open ones too, end in front of it.
        """

    def extent(self, page_id: int, queue_id: int) -> ExtentFacts | None:
        """Return what a queue has in a page; None: nothing, or one of them is not known."""

    def page_record_bytes(self, page_id: int) -> int:
        """Return the length of a page's latest PAGE record; 0 for a page that has none."""

    def pages_in(self, file_id: int) -> list[int]:
        """Return the pages whose latest PAGE record stands in a journal file, ascending."""
