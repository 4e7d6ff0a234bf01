"""Random calls about pages to both cores (`vespiary_native.abc_pages`): a part of `Driver`.

Owns `PagingCalls`, and the page files that outlive a crash. Used by `core_driver` alone.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

from vespiary_codec.journal.page import decode_footer
from vespiary_native.values_pages import PageState

PAGE_SALT = 0xC2B2AE3D27D4EB4F


def page_salt(page_id: int) -> int:
    return PAGE_SALT * page_id % 2**64


class PagingCalls:
    """What the store's paging does."""

    random: random.Random
    core: Any
    queues: dict[int, bool]
    load_slab: Callable[[int, int], bool]
    publish: Callable[[], None]
    flush: Callable[[], None]
    operate: Callable[[], None]

    def __init__(self) -> None:
        self.page_files: dict[int, bytes] = {}
        self.last_page = 0

    def page(self) -> None:
        """Do something about pages."""
        acts = [
            self.move, self.move, self.fill_page, self.fill_page, self.close_page,
            self.commit_page, self.commit_page, self.enter_page, self.leave_page, self.end_page,
            self.end_page, self.restage_page, self.look_at_page, self.pick_from_page,
            self.pick_from_page, self.keep_places, self.copy_from_page,
        ]  # fmt: skip
        self.random.choice(acts)()

    def move(self) -> None:
        """Publish some messages and move what waits, all the way or nearly."""
        pick = self.random
        for _ in range(pick.choice([0, 5, 30])):
            self.publish()
        self.flush()
        self.last_page += 1
        page_id, size = self.last_page, pick.choice([8, 60, 400]) * 4096
        queues = sorted(self.queues)
        self.core.page_open(page_id, page_salt(page_id), size, queues)
        for queue in pick.sample(queues, len(queues)):
            for _ in range(3):
                filled = self.core.page_fill(page_id, queue, 0, 2**63, 2**40, 2**40)
                if filled.absent is None or not self.load_slab(*filled.absent):
                    break
        self.close(page_id)
        for _ in range(pick.choice([0, 0, 0, 2])):
            self.operate()
        if pick.random() < 0.9:
            self.core.page_commit(page_id)

    def some_page(self, *states: PageState) -> int:
        """Return a page, mostly in one of these states; 1 if there is none."""
        pick = self.random
        known = self.core.pages()
        if pick.random() < 0.95:
            known = [facts for facts in known if facts.state in states]
        return int(pick.choice(known).page_id) if known else 1

    def fill_page(self) -> None:
        pick = self.random
        filling = [f.page_id for f in self.core.pages() if f.state is PageState.FILLING]
        if not filling or (len(filling) < 3 and pick.random() < 0.1):
            self.last_page += 1
            queues = pick.sample(sorted(self.queues), pick.randint(1, len(self.queues)))
            size = pick.choice([4, 8, 20, 60, 400]) * 4096
            self.core.page_open(self.last_page, page_salt(self.last_page), size, queues)
            filling.append(self.last_page)
        page_id, queue = pick.choice(filling), pick.choice(sorted(self.queues))
        sequence = 0
        for _ in range(4):
            filled = self.core.page_fill(
                page_id,
                queue,
                sequence,
                pick.choice([2**63, 2**63, pick.randint(0, 200)]),
                pick.choice([1, 5000, 2**40]),
                pick.choice([1, 20, 2**40]),
            )
            sequence = filled.next_sequence
            if filled.is_full:
                self.close_page()
                return
            if filled.absent is not None and not self.load_slab(*filled.absent):
                return

    def close_page(self) -> None:
        self.close(self.some_page(PageState.FILLING))

    def close(self, page_id: int) -> None:
        twin, native = self.core.page_close(page_id)
        if not twin:
            if self.random.random() < 0.1:
                self.core.page_abandon(page_id)
            return
        assert [piece.length for piece in twin] == [piece.length for piece in native]
        data = bytes(4096) + b"".join(ctypes.string_at(p.address, p.length) for p in twin)
        index = decode_footer(data[twin[-1].offset :], page_id=page_id, salt=page_salt(page_id))
        assert index.trailer.size_bytes == len(data)
        self.page_files[page_id] = data

    def commit_page(self) -> None:
        page_id = self.some_page(PageState.CLOSED)
        if self.random.random() < 0.1:
            self.core.page_abandon(page_id)
        else:
            self.core.page_commit(page_id)

    def enter_page(self) -> None:
        pick = self.random
        wanted = self.core.page_wanted()
        queue = pick.choice(sorted(self.queues))
        wanted += [(queue, extent.page_id) for extent in self.core.extents(queue)]
        if wanted:
            self.enter(*pick.choice(wanted))

    def enter(self, queue: int, page_id: int) -> None:
        self.core.page_enter(page_id, queue, self.footer(page_id))

    def footer(self, page_id: int) -> bytes:
        """Return the footer of a page; now and then a bit of it is wrong."""
        data = self.page_files[page_id]
        footer_offset = int.from_bytes(data[-48:-40], "little")
        footer = bytearray(data[footer_offset:])
        if self.random.random() < 0.02:
            at = self.random.randrange(len(footer))
            footer[at] ^= 1 << self.random.randrange(8)
        return bytes(footer)

    def some_extent(self) -> tuple[int, Any] | None:
        """Return a queue and what it has in a page."""
        queue = self.random.choice(sorted(self.queues))
        extents = self.core.extents(queue)
        return (queue, self.random.choice(extents)) if extents else None

    def look_at_page(self) -> None:
        """Look through an extent where it stands, and at a body."""
        pick = self.random
        if (some := self.some_extent()) is None:
            return
        queue, extent = some
        footer = self.footer(extent.page_id)
        sequence = pick.choice([0, extent.first, pick.randint(extent.first, extent.last + 1)])
        for _ in range(4):
            found = self.core.page_look(
                extent.page_id,
                queue,
                footer,
                sequence,
                pick.choice([1, 3, 20000]),
                min_priority=pick.choice([0, 0, 5]),
            )
            if found is None:
                return
            sequence = found.next_sequence
            if found.messages:
                every = [view.sequence for view in found.messages]
                some = sorted(pick.sample(every, pick.randint(1, min(len(every), 9))))
                if pick.random() < 0.2:
                    some.insert(pick.randrange(len(some)), pick.randrange(extent.last + 2))
                most = pick.choice([0, 500, 2**40])
                self.core.page_bodies(extent.page_id, queue, footer, some, most)
            if found.absent is not None and not self.load_slab(*found.absent):
                return

    def copy_from_page(self) -> None:
        """Copy records of an extent where they stand, as a reader of ranges does."""
        pick = self.random
        if (some := self.some_extent()) is None:
            return
        queue, extent = some
        footer = self.footer(extent.page_id)
        at = pick.choice([0, extent.first, pick.randint(extent.first, extent.last + 1)])
        end = pick.choice([extent.last + 1, extent.last + 9, pick.randint(at, extent.last + 1)])
        for _ in range(6):
            copied = self.core.page_copy(
                extent.page_id, queue, footer, at, end, pick.choice([0, 400, 5000, 10**6]),
                is_first_whole=pick.random() < 0.8, runs_max=pick.choice([1, 2, 1024]),
            )  # fmt: skip
            if copied is None:
                return
            at = copied.next_sequence
            if copied.absent is not None and not self.load_slab(*copied.absent):
                return

    def pick_from_page(self) -> None:
        """Have some places of an extent in the ring."""
        pick = self.random
        if (some := self.some_extent()) is None:
            return
        queue, extent = some
        every = range(extent.first, extent.last + 2)
        chosen = pick.sample(every, min(len(every), pick.choice([1, 3, 30])))
        self.core.page_pick(extent.page_id, queue, self.footer(extent.page_id), sorted(chosen))

    def keep_places(self) -> None:
        """Have some places stay in the ring, or let them go."""
        pick = self.random
        queue = pick.choice(sorted(self.queues))
        tail = self.core.queue_statistics(queue).tail
        some = [pick.randrange(tail + 1) for _ in range(pick.choice([1, 9, 100]))]
        self.core.page_keep(queue, some, is_kept=pick.random() < 0.4)

    def enter_wanted(self) -> bool:
        """Enter what consumers wait for; whether there was anything."""
        wanted = self.core.page_wanted()
        for queue, page_id in wanted:
            self.enter(queue, page_id)
        return bool(wanted)

    def leave_page(self) -> None:
        pick = self.random
        queue = pick.choice(sorted(self.queues))
        extents = self.core.extents(queue)
        if extents:
            self.core.page_leave(pick.choice(extents).page_id, queue)

    def end_page(self) -> None:
        """End a page that is done, or remove one whose end is durable."""
        for facts in self.core.pages():
            if facts.state is PageState.ENDED:
                self.core.page_forget(facts.page_id)
                del self.page_files[facts.page_id]
        for page_id in self.core.page_done():
            self.core.page_end(page_id)

    def restage_page(self) -> None:
        self.core.page_restage(self.some_page(PageState.LIVE))

    def compare_pages(self) -> None:
        self.core.page_done()
        for facts in self.core.pages():
            self.core.live_places(facts.page_id | 1 << 62)
            self.core.extent(facts.page_id, min(self.queues, default=0))
        for queue in self.queues:
            self.core.extents(queue)
            self.core.extents(queue, 1, 2)
            tail = self.core.queue_statistics(queue).tail
            self.core.extent_index(queue, self.random.randrange(tail + 2))

    def restore_pages(self) -> None:
        """Look for the files that the journal names; remove all others."""
        known = {facts.page_id for facts in self.core.pages()}
        needed = {facts.page_id for facts in self.core.pages() if facts.places}
        assert needed <= self.page_files.keys(), "a page that is needed is gone"
        for page_id in self.page_files.keys() - known:
            del self.page_files[page_id]
