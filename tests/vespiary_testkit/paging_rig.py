"""`PagingRig`: a journal and a pager on one `MemoryDisk`, and a client that reads pages too."""

from __future__ import annotations

import asyncio
import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.paging.folders import PageFolders
from vespiary_broker.store.paging.page_files import PageFiles
from vespiary_broker.store.paging.page_recovery import survey_pages
from vespiary_broker.store.paging.pager import Pager, PagingOptions
from vespiary_broker.store.paging.read_limits import NO_READ_LIMITS
from vespiary_broker.store.survey import survey_folder
from vespiary_broker.store.writer import MessageJournal
from vespiary_codec.journal.block import FIRST_OFFSET
from vespiary_codec.journal.page import PAGE_BIT, block_file_id
from vespiary_native.abc import AckMode, DeliverStatus
from vespiary_native.choice import block_verifier
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk
from vespiary_testkit.journal_model import Key
from vespiary_testkit.journal_workload import (
    QUEUES,
    Client,
    new_core,
    open_memory,
    recover,
    until,
)

PAGE_BYTES = 32 * 1024
PAGES = Path("/paging")


class RigAddress:
    """An address that pages all that is above a number of bytes.

    Attributes:
        keep_bytes: What stays in memory.
        is_wanted: Whether it pages at all.
        is_attended: Whether its queues have consumers.
        pages_bytes_max: What its page files may take.
        read_limits: What a queue may have back in memory.
        claims: Messages that open transactions acknowledge.
    """

    name = "orders"
    page_bytes = PAGE_BYTES
    open_pages_max = 2

    def __init__(self, core: Any, keep_bytes: int = 0) -> None:
        self.core = core
        self.keep_bytes = keep_bytes
        self.is_wanted = True
        self.is_attended = True
        self.pages_bytes_max = 1 << 40
        self.read_limits = NO_READ_LIMITS
        self.front = 0
        self.claims = 0
        self.is_reading_ahead = True
        self.remembered: list[int] = []
        self.begins: dict[int, int] = {}
        self.kept_sequences: dict[int, list[int]] = {}
        self.queues = list(QUEUES)

    def queue_ids(self) -> list[int]:
        return self.queues

    def excess_bytes(self) -> int:
        return self.surplus_bytes() if self.is_wanted else 0

    def surplus_bytes(self) -> int:
        """Return how much more it has in memory than it keeps, whether it pages or not."""
        ready = sum(self.core.queue_statistics(queue_id).ready for queue_id in self.queues)
        live = sum(self.core.queue_statistics(queue_id).live_bytes for queue_id in self.queues)
        return live - self.keep_bytes if ready else 0

    def held_bytes(self) -> int:
        return sum(self.core.queue_statistics(queue_id).live_bytes for queue_id in self.queues)

    @property
    def has_page_limits(self) -> bool:
        return self.pages_bytes_max < 1 << 40

    def note_pages(self, size_bytes: int) -> bool:
        return size_bytes + self.page_bytes <= self.pages_bytes_max

    def front_bytes(self, queue_id: int) -> int:
        return self.front

    def has_consumers(self, queue_id: int) -> bool:
        return self.is_attended

    def claimed(self, queue_id: int) -> int:
        return self.claims

    def reads_ahead(self, queue_id: int) -> bool:
        return self.is_reading_ahead

    def looked_at(self) -> list[int]:
        return self.remembered

    def may_close(self, queue_id: int) -> bool:
        return queue_id not in self.remembered

    def begin_at(self, queue_id: int) -> int:
        return self.begins.get(queue_id, 0)

    def kept(self, queue_id: int) -> list[int]:
        return self.kept_sequences.get(queue_id, [])


class PagingClient(Client):
    """A client that waits for pages to be opened."""

    body_sizes = range(100, 1500)

    def __init__(self, rig: PagingRig, seed: int) -> None:
        super().__init__(rig.journal, rig.disk, seed)
        self.rig = rig

    async def send(self, count: int) -> None:
        """Send as much as the files ahead take at a time."""
        for at in range(0, count, 20):
            await until(lambda: self.core.files_ahead() > 1)
            await super().send(min(20, count - at))

    async def pass_through(self, queue_id: int, count: int) -> None:
        """Send messages to one queue, receive them there and acknowledge them.

        Args:
            queue_id: The queue; nothing of it is in pages.
            count: Number of messages; they fit into one file.
        """
        await until(lambda: self.core.files_ahead() > 1)
        for _ in range(count):
            self._publish(queue_id)
        await self.journal.wait_durable()
        status, _, frames = self.core.deliver(self.consumers[queue_id], count, 1 << 30)
        assert status in (DeliverStatus.LIMIT, DeliverStatus.DRAINED)
        found = re.findall(rb"^message-id:\d+-(\d+)$", frames, re.MULTILINE)
        self.held += [(queue_id, int(sequence)) for sequence in found]
        await self.acknowledge(len(self.held))

    async def receive(self, limit: int = 1_000_000) -> None:
        """Take deliverable messages of each queue, those in pages included."""
        for consumer in self.consumers.values():
            left = limit
            status = DeliverStatus.LIMIT
            while status is not DeliverStatus.DRAINED and left > 0:
                status, count, frames = self.core.deliver(consumer, left, 1 << 30)
                left -= count
                found = re.findall(rb"^message-id:(\d+)-(\d+)$", frames, re.MULTILINE)
                self.held += [(int(queue_id), int(sequence)) for queue_id, sequence in found]
                if status is DeliverStatus.ABSENT:
                    await self.journal.load_slab(*self.core.absent_slab(consumer))
                elif status is DeliverStatus.PAGED:
                    self.rig.pager.serve()
                    await asyncio.sleep(0.001)


