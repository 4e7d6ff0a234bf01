"""Appends through the real journal, in this process, and the raw disk beside them.

Owns: one journal in a folder of its own, fed by the core's fast path with ready-made frames, so
that neither sockets nor clients are in the figure. Must never: count a message before its block is
durable. Called by `benchmarks.journal.__main__`.
"""

import asyncio
import gc
import time
from pathlib import Path

import msgspec

from benchmarks.journal import raw
from vespiary_broker.app import event_loop
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import ScanStatus
from vespiary_spec.settings import JournalType

BODY_BYTES = 1024
_QUEUE = 1
_FRAME_HEAD = b"SEND\ndestination:/queue/bench\npersistent:true\n"
_BATCH_BYTES = 512 * 1024
"""What the broker reads from its sockets at most before it looks for completions again."""
_AHEAD_BYTES = 2 * 1024 * 1024
"""Staged and not yet written: two of the largest writes, so that the disk never waits for us."""
_PAGE = 4096
_LOOK_S = 0.05
_FILE_BYTES = 10 * 1024 * 1024
_MEMORY_BYTES = 64 * 1024 * 1024
"""For the image; the load is longer, so that it runs in memory that is used again."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to append."""

    messages: int = 600_000
    single_seconds: float = 2.0
    raw_seconds: float = 1.0
    is_preallocated: bool = True
    journal_type: JournalType = JournalType.ASYNCIO


