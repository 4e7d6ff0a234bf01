"""The pager on a journal: messages move into pages, come back in order, and pages go."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.paging.moving import PageMover
from vespiary_broker.store.paging.pager import PERIOD_S
from vespiary_broker.store.reader import read_journal
from vespiary_codec.journal.page import PAGE_BIT
from vespiary_native.abc import DeliverStatus, NoRoom
from vespiary_spec.errors import ForeignJournal, JournalError, PageDamaged
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk
from vespiary_testkit.journal_workload import QUEUES, run, run_in_virtual_time, until
from vespiary_testkit.paging_rig import PAGES, PagingClient, PagingRig, recover_paged


def expected(number: int, client: PagingClient) -> dict[int, list[int]]:
    tails = {queue_id: client.core.queue_statistics(queue_id).tail for queue_id in QUEUES}
    assert sum(tail - 1 for tail in tails.values()) == number
    return {queue_id: list(range(1, tail)) for queue_id, tail in tails.items()}


def received(client: PagingClient) -> dict[int, list[int]]:
    return {
        queue_id: [sequence for queue, sequence in client.held if queue == queue_id]
        for queue_id in QUEUES
    }


def used_files(rig: PagingRig) -> int:
    files = rig.journal.statistics().files
    return files.active - files.ahead


@run
async def test_messages_move_into_pages_and_come_back_in_order(tmp_path: Path) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    await client.send(200)
    await rig.page_all()
    assert rig.paged() == 200
    facts = rig.pager.statistics()
    assert facts.pages == facts.written == len(rig.page_names()) >= 4
    assert facts.pages_bytes == sum(
        len(inode.data) for path, inode in disk.files.items() if path.suffix == ".page"
    )
    await client.receive()
    assert received(client) == expected(200, client)
    assert rig.paged() == 0
    assert rig.ready >= facts.pages
    await rig.close()


@run
async def test_pages_go_when_all_of_them_is_acknowledged(tmp_path: Path) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    await client.send(200)
    await rig.page_all()
    pages = rig.pager.statistics().pages
    await client.receive()
    assert len(rig.page_names()) == pages, "they are held, not acknowledged"
    await client.acknowledge(200)
    await until(lambda: rig.pager.statistics().removed == pages)
    assert not rig.page_names()
    facts = rig.pager.statistics()
    assert (facts.pages, facts.removed, facts.open_pages) == (0, pages, 0)
    assert rig.core.pages() == []
    await rig.close()


@run
async def test_the_journal_gets_its_files_back(tmp_path: Path) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk, compact_min_files=2)
    client = PagingClient(rig, 1)
    for _ in range(8):
        await until(lambda: rig.journal.core.files_ahead() > 1)
        await client.send(100)
        await rig.page_all()
    await until(lambda: used_files(rig) < 8)
    assert rig.paged() == 800
    assert rig.journal.statistics().live_bytes < 100_000
    await client.receive()
    assert received(client) == expected(800, client)
    await rig.close()


@run_in_virtual_time
async def test_pages_that_stay_do_not_keep_the_files_of_later_traffic(tmp_path: Path) -> None:
    """Each file depends on the one before: the oldest must go, though only a page is in it."""
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk, compact_min_files=2)
    rig.address.queues = [1]
    client = PagingClient(rig, 1)
    await client.send(20)
    await rig.page_all()
    rig.address.is_wanted = False
    staying = rig.paged()
    assert staying
    for _ in range(3):
        await client.pass_through(2, 20)
    first = rig.journal.file_uses(0, 1)[0]
    assert (first.live_places, first.live_pages) == (0, rig.pager.statistics().pages)
    assert first.kept_by == "1 page"
    await rig.journal.wait_durable()
    (told, *_) = read_journal(tmp_path, disk=disk).files
    assert (told.live_messages, told.pinned_by) == (0, first.kept_by)
    for _ in range(80):
        await client.pass_through(2, 20)
    await rig.until(lambda: used_files(rig) <= 3)
    assert rig.journal.statistics().files_reclaimed > 30
    assert rig.paged() == staying
    await rig.close()
    assert len(recover_paged(disk, tmp_path)) == 20, "those in the other queue too"


@run
async def test_pages_are_there_after_a_restart_and_their_messages_in_order(tmp_path: Path) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    await client.send(150)
    await rig.page_all()
    await client.send(20)
    await client.receive(30)
    done = list(client.held)
    await client.acknowledge(len(done))
    pages = rig.pager.statistics().pages
    await rig.close()
    rig = await PagingRig.open(tmp_path, disk)
    assert 0 < rig.pager.statistics().pages <= pages
    client = PagingClient(rig, 2)
    await client.receive()
    everything = expected(170, client)
    assert received(client) == {
        queue_id: [at for at in all_of if (queue_id, at) not in done]
        for queue_id, all_of in everything.items()
    }
    await client.acknowledge(len(client.held))
    await until(lambda: not rig.page_names())
    await rig.close()


@run
async def test_what_consumers_are_about_to_get_and_what_is_new_stays_in_memory(
    tmp_path: Path,
) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(200)
    rig.address.front, rig.address.keep_bytes = 20_000, 60_000
    await rig.page_all()
    for queue_id in QUEUES:
        facts = rig.core.queue_statistics(queue_id)
        assert facts.ready > 10
        first = rig.core.extents(queue_id)
        if first:
            assert first[0].first > facts.next + 5
    await client.receive()
    assert received(client) == expected(200, client)
    await rig.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@run
async def test_a_disk_that_takes_no_page_loses_nothing_and_is_tried_again(
    tmp_path: Path, number: int
) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    await client.send(100)

    def fail(kind: str, path: Path) -> int:
        return number if PAGES in path.parents and kind in ("write", "flush") else 0

    disk.fail = fail
    rig.pager.page(rig.address)
    await until(lambda: rig.pager.statistics().failures >= 2)
    assert rig.pager.blocked is not None
    assert rig.pager.statistics().blocked_reason
    assert rig.paged() == 0
    assert not rig.page_names()
    await client.send(10)  # the journal goes on
    disk.fail = lambda *_: 0
    await until(lambda: rig.paged() == 110)
    assert rig.pager.statistics().blocked_reason == ""
    await client.receive()
    assert received(client) == expected(110, client)
    await rig.close()


class CoreWithoutRoom:
    """A core whose journal has no room for PAGE records; all else is the real one's."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def page_commit(self, page_id: int) -> int:
        raise NoRoom(f"no room for page {page_id}")


