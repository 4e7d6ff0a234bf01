"""What is known of pages without opening them: footers, priorities, which are damaged.

Owns the footers that are kept in memory, the reading of others, in paging's thread, and what came
of holding sketches against selectors. Must never touch a queue: the engine looks at messages with
these footers, and `opening` enters them. Made by `pager`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Final, Protocol

from vespiary_broker.store.paging.moving import finished
from vespiary_broker.store.paging.page_files import PageFile, PageFiles
from vespiary_codec.journal.page import highest_priority
from vespiary_codec.journal.page_sketch import PageSketch
from vespiary_spec.errors import PageDamaged, VespiaryError

FOOTERS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Footers that are kept for other queues of the same page, and for the next look."""
_FOOTERS_MIN: Final = 8
"""Footers that are kept however large: a queue's pages may overlap, and all are needed at once."""
_AGAIN_S: Final = 0.05
_PRIORITY_MAX: Final = 9
_VERDICTS_MAX: Final = 20_000
"""Verdicts on a page and a selector that are remembered, 100 bytes each."""
_NO_VERDICTS: Final[Mapping[str, bool]] = {}

log = logging.getLogger(__name__)


class Match(Protocol):
    """A selector."""

    @property
    def text(self) -> str:
        """As it was written; equal texts want the same of one address."""

    def may_match(self, sketch: PageSketch) -> bool:
        """Return whether a message of a page may match; False: none does."""


class ClosedPages:
    """See the module's docstring.

    Args:
        files: The page files.
        pages: Pages that the journal names, by id (the pager's own table).
        executor: Runs what blocks.

    Attributes:
        damaged: Why a page can't be read, by id.
        unreadable: Pages with a part that can't be read: those who look pass over them.
        judged: Sketches that were held against selectors so far.
        on_footer: Called with a queue when a footer that it asked for is there, or can't be read.
    """

    def __init__(self, files: PageFiles, pages: Mapping[int, PageFile], executor: Executor) -> None:
        self.damaged: dict[int, str] = {}
        self.unreadable: set[int] = set()
        self.judged = 0
        self.on_footer: Callable[[int], None] = lambda _: None
        self._files = files
        self._pages = pages
        self._executor = executor
        self._footers: OrderedDict[int, bytes] = OrderedDict()
        self._footers_bytes = 0
        self._highest: dict[int, int] = {}
        self._verdicts: dict[int, dict[str, bool]] = {}  # by page and selector
        self._verdicts_left = _VERDICTS_MAX
        self._reads: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, set[int]] = {}

    # --- what the engine asks ---------------------------------------------------------------------

    def footer(self, queue_id: int, page_id: int) -> bytes | None:
        """Return the footer of a page; None: it is being read, and `on_footer` tells the queue."""
        footer = self._footers.get(page_id)
        if footer is not None:
            self._footers.move_to_end(page_id)
            return footer
        self._waiting.setdefault(page_id, set()).add(queue_id)
        if page_id not in self._reads:
            task = asyncio.get_running_loop().create_task(
                self._read_for_queues(page_id), name=f"read-footer-{page_id}"
            )
            self._reads[page_id] = task
        return None

    def is_damaged(self, page_id: int) -> bool:
        """Whether a page can't be read, or a part of it."""
        return page_id in self.damaged or page_id in self.unreadable

    def note_damaged(self, page_id: int, reason: str) -> None:
        """Take note that a page can't be read; it is logged once."""
        if page_id not in self.damaged and page_id in self._pages:
            self.damaged[page_id] = reason
            log.error("messages of a page cannot be delivered page=%d: %s", page_id, reason)

    def highest_priority(self, page_id: int) -> int:
        """Return what no message of a page is above: 9, or what is known of it."""
        highest = self._highest.get(page_id)
        if highest is None:
            page = self._pages.get(page_id)
            highest = page.highest_priority if page is not None else None
            if highest is None:
                sketch = self._files.sketches.get(page_id)
                highest = _PRIORITY_MAX if sketch is None else sketch.priorities[1]
            if page is not None:
                self._highest[page_id] = highest
        return highest

    def may_match(self, page_id: int, match: Match) -> bool:
        """Whether a message of a page may match; what it came to once is remembered."""
        verdict = self._verdicts.get(page_id, _NO_VERDICTS).get(match.text)
        if verdict is None:
            self.judged += 1
            sketch = self._files.sketches.get(page_id)
            verdict = sketch is None or match.may_match(sketch)
            if page_id not in self._pages:
                return verdict
            if not self._verdicts_left:
                self._verdicts.clear()
                self._verdicts_left = _VERDICTS_MAX
            self._verdicts_left -= 1
            self._verdicts.setdefault(page_id, {})[match.text] = verdict
        return verdict

    # --- footers ----------------------------------------------------------------------------------

    async def _read_for_queues(self, page_id: int) -> None:
        try:
            await self.read(page_id)
        except PageDamaged as error:
            self.note_damaged(page_id, str(error))
        except VespiaryError as error:
            log.warning("a page was not read, and is tried again: %s", error)
            await asyncio.sleep(_AGAIN_S)
        except Exception:
            log.exception("a page was not read")
        finally:
            # Whoever asks from now on has it read anew: nobody waits for a task that has ended.
            del self._reads[page_id]
            for queue_id in self._waiting.pop(page_id, ()):
                self.on_footer(queue_id)

    async def read(self, page_id: int) -> bytes:
        """Return the footer of a page, wherever it is.

        Raises:
            PageDamaged: It is damaged, or the page is missing or gone.
            NativeError: It can't be read now.
        """
        footer = self._footers.pop(page_id, None)
        if footer is None:
            page = self._pages.get(page_id)
            if page is None:
                raise PageDamaged("a page is gone", measured=f"page {page_id}")
            read, loop = self._files.read_footer, asyncio.get_running_loop()
            footer = await finished(loop.run_in_executor(self._executor, read, page))
            self._highest[page_id] = highest_priority(footer)
            if page_id in self._footers:  # read twice at once
                return self._footers[page_id]
            if page_id not in self._pages:
                return footer
            self._footers_bytes += len(footer)
        self._footers[page_id] = footer
        while self._footers_bytes > FOOTERS_BYTES_MAX and len(self._footers) > _FOOTERS_MIN:
            self._footers_bytes -= len(self._footers.popitem(last=False)[1])
        return footer

    async def known_footer(self, page_id: int) -> bytes:
        """Return the footer of a page as `read` does; one that is damaged is noted.

        Raises:
            PageDamaged: It is damaged, or the page is missing or gone.
            NativeError: It can't be read now.
        """
        if page_id in self.damaged:
            raise PageDamaged("a page is damaged", measured=self.damaged[page_id])
        try:
            return await self.read(page_id)
        except PageDamaged as error:
            self.note_damaged(page_id, str(error))
            raise

    def forget(self, page_id: int) -> None:
        """Drop what is remembered of a page that is done."""
        footer = self._footers.pop(page_id, None)
        if footer is not None:
            self._footers_bytes -= len(footer)
        self.damaged.pop(page_id, None)
        self.unreadable.discard(page_id)
        self._highest.pop(page_id, None)
        self._verdicts_left += len(self._verdicts.pop(page_id, ()))

    async def close(self) -> None:
        """Wait for what is being read."""
        while self._reads:
            await asyncio.wait(list(self._reads.values()))
