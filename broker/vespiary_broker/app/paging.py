"""Paging as `broker` wires it: which addresses page, how much of them, and the pager's folder.

Owns what an address that pages is to the pager: its queues, its settings, what it has too much of.
Must never hold a rule about fullness: `engine.address_memory` has those. Called by `broker`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from vespiary_broker.app.memory import image_bytes
from vespiary_broker.engine.address_memory import AddressState
from vespiary_broker.engine.claims import claimed_messages
from vespiary_broker.engine.engine import Engine
from vespiary_broker.engine.examined import ExaminedQueue
from vespiary_broker.engine.shares import Share, share_of
from vespiary_broker.server.cycle import Cycle
from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.files import SpaceLimits
from vespiary_broker.store.journal import Journal
from vespiary_broker.store.paging.pager import Pager, PagingOptions
from vespiary_broker.store.paging.read_limits import ReadLimits
from vespiary_broker.store.writer import MessageJournal
from vespiary_spec.settings import AddressSettings, Configuration

_ALIGNMENT: Final = 4096
_FLIGHT_SHARE: Final = 2
"""Of the image's memory, as a divisor: the rest is the journal's, and the consumers'."""
_FRONT_PAGES: Final = 2
"""Pages' worth of messages that stay in memory in front of consumers."""
_INDEXED_MIN: Final = 256
"""Messages that an index may hold, however large they are."""


