"""What is dropped from memory first while pages are filled: both cores.

What was copied into a page that is on its way is dropped before what still waits for one; the rest
is dropped from its new end. So a page whose messages are in memory is filled without a read.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_native.abc import DeliverStatus
from vespiary_testkit.core_rig import CoreRig
from vespiary_testkit.page_rig import PageFiles, publish

PER_SLAB = 11
SIZE = 5000
"""Eleven messages fill the first slab of a file, which begins with its header; twelve another."""


@pytest.fixture
def pages() -> PageFiles:
    return PageFiles()


def rig_of(make: Callable[..., CoreRig], slabs_max: int) -> CoreRig:
    rig = make(files=8, slabs_max=slabs_max).begin()
    assert rig.core.grow(slabs_max) == slabs_max
    return rig


def first_absent(rig: CoreRig) -> tuple[int, int]:
    """Return the first slab that a consumer misses; it takes what is in front of that."""
    consumer = rig.consume(credit=10_000)
    status = DeliverStatus.LIMIT
    while status is DeliverStatus.LIMIT:
        status, count, _ = rig.core.deliver(consumer, 1000, 1 << 30)
        assert count or status is not DeliverStatus.LIMIT
    assert status is DeliverStatus.ABSENT
    return rig.core.absent_slab(consumer)


def slab_of(rig: CoreRig, number: int) -> tuple[int, int]:
    """Return where the slab with this number lies, from 0 on: four are a file."""
    return number // 4 + 1, number % 4


def fill_slab(rig: CoreRig, pages: PageFiles, page_id: int) -> None:
    """Copy all that stands in the oldest slab."""
    filled = pages.fill(rig.core, page_id, 1, PER_SLAB + 1)
    assert filled.copied_records == PER_SLAB


def test_a_page_of_messages_in_memory_costs_no_read(
    make: Callable[..., CoreRig], pages: PageFiles
) -> None:
    rig = rig_of(make, 20)
    publish(rig, 8 * 12, SIZE)
    sequence = 1
    for _ in range(3):
        page_id = pages.open(rig.core, [1])
        for _ in range(5):  # as much comes in as is copied, and the image is smaller than both
            publish(rig, 12, SIZE)
            filled = rig.core.page_fill(page_id, 1, sequence, sequence + 12, 1 << 30, 1 << 30)
            assert filled.absent is None
            assert filled.copied_records == 12
            sequence = filled.next_sequence
        assert rig.core.image_statistics().slabs_free == 0
        assert pages.close(rig.core, page_id)
        assert rig.core.page_commit(page_id) > 0
        rig.flush()
        while rig.core.files_ahead() < 3:
            rig.add_file()


def test_what_was_copied_is_dropped_first(make: Callable[..., CoreRig], pages: PageFiles) -> None:
    rig = rig_of(make, 10)
    publish(rig, 7 * 12, SIZE)
    page_id = pages.open(rig.core, [1])
    fill_slab(rig, pages, page_id)
    publish(rig, 3 * 12, SIZE)  # one slab more than there are
    assert first_absent(rig) == slab_of(rig, 0)


def test_what_was_copied_in_part_is_not(make: Callable[..., CoreRig], pages: PageFiles) -> None:
    rig = rig_of(make, 10)
    publish(rig, 7 * 12, SIZE)
    page_id = pages.open(rig.core, [1])
    assert pages.fill(rig.core, page_id, 1, PER_SLAB).copied_records == PER_SLAB - 1
    publish(rig, 3 * 12, SIZE)
    assert first_absent(rig) > slab_of(rig, 1)


def test_a_page_that_is_given_up_says_nothing_any_more(
    make: Callable[..., CoreRig], pages: PageFiles
) -> None:
    rig = rig_of(make, 10)
    publish(rig, 7 * 12, SIZE)
    page_id = pages.open(rig.core, [1])
    fill_slab(rig, pages, page_id)
    rig.core.page_abandon(page_id)
    publish(rig, 4 * 12, SIZE)
    assert first_absent(rig) > slab_of(rig, 1)


def test_what_is_acknowledged_meanwhile_does_not_count(
    make: Callable[..., CoreRig], pages: PageFiles
) -> None:
    rig = rig_of(make, 10)
    publish(rig, 7 * 12, SIZE)
    page_id = pages.open(rig.core, [1])
    assert pages.fill(rig.core, page_id, 1, 6).copied_records == 5
    consumer = rig.consume(credit=6)  # five of eleven stay, and five were copied
    rig.deliver(consumer, 6)
    for sequence in range(1, 7):
        assert rig.core.acknowledge(consumer, sequence) == 1
    rig.flush()
    publish(rig, 3 * 12, SIZE)
    assert first_absent(rig) > slab_of(rig, 1)


def test_the_rest_of_a_slab_counts_when_its_other_messages_are_gone(
    make: Callable[..., CoreRig], pages: PageFiles
) -> None:
    rig = rig_of(make, 10)
    publish(rig, 7 * 12, SIZE)
    consumer = rig.consume(credit=4)
    rig.deliver(consumer, 4)
    page_id = pages.open(rig.core, [1])
    assert pages.fill(rig.core, page_id, 1, PER_SLAB + 1).copied_records == PER_SLAB - 4
    for sequence in range(1, 5):
        assert rig.core.acknowledge(consumer, sequence) == 1
    rig.flush()
    publish(rig, 3 * 12, SIZE)
    assert first_absent(rig) == slab_of(rig, 0)


def test_what_went_is_not_counted_twice(make: Callable[..., CoreRig], pages: PageFiles) -> None:
    rig = rig_of(make, 10)
    publish(rig, 7 * 12, SIZE)
    page_id = pages.open(rig.core, [1])
    assert pages.fill(rig.core, page_id, 1, 6).copied_records == 5
    consumer = rig.consume(credit=5)
    rig.deliver(consumer, 5)
    for sequence in range(1, 6):
        assert rig.core.acknowledge(consumer, sequence) == 1
    rig.flush()
    rig.core.page_abandon(page_id)
    again = pages.open(rig.core, [1])
    assert pages.fill(rig.core, again, 1, PER_SLAB + 1).copied_records == PER_SLAB - 5
    publish(rig, 3 * 12, SIZE)
    assert first_absent(rig) == slab_of(rig, 0)