class Appends(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in one run."""

    engine: str
    durability: str
    messages_per_s: float
    written_bytes_per_s: float
    write_bytes: float
    raw_bytes_per_s: float
    disk_bytes_per_message_byte: float
    single_p50_us: float
    single_p99_us: float
    raw_single_p50_us: float
    raw_single_p99_us: float

    @property
    def bandwidth_per_raw(self) -> float:
        """Bandwidth of the appends per bandwidth of the raw disk at the same size of writes."""
        return self.written_bytes_per_s / self.raw_bytes_per_s

    @property
    def single_per_raw(self) -> float:
        """Median of one append at a time per median of a raw 4 KiB write."""
        return self.single_p50_us / self.raw_single_p50_us


class _Source:
    """A client without a socket: frames in a buffer that the core scans.

    Invariant: every message has a body of `BODY_BYTES`.
    """

    def __init__(self, journal: MessageJournal) -> None:
        self.core = journal.core
        self.core.open_queue(_QUEUE)
        self._connection = self.core.open_connection()
        self.core.set_ready(self._connection, 12, (100, 8192, 65536, 1 << 20))
        route = self.core.open_route([_QUEUE])
        self.core.teach(self._connection, b"/queue/bench", route)
        head = _FRAME_HEAD + b"content-length:%d\n" % BODY_BYTES  # as stock clients send it
        frame = head + b"\n" + b"x" * BODY_BYTES + b"\0"
        asked = head + b"receipt:1\n\n" + b"x" * BODY_BYTES + b"\0"
        self.batch_messages = _BATCH_BYTES // len(frame)
        self._single_bytes = len(asked)
        self._many = bytearray(frame * (self.batch_messages - 1) + asked)
        self._one = bytearray(asked)
        self._many_buffer = self.core.attach_buffer(self._many)
        self._one_buffer = self.core.attach_buffer(self._one)
        self._at = 0

    def stage_batch(self) -> bool:
        """Stage a batch; False when the journal has no room now (the rest is staged later)."""
        end = len(self._many)
        status, self._at, _ = self.core.scan_stomp(
            self._connection, self._many_buffer, self._at, end
        )
        if status is ScanStatus.BLOCKED:
            return False
        assert self._at == end, status
        self._at = 0
        return True

    def stage_one(self) -> None:
        """Stage one message with a receipt."""
        status, position, _ = self.core.scan_stomp(
            self._connection, self._one_buffer, 0, len(self._one)
        )
        assert position == len(self._one), status


async def _append_all(journal: MessageJournal, source: _Source, messages: int) -> float:
    """Stage and write so many messages; return the seconds until the last one was durable."""
    core = source.core
    durable = asyncio.Event()
    journal.on_durable = durable.set
    journal.on_space = durable.set
    begin = time.perf_counter()
    for _ in range(messages // source.batch_messages):
        while not source.stage_batch():
            durable.clear()
            journal.request_space()
            journal.kick()
            await durable.wait()
        journal.kick()
        core.take_receipts()
        await asyncio.sleep(0)  # as in the broker: completions are looked for after each read
        while core.image_statistics().unwritten_bytes > _AHEAD_BYTES:
            durable.clear()
            await durable.wait()
    await journal.wait_durable()
    seconds = time.perf_counter() - begin
    core.take_receipts()
    return seconds


async def _append_singly(journal: MessageJournal, source: _Source, seconds: float) -> list[int]:
    """Append one message at a time; return the nanoseconds that each took until its receipt.

    The clock stops where the broker hands a receipt to its connection: in `on_durable`.
    """
    samples: list[int] = []
    begin = 0

    def take_receipt() -> None:
        if source.core.take_receipts():
            samples.append(time.perf_counter_ns() - begin)

    journal.on_durable = take_receipt
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter_ns()
        source.stage_one()
        journal.kick()
        await journal.wait_durable()
    return sorted(samples[len(samples) // 10 :])


def _options(folder: Path, plan: Plan) -> JournalOptions:
    volume = plan.messages * (BODY_BYTES + 256)
    files = volume // _FILE_BYTES + 4
    return JournalOptions(
        directory=folder,
        journal_type=plan.journal_type,
        file_size_bytes=_FILE_BYTES,
        min_files=files if plan.is_preallocated else 2,
        memory_bytes=_MEMORY_BYTES,
        max_disk_usage_percent=100,
    )


async def open_prepared(options: JournalOptions) -> MessageJournal:
    """Open a journal and wait until its floor of files is made.

    `MessageJournal.open` returns with two of them; making the others is a load of its own on the
    disk and the processors, which had been in the figure for *files made beforehand*.

    Args:
        options: The settings; `min_files` is the floor.

    Raises:
        VespiaryError: The journal can't be opened, or failed meanwhile.
    """
    journal = await MessageJournal.open(options, queue_ids=())
    while True:
        files = journal.statistics().files
        if files.active + files.free >= options.min_files:
            return journal
        if error := journal.failure or journal.blocked:
            await journal.close()
            raise error
        await asyncio.sleep(_LOOK_S)


async def _run(folder: Path, plan: Plan) -> Appends:
    journal = await open_prepared(_options(folder, plan))
    source = _Source(journal)
    gc.collect()
    gc.freeze()  # as the broker does when it is ready
    warm = plan.messages // 20
    await _append_all(journal, source, warm)
    before = journal.statistics()
    seconds = await _append_all(journal, source, plan.messages)
    after = journal.statistics()
    single = await _append_singly(journal, source, plan.single_seconds)
    await journal.close()
    written = after.written_bytes - before.written_bytes
    appended = plan.messages // source.batch_messages * source.batch_messages
    return Appends(
        engine=journal.engine_name,
        durability=str(journal.durability),
        messages_per_s=appended / seconds,
        written_bytes_per_s=written / seconds,
        write_bytes=written / (after.writes - before.writes),
        raw_bytes_per_s=1.0,
        disk_bytes_per_message_byte=written / (appended * BODY_BYTES),
        single_p50_us=single[len(single) // 2] / 1000,
        single_p99_us=single[-1 - len(single) // 100] / 1000,
        raw_single_p50_us=1.0,
        raw_single_p99_us=1.0,
    )


def measure(folder: Path, program: Path, plan: Plan) -> Appends:
    """Append to a new journal, then write the same files raw, at the same size of writes.

    Args:
        folder: A folder that does not exist; it is made, and left to the caller to remove.
        program: The raw loop, from `raw.build`.
        plan: What to append.

    Raises:
        RawError: The raw loop failed.
        VespiaryError: The journal failed.
    """
    figures = event_loop.run(_run(folder, plan))
    files = sorted(folder.glob("*.hq"))
    size = max(int(figures.write_bytes) // _PAGE, 1) * _PAGE
    wide = raw.write(program, size, plan.raw_seconds, files)
    narrow = raw.write(program, _PAGE, plan.raw_seconds, files)
    return msgspec.structs.replace(
        figures,
        raw_bytes_per_s=wide.bytes_per_s,
        raw_single_p50_us=narrow.p50_us,
        raw_single_p99_us=narrow.p99_us,
    )
