"""Bodies in files: flushed before they are referred to, removed when nobody needs them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.files import SpaceLimits
from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_broker.store.large_writer import BACKLOG_BYTES_MAX
from vespiary_codec.checksum import crc32c
from vespiary_native.abc import LargeBody
from vespiary_spec.errors import (
    DiskFull,
    LargeMessageDamaged,
    NativeError,
    StorageError,
    VespiaryError,
)
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk

FOLDER = Path("/large")
OPTIONS = LargeMessageOptions(directory=FOLDER)


async def opened(
    disk: MemoryDisk, *live: LargeBody, options: LargeMessageOptions = OPTIONS
) -> LargeMessages:
    return await LargeMessages.open(options, live, disk=disk, executor=InlineExecutor())


async def stored(store: LargeMessages, *pieces: bytes, is_persistent: bool = True) -> LargeBody:
    writer = store.begin()
    for piece in pieces:
        writer.put(piece)
        await asyncio.sleep(0)
    return await writer.finish(is_persistent=is_persistent)


def test_a_body_is_flushed_with_its_name_before_it_may_be_referred_to() -> None:
    async def check() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        body = await stored(store, b"one", b"two")
        assert body.size_bytes == 6
        assert body.crc == crc32c(b"onetwo")
        assert bytes(disk.files[store.path(body.large_id)].data) == b"onetwo"
        kinds = [op.kind for op in disk.log]
        assert kinds[0] == "make"
        assert kinds[-2:] == ["flush", "folder"]
        assert "write" not in kinds[kinds.index("flush") :]
        await store.close()

    product_loop.run(check())


@pytest.mark.parametrize("is_flushed", [True, False])
def test_one_that_need_not_survive_is_not_flushed(is_flushed: bool) -> None:
    async def check() -> None:
        disk = MemoryDisk()
        options = LargeMessageOptions(directory=FOLDER, is_flushed=is_flushed)
        store = await opened(disk, options=options)
        await stored(store, b"x", is_persistent=not is_flushed)
        assert not {"flush", "folder"} & {op.kind for op in disk.log}
        await store.close()

    product_loop.run(check())


@pytest.mark.parametrize("kind", ["flush", "flush_folder", "write", "create"])
def test_a_failing_disk_fails_the_sender_alone_and_leaves_nothing(kind: str) -> None:
    async def check() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        disk.fail = lambda what, _: errno.EIO if what == kind else 0
        with pytest.raises(StorageError, match="could not be stored"):
            await stored(store, b"x")
        await store.close()
        assert disk.files == {}
        disk.fail = lambda *_: 0
        assert (await stored(store, b"y")).size_bytes == 1
        assert store.statistics().receiving == 0

    product_loop.run(check())


def test_a_full_disk_is_told_while_the_body_comes() -> None:
    async def check() -> None:
        disk = MemoryDisk(capacity_bytes=10_000)
        store = await opened(disk)
        told: list[VespiaryError] = []
        writer = store.begin()
        writer.on_failed = told.append
        for _ in range(3):
            writer.put(bytes(5000))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert [type(error) for error in told] == [DiskFull]
        writer.discard()
        await store.close()
        assert disk.files == {}

    product_loop.run(check())


MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (SpaceLimits(max_usage_percent=50), "max-disk-usage"),
        (SpaceLimits(min_free_bytes=20 * MEBIBYTE), "min-disk-free"),
    ],
)
def test_the_limits_of_the_disk_are_checked_again_within_a_body(
    limits: SpaceLimits, name: str
) -> None:
    """One large body must not take the space that the limits keep free for the journal."""

    async def check() -> None:
        disk = MemoryDisk(capacity_bytes=40 * MEBIBYTE)
        options = LargeMessageOptions(directory=FOLDER, limits=limits)
        store = await opened(disk, options=options)
        met: list[DiskFull] = []

        def wait(full: DiskFull) -> bool:
            met.append(full)
            return False

        writer = store.begin()
        writer.on_full = wait
        for _ in range(36):
            writer.put(bytes(MEBIBYTE))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len(met) == 1
        assert name in str(met[0])
        assert writer.is_full
        # Half the disk is allowed, and the space is measured every 16 MiB.
        assert disk.used_bytes() == 32 * MEBIBYTE
        assert store.statistics().waiting == 1

        other = store.begin()
        other.put(b"x")
        with pytest.raises(DiskFull, match=name):
            await other.finish(is_persistent=True)

        disk.capacity_bytes = 100 * MEBIBYTE
        writer.try_again()
        body = await writer.finish(is_persistent=True)
        assert body == LargeBody(writer.large_id, 36 * MEBIBYTE, crc32c(bytes(36 * MEBIBYTE)))
        await store.close()

    product_loop.run(check())


def test_a_backlog_is_full_and_ends() -> None:
    async def check() -> None:
        store = await opened(MemoryDisk())
        writer = store.begin()
        ended: list[bool] = []
        writer.on_room = lambda: ended.append(True)
        writer.put(bytes(BACKLOG_BYTES_MAX))
        assert writer.is_full
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not writer.is_full
        assert ended == [True]
        writer.discard()
        await store.close()

    product_loop.run(check())


def test_the_start_removes_what_nobody_refers_to_and_names_what_is_lost() -> None:
    async def check() -> None:
        disk = MemoryDisk()
        first = await opened(disk)
        kept, short, left = [await stored(first, b"body") for _ in range(3)]
        disk.create(FOLDER / "vespiary-volume.json", is_direct=False)
        del disk.files[first.path(short.large_id)].data[2:]
        lost = LargeBody(7, 4, 0)
        store = await opened(disk, kept, short, lost)
        await store.close()
        names = {path.name for path in disk.files}
        assert names == {
            "vespiary-volume.json",
            store.path(kept.large_id).name,
            store.path(short.large_id).name,
        }
        assert store.statistics().swept == 1
        assert store.damaged == {
            7: "the file is missing",
            short.large_id: "the file has 2 bytes, the message 4",
        }
        with pytest.raises(LargeMessageDamaged):
            await store.read(lost)
        assert store.begin().large_id > left.large_id

    product_loop.run(check())


def test_the_last_piece_comes_only_if_the_checksum_is_right() -> None:
    async def check() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        body = await stored(store, bytes(300_000))
        store.adopt(body)
        reader = await store.read(body)
        assert [len(await reader.next_piece()) for _ in range(3)] == [262_144, 37_856, 0]
        reader.close()
        disk.flip(store.path(body.large_id), 299_999, 0)
        reader = await store.read(body)
        assert len(await reader.next_piece()) == 262_144
        with pytest.raises(LargeMessageDamaged, match="checksum"):
            await reader.next_piece()
        reader.close()
        assert store.is_damaged(body.large_id)
        await store.close()

    product_loop.run(check())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_body_that_cannot_be_opened_now_is_not_lost(number: int) -> None:
    """Clients may hold all descriptors: the message must not be set aside for that."""

    async def check() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        body = await stored(store, b"x")
        store.adopt(body)
        disk.fail = lambda kind, _: number if kind == "open" else 0
        with pytest.raises(NativeError):
            await store.read(body)
        assert not store.is_damaged(body.large_id)
        disk.fail = lambda *_: 0
        reader = await store.read(body)
        assert await reader.next_piece() == b"x"
        reader.close()
        await store.close()

    product_loop.run(check())


def test_a_body_that_went_before_it_was_read_is_no_damage() -> None:
    """Its consumer went, the next one acknowledged, and the first one's task was still opening."""

    async def check() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        body = await stored(store, b"x")
        store.adopt(body)
        store.remove([body.large_id])
        await asyncio.sleep(0.01)
        with pytest.raises(LargeMessageDamaged):
            await store.read(body)
        assert store.statistics().damaged == 0
        await store.close()

    product_loop.run(check())