class PagingRig:
    """See the module's docstring.

    Attributes:
        disk: The disk.
        journal: The journal.
        pager: The pager.
        address: The address of both queues.
        ready: How often the pager said that queues gained messages.
    """

    def __init__(self, disk: MemoryDisk, journal: MessageJournal, pager: Pager) -> None:
        self.disk = disk
        self.journal = journal
        self.core = journal.core
        self.pager = pager
        self.address = RigAddress(journal.core)
        self.ready = 0
        pager.on_ready = self._on_ready

    def _on_ready(self) -> None:
        self.ready += 1

    @classmethod
    async def open(
        cls, folder: Path, disk: MemoryDisk, *, is_purging_folders: bool = False, **changes: Any
    ) -> Self:
        journal = await open_memory(folder, disk, **{"compact_min_files": 0} | changes)
        try:
            pager = await Pager.open(
                PagingOptions(
                    directory=PAGES, retry_s=0.005, is_purging_folders=is_purging_folders
                ),
                journal,
                disk=disk,
                executor=InlineExecutor(),
            )
        except BaseException:
            await journal.close()
            raise
        pager.start()
        return cls(disk, journal, pager)

    async def page_all(self) -> None:
        """Move what the address has too much of, and wait for that."""
        self.pager.page(self.address)
        await until(lambda: self.address.excess_bytes() <= 0)
        await self.journal.wait_durable()

    async def move_all(self) -> None:
        """Move all that can be moved, without the pager's task."""
        while (page := await self.pager._mover.move(self.address)) is not None:
            self.pager._note_written(page)
        await self.journal.wait_durable()

    def paged(self) -> int:
        return sum(self.core.queue_statistics(queue_id).paged for queue_id in QUEUES)

    def page_names(self) -> list[str]:
        return [path.name for path in self.disk.files if path.name.endswith(".page")]

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def close(self) -> None:
        await self.pager.close()
        await self.journal.close()


def recover_paged(disk: MemoryDisk, folder: Path) -> set[Key]:
    """Return the messages that come back from a disk, those in pages included.

    As a start does it: the journal is read back, then the pages that it names must be there; every
    message is then delivered, its bytes read from where it stands and verified.
    """
    core = new_core(slabs_max=256)
    recover(disk, folder, core)
    core.restore_done()
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    files = PageFiles(PageFolders(PAGES, disk), disk, journal_id=survey.journal_id or b"")
    named = {facts.page_id: facts.salt for facts in core.pages() if facts.places}
    found = survey_pages(files, named)
    paths = {file.file_id: (file.path, file.salt) for file in survey.active}
    for page in found.pages.values():
        path = files.path(page.address, page.page_id)
        paths[block_file_id(page.page_id)] = (path, page.salt)
        footer = files.read_footer(page)
        for queue_id in QUEUES:
            if any(facts.page_id == page.page_id for facts in core.extents(queue_id)):
                core.page_enter(page.page_id, queue_id, footer)
    live: set[Key] = set()
    connection = core.open_connection()
    for queue_id in QUEUES:
        consumer = core.open_consumer(connection, queue_id, AckMode.INDIVIDUAL, 1_000_000, b"s", 12)
        status = DeliverStatus.LIMIT
        while status is not DeliverStatus.DRAINED:
            status, _, frames = core.deliver(consumer, 1_000_000, 1 << 30)
            sequences = re.findall(rb"^message-id:\d+-(\d+)$", frames, re.MULTILINE)
            live |= {(queue_id, int(sequence)) for sequence in sequences}
            if status is DeliverStatus.ABSENT:
                _load(core, disk, paths, *core.absent_slab(consumer))
            else:
                assert status in (DeliverStatus.LIMIT, DeliverStatus.DRAINED), status
    return live


def _load(
    core: Any, disk: MemoryDisk, paths: dict[int, tuple[Path, int]], file_id: int, slab: int
) -> None:
    begun = core.load_begin(file_id, slab)
    assert begun is not None
    address, length, offset = begun
    path, salt = paths[file_id]
    data = bytes(disk.files[path].data[offset : offset + length])
    start = max(offset, FIRST_OFFSET)
    facts = block_verifier()(memoryview(data)[start - offset :], start, salt, file_id, 65536)
    end = facts[-1].offset + facts[-1].length if facts else start
    assert end == offset + length or (facts and facts[-1].is_seal) or file_id < PAGE_BIT
    ctypes.memmove(address, data, len(data))
    core.load_done(file_id, slab, good=True)
