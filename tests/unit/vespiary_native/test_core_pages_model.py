"""After every cut of the journal, a recovery finds what a model says: each message once, in order.

Random lives of one core with pages: what is published, given, acknowledged, moved, entered, left,
restaged, ended, compacted and reclaimed. Then the journal is cut behind each of its writes, with
the page files and journal files that were there, and restored. The model knows of each message in
which block it was staged and ended, and nothing of pages. In lives with faults (`FaultyLife`) reads
fail or take long, footers are damaged, and the power goes while a page is being named.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from collections.abc import Callable

import pytest

from vespiary_codec.journal.page import PAGE_BIT, block_file_id
from vespiary_codec.journal.record import (
    START,
    FileRun,
    FilesRecord,
    QueuesRecord,
    QueueState,
    RecordType,
    encode_record,
)
from vespiary_native.abc import AckMode, NoRoom
from vespiary_native.values_pages import PageState
from vespiary_testkit.core_rig import KIB, SALT, CoreRig
from vespiary_testkit.page_rig import EVERYTHING, PageFiles
from vespiary_testkit.seeds import seed_for

QUEUES = (1, 2)
FOREVER = 1 << 62
LIVES_MAX = 5


class Life:
    """One life of a core: what it does, and what a disk would hold after each write."""

    def __init__(self, make: Callable[..., CoreRig], seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = make(file_bytes=64 * KIB).begin()
        self.rig.core.grow(14)
        self.rig.core.open_queue(2)
        self.pages = PageFiles()
        self.connect(self.rig.connection)
        # (queue, sequence): block in which it was staged, block in which its end was.
        self.born: dict[tuple[int, int], int] = {}
        self.ended: dict[tuple[int, int], int] = {}
        # File or page: durable sequence when it went.
        self.gone_files: dict[int, int] = {}
        self.gone_pages: dict[int, int] = {}
        self.written: list[tuple[int, int, int, bytes]] = []

    # --- what happens ---------------------------------------------------------------------------
    def block(self) -> int:
        """Return the block with the latest record."""
        core = self.rig.core
        return core.image_statistics().sequence_sealed + (1 if core.has_unwritten() else 0)

    def flush(self) -> None:
        while (request := self.rig.write()) is not None:
            data = bytes(self.rig.files[request.file_id][request.offset :][: request.length])
            self.written.append((request.sequence, request.file_id, request.offset, data))
            self.rig.core.write_done(request.sequence)
        while self.rig.core.files_ahead() < 3:
            self.rig.add_file()

    def publish(self) -> None:
        for _ in range(self.random.choice([1, 4, 12])):
            route = self.random.choice(self.routes)
            tails = {queue: self.rig.core.queue_statistics(queue).tail for queue in QUEUES}
            size = self.random.choice([10, 900, 5000])
            self.rig.core.publish(route, b"k:v\n", bytes(size), persistent=True)
            for queue in QUEUES:
                if self.rig.core.queue_statistics(queue).tail > tails[queue]:
                    self.born[queue, tails[queue]] = self.block()

    def deliver(self) -> None:
        queue = self.random.choice(QUEUES)
        core, consumer = self.rig.core, self.consumers[queue]
        for _ in range(3):
            _, count, frames = core.deliver(consumer, self.random.choice([1, 20]), 10**6)
            for part in frames.split(b"message-id:%d-" % queue)[1:]:
                self.held[queue].append(int(part.split(b"\n")[0]))
            file_id, slab = core.absent_slab(consumer)
            if file_id & PAGE_BIT and not count:
                self.pages.load(core, file_id, slab)
            elif file_id and not count:
                self.load(file_id, slab)

    def load(self, file_id: int, slab: int) -> None:
        reserved = self.rig.core.load_begin(file_id, slab)
        if reserved is not None:
            address, length, offset = reserved
            data = bytes(self.rig.files[file_id][offset : offset + length])
            ctypes.memmove(address, data, len(data))
            self.rig.core.load_done(file_id, slab, good=True)

    def settle(self) -> None:
        queue = self.random.choice(QUEUES)
        for _ in range(self.random.choice([1, 9, 40])):
            if not self.held[queue]:
                return
            sequence = self.held[queue].pop(self.random.choice([0, 0, 0, -1]))
            if not sequence % 9:
                continue  # it stays held, and its file with it, whatever becomes of younger ones
            if self.random.random() < 0.1:
                self.rig.core.give_back(self.consumers[queue], sequence)
                return
            assert self.rig.core.acknowledge(self.consumers[queue], sequence) == 1
            self.ended[queue, sequence] = self.block()

    def take_all(self) -> None:
        """Give all of a queue to its consumer, who acknowledges nearly all of it."""
        queue = self.random.choice(QUEUES)
        self.flush()
        self.held[queue] += drained(self.rig, self.pages, queue, self.consumers[queue])
        kept = [each for each in self.held[queue] if not each % 29]
        for sequence in self.held[queue]:
            if sequence not in kept:
                assert self.rig.core.acknowledge(self.consumers[queue], sequence) == 1
                self.ended[queue, sequence] = self.block()
        self.held[queue] = kept
        self.end()

    def move(self) -> None:
        core = self.rig.core
        if self.random.random() < 0.5:
            self.flush()
        page_id = self.pages.open(core, list(QUEUES), self.random.choice([32, 256]) * KIB)
        for queue in self.random.sample(QUEUES, 2):
            up_to = self.random.choice([EVERYTHING, core.queue_statistics(queue).next + 3])
            self.pages.fill(core, page_id, queue, up_to)
        if not self.pages.close(core, page_id):
            core.page_abandon(page_id)
            return
        for _ in range(self.random.choice([0, 0, 3])):
            self.random.choice([self.deliver, self.settle, self.publish])()
        if self.random.random() < 0.3:
            queue = self.random.choice(QUEUES)
            first = core.queue_statistics(queue).next
            kept = [first, first + 2, first + 3]
            core.page_keep(queue, kept, is_kept=True)
        else:
            queue, kept = QUEUES[0], []
        try:
            is_moved = core.page_commit(page_id) > 0
        finally:
            core.page_keep(queue, kept, is_kept=False)
        if is_moved and self.random.random() < 0.5:
            for queue in QUEUES:
                if page_id in [one.page_id for one in core.extents(queue)]:
                    self.pages.enter(core, page_id, queue)
            self.pages.load(core, block_file_id(page_id), 0)
            self.deliver()
            self.settle()

    def enter(self) -> None:
        core, queue = self.rig.core, self.random.choice(QUEUES)
        wanted = sorted(core.page_wanted()) + [(queue, one.page_id) for one in core.extents(queue)]
        if wanted:
            queue, page_id = wanted[0]
            self.pages.enter(core, page_id, queue)
            self.pages.load(core, block_file_id(page_id), 0)

    def pick(self) -> None:
        """Look at a closed extent, and give a consumer some of what stands there."""
        core, queue = self.rig.core, self.random.choice(QUEUES)
        extents = [one for one in core.extents(queue) if not one.is_open]
        if not extents:
            return
        extent = self.random.choice(extents)
        footer = self.pages.footer(extent.page_id)
        while (look := core.page_look(extent.page_id, queue, footer, 0, 1000)).absent:
            if not self.pages.load(core, *look.absent):
                return
        found = look.messages
        chosen = [view.sequence for view in found if self.random.random() < 0.2]
        assert core.page_pick(extent.page_id, queue, footer, chosen) == len(chosen)
        _, count, passed, _ = core.give(self.consumers[queue], chosen, 10**6)
        assert count == passed
        self.held[queue] += chosen[:count]

    def leave(self) -> None:
        core, queue = self.rig.core, self.random.choice(QUEUES)
        if extents := core.extents(queue):
            core.page_leave(self.random.choice(extents).page_id, queue)

    def restage(self) -> None:
        live = [f.page_id for f in self.rig.core.pages() if f.state is PageState.LIVE]
        if live:
            self.rig.core.page_restage(self.random.choice(live))

    def end(self) -> None:
        core = self.rig.core
        for page_id in core.page_done():
            core.page_end(page_id)
        self.flush()
        for facts in core.pages():
            if facts.state is PageState.ENDED:
                core.page_forget(facts.page_id)
                self.gone_pages[facts.page_id] = core.image_statistics().sequence_durable

    def compact(self) -> None:
        core = self.rig.core
        old = [one for one in self.rig.files if one < core.current_file()]
        old = [one for one in old if one not in self.gone_files]
        if old and self.random.random() < 0.3:
            self.rig.relocate(self.random.choice(old), 0)

    def reclaim(self) -> None:
        """Free files as the store does: chosen, then a durable checkpoint, then forgotten.

        Sometimes the youngest that may go, and it alone: what it must not go before is still there.
        """
        core = self.rig.core
        self.flush()
        chosen: list[int] = []
        files = [one for one in sorted(self.rig.files) if one not in self.gone_files]
        is_youngest = self.random.random() < 0.7
        for file_id in reversed(files) if is_youngest else files:
            if is_youngest and chosen:
                break
            is_closed = file_id < core.current_file()
            if (
                is_closed
                and not core.live_places(file_id)
                and set(chosen) >= set(core.cancels(file_id))
            ):
                chosen.append(file_id)
        runs = tuple(FileRun(one, one) for one in files if one not in chosen)
        core.append_record(5, encode_record(FilesRecord(runs))[START.size :])
        found = [(queue, core.queue_statistics(queue)) for queue in QUEUES]
        states = tuple(QueueState(queue, each.head, each.tail) for queue, each in found)
        core.append_record(RecordType.QUEUES, encode_record(QueuesRecord(states))[START.size :])
        self.flush()
        for file_id in chosen:
            core.forget_file(file_id)
            self.gone_files[file_id] = core.image_statistics().sequence_durable

    def restart(self) -> None:
        """Go on with what a recovery found; what was held is there again."""
        self.flush()
        self.recover()

    def recover(self) -> None:
        """Go on with what is durable."""
        again, _ = self.restored(self.written[-1][0])
        again.file_bytes = self.rig.file_bytes
        again.core.start(again.last.sequence + 1, again.last.crc, again.last.sequence)
        again.core.grow(14)
        self.rig = again
        self.connect(again.core.open_connection())
        self.flush()

    def connect(self, connection: int) -> None:
        core = self.rig.core
        self.routes = [core.open_route(list(one)) for one in ((1,), (2,), (1, 2))]
        self.consumers = {
            queue: core.open_consumer(connection, queue, AckMode.INDIVIDUAL, 1000, b"s", 12)
            for queue in QUEUES
        }
        self.held: dict[int, list[int]] = {queue: [] for queue in QUEUES}

    def faults(self) -> list[Callable[[], None]]:
        """Return what may go wrong besides."""
        return []

    def live(self) -> None:
        ends = [
            self.deliver, self.deliver, self.take_all, self.settle, self.settle, self.settle,
            self.settle, self.enter, self.enter, self.pick, self.leave, self.restage,
            self.end, self.compact, self.reclaim, self.reclaim, self.flush, *self.faults(),
        ]  # fmt: skip
        acts = [*ends, self.publish, self.publish, self.move, self.move]
        for number in range(1, 601):
            if not number % 90:
                self.restart()
            try:
                # Now and then nothing comes for a while, so that pages and files have an end.
                self.random.choice(acts if number % 60 < 40 else ends)()
            except NoRoom:
                self.flush()
        self.flush()

    # --- what is found ----------------------------------------------------------------------------
    def expected(self, cut: int, queue: int) -> list[int]:
        return [
            sequence
            for (of, sequence), block in sorted(self.born.items())
            if of == queue and block <= cut and self.ended.get((of, sequence), FOREVER) > cut
        ]

    def restored(self, cut: int) -> tuple[CoreRig, PageFiles]:
        """Return a core restored from what was durable behind a write."""
        again = CoreRig(type(self.rig.core), self.rig.verify, files=0)
        disk: dict[int, bytearray] = {}
        for sequence, file_id, offset, data in self.written:
            if sequence <= cut and self.gone_files.get(file_id, FOREVER) > cut:
                file = disk.setdefault(file_id, bytearray(self.rig.file_bytes))
                file[offset : offset + len(data)] = data
        for queue in QUEUES:
            again.core.open_queue(queue)
        for file_id, file in sorted(disk.items()):
            view = memoryview(file)
            again.core.restore_file(file_id, SALT + file_id, len(file))
            again.files[file_id] = file
            for facts in self.rig.verify(view[4096:], 4096, SALT + file_id, file_id, 10_000):
                block = view[facts.offset : facts.offset + facts.length]
                again.core.restore_block(file_id, facts.offset, block)
                again.last = facts
        again.core.restore_done()
        pages = PageFiles()
        pages.files = {
            page_id: data
            for page_id, data in self.pages.files.items()
            if self.gone_pages.get(page_id, FOREVER) > cut
        }
        return again, pages

    def check(self, cut: int) -> None:
        again, pages = self.restored(cut)
        core = again.core
        named = {one.page_id for one in core.pages() if one.state is PageState.LIVE}
        assert named <= pages.files.keys(), f"behind block {cut}: no broker would start"
        core.start(again.last.sequence + 1, again.last.crc, again.last.sequence)
        again.add_file()
        connection = core.open_connection()
        for queue in QUEUES:
            wanted = self.expected(cut, queue)
            found = core.queue_statistics(queue)
            assert found.ready + found.paged == len(wanted), f"behind block {cut}"
            consumer = core.open_consumer(connection, queue, AckMode.INDIVIDUAL, 10**6, b"s", 12)
            assert drained(again, pages, queue, consumer) == wanted, f"behind block {cut}"


class FaultyLife(Life):
    """A life in which reads fail or take long, footers are damaged, and the power goes.

    Attributes:
        fates: What happened, by name: a life in which nothing went wrong proves nothing.
    """

    def __init__(self, make: Callable[..., CoreRig], seed: int) -> None:
        self.fates: Counter[str] = Counter()
        self.loading: dict[tuple[int, int], tuple[int, int, int]] = {}
        super().__init__(make, seed)

    def faults(self) -> list[Callable[[], None]]:
        lasting = [self.begin_read, self.begin_read, self.end_read]
        reads = [self.fail_read, self.fail_read, *lasting]
        return [self.damage_footer, self.restage_and_crash, *reads]

    def read(self) -> tuple[int, int] | None:
        """Begin to read what a consumer, or a look through a page, waits for."""
        core, queue = self.rig.core, self.random.choice(QUEUES)
        place = core.absent_slab(self.consumers[queue])
        closed = [one for one in core.extents(queue) if not one.is_open]
        if not place[0] and closed:
            page_id = self.random.choice(closed).page_id
            look = core.page_look(page_id, queue, self.pages.footer(page_id), 0, 1000)
            place = look.absent or (0, 0)
        reserved = core.load_begin(*place) if place[0] else None
        if reserved is None:
            return None
        self.loading[place] = reserved
        return place

    def fail_read(self) -> None:
        if (place := self.read()) is not None:
            del self.loading[place]
            self.rig.core.load_done(*place, good=False)
            self.fates["read failed"] += 1

    def begin_read(self) -> None:
        self.read()

    def end_read(self) -> None:
        if self.loading:
            place = self.random.choice(sorted(self.loading))
            address, length, offset = self.loading.pop(place)
            is_page = bool(place[0] & PAGE_BIT)
            files = self.pages.files if is_page else self.rig.files
            data = bytes(files[place[0] & ~PAGE_BIT][offset : offset + length])
            ctypes.memmove(address, data, len(data))
            is_good = self.random.random() < 0.7
            self.rig.core.load_done(*place, good=is_good)
            self.fates["long read"] += 1

    def end_reads(self) -> None:
        while self.loading:
            self.end_read()

    def damage_footer(self) -> None:
        """Whoever opens, looks or picks with a damaged index is told, and nothing changes."""
        core, queue = self.rig.core, self.random.choice(QUEUES)
        before = core.extents(queue)
        closed = [one for one in before if not one.is_open]
        if not closed:
            return
        extent = self.random.choice(closed)
        footer = self.pages.footer(extent.page_id)
        cut = footer[: self.random.choice([0, 3, 16])]
        statistics = core.queue_statistics(queue)
        with pytest.raises(ValueError, match=r"page|footer"):
            core.page_enter(extent.page_id, queue, cut)
        with pytest.raises(ValueError, match=r"page|footer"):
            core.page_look(extent.page_id, queue, cut, 0, 1000)
        with pytest.raises(ValueError, match=r"page|footer"):
            core.page_pick(extent.page_id, queue, cut, [extent.first])
        assert (core.extents(queue), core.queue_statistics(queue)) == (before, statistics)
        self.fates["damaged footer"] += 1

    def restage_and_crash(self) -> None:
        """The power goes before what was staged last is durable: pages named anew, or nothing."""
        if not self.written or self.random.random() < 0.5:
            return  # the other acts need some room
        for _ in range(self.random.choice([1, 3])):
            self.restage()
        self.fates["crash"] += self.rig.core.has_unwritten()
        durable = self.written[-1][0]
        self.born = {key: block for key, block in self.born.items() if block <= durable}
        self.ended = {key: block for key, block in self.ended.items() if block <= durable}
        self.recover()

    def recover(self) -> None:
        self.loading.clear()  # it went with the process
        super().recover()

    def take_all(self) -> None:
        self.end_reads()
        super().take_all()

    def compact(self) -> None:
        self.end_reads()
        super().compact()

    def reclaim(self) -> None:
        self.end_reads()
        super().reclaim()


def drained(rig: CoreRig, pages: PageFiles, queue: int, consumer: int) -> list[int]:
    """Deliver all of a queue; return the sequences in the order in which they came."""
    found: list[int] = []
    while True:
        _, count, frames = rig.core.deliver(consumer, 1000, 10**7)
        found += [int(part.split(b"\n")[0]) for part in frames.split(b"message-id:%d-" % queue)[1:]]
        file_id, slab = rig.core.absent_slab(consumer)
        for of, page_id in rig.core.page_wanted():
            assert pages.enter(rig.core, page_id, of)
            count = 1
        if file_id & PAGE_BIT:
            assert pages.load(rig.core, file_id, slab)
        elif file_id:
            rig.load(consumer)
        elif not count:
            return found


@pytest.mark.ci
@pytest.mark.parametrize("case", range(6))
def test_every_cut_keeps_what_was_confirmed_and_no_more(
    make: Callable[..., CoreRig], case: int
) -> None:
    life = Life(make, seed_for(f"pages model {case}"))
    life.live()
    check_cuts(life)


@pytest.mark.ci
@pytest.mark.parametrize("case", range(5))
def test_every_cut_keeps_it_whatever_goes_wrong(make: Callable[..., CoreRig], case: int) -> None:
    wanted = {"read failed", "long read", "damaged footer", "crash"}
    seen: Counter[str] = Counter()
    for number in range(LIVES_MAX):
        life = FaultyLife(make, seed_for(f"faulty pages model {case} {number}"))
        life.live()
        check_cuts(life)
        seen += life.fates
        if seen.keys() >= wanted:
            return
    raise AssertionError(f"what it is for did not happen: {seen}")


def check_cuts(life: Life) -> None:
    assert len(life.ended) > 50
    assert life.pages.last_id > 5
    cuts = [sequence for sequence, _, _, _ in life.written]
    chosen = life.random.sample(cuts, min(len(cuts), 20))
    for cut in sorted({*chosen, cuts[-1]}):
        life.check(cut)


def test_the_model_notices_one_message_too_many_or_too_few(make: Callable[..., CoreRig]) -> None:
    life = Life(make, 0)  # always the same: one whose last cut has messages that ended
    life.live()
    cut = life.written[-1][0]
    life.check(cut)
    block = life.ended.pop(some := next(iter(life.ended)))
    with pytest.raises(AssertionError):
        life.check(cut)
    life.ended[some] = block
    del life.born[next(one for one in life.born if one not in life.ended)]
    with pytest.raises(AssertionError):
        life.check(cut)