def test_removals_wait_while_they_are_held() -> None:
    async def check() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        body = await stored(store, b"x")
        store.adopt(body)
        store.hold_removals()
        store.remove([body.large_id])
        await asyncio.sleep(0)
        assert len(disk.files) == 1
        assert store.live_count == 0
        store.release_removals()
        await store.close()
        assert disk.files == {}
        assert store.statistics().removed == 1

    product_loop.run(check())


class HeldExecutor(Executor):
    """Runs jobs when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*arguments, **options))
            except BaseException as error:
                future.set_exception(error)

        self.jobs.append(run)
        return future

    async def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()
        for _ in range(3):
            await asyncio.sleep(0)


def test_who_waits_for_a_body_that_is_dropped_may_go_on_sending() -> None:
    async def check() -> None:
        executor = HeldExecutor()
        store = LargeMessages(OPTIONS, MemoryDisk(capacity_bytes=1 << 20), executor)
        writer = store.begin()
        rooms: list[bool] = []
        writer.on_room = lambda: rooms.append(writer.is_dropped)
        writer.on_full = lambda _: True
        writer.put(bytes(BACKLOG_BYTES_MAX))
        assert writer.is_full
        await executor.run()
        assert rooms == [True]
        assert not writer.is_full

    product_loop.run(check())


def test_a_body_given_up_during_its_last_flush_is_counted_once_and_not_referred_to() -> None:
    async def check() -> None:
        disk, executor = MemoryDisk(), HeldExecutor()
        store = LargeMessages(OPTIONS, disk, executor)
        writer = store.begin()
        writer.put(b"body")
        await executor.run()
        finishing = asyncio.ensure_future(writer.finish(is_persistent=True))
        await asyncio.sleep(0)
        assert executor.jobs, "the flush is under way"
        writer.discard()
        while executor.jobs or not finishing.done():
            await executor.run()
        assert await finishing is None
        assert store.statistics().receiving == 0
        assert not disk.files

    product_loop.run(check())