class JournalWithoutRoom:
    """A journal with that core."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.core = CoreWithoutRoom(journal.core)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


@run
async def test_a_page_that_the_journal_has_no_room_to_name_leaves_no_file(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(60)
    journal: Any = JournalWithoutRoom(rig.journal)
    mover = PageMover(
        journal, rig.pager._files, InlineExecutor(), new_id=rig.pager._new_id, room_tries=2
    )
    for _ in range(3):
        with pytest.raises(NoRoom):
            await mover.move(rig.address)
    assert rig.page_names() == []
    assert rig.core.pages() == []
    await rig.page_all()
    await client.receive()
    assert received(client) == expected(60, client)
    await rig.close()


@run
async def test_only_so_many_pages_are_open(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(300)
    await rig.page_all()
    rig.address.is_wanted = False
    for _ in range(300):
        await client.receive(1)
        if client.held:
            await client.acknowledge(len(client.held))
        assert rig.pager.statistics().open_pages <= rig.address.open_pages_max + 2
    await rig.close()


@run
async def test_a_damaged_page_stops_its_queue_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    rig.address.queues = [1]
    await client.send(60)
    await rig.page_all()
    for path, inode in disk.files.items():
        if path.suffix == ".page":
            inode.data[len(inode.data) - 100] ^= 1
    consumer = client.consumers[1]
    client.core.deliver(consumer, 10, 1 << 20)
    rig.pager.serve()
    await until(lambda: rig.pager.statistics().damaged == 1)
    assert "cannot be delivered" in caplog.text
    rig.pager.serve()
    del client.consumers[1]
    await client.receive()
    assert len(received(client)[2]) == rig.core.queue_statistics(2).tail - 1
    await rig.close()


@run
async def test_a_missing_page_stops_the_start_and_changes_nothing(tmp_path: Path) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    await client.send(100)
    await rig.page_all()
    await rig.close()
    (lost, *_) = [path for path in disk.files if path.suffix == ".page"]
    inode = disk.files.pop(lost)
    with pytest.raises(PageDamaged, match="missing"):
        await PagingRig.open(tmp_path, disk)
    disk.files[lost] = inode
    rig = await PagingRig.open(tmp_path, disk)
    assert rig.paged() == 100
    await rig.close()


@run
async def test_the_pages_of_another_journal_stop_the_start(tmp_path: Path) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    await PagingClient(rig, 1).send(50)
    await rig.page_all()
    await rig.close()
    for path in [path for path in disk.files if PAGES not in path.parents]:
        del disk.files[path]
    names = set(disk.files)
    with pytest.raises(ForeignJournal):
        await PagingRig.open(tmp_path, disk)
    assert names <= set(disk.files)


@run
async def test_page_ids_are_never_used_twice(tmp_path: Path) -> None:
    disk = MemoryDisk()
    seen: list[int] = []
    for _ in range(3):
        rig = await PagingRig.open(tmp_path, disk)
        client = PagingClient(rig, 1)
        await client.send(60)
        await rig.page_all()
        seen += [facts.page_id for facts in rig.core.pages()]
        await client.receive()
        await client.acknowledge(len(client.held))
        await until(lambda rig=rig: not rig.page_names())
        await rig.close()
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)
    assert max(seen) < PAGE_BIT


@run_in_virtual_time
async def test_no_page_gets_the_id_of_one_that_the_journal_still_knows(tmp_path: Path) -> None:
    """Its file was removed as a leftover of a kill, and the clock was set back since."""
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk)
    client = PagingClient(rig, 1)
    await client.send(60)
    await rig.move_all()
    await client.receive()
    await client.acknowledge(len(client.held))
    known = {facts.page_id for facts in rig.core.pages()}
    for _ in range(2):  # killed before the page's end is written, and again right after the start
        assert {facts.page_id for facts in rig.core.pages()} == known
        rig.journal.fail(JournalError("the process is killed here"))
        await rig.close()
        rig = await PagingRig.open(tmp_path, disk)
    assert not rig.page_names()
    rig.pager._clock_ms = lambda: 0
    await PagingClient(rig, 1).send(60)
    await rig.move_all()
    ids = {facts.page_id for facts in rig.core.pages() if facts.places}
    assert ids
    assert min(ids) > max(known)
    await rig.close()


@run
async def test_old_journal_files_go_though_pages_live_long(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(200)
    await rig.page_all()
    rig.address.is_wanted = False
    for _ in range(30):
        await until(lambda: rig.journal.core.files_ahead() > 1)
        await client.send(20)
        await client.receive(10)
        await client.acknowledge(len(client.held))
    assert rig.journal.core.current_file() > 16
    await until(lambda: used_files(rig) <= 8)
    await rig.close()


@run
async def test_the_next_page_is_opened_ahead_unless_enough_waits(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    rig.address.queues = [1]
    await client.send(200)
    await rig.page_all()
    rig.address.is_wanted = rig.address.is_reading_ahead = False
    rig.address.open_pages_max = 5
    consumer = client.consumers[1]
    assert rig.core.deliver(consumer, 1, 1 << 20)[1] == 0
    rig.pager.serve()
    await until(lambda: rig.pager.statistics().open_pages == 1)
    assert rig.core.deliver(consumer, 1, 1 << 20)[0] is not DeliverStatus.PAGED
    rig.address.is_reading_ahead = True
    while rig.core.deliver(consumer, 1, 1 << 20)[0] is not DeliverStatus.PAGED:
        await client.journal.load_slab(*rig.core.absent_slab(consumer))
    rig.pager.serve()
    await until(lambda: rig.pager.statistics().open_pages >= 3)
    await rig.close()


@run
async def test_pages_that_python_remembers_stay_open(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(200)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.remembered = list(QUEUES)
    pages = rig.pager.statistics().pages
    for queue_id in QUEUES:
        rig.pager.open_all(queue_id)
        rig.pager.open_all(queue_id)
    await until(lambda: rig.paged() == 0)
    assert rig.pager.statistics().open_pages == pages > rig.address.open_pages_max
    await rig.close()


@run_in_virtual_time
async def test_pages_without_consumers_are_closed_when_memory_is_short(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    rig.address.open_pages_max = 5
    await client.send(200)
    await rig.page_all()
    rig.address.is_wanted = False
    await client.receive(3)
    await client.acknowledge(6)
    await until(lambda: rig.pager.statistics().open_pages >= 2)
    rig.address.is_wanted = True
    rig.pager.page(rig.address)
    await asyncio.sleep(10 * PERIOD_S)
    assert rig.pager.statistics().open_pages >= 2, "they have consumers"
    rig.address.is_attended = False
    await until(lambda: rig.pager.statistics().open_pages == 0)
    assert rig.paged() == 194
    rig.address.is_attended = True
    rig.address.is_wanted = False
    client.held.clear()
    await client.receive()
    assert len(client.held) == 194
    await rig.close()


@run
async def test_pages_are_not_opened_for_ever_once_nobody_looks_at_the_queue(
    tmp_path: Path,
) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(300)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.pager.open_all(1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert rig.pager.statistics().opened <= rig.pager.statistics().pages
    assert not rig.pager._opener._wholes
    await client.receive()
    assert received(client) == expected(300, client)
    await rig.close()


@run
async def test_an_open_page_of_a_queue_that_is_gone_hinders_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(300)
    await rig.page_all()
    rig.address.is_wanted = False
    rig.address.remembered = [1]
    rig.pager.open_all(1)
    await until(lambda: rig.core.queue_statistics(1).paged == 0)
    assert rig.pager.statistics().open_pages > rig.address.open_pages_max
    rig.address.remembered = []
    rig.core.close_consumer(client.consumers.pop(1))
    rig.address.queues = [2]
    rig.core.drop_queue(1)
    await client.receive()
    assert len(client.held) == rig.core.queue_statistics(2).tail - 1
    assert "was not opened" not in caplog.text
    await rig.close()


@pytest.mark.parametrize("is_purging", [False, True])
@run
async def test_the_folder_of_an_address_goes_with_its_last_page_if_that_is_asked(
    tmp_path: Path, *, is_purging: bool
) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk, is_purging_folders=is_purging)
    client = PagingClient(rig, 1)
    await client.send(60)
    await rig.page_all()
    pages = rig.pager.statistics().pages
    rig.address.is_wanted = False
    await client.receive()
    await client.acknowledge(60)
    await until(lambda: rig.pager.statistics().removed == pages)
    await rig.close()
    left = [path.name for path in disk.files if PAGES in path.parents]
    assert left == ([] if is_purging else ["address"])


@run
async def test_a_defect_in_looking_after_pages_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    client = PagingClient(rig, 1)
    await client.send(60)
    await rig.page_all()
    pages = rig.pager.statistics().pages
    rig.address.is_wanted = False
    failures = [ValueError("the test says so")]
    end_done = rig.pager._end_done

    def fail_once() -> None:
        if failures:
            raise failures.pop()
        end_done()

    monkeypatch.setattr(rig.pager, "_end_done", fail_once)
    await client.receive()
    await client.acknowledge(60)
    await until(lambda: rig.pager.statistics().removed == pages)
    assert "could not be looked after" in caplog.text
    await rig.close()
