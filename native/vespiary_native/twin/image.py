"""The image: slabs of memory that mirror journal files, their pool, eviction and loading.

Owns the memory and the counts of what is live in it. Never knows what a record says, and does no
I/O. Called by `blocks`, which fills slabs, and by the core.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from vespiary_native.abc import NoRoom
from vespiary_native.memory import AlignedBuffer

if TYPE_CHECKING:
    from vespiary_native.twin.page_writer import Page

PAGE: Final = 4096
PROTECTED_SLABS: Final = 4
"""Slabs closed last: consumers that keep up are about to read them."""

SLABS_LEFT: Final = 4
SPARE_SLABS: Final = 64
"""Free slabs that are kept; more go back to the system."""

FILE_BYTES_MAX: Final = 2**32 - 1


class Slab:
    """One slab of one file, present or not; or one message that need not survive.

    Attributes:
        file: Its file; None for a message in memory only.
        index: Number of the slab in its file.
        buffer: Its memory; None while it has none.
        view: The memory when it may be read, else None (absent or being loaded).
        live: Places whose record stands here.
        last_sequence: Of the last block here; durable when that is.
        is_closed: Nothing is added any more.
        is_loaded: Came back from the disk.
        is_loading: Is coming back.
    """

    __slots__ = (
        "buffer",
        "file",
        "index",
        "is_closed",
        "is_loaded",
        "is_loading",
        "last_sequence",
        "live",
        "view",
    )

    def __init__(self, file: JournalFile | None, index: int) -> None:
        self.file = file
        self.index = index
        self.buffer: AlignedBuffer | None = None
        self.view: memoryview | None = None
        self.live = 0
        self.last_sequence = 0
        self.is_closed = False
        self.is_loaded = False
        self.is_loading = False


class JournalFile:
    """A file that is not forgotten.

    Attributes:
        file_id: Its id, ascending in the order of use.
        salt: 64 random bits.
        size: Bytes.
        live: Places whose message stands in it, and one for each branch that needs it and for each
            page whose latest PAGE record stands in it.
        live_bytes: What the places count for, and the length of these PAGE records.
        pins: Prepared branches that need it.
        cancels: Other files whose messages its records end or commit.
        slabs: All its slabs.
    """

    __slots__ = ("cancels", "file_id", "live", "live_bytes", "pins", "salt", "size", "slabs")

    is_page = False
    is_looked_at = False

    def __init__(self, file_id: int, salt: int, size: int, slab_bytes: int) -> None:
        self.file_id = file_id
        self.salt = salt
        self.size = size
        self.live = self.live_bytes = self.pins = 0
        self.cancels: set[JournalFile] = set()
        self.slabs = [Slab(self, index) for index in range(-(-size // slab_bytes))]


class Image:
    """The pool of slabs and the files.

    Attributes:
        files: All files, by id; the last `files_ahead` of them are untouched.
        current: The file being filled.
        durable_sequence: Everything up to this block is durable.
        live_bytes: The sum of this over all journal files.
        pages: All pages, by file id.
        copied_places: Says how many live places of slabs stand in pages that are not live yet too.
    """

    def __init__(self, slab_bytes: int, slabs_max: int) -> None:
        self.slab_bytes = slab_bytes
        self.slab_shift = slab_bytes.bit_length() - 1
        self.slabs_max = slabs_max
        self.slabs_total = 0
        self.files: list[JournalFile] = []
        self.pages: dict[int, Page] = {}
        self.files_ahead = 0
        self.current: JournalFile | None = None
        self.durable_sequence = 0
        self.live_bytes = 0
        self._free: list[AlignedBuffer] = []
        # Dictionaries for their order: first in, first listed.
        self._closed: dict[Slab, None] = {}
        self._loaded: dict[Slab, None] = {}
        self.copied_places: Callable[[], Mapping[Slab, int]] = dict

    # --- memory -----------------------------------------------------------------------------------
    @property
    def slabs_free(self) -> int:
        """Slabs that hold nothing."""
        return len(self._free)

    def grow(self, slabs: int) -> int:
        """Make up to `slabs` more free slabs; return how many were made."""
        made = 0
        while made < slabs and len(self._free) < SPARE_SLABS and self._make_free():
            made += 1
        return made

    def _make_free(self) -> bool:
        if self.slabs_total >= self.slabs_max:
            return False
        self._free.append(self.make_buffer())
        self.slabs_total += 1
        return True

    def make_buffer(self) -> AlignedBuffer:
        """Make the memory of a slab, touched; in any thread."""
        return AlignedBuffer(self.slab_bytes, populate=True, huge_pages=True)

    def add_buffer(self, buffer: AlignedBuffer) -> bool:
        """Take memory as a free slab; False: not wanted, and closed."""
        if self.slabs_total >= self.slabs_max or len(self._free) >= SPARE_SLABS:
            buffer.close()
            return False
        self._free.append(buffer)
        self.slabs_total += 1
        return True

    def give(self, slab: Slab) -> None:
        """Take the memory from a slab and keep it for another."""
        buffer = slab.buffer
        assert buffer is not None
        slab.buffer = slab.view = None
        slab.is_loaded = slab.is_loading = False
        if len(self._free) < SPARE_SLABS:
            self._free.append(buffer)  # last in, first out: its pages are warm
        else:
            self.slabs_total -= 1
            buffer.close()

    def _evictable(self) -> list[Slab]:
        """Return the slabs that may be dropped, the first to go first.

        What was copied into pages that are on their way is hardly asked for here: it goes first,
        the oldest first. Queues are read from their old end, by consumers and by who fills pages,
        so what was closed last is needed last. What was loaded is being read: it goes after those,
        the one loaded longest ago first.
        """
        closed = list(self._closed)[: -PROTECTED_SLABS or None]
        closed = [slab for slab in closed if slab.last_sequence <= self.durable_sequence]
        copied = self.copied_places()
        first = [slab for slab in (*closed, *self._loaded) if copied.get(slab) == slab.live]
        return [*first, *(s for s in (*reversed(closed), *self._loaded) if s not in first)]

    def can_take(self, count: int) -> bool:
        """Whether that many slabs could be had now."""
        have = len(self._free) + self.slabs_max - self.slabs_total
        return have >= count or have + len(self._evictable()) >= count

    @property
    def slabs_left(self) -> int:
        """Slabs that messages which need not survive leave to others.

        Theirs are never evicted, and nothing but a page that is written, and named in the journal,
        takes them out of memory. A page leaves half of them while it is filled, for its end and the
        journal.
        """
        return min(self.slabs_max // 4, SLABS_LEFT)

    def take(self, slab: Slab) -> None:
        """Give a slab memory, evicting another if need be; its content is undefined.

        Raises:
            NoRoom: None can be had.
        """
        if not self._free:
            # New memory is slow to touch, so it is made ahead of need by another thread. When that
            # lags behind, what will be read last is dropped first; only then is memory made here.
            victims = self._evictable()
            if not (victims and victims[0] in self._closed) and not self._make_free():
                if not victims:
                    raise NoRoom("no slab is free and none may be evicted")
                self._drop(victims[0])
            elif not self._free:
                self._drop(victims[0])
        slab.buffer = self._free.pop()

    def _drop(self, victim: Slab) -> None:
        self._closed.pop(victim, None)
        self._loaded.pop(victim, None)
        self.give(victim)

    def close_slab(self, slab: Slab) -> None:
        """Say that nothing is added to a slab any more."""
        slab.is_closed = True
        self._closed[slab] = None

    def pin(self, slab: Slab, places: int, share_bytes: int) -> None:
        """Count live places more in a slab of a file; each counts `share_bytes`."""
        assert slab.file is not None
        slab.live += places
        slab.file.live += places
        slab.file.live_bytes += places * share_bytes
        if not slab.file.is_page:
            self.live_bytes += places * share_bytes

    def unpin(self, slab: Slab, share_bytes: int) -> None:
        """Count one live place less in a slab of a file."""
        slab.live -= 1
        assert slab.file is not None
        slab.file.live -= 1
        slab.file.live_bytes -= share_bytes
        if not slab.file.is_page:
            self.live_bytes -= share_bytes
        if not slab.live and slab.is_closed and not _is_looked_at(slab):
            self._drop_if_done(slab)

    def pin_record(self, page: Page, own: JournalFile, length: int) -> None:
        """Note that `own` holds a page's latest PAGE record, which replaces the earlier one.

        Args:
            page: The page.
            own: The journal file of the record.
            length: Length of the record in bytes.
        """
        self.unpin_record(page, own)
        own.live += 1
        own.live_bytes += length
        self.live_bytes += length
        page.record_file, page.record_bytes = own, length

    def unpin_record(self, page: Page, own: JournalFile) -> None:
        """Note that a page's latest PAGE record, if it has one, no longer counts.

        Args:
            page: The page.
            own: The journal file of the record that replaces or ends it, and so depends on its
                file.
        """
        before = page.record_file
        if before is None:
            return
        before.live -= 1
        before.live_bytes -= page.record_bytes
        self.live_bytes -= page.record_bytes
        if before is not own:
            own.cancels.add(before)
        page.record_file, page.record_bytes = None, 0

    def release_unused(self, file: JournalFile) -> None:
        """Drop the slabs of a file that were loaded and have no live place."""
        for slab in file.slabs:
            if slab in self._loaded and not slab.live:
                self._drop_if_done(slab)

    def _drop_if_done(self, slab: Slab) -> None:
        if slab in self._loaded:
            del self._loaded[slab]
        elif slab in self._closed and slab.last_sequence <= self.durable_sequence:
            del self._closed[slab]
        else:
            return
        self.give(slab)

    def set_durable(self, sequence: int) -> None:
        """Say that all blocks up to `sequence` are durable: slabs without live places go."""
        before = self.durable_sequence
        self.durable_sequence = sequence
        newly = []
        for slab in reversed(self._closed):
            if slab.last_sequence <= before:
                break
            if not slab.live:
                newly.append(slab)
        for slab in newly:
            self._drop_if_done(slab)

    # --- files ------------------------------------------------------------------------------------
    def add_file(self, file_id: int, salt: int, size: int) -> JournalFile:
        """Register a file behind all others.

        Raises:
            ValueError: Its id is not above theirs, or its size is out of range.
        """
        above = self.files[-1].file_id if self.files else 0
        if file_id <= above:
            raise ValueError(f"file id {file_id} is not above the last one, {above}")
        if size % PAGE or not 4 * PAGE <= size <= FILE_BYTES_MAX:
            raise ValueError(
                f"file size {size} is not a multiple of {PAGE} from {4 * PAGE} to {FILE_BYTES_MAX}"
            )
        file = JournalFile(file_id, salt, size, self.slab_bytes)
        self.files.append(file)
        return file

    def file(self, file_id: int) -> JournalFile:
        """Return a file.

        Raises:
            ValueError: It is not known.
        """
        page = self.pages.get(file_id)
        if page is not None:
            return page
        at = bisect_left(self.files, file_id, key=lambda file: file.file_id)
        if at == len(self.files) or self.files[at].file_id != file_id:
            raise ValueError(f"file {file_id} is not known")
        return self.files[at]

    def ahead(self, number: int = 0) -> JournalFile | None:
        """Return the untouched file that comes up after `number` others; None if there is none."""
        if number >= self.files_ahead:
            return None
        return self.files[len(self.files) - self.files_ahead + number]

    def forget(self, file_id: int) -> None:
        """Drop a reclaimed file.

        Raises:
            ValueError: It is being filled, untouched, loaded or written, or holds live places.
        """
        file = self.file(file_id)
        if file.is_page:
            raise ValueError(f"file {file_id} is a page")
        first_ahead = self.ahead()
        is_untouched = first_ahead is not None and file_id >= first_ahead.file_id
        if file.live or file is self.current or is_untouched:
            raise ValueError(f"file {file_id} is in use: {file.live} live places")
        busy = [
            slab.index
            for slab in file.slabs
            if slab.is_loading
            or (slab.buffer is not None and slab.last_sequence > self.durable_sequence)
        ]
        if busy:
            raise ValueError(f"file {file_id} is being read or written: slabs {busy}")
        for slab in file.slabs:
            if slab.buffer is not None:
                self._closed.pop(slab, None)
                self._loaded.pop(slab, None)
                self.give(slab)
        self.files.remove(file)
        self.forget_cancels(file)

    def forget_cancels(self, file: JournalFile) -> None:
        """Let no file depend on this one: it is gone, or what they said of it is said again."""
        for other in self.files:
            other.cancels.discard(file)

    # --- loading ----------------------------------------------------------------------------------
    def _slab(self, file_id: int, index: int) -> Slab:
        file = self.file(file_id)
        if not 0 <= index < len(file.slabs):
            raise ValueError(f"file {file_id} has {len(file.slabs)} slabs, no number {index}")
        return file.slabs[index]

    def load_begin(self, file_id: int, index: int) -> tuple[int, int, int] | None:
        """Reserve memory for a slab (see `abc.Core.load_begin`)."""
        slab = self._slab(file_id, index)
        if slab.buffer is not None:
            return None
        try:
            self.take(slab)
        except NoRoom:
            return None
        slab.is_loading = True
        assert slab.buffer is not None
        assert slab.file is not None
        offset = index << self.slab_shift
        return slab.buffer.address, min(self.slab_bytes, slab.file.size - offset), offset

    def load_done(self, file_id: int, index: int, *, good: bool) -> None:
        """End a load (see `abc.Core.load_done`)."""
        slab = self._slab(file_id, index)
        if not slab.is_loading or slab.buffer is None:
            raise ValueError(f"slab {index} of file {file_id} is not being loaded")
        slab.is_loading = False
        if not good or not (slab.live or _is_looked_at(slab)):
            self.give(slab)
            return
        slab.is_loaded = True
        slab.is_closed = True
        slab.view = slab.buffer.memoryview
        self._loaded[slab] = None


def _is_looked_at(slab: Slab) -> bool:
    """Whether somebody looks through a page, and goes on."""
    return slab.file is not None and slab.file.is_looked_at
