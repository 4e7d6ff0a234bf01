"""Limits on pages: on what an address may have there, and on what comes back into memory."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from vespiary_broker.store.paging.pager import PERIOD_S
from vespiary_broker.store.paging.read_limits import ReadAmounts, ReadLimits
from vespiary_native.abc import DeliverStatus
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import QUEUES, run, run_in_virtual_time, until
from vespiary_testkit.paging_rig import PAGE_BYTES, PAGES, PagingClient, PagingRig
from vespiary_testkit.waiting import WAIT_S


def sequences(client: PagingClient, queue_id: int) -> list[int]:
    return [sequence for queue, sequence in client.held if queue == queue_id]


@run
async def test_no_page_is_written_that_does_not_fit_into_the_limit(tmp_path: Path) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    await client.send(250)
    rig.address.pages_bytes_max = 5 * rig.address.page_bytes
    rig.pager.page(rig.address)
    await until(lambda: bool(rig.paged()) and not rig.pager._moves)
    await rig.journal.wait_durable()
    written = rig.pager.statistics()
    assert 4 * rig.address.page_bytes < written.pages_bytes <= 5 * rig.address.page_bytes
    assert rig.address.excess_bytes() > 0, "the rest stays in memory"
    await rig.close()
    rig = await PagingRig.open(tmp_path, disk)
    rig.address.pages_bytes_max = 5 * rig.address.page_bytes
    rig.pager.page(rig.address)
    await rig.until(lambda: not rig.pager._moves)
    assert rig.pager.statistics().written == 0, "what a start found counts"
    client = PagingClient(rig, 2)
    await client.receive()
    assert len(client.held) == 250
    for queue_id in QUEUES:
        assert sequences(client, queue_id) == sorted(sequences(client, queue_id))
    await client.acknowledge(len(client.held))
    await until(lambda: not rig.page_names())
    await client.send(60)
    await until(lambda: rig.pager.statistics().written > 0)  # there is room again, by itself
    await rig.close()


@run
async def test_pages_without_consumers_are_closed_though_no_page_may_be_written(
    tmp_path: Path,
) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(120)
    await rig.page_all()
    await client.receive(10)
    assert rig.pager.statistics().open_pages > 0
    for consumer in client.consumers.values():
        rig.core.close_consumer(consumer)
    rig.address.is_attended = False
    rig.address.pages_bytes_max = 0
    await until(lambda: rig.pager.statistics().open_pages == 0)
    await rig.close()


async def take_without_acknowledging(rig: PagingRig, client: PagingClient) -> int:
    """Take messages of queue 1 until its next page is not opened; return how many."""
    consumer, taken = client.consumers[1], 0
    while not rig.pager.statistics().waiting_queues:
        status, count, _ = rig.core.deliver(consumer, 1_000_000, 1 << 30)
        taken += count
        if status is DeliverStatus.ABSENT:
            await rig.journal.load_slab(*rig.core.absent_slab(consumer))
        elif status is DeliverStatus.PAGED:
            rig.pager.serve()
            await asyncio.sleep(0.001)
        assert status is not DeliverStatus.DRAINED, "all of it was given"
    return taken


def acknowledge_first(rig: PagingRig, client: PagingClient, upto: int) -> None:
    for sequence in range(1, upto + 1):
        rig.core.acknowledge(client.consumers[1], sequence)
    rig.journal.kick()


@pytest.mark.parametrize(
    "limits",
    [
        ReadLimits(max_bytes=PAGE_BYTES),
        ReadLimits(max_bytes=4 * PAGE_BYTES),
        ReadLimits(max_messages=1),
        ReadLimits(max_messages=60),
        ReadLimits(max_bytes=0),
    ],
)
@run_in_virtual_time
async def test_no_page_is_opened_while_consumers_hold_what_they_may(
    tmp_path: Path, limits: ReadLimits
) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    rig.address.queues = [1]
    await client.send(500)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.open_pages_max = 100
    rig.address.read_limits = limits
    taken = await take_without_acknowledging(rig, client)
    held = [facts for facts in rig.core.extents(1) if facts.is_open]
    before = held[:-1]
    assert taken == sum(facts.places for facts in held)
    sizes = [rig.pager._pages[facts.page_id].size_bytes for facts in held]
    if limits.max_messages is not None:
        assert sum(facts.places for facts in before) < limits.max_messages <= taken
    if limits.max_bytes is not None:
        assert sum(sizes[:-1]) - taken < max(limits.max_bytes, 1), "each share is rounded down"
        assert sum(sizes) >= limits.max_bytes
    opened = rig.pager.statistics().opened
    for _ in range(10):
        rig.core.deliver(client.consumers[1], 1_000_000, 1 << 30)
        rig.pager.serve()
        await asyncio.sleep(PERIOD_S)
    assert rig.pager.statistics().opened == opened
    acknowledge_first(rig, client, taken)
    await until(lambda: rig.pager.statistics().waiting_queues == 0)
    assert await take_without_acknowledging(rig, client) > 0
    await rig.close()


async def take_some(rig: PagingRig, client: PagingClient) -> None:
    """Have the consumer of queue 1 take messages, once more than none."""
    consumer = client.consumers[1]
    before = rig.core.held_count(consumer)
    async with asyncio.timeout(WAIT_S):
        while rig.core.held_count(consumer) == before:
            if rig.core.deliver(consumer, 1_000_000, 1 << 30)[0] is DeliverStatus.ABSENT:
                await rig.journal.load_slab(*rig.core.absent_slab(consumer))
            rig.pager.serve()
            await asyncio.sleep(0.001)


@run
async def test_a_page_in_front_of_those_that_are_open_is_opened(tmp_path: Path) -> None:
    """A message came back, and its page was closed when another queue needed one."""
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    rig.address.queues = [1]
    await client.send(500)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.open_pages_max = 100
    while sum(facts.is_open for facts in rig.core.extents(1)) < 4:
        await take_some(rig, client)
    first, *behind = (facts for facts in rig.core.extents(1) if facts.is_open)
    for sequence, _ in rig.core.held(client.consumers[1]):
        rig.core.give_back(client.consumers[1], sequence)
    rig.address.read_limits = ReadLimits(max_messages=sum(facts.places for facts in behind))
    assert rig.core.page_leave(first.page_id, 1)
    await take_some(rig, client)
    assert rig.core.held(client.consumers[1])[0][0] == 1
    await rig.close()


@pytest.mark.parametrize("has_claims", [False, True])
@run
async def test_pages_that_interleave_are_opened_though_much_of_the_first_ones_stands_behind(
    tmp_path: Path, *, has_claims: bool
) -> None:
    """Nobody gets what stands behind the next page, so nobody can acknowledge it either."""
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    rig.address.queues = [1]
    await client.send(500)
    sent = rig.core.queue_statistics(1).ready
    assert sent > 200
    # One of the first messages in each page, and the rest from far behind: as the front shrinks.
    for kept in (range(7, 100), range(8, 150)):
        rig.address.kept_sequences = {1: list(kept)}
        page = await rig.pager._mover.move(rig.address)
        assert page is not None
        rig.pager._note_written(page)
    rig.address.kept_sequences = {}
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.open_pages_max = 100
    rig.address.read_limits = ReadLimits(max_messages=20)
    consumer, taken = client.consumers[1], 0
    async with asyncio.timeout(WAIT_S):
        while taken < sent:
            status, count, _ = rig.core.deliver(consumer, 1, 1 << 30)
            taken += count
            if count and has_claims:
                rig.address.claims += 1
            elif count:
                acknowledge_first(rig, client, taken)
            if status is DeliverStatus.ABSENT:
                await rig.journal.load_slab(*rig.core.absent_slab(consumer))
            elif status is DeliverStatus.PAGED:
                rig.pager.serve()
                await asyncio.sleep(0.001)
    await rig.close()


@run
async def test_a_queue_that_waits_is_looked_at_again_only_when_something_has_happened(
    tmp_path: Path,
) -> None:
    """With many pages and many queues that is too much work to be done for nothing."""
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    rig.address.queues = [1]
    await client.send(300)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.read_limits = ReadLimits(max_messages=1)
    taken = await take_without_acknowledging(rig, client)
    amounts = ReadAmounts(rig.core)
    amounts.waits(1, 7)
    assert amounts.has_changed(1, 0)
    assert not amounts.has_changed(1, 0)
    amounts.waits(1, 8)
    assert amounts.has_changed(1, 0), "it waits for another page"
    assert amounts.has_changed(1, taken), "a transaction acknowledges"
    assert not amounts.has_changed(1, taken)
    acknowledge_first(rig, client, 1)
    assert amounts.has_changed(1, taken)
    assert not amounts.has_changed(1, taken)
    amounts.waits_no_more(1)
    assert not amounts.waiting
    amounts.waits(1, 8)
    assert amounts.has_changed(1, taken)
    rig.core.close_consumer(client.consumers.pop(1))
    rig.address.queues = []
    rig.core.drop_queue(1)
    assert amounts.has_changed(1, taken)
    assert amounts.has_changed(1, taken), "until it is forgotten"
    await rig.close()


@run
async def test_a_transaction_of_a_waiting_queue_gets_it_the_next_page(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    rig.address.queues = [1]
    await client.send(300)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.read_limits = ReadLimits(max_messages=1)
    taken = await take_without_acknowledging(rig, client)
    rig.address.claims = taken - 1
    looked = rig.pager._opener._reads._looked
    await until(lambda: 1 in looked and looked[1][-1] == taken - 1)
    assert rig.pager.statistics().waiting_queues == 1
    rig.address.claims = taken
    await until(lambda: rig.pager.statistics().waiting_queues == 0)
    assert await take_without_acknowledging(rig, client) > 0
    await rig.close()


@run
async def test_a_queue_that_python_looks_at_is_opened_whole(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(200)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.read_limits = ReadLimits(max_messages=1)
    rig.address.remembered = list(QUEUES)
    assert rig.paged() > 1, "more than the limits would have in memory"
    for queue_id in QUEUES:
        rig.pager.open_all(queue_id)
    await until(lambda: rig.paged() == 0)
    await rig.close()


@run
async def test_a_queue_that_goes_while_it_waits_for_acknowledgements_is_forgotten(
    tmp_path: Path,
) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    rig.address.queues = [1]
    await client.send(300)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.read_limits = ReadLimits(max_messages=1)
    await take_without_acknowledging(rig, client)
    await until(lambda: rig.pager.statistics().waiting_queues == 1)
    rig.core.close_consumer(client.consumers.pop(1))
    rig.address.queues = []
    rig.core.drop_queue(1)
    await until(lambda: rig.pager.statistics().waiting_queues == 0)
    await rig.close()


@run
async def test_a_page_that_could_not_be_read_is_opened_later_though_nobody_asks_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    await client.send(60)
    await rig.page_all()
    rig.address.is_wanted = False
    tries = 0

    def fail(kind: str, path: Path) -> int:
        nonlocal tries
        if PAGES not in path.parents:
            return 0
        tries += 1
        return errno.EMFILE

    disk.fail = fail
    status, _, _ = rig.core.deliver(client.consumers[1], 1, 1 << 30)
    assert status is DeliverStatus.PAGED
    rig.pager.serve()
    await until(lambda: tries > 2)
    assert rig.pager.statistics().opened == 0
    disk.fail = lambda *_: 0
    await until(lambda: rig.pager.statistics().opened > 0)
    assert rig.core.deliver(client.consumers[1], 1, 1 << 30)[0] is not DeliverStatus.PAGED
    assert caplog.text.count("is tried again") == 1
    await rig.close()