class PagedEngineAddress:
    """An address of the engine, as the pager sees it.

    Args:
        engine: The engine.
        state: What its memory is.
        settings: Its settings.
    """

    def __init__(self, engine: Engine, state: AddressState, settings: AddressSettings) -> None:
        assert settings.page_size_bytes is not None
        assert settings.page_max_cache_size is not None
        assert settings.prefetch_page_bytes is not None
        assert settings.prefetch_page_messages is not None
        self._engine = engine
        self._state = state
        self.page_bytes = settings.page_size_bytes & -_ALIGNMENT
        self.open_pages_max = settings.page_max_cache_size
        self._prefetch_bytes = settings.prefetch_page_bytes
        if self._prefetch_bytes < 0:
            self._prefetch_bytes = _FRONT_PAGES * self.page_bytes
        self._prefetch_messages = settings.prefetch_page_messages
        self._share = Share(self._queue_share)
        read_bytes, read_messages = settings.max_read_page_bytes, settings.max_read_page_messages
        assert read_messages is not None
        if read_bytes is None:
            read_bytes = _FRONT_PAGES * self.page_bytes
        self.read_limits = ReadLimits(
            read_bytes if read_bytes >= 0 else None, read_messages if read_messages >= 0 else None
        )

    @property
    def name(self) -> str:
        """Its name."""
        return self._state.name

    def queue_ids(self) -> list[int]:
        """Return its queues, but those all of which has to stay in memory."""
        address = self._engine.registry.addresses.get(self._state.name)
        if address is None:
            return []
        queues = address.queues.values()
        return [queue.id for queue in queues if not queue.upkeeps and not queue.is_deleted]

    def excess_bytes(self) -> int:
        """Return what has to leave the memory until the address is below its low marks."""
        if not self._state.is_paging or self._state.is_gone:
            return 0
        return self._engine.memory.excess_bytes(self._state)

    def held_bytes(self) -> int:
        """Return how much of it is in memory."""
        return 0 if self._state.is_gone else self._engine.memory.held_bytes(self._state)

    @property
    def has_page_limits(self) -> bool:
        """Whether its pages may not grow for ever."""
        return self._state.pages is not None

    def note_pages(self, size_bytes: int) -> bool:
        """Take note of the size of its page files; return whether another may be written."""
        if self._state.pages is None:
            return True
        address = self._engine.registry.addresses.get(self._state.name)
        queues = () if address is None else address.queues.values()
        statistics = self._engine.core.queue_statistics
        paged = (statistics(queue.id).paged for queue in queues if not queue.is_deleted)
        return self._engine.memory.note_pages(self._state, size_bytes, max(paged, default=0))

    def front_bytes(self, queue_id: int) -> int:
        """Return how much of a queue stays in memory in front of its consumers."""
        queue = self._engine.registry.queues_by_id.get(queue_id)
        if queue is None or not queue.consumers:
            return 0
        share = self._share.of(self._engine.memory.front_bytes(self._state))
        return min(_FRONT_PAGES * self.page_bytes, share)

    def _queue_share(self, budget_bytes: int) -> int:
        """Return what each consumed queue may have in front, for all to stay in a budget.

        Messages that queues share take memory once, and are in the bytes of each of them.
        """
        address = self._engine.registry.addresses.get(self._state.name)
        queues = () if address is None else address.queues.values()
        statistics = self._engine.core.queue_statistics
        held = [
            statistics(queue.id).live_bytes
            for queue in queues
            if queue.consumers and not queue.is_deleted
        ]
        in_memory = max(self._engine.memory.held_bytes(self._state), 1)
        return share_of(held, max(budget_bytes, budget_bytes * sum(held) // in_memory))

    def has_consumers(self, queue_id: int) -> bool:
        """Whether anybody consumes a queue."""
        queue = self._engine.registry.queues_by_id.get(queue_id)
        return queue is not None and bool(queue.consumers)

    def claimed(self, queue_id: int) -> int:
        """Return how many messages open transactions acknowledge: consumers still hold them."""
        queue = self._engine.registry.queues_by_id.get(queue_id)
        return 0 if queue is None else claimed_messages(self._engine.core, queue.consumers)

    def reads_ahead(self, queue_id: int) -> bool:
        """Whether the next page of a queue is opened before its consumers ask."""
        facts = self._engine.core.queue_statistics(queue_id)
        if 0 <= self._prefetch_messages <= facts.ready:
            return False
        waiting = facts.live_bytes * facts.ready // max(facts.ready + facts.delivering, 1)
        if self._engine.memory.is_all_full:
            return waiting < min(self._prefetch_bytes, self.front_bytes(queue_id))
        return waiting < self._prefetch_bytes

    def _examined(self, queue_id: int) -> ExaminedQueue | None:
        queue = self._engine.registry.queues_by_id.get(queue_id)
        return queue.examined if queue is not None else None

    def may_close(self, queue_id: int) -> bool:
        """Whether an open page of a queue may be closed: Python has none of it in an index.

        Of an examined queue none is. Pages may interleave, and whoever looks through such a queue
        needs all of those at a place open at once: closing some of them would have it open them
        again and again.
        """
        queue = self._engine.registry.queues_by_id.get(queue_id)
        return queue is None or not queue.is_looked_at

    def begin_at(self, queue_id: int) -> int:
        """Return the sequence of a queue in front of which hardly anything may be moved.

        What an index holds is bounded from now on by what stays in front of consumers.
        """
        examined = self._examined(queue_id)
        if examined is None:
            return 0
        facts = self._engine.core.queue_statistics(queue_id)
        each = facts.live_bytes // max(facts.ready + facts.delivering, 1)
        if examined.limit(max(self.front_bytes(queue_id) // max(each, 1), _INDEXED_MIN)):
            self._engine.dispatcher.poke(queue_id)
        return examined.unlooked_from

    def kept(self, queue_id: int) -> list[int]:
        """Return the sequences of a queue that Python has in an index."""
        examined = self._examined(queue_id)
        return examined.indexed() if examined is not None else []

    def widen(self) -> None:
        """Let indexes hold what they hold while there is enough memory."""
        for queue_id in self.queue_ids():
            examined = self._examined(queue_id)
            if examined is not None:
                examined.limit()

    def looked_at(self) -> list[int]:
        """Return the queues all messages of which have to be in memory."""
        address = self._engine.registry.addresses.get(self._state.name)
        queues = () if address is None else address.queues.values()
        return [queue.id for queue in queues if queue.upkeeps]


def flight_bytes(settings: Configuration) -> int:
    """Return what pages on their way may take of the image's memory."""
    return image_bytes(settings) // _FLIGHT_SHARE


async def open_pager(
    stack: AsyncExitStack,
    settings: Configuration,
    folder: Path,
    journal: Journal,
    *,
    is_direct: bool,
    disk: DiskLike,
) -> Pager | None:
    """Look at the paging folder; None without persistence: there is nothing to page from.

    Args:
        stack: Closes the pager.
        settings: The configuration.
        folder: `paging-directory`.
        journal: The message journal.
        is_direct: The volume has direct I/O.
        disk: The file system.

    Raises:
        VespiaryError: See `Pager.open`.
    """
    if not isinstance(journal, MessageJournal):
        return None
    pager = await Pager.open(
        PagingOptions(
            directory=folder,
            is_direct=is_direct,
            limits=SpaceLimits(settings.max_disk_usage, settings.min_disk_free),
            retry_s=settings.disk_scan_period / 2000,
            moves_max=settings.page_max_concurrent_io,
            flight_bytes=flight_bytes(settings),
            is_purging_folders=settings.purge_page_folders,
        ),
        journal,
        disk=disk,
    )
    stack.push_async_callback(pager.close)
    return pager


def pages_changed(pager: Pager | None, engine: Engine) -> None:
    """Have addresses with pages, and those that page, go on by the settings that hold now."""
    if pager is None:
        return
    states = {state.name: state for state in engine.memory.states(pager.addresses)}
    states |= {state.name: state for state in engine.memory.paging_states()}
    for state in states.values():
        settings = engine.registry.settings_for(state.name)
        pager.page(PagedEngineAddress(engine, state, settings))


def begin_paging(pager: Pager | None, engine: Engine, cycle: Cycle) -> None:
    """Let the engine say which addresses page, and consumers ask for pages."""
    if pager is None:
        return

    def page(state: AddressState) -> None:
        settings = engine.registry.settings_for(state.name)
        pager.page(PagedEngineAddress(engine, state, settings))

    def on_paging(state: AddressState) -> None:
        if state.is_paging:
            page(state)
        elif state.is_gone:
            pager.forget_address(state.name)
        else:
            settings = engine.registry.settings_for(state.name)
            PagedEngineAddress(engine, state, settings).widen()

    engine.memory.on_paging = on_paging
    for state in engine.memory.states(pager.addresses):
        page(state)  # it has pages from before, whether it has too much in memory now or not
    for state in engine.memory.paging_states():
        on_paging(state)
    engine.dispatcher.on_paged = pager.serve
    engine.dispatcher.on_looked_at = pager.open_all
    engine.dispatcher.see_pages(pager.closed_pages)

    def on_footer(queue_id: int) -> None:
        engine.dispatcher.poke(queue_id)
        cycle.touch()

    pager.closed_pages.on_footer = on_footer
    pager.on_ready = cycle.touch
    pager.start()
