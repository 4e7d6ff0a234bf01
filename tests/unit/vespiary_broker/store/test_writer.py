"""The message journal's writer: batches, confirms, fences. Files in memory, faults by name."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.options import Durability
from vespiary_broker.store.writer import SUBMIT_TRIES, MessageJournal
from vespiary_native.abc import AckMode
from vespiary_native.abc_ring import NOT_TAKEN
from vespiary_spec.errors import JournalLocked, NativeError, WriterFailed
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import ERRNOS, FaultyRing, MemoryRing
from vespiary_testkit.journal_workload import (
    open_memory,
    recover_live,
    run,
    run_in_virtual_time,
    until,
)
from vespiary_testkit.waiting import WAIT_S


class Bench:
    """A journal on a `MemoryDisk` behind a `FaultyRing`, with one queue and one connection."""

    def __init__(self, folder: Path, **ring: Any) -> None:
        self.folder = folder
        self.disk = MemoryDisk()
        self.ring_options = ring
        self.ring_class = FaultyRing
        self.rings: list[FaultyRing] = []
        self.journal: MessageJournal
        self.failures: list[WriterFailed] = []
        self.durable_calls = 0

    def _make_ring(self, disk: MemoryDisk) -> FaultyRing:
        self.memory_ring = MemoryRing(disk)
        self.rings.append(self.ring_class(self.memory_ring, **self.ring_options))
        return self.rings[-1]

    async def open(self, **options: Any) -> MessageJournal:
        self.journal = await open_memory(
            self.folder,
            self.disk,
            self._make_ring,
            **({"quiet_delay_s": 1000.0, "reclaim_period_s": 1000.0} | options),
        )
        self.core = self.journal.core
        self.route = self.core.open_route([1])
        self.connection = self.core.open_connection()
        self.journal.on_failed = self.failures.append
        self.journal.on_durable = self._on_durable
        await asyncio.sleep(0)  # the keeper's first round
        return self.journal

    async def publish_first(self) -> None:
        """Send the first message, and wait for the checkpoint that the first file brings."""
        self.publish()
        await self.journal.wait_durable()
        await until(lambda: self.ring.writes >= 2)
        await self.journal.wait_durable()

    def _on_durable(self) -> None:
        self.durable_calls += 1

    @property
    def ring(self) -> FaultyRing:
        return self.rings[-1]

    def publish(self, size: int = 100) -> None:
        self.core.publish(self.route, b"", bytes(size), persistent=True)
        self.core.receipt(self.connection, b"R")

    @property
    def confirmed(self) -> int:
        return self.core.queue_statistics(1).available - 1


# --- the plain course ---------------------------------------------------------------------------


@run
async def test_what_is_kicked_is_written_flushed_and_confirmed(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open()
    bench.publish()
    assert (bench.confirmed, bench.core.take_receipts()) == (0, [])
    journal.kick()
    assert bench.ring.writes == 1
    assert bench.confirmed == 0, "submitted is not durable"
    await journal.wait_durable()
    assert bench.confirmed == 1
    assert bench.core.take_receipts() == [(bench.connection, b"R")]
    assert bench.durable_calls >= 1
    assert all(bench.ring.durable_flags)
    await journal.close()
    assert recover_live(bench.disk, tmp_path) == {(1, 1)}


@run
async def test_one_write_is_in_flight_and_takes_all_that_gathered(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open(file_size_bytes=1 << 20, slab_bytes=1 << 20)
    await bench.publish_first()
    bench.memory_ring.hold()
    bench.publish()
    journal.kick()
    before = bench.ring.writes
    for _ in range(50):
        bench.publish(3000)
        journal.kick()
    assert bench.ring.writes == before, "everything waits for the write in flight"
    bench.memory_ring.release()
    await journal.wait_durable()
    assert bench.confirmed == 52
    assert bench.ring.writes == before + 1, "50 messages went out as one write"
    await journal.close()


@run
async def test_waiting_with_nothing_staged_returns_at_once(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open()
    await asyncio.wait_for(journal.wait_durable(), 1)
    bench.memory_ring.hold()
    bench.publish()
    journal.kick()
    waits = [asyncio.create_task(journal.wait_durable()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.sleep(0)
    assert not waits[1].done()
    bench.memory_ring.release()
    await asyncio.gather(*waits[1:])
    assert waits[0].cancelled()
    await journal.close()


@run_in_virtual_time
async def test_acknowledgements_alone_wait_for_company(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open(acknowledgement_delay_s=1000.0)
    consumer = bench.core.open_consumer(bench.connection, 1, AckMode.INDIVIDUAL, 10, b"s", 12)
    await bench.publish_first()
    bench.core.deliver(consumer, 1, 1 << 20)
    before = bench.ring.writes
    bench.core.acknowledge(consumer, 1)
    journal.kick()
    await asyncio.sleep(100)
    assert bench.ring.writes == before
    bench.publish()
    journal.kick()
    assert bench.ring.writes == before + 1
    await journal.wait_durable()
    assert recover_live(bench.disk, tmp_path) == {(1, 2)}
    await journal.close()


@run
async def test_acknowledgements_do_not_wait_for_ever(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open(acknowledgement_delay_s=0.001)
    consumer = bench.core.open_consumer(bench.connection, 1, AckMode.INDIVIDUAL, 10, b"s", 12)
    await bench.publish_first()
    bench.core.deliver(consumer, 1, 1 << 20)
    before = bench.ring.writes
    bench.core.acknowledge(consumer, 1)
    journal.kick()
    await until(lambda: bench.ring.writes > before)
    await journal.close()


@run_in_virtual_time
async def test_when_it_falls_quiet_one_empty_block_covers_the_confirms(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open(quiet_delay_s=0.002)
    await bench.publish_first()
    bench.publish()
    await journal.wait_durable()
    sequence = journal.statistics().sequence_durable
    await until(lambda: journal.statistics().sequence_durable > sequence)
    covered = journal.statistics()
    await asyncio.sleep(1)
    assert journal.statistics().sequence_durable == covered.sequence_durable, "once"
    journal.fail(WriterFailed("the test pulls the plug"))
    await journal.close()
    again = await bench.open()
    assert again.recovered.watermark >= sequence
    await again.close()


@run
async def test_an_error_in_the_callback_does_not_stop_the_journal(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open()
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: seen.append(context))

    def fails() -> None:
        raise RuntimeError("a defect of the engine")

    journal.on_durable = fails
    for _ in range(3):
        bench.publish()
        journal.kick()
        await journal.wait_durable()
    assert bench.confirmed == 3
    assert len(seen) >= 3
    journal.on_durable = lambda: None
    await journal.close()


# --- classes of durability -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "durability"),
    [
        ({}, Durability.D2),
        ({"sync_transactional": False}, Durability.D2),
        ({"sync_non_transactional": False}, Durability.D2),
        ({"sync_transactional": False, "sync_non_transactional": False}, Durability.D1),
        ({"datasync": False}, Durability.D1),
    ],
)
@run
async def test_the_class_is_what_the_writes_are(
    tmp_path: Path, options: dict[str, bool], durability: Durability
):
    bench = Bench(tmp_path)
    journal = await bench.open(**options)
    bench.publish()
    await journal.wait_durable()
    assert journal.durability is journal.statistics().durability is durability
    assert set(bench.ring.durable_flags) == {durability is Durability.D2}
    await journal.close()


@run
async def test_under_d1_a_full_file_is_flushed(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open(datasync=False)
    for _ in range(30):
        bench.publish(5000)
        await journal.wait_durable()
        await asyncio.sleep(0)
    flushed = {op.inode for op in bench.disk.log if op.kind == "flush"}
    full = [bench.disk.files[tmp_path / f"activemq-data-{n}.hq"].number for n in (1, 2)]
    last = max(i for i, op in enumerate(bench.disk.log) if op.kind == "write" and op.token >= 0)
    data_writes = [op.inode for op in bench.disk.log[:last] if op.token >= 0]
    assert set(full) <= set(data_writes) & flushed
    for inode in full:
        wrote = max(i for i, op in enumerate(bench.disk.log) if op.inode == inode and op.token >= 0)
        assert any(op.kind == "flush" and op.inode == inode for op in bench.disk.log[wrote:])
    await journal.close()


# --- failures ------------------------------------------------------------------------------------


async def _fail_and_look(bench: Bench, k: int) -> None:
    """Send one message after another until the k-th write fails; then nothing is confirmed."""
    journal = await bench.open()
    with pytest.raises(WriterFailed):  # noqa: PT012 (the keeper writes too)
        for _ in range(k + 5):
            bench.publish(2000)
            await journal.wait_durable()
            await asyncio.sleep(0)
    confirmed, writes = bench.confirmed, bench.ring.writes
    bench.core.take_receipts()
    assert writes == k
    failure = journal.failure
    assert isinstance(failure, WriterFailed)
    assert bench.failures == [failure]
    bench.publish()
    journal.kick()
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(WriterFailed):
        await journal.wait_durable()
    assert (bench.confirmed, bench.ring.writes) == (confirmed, writes)
    assert bench.core.take_receipts() == []
    assert journal.statistics().failed_reason == str(failure)
    await journal.close()
    live = recover_live(bench.disk, bench.folder)
    assert {(1, sequence) for sequence in range(1, confirmed + 1)} <= live


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)


@pytest.mark.parametrize("k", range(1, 51))
@run
async def test_nothing_is_confirmed_after_the_kth_write_failed(tmp_path: Path, k: int):
    await _fail_and_look(Bench(tmp_path, fail_at=k, result=lambda _length: -errno.EIO), k)


@pytest.mark.parametrize("number", ERRNOS)
@run
async def test_every_errno_fences(tmp_path: Path, number: int):
    bench = Bench(tmp_path, fail_at=3, result=lambda _length: -number)
    await _fail_and_look(bench, 3)
    cause = bench.failures[0].__cause__
    assert isinstance(cause, NativeError)
    assert cause.errno == number
    assert bench.failures[0].where.startswith(f"{tmp_path}/activemq-data-1.hq:")


@pytest.mark.parametrize("missing", [1, 512, 4096, 1 << 30])
@run
async def test_a_short_write_fences(tmp_path: Path, missing: int):
    bench = Bench(tmp_path, fail_at=2, result=lambda length: max(length - missing, 0))
    await _fail_and_look(bench, 2)
    assert "was cut short" in str(bench.failures[0])


@run
async def test_who_waits_for_the_failing_write_is_told(tmp_path: Path):
    bench = Bench(tmp_path, fail_at=1, result=lambda _length: -errno.EIO)
    journal = await bench.open()
    bench.memory_ring.hold()
    bench.publish()
    first = asyncio.create_task(journal.wait_durable())
    await asyncio.sleep(0)
    bench.publish()
    second = asyncio.create_task(journal.wait_durable())
    await asyncio.sleep(0)
    bench.memory_ring.release()
    for waiting in (first, second):
        with pytest.raises(WriterFailed):
            await waiting
    assert bench.confirmed == 0
    await journal.close()


@run
async def test_each_write_is_counted_with_its_records_bytes_and_wait(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open(file_size_bytes=1 << 20, slab_bytes=1 << 20)
    await bench.publish_first()
    before = journal.statistics()
    bench.memory_ring.hold()
    bench.publish()
    journal.kick()
    for _ in range(50):  # go out as one write, of more than one block
        bench.publish(9000)
        journal.kick()
    bench.memory_ring.release()
    await journal.wait_durable()
    after = journal.statistics()
    assert after.writes - before.writes == 2
    assert after.write_records.total - before.write_records.total == 51
    assert after.write_bytes.total - before.write_bytes.total >= 50 * 9000
    assert after.write_bytes.total == after.written_bytes
    for now, then in (
        (after.write_records, before.write_records),
        (after.write_bytes, before.write_bytes),
        (after.append_us, before.append_us),
    ):
        assert sum(now.counts) - sum(then.counts) == 2
    counts = zip(after.write_records.counts, before.write_records.counts, strict=True)
    taken = [now - then for now, then in counts]
    assert taken[0] == 1, "one write of one record"
    assert taken[6] == 1, "one of 33 to 64"
    # The second waited for the first: from being staged, not from being submitted.
    assert after.append_us.total - before.append_us.total > after.flush_sum_us - before.flush_sum_us
    assert after.recovery_s > 0
    assert (after.requests_in_flight, after.requests_max) == (0, bench.ring.depth)
    await journal.close()


@run
async def test_a_request_that_the_kernel_had_no_room_for_is_submitted_again(tmp_path: Path):
    bench = Bench(tmp_path, fail_at=2, refusal=errno.EAGAIN, refusals=3)
    journal = await bench.open()
    for _ in range(3):
        bench.publish()
        await journal.wait_durable()
    assert (bench.confirmed, journal.failure) == (3, None)
    await journal.close()


@run
async def test_a_write_that_the_kernel_did_not_take_is_submitted_again(tmp_path: Path):
    bench = Bench(tmp_path, fail_at=2, result=lambda _length: NOT_TAKEN, failures=3)
    journal = await bench.open()
    for count in range(1, 4):
        bench.publish()
        await journal.wait_durable()
        assert bench.confirmed == count
    assert journal.failure is None
    assert bench.ring.writes >= 6
    await journal.close()


@run
async def test_a_kernel_that_never_takes_a_write_fences(tmp_path: Path):
    bench = Bench(tmp_path, fail_at=1, result=lambda _length: NOT_TAKEN, failures=SUBMIT_TRIES)
    journal = await bench.open()
    bench.publish()
    with pytest.raises(WriterFailed, match="a journal write failed"):
        await journal.wait_durable()
    assert bench.confirmed == 0
    assert bench.ring.writes == SUBMIT_TRIES
    await journal.close()


@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.ECHILD, errno.EIO])
@run
async def test_a_request_that_is_refused_for_good_fences(tmp_path: Path, number: int):
    bench = Bench(tmp_path, fail_at=2, refusal=number)
    journal = await bench.open()
    with pytest.raises(WriterFailed):  # noqa: PT012 (the keeper writes too)
        for _ in range(3):
            bench.publish()
            await journal.wait_durable()
    await journal.close()


@run
async def test_a_ring_that_breaks_fences(tmp_path: Path):
    class BrokenRing(FaultyRing):
        def completions(self) -> list[tuple[int, int]]:
            super().completions()
            raise NativeError("io_getevents refused to hand out completions", errno.EINVAL)

    bench = Bench(tmp_path)
    bench.ring_class = BrokenRing
    journal = await bench.open()
    bench.publish()
    with pytest.raises(WriterFailed, match="io_getevents"):
        await journal.wait_durable()
    await journal.close()


@pytest.mark.parametrize("kind", ["flush", "write", "open", "rename", "flush_folder"])
@run
async def test_a_failed_call_on_the_pool_fences(tmp_path: Path, kind: str):
    bench = Bench(tmp_path)
    journal = await bench.open()
    await until(lambda: bench.core.files_ahead() == 2)
    bench.disk.fail = lambda step, _path: errno.EIO if step == kind else 0
    with pytest.raises(WriterFailed):  # noqa: PT012 (the keeper's call is the one that fails)
        async with asyncio.timeout(WAIT_S):
            while True:
                bench.publish(5000)
                await journal.wait_durable()
                await asyncio.sleep(0)
    bench.disk.fail = lambda _step, _path: 0
    await journal.close()


# --- opening and closing -------------------------------------------------------------------------


@run
async def test_closing_writes_what_is_staged_and_lets_go(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open()
    bench.publish()
    with pytest.raises(JournalLocked):
        await Bench(tmp_path).open()
    await journal.close()
    await journal.close()
    assert recover_live(bench.disk, tmp_path) == {(1, 1)}
    assert not bench.disk.open_files
    again = await bench.open()
    assert bench.confirmed == 1
    assert again.recovered.unproven_records == 0
    await again.close()


@run
async def test_a_journal_that_can_not_open_leaves_nothing_open(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open()
    bench.publish()
    await journal.close()
    for kind in ("open", "read", "flush"):
        bench.disk.fail = lambda step, _path, kind=kind: errno.EIO if step == kind else 0
        with pytest.raises(NativeError):
            await bench.open()
        assert not bench.disk.open_files
    bench.disk.fail = lambda _step, _path: 0
    again = await bench.open()
    assert bench.confirmed == 1
    await again.close()


@run
async def test_queues_that_the_bindings_forgot_are_void(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open()
    journal.core.open_queue(9)
    route = journal.core.open_route([9])
    journal.core.publish(route, b"", b"x", persistent=True)
    bench.publish()
    await journal.close()
    again = await bench.open()
    assert bench.confirmed == 1
    assert again.core.live_places(1) == 1
    await again.close()


@run
async def test_statistics(tmp_path: Path):
    bench = Bench(tmp_path)
    journal = await bench.open()
    for _ in range(3):
        bench.publish()
        await journal.wait_durable()
    await until(lambda: journal.statistics().writes == bench.ring.writes)  # none is under way
    figures = journal.statistics()
    assert figures.writes == sum(figures.flush_counts)
    assert figures.blocks == figures.writes
    assert figures.written_bytes == 4096 * figures.writes
    assert figures.records >= 3
    assert figures.files.active > figures.files.ahead >= 2  # more where files are made slowly
    assert figures.engine == journal.engine_name == "MEMORY"
    assert (figures.failed_reason, figures.blocked_reason) == (None, None)
    await journal.close()


@run_in_virtual_time
async def test_no_timer_of_a_journal_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    journal = await bench.open(quiet_delay_s=0.001)
    close = journal._loader.close

    async def close_late() -> None:
        bench.publish()
        await journal.wait_durable()
        await close()

    monkeypatch.setattr(journal._loader, "close", close_late)
    await journal.close()
    writes = bench.ring.writes
    await asyncio.sleep(1)
    assert bench.ring.writes == writes
