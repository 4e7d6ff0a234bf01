"""Examined queues when there is little memory: what they hold gets less, and nothing is lost."""

from __future__ import annotations

from vespiary_broker.app.paging import PagedEngineAddress
from vespiary_broker.engine.examined import ExaminedQueue
from vespiary_broker.engine.index_bounds import IndexBounds
from vespiary_broker.engine.lanes import Match
from vespiary_broker.engine.queues import Consumer
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import Rig, sequence_of
from vespiary_testkit.page_rig import PageFiles

COUNT = 3000
LIMIT = 256
INDEXED_MAX = 4 * LIMIT
"""As many in lanes and as many for owners, and one look more of each."""


def _index_of(consumer: Consumer) -> ExaminedQueue:
    examined = consumer.queue.examined
    assert examined is not None
    return examined


def test_an_index_that_holds_more_than_there_is_memory_for_begins_anew() -> None:
    rig = Rig()
    first, second = rig.output(), rig.output()
    consumers = [rig.subscribe(output, "/queue/q", credit=5) for output in (first, second)]
    for number in range(COUNT):
        rig.send("/queue/q", b"%d" % number, properties=b"JMSXGroupID:g%d\n" % (number % 4))
    rig.turns()
    examined = _index_of(consumers[0])
    assert len(examined.indexed()) > COUNT // 2
    assert examined.limit(LIMIT)
    assert not examined.limit(LIMIT)
    rig.dispatcher.poke(consumers[0].queue.id)
    rig.turns()
    assert 0 < len(examined.indexed()) <= INDEXED_MAX
    got: dict[bytes, list[bytes]] = {}
    outputs = dict(zip(consumers, (first, second), strict=True))
    owners: dict[bytes, Consumer] = {}
    total = 0
    while total < COUNT:
        before = total
        for consumer, output in outputs.items():
            output.room = 1 << 20
            for frame in output.frames():
                group = (frame.get("JMSXGroupID") or "").encode()
                assert owners.setdefault(group, consumer) is consumer
                got.setdefault(group, []).append(frame.body)
                rig.core.acknowledge(consumer.handle, sequence_of(frame))
                total += 1
        rig.turns()
        assert len(examined.indexed()) <= INDEXED_MAX
        assert total > before
    assert got == {
        b"g%d" % group: [b"%d" % number for number in range(group, COUNT, 4)] for group in range(4)
    }


def test_what_was_told_of_memory_holds_until_nothing_stands_in_pages() -> None:
    bounds = IndexBounds(20_000)
    bounds.refresh(1, has_pages=False)
    assert (bounds.keys, bounds.owned) == (20_000, 200_000)
    bounds.refresh(1, has_pages=True)  # nobody has said how much memory there is
    assert (bounds.keys, bounds.owned) == (256, 256)
    assert bounds.tell(6000)
    assert not bounds.tell(6000)
    bounds.refresh(2, has_pages=True)
    assert (bounds.keys, bounds.owned) == (3000, 3000)
    assert bounds.tell(20_000)  # the address is below its limits again, its pages are still there
    assert not bounds.tell(20_000)
    bounds.refresh(2, has_pages=True)
    assert (bounds.keys, bounds.owned) == (3000, 3000)
    bounds.refresh(2, has_pages=False)
    assert (bounds.keys, bounds.owned) == (10_000, 100_000)
    bounds.refresh(2, has_pages=True)  # what was told then was of another time
    assert bounds.keys == 128


class _ClosedPages:
    """Pages of which all can be read at once, as an examined queue sees them."""

    version = 1
    judged = 0

    def __init__(self, files: PageFiles) -> None:
        self._files = files

    def footer(self, queue_id: int, page_id: int) -> bytes | None:
        return self._files.footer(page_id)

    def is_damaged(self, page_id: int) -> bool:
        return False

    def note_damaged(self, page_id: int, reason: str) -> None:
        raise AssertionError(reason)

    def highest_priority(self, page_id: int) -> int:
        return 4

    def may_match(self, page_id: int, match: Match) -> bool:
        return True


def test_an_index_over_pages_keeps_what_it_holds_when_there_is_enough_memory_again() -> None:
    rig = Rig({"q": AddressSettings(max_size_bytes=200_000)})
    for number in range(COUNT):
        rig.send("/queue/q", b"%d" % number, properties=b"JMSXGroupID:g\n")
    rig.journal.flush()
    rig.engine.memory.refresh()
    (state,) = rig.engine.memory.paging_states()
    queue = rig.registry.queues["q"]
    files = PageFiles()
    rig.core.page_keep(queue.id, [1], is_kept=True)  # by it the queue is known to be examined
    files.move(rig.core, [queue.id])
    rig.dispatcher.see_pages(_ClosedPages(files))
    consumer = rig.subscribe(rig.output(), "/queue/q", credit=1)
    rig.turns()
    examined = _index_of(consumer)
    examined.limit(COUNT // 2)  # as the pager says while the address pages
    while rig.loads:
        file_id, slab = rig.loads.pop()
        assert files.load(rig.core, file_id, slab)
        rig.dispatcher.slab_loaded(file_id, slab)
        rig.turns()
    held = len(examined.indexed())
    assert held >= COUNT // 2
    address = PagedEngineAddress(rig.engine, state, rig.registry.settings_for("q"))
    address.widen()  # it does not page any more
    rig.turns()
    assert len(examined.indexed()) == held
