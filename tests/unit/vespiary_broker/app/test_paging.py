"""What an address that pages is to the pager: how much leaves, what stays, which queues."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.app.paging import PagedEngineAddress, flight_bytes
from vespiary_broker.engine.address_memory import MemoryLimits
from vespiary_broker.engine.examined import ExaminedQueue
from vespiary_broker.engine.upkeep import Ring
from vespiary_broker.store.paging.read_limits import ReadLimits
from vespiary_spec.paging import PageFullPolicy
from vespiary_spec.settings import AddressSettings, Configuration
from vespiary_testkit.engine_rig import Rig

MIB = 1024 * 1024
BODY = bytes(1000)


def paged(rig: Rig, name: str = "orders") -> PagedEngineAddress:
    memory = rig.engine.memory
    memory.refresh()
    (state,) = [state for state in memory.paging_states() if state.name == name]
    return PagedEngineAddress(rig.engine, state, rig.registry.settings_for(name))


def filled(count: int, **settings: Any) -> Rig:
    rig = Rig({"orders": AddressSettings(**settings)})
    for _ in range(count):
        rig.send("/queue/orders", BODY)
    rig.journal.flush()
    return rig


def test_what_is_above_the_low_mark_leaves() -> None:
    rig = filled(200, max_size_bytes=100_000)
    address = paged(rig)
    held = rig.engine.memory.facts("orders")
    assert held is not None
    assert address.excess_bytes() == held.size_bytes - 80_000
    assert address.name == "orders"
    assert address.queue_ids() == [rig.registry.queues["orders"].id]


def test_messages_count_as_well_as_bytes() -> None:
    rig = filled(200, max_size_messages=100)
    held = rig.engine.memory.facts("orders")
    assert held is not None
    assert paged(rig).excess_bytes() == held.size_bytes // 200 * 120


def test_an_address_that_does_not_page_has_nothing_to_move() -> None:
    rig = filled(200, max_size_bytes=100_000)
    address = paged(rig)
    address._state.is_paging = False
    assert address.excess_bytes() == 0


def test_an_address_that_may_hold_nothing_moves_all() -> None:
    rig = filled(3, max_size_bytes=0)
    held = rig.engine.memory.facts("orders")
    assert held is not None
    assert paged(rig).excess_bytes() == held.size_bytes


def test_what_consumers_are_about_to_get_stays() -> None:
    rig = filled(200, max_size_bytes=100_000)
    address = paged(rig)
    (queue_id,) = address.queue_ids()
    assert address.front_bytes(queue_id) == 0
    rig.subscribe(rig.output(), "/queue/orders")
    assert address.front_bytes(queue_id) == 40_000
    assert address.front_bytes(999) == 0


def test_a_queue_has_consumers_or_not() -> None:
    rig = filled(200, max_size_bytes=100_000)
    address = paged(rig)
    (queue_id,) = address.queue_ids()
    assert not address.has_consumers(queue_id)
    rig.subscribe(rig.output(), "/queue/orders")
    assert address.has_consumers(queue_id)
    assert not address.has_consumers(999)


def test_examined_queues_page_and_those_that_give_messages_up_do_not() -> None:
    rig = filled(200, max_size_bytes=100_000)
    address = paged(rig)
    queue = rig.registry.queues["orders"]
    assert address.looked_at() == []
    assert address.may_close(queue.id)
    queue.examined = ExaminedQueue(rig.core, queue)
    assert address.queue_ids() == [queue.id]
    assert not address.may_close(queue.id)
    assert address.looked_at() == []
    queue.upkeeps = (Ring(rig.core, queue.id, 10),)
    assert address.queue_ids() == []
    assert address.looked_at() == [queue.id]
    assert not address.may_close(queue.id)
    assert address.may_close(999)


@pytest.mark.parametrize(
    ("settings", "reads_ahead"),
    [
        ({}, True),
        ({"prefetch_page_bytes": 0}, False),
        ({"prefetch_page_bytes": 100_000}, False),
        ({"prefetch_page_bytes": 1_000_000}, True),
        ({"prefetch_page_messages": 200}, False),
        ({"prefetch_page_messages": 201}, True),
        ({"page_size_bytes": 65536}, False),
    ],
)
def test_pages_are_opened_ahead_while_little_waits(
    settings: dict[str, int], *, reads_ahead: bool
) -> None:
    rig = filled(200, max_size_bytes=100_000, **settings)
    address = paged(rig)
    assert address.reads_ahead(address.queue_ids()[0]) is reads_ahead


def test_sizes_of_pages_are_those_of_the_settings() -> None:
    rig = filled(200, max_size_bytes=100_000, page_size_bytes=100_001, page_max_cache_size=3)
    address = paged(rig)
    assert (address.page_bytes, address.open_pages_max) == (98304, 3)


@pytest.mark.parametrize(("memory", "share"), [(1024 * MIB, 512 * MIB), (1, 16 * MIB)])
def test_pages_on_their_way_take_half_of_the_image_at_most(memory: int, share: int) -> None:
    assert flight_bytes(Configuration(global_max_size=memory)) == share


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({}, ReadLimits(2 * 10 * MIB, None)),
        ({"page_size_bytes": MIB}, ReadLimits(2 * MIB, None)),
        ({"max_read_page_bytes": -1}, ReadLimits(None, None)),
        ({"max_read_page_bytes": 5, "max_read_page_messages": 7}, ReadLimits(5, 7)),
        ({"max_read_page_messages": 0}, ReadLimits(20 * MIB, 0)),
    ],
)
def test_what_may_be_back_in_memory_is_that_of_the_settings(
    settings: dict[str, int], limits: ReadLimits
) -> None:
    assert paged(filled(200, max_size_bytes=100_000, **settings)).read_limits == limits


def test_what_stands_in_pages_decides_whether_they_may_grow() -> None:
    limits = {"page_limit_bytes": 300_000, "page_size_bytes": 65536}
    rig = filled(200, max_size_bytes=100_000, **limits, page_full_policy=PageFullPolicy.FAIL)
    address = paged(rig)
    assert address.note_pages(300_000 - 65536)
    assert not address.note_pages(300_000 - 65535)
    assert address.note_pages(0)
    assert paged(filled(200, max_size_bytes=100_000)).note_pages(1 << 60)


def several(names: list[str], limits: MemoryLimits, **settings: Any) -> Rig:
    rig = Rig({"#": AddressSettings(**settings)}, limits=limits)
    for name in names:
        rig.subscribe(rig.output(), name, credit=1)
    return rig


def fill(rig: Rig, name: str, count: int) -> None:
    for _ in range(count):
        rig.send(name, BODY)
    rig.journal.flush()
    rig.engine.memory.refresh()


def front(rig: Rig, name: str) -> list[int]:
    address = paged(rig, name)
    return [address.front_bytes(queue_id) for queue_id in address.queue_ids()]


def test_what_stays_in_front_of_all_consumers_is_half_of_what_all_may_hold() -> None:
    names = [f"q{number}" for number in range(20)]
    rig = several([f"/queue/{name}" for name in names], MemoryLimits(100_000))
    for name in names:
        fill(rig, f"/queue/{name}", 8)
    fronts = [size for name in names for size in front(rig, name)]
    assert len(fronts) == 20
    assert min(fronts) > 1000, "each has its share"
    assert sum(fronts) <= 40_000


def test_queues_of_which_little_waits_leave_their_share_to_others() -> None:
    rig = several(["/queue/large", "/queue/small", "/queue/none"], MemoryLimits(100_000))
    fill(rig, "/queue/small", 2)
    fill(rig, "/queue/large", 100)
    (size,) = front(rig, "large")
    assert 30_000 < size <= 40_000


def test_all_queues_of_an_address_share_what_stays_in_front() -> None:
    names = [f"/queue/orders::q{number}" for number in range(4)]
    rig = several(names, MemoryLimits(), max_size_bytes=100_000)
    for name in names:
        fill(rig, name, 50)
    assert front(rig, "orders") == [10_000] * 4


def test_messages_that_queues_share_stay_in_front_of_all_of_them() -> None:
    rig = several(["/topic/orders"] * 4, MemoryLimits(), max_size_bytes=100_000)
    fill(rig, "/topic/orders", 200)
    assert all(30_000 < size <= 40_000 for size in front(rig, "orders"))
