"""Acts of a journal's life that page: messages move into files, come back, and end there.

Owns what a `Life` needs of paging, and the judgement of pages in an image: those that the journal
names must be there, every byte of them. Called by `journal_lives`, whose table of acts these are
in, and by `power_cut_checks`. Moving changes nothing that was promised, so it leaves no mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.paging.folders import PageFolders
from vespiary_broker.store.paging.page_files import PageFile, PageFiles
from vespiary_broker.store.paging.page_recovery import remove_leftovers, survey_pages
from vespiary_broker.store.paging.pager import Pager, PagingOptions
from vespiary_broker.store.survey import survey_folder
from vespiary_broker.store.writer import MessageJournal
from vespiary_codec.journal.block import FIRST_OFFSET
from vespiary_codec.journal.page import block_file_id, check_footer
from vespiary_native.abc import Core, NoRoom
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import DiskFull
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk
from vespiary_testkit.journal_workload import FILE_BYTES, QUEUES
from vespiary_testkit.paging_rig import RigAddress

if TYPE_CHECKING:
    from vespiary_testkit.journal_lives import Life


def paging_folder(folder: Path) -> Path:
    """Return where the pages of a journal are."""
    return folder / "paging"


class LifePages:
    """The pager of a life. Owner: the loop that runs the life."""

    def __init__(self, pager: Pager, core: Core) -> None:
        self.pager = pager
        self.address = RigAddress(core)
        self.address.is_wanted = False
        self._core = core

    @classmethod
    async def open(
        cls, folder: Path, disk: MemoryDisk, journal: MessageJournal, chance: random.Random
    ) -> LifePages:
        """Open the pages as a broker does; ids and salts follow from `chance`."""
        pager = await Pager.open(
            PagingOptions(directory=paging_folder(folder), retry_s=0.005),
            journal,
            disk=disk,
            executor=InlineExecutor(),
        )
        now_ms = chance.getrandbits(40)
        pager._clock_ms = pager._mover._clock_ms = lambda: now_ms
        pager._mover._new_salt = lambda: chance.getrandbits(64)
        pager.start()
        made = cls(pager, journal.core)
        pager.page(made.address)
        return made

    async def move(self) -> bool:
        """Move waiting messages into one page; return whether anything was moved."""
        self.address.is_wanted = True
        try:
            page = await self.pager._mover.move(self.address)
        except (NoRoom, DiskFull):
            return False  # all of them are still in the journal
        finally:
            self.address.is_wanted = False
        if page is not None:
            self.pager._note_written(page)
        return page is not None

    @contextlib.asynccontextmanager
    async def opened(self, queue_id: int) -> AsyncIterator[None]:
        """Have all pages of a queue open: what stands in closed ones is not seen."""
        self.address.remembered = [queue_id]
        try:
            async with asyncio.timeout(60):
                while self._core.queue_statistics(queue_id).paged:
                    self.pager.open_all(queue_id)
                    await asyncio.sleep(0.0005)
            yield
        finally:
            self.address.remembered = []


# --- acts -----------------------------------------------------------------------------------------


async def page(life: Life) -> None:
    """Move what waits into pages, as far as that goes."""
    sent = [key for _ in range(life.chance.choice((0, 5, 12))) for key in life.try_publish()]
    await life.journal.wait_durable()
    life.confirm(sent)
    life.pages.address.keep_bytes = life.chance.choice((0, 0, 2000, 20_000))
    for _ in range(life.chance.choice((1, 3))):
        if not await life.pages.move():
            break
    await life.journal.wait_durable()


async def page_beside_others(life: Life) -> None:
    """Move while messages come, are taken and end."""
    moving = asyncio.ensure_future(life.pages.move())
    try:
        for _ in range(life.chance.randrange(1, 4)):
            await life.receive()
            sent, ending = life.try_publish(), []
            for key in life.held[: life.chance.randrange(3)]:
                try:
                    life.stage_acknowledgement(key)
                except NoRoom:
                    break
                life.held.remove(key)
                ending.append(key)
            await life.journal.wait_durable()
            life.confirm(sent)
            life.acknowledged(ending)
    finally:
        await moving


async def look_after_pages(life: Life) -> None:
    """Give the pager its turns: pages that are done go, old ones are named again."""
    for _ in range(3):
        life.pages.pager._wake.set()  # or it would come after 250 rounds of the keeper
        await asyncio.sleep(0.002)


async def name_anew(life: Life) -> None:
    """Have the journal name pages again, with what is left of them."""
    for facts in life.core.pages():
        if facts.places and life.chance.random() < 0.8:
            with contextlib.suppress(NoRoom):
                life.core.page_restage(facts.page_id)
    await life.journal.wait_durable()


# --- the judge ------------------------------------------------------------------------------------


def files_of(disk: MemoryDisk, folder: Path) -> PageFiles:
    """Return the page files of a journal on a disk."""
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    folders = PageFolders(paging_folder(folder), disk)
    return PageFiles(folders, disk, journal_id=survey.journal_id or b"")


def open_pages(disk: MemoryDisk, folder: Path, core: Core) -> None:
    """Have all pages that a recovered journal names in the rings, every byte of them looked at.

    Raises:
        PageDamaged: One is missing or damaged.
        AssertionError: Its blocks are not what its index says.
        ValueError: Its index lacks a place.
    """
    named = {facts.page_id: facts.salt for facts in core.pages() if facts.places}
    if not named:
        return
    files = files_of(disk, folder)
    for found in survey_pages(files, named).pages.values():
        footer = files.read_footer(found)
        _check_blocks(files, disk, found, footer)
        for queue_id in QUEUES:
            if any(facts.page_id == found.page_id for facts in core.extents(queue_id)):
                core.page_enter(found.page_id, queue_id, footer)


def _check_blocks(files: PageFiles, disk: MemoryDisk, found: PageFile, footer: bytes) -> None:
    trailer = check_footer(footer, page_id=found.page_id, salt=found.salt)
    path = files.path(found.address, found.page_id)
    data = memoryview(bytes(disk.files[path].data[FIRST_OFFSET : trailer.footer_offset]))
    file_id = block_file_id(found.page_id)
    blocks = block_verifier()(data, FIRST_OFFSET, found.salt, file_id, FILE_BYTES)
    assert len(blocks) == trailer.blocks, f"{len(blocks)} of {trailer.blocks} blocks in {path}"
    assert blocks[-1].is_seal, path


def remove_unnamed(disk: MemoryDisk, folder: Path, core: Core) -> None:
    """Look at the paging folder as a start does, and remove what crashes left there."""
    files = files_of(disk, folder)
    named = {facts.page_id: facts.salt for facts in core.pages() if facts.places}
    remove_leftovers(files, survey_pages(files, named))
