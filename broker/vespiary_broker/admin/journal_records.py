"""What the API shows of the journal: part of `records`, by whose name they are used.

Owns the names that scripts rely on. Must never hold logic. Called by `records`.
"""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all records share."""


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What all request bodies share."""


class Files(Record, frozen=True):
    """Files of a journal by state.

    Attributes:
        active: In use, those made ready ahead of need included.
        ahead: Made ready, not yet begun.
        free: Kept for use again.
        bytes_on_disk: Size of all of them.
        pinned: Of the active ones, full files without a live message, which wait for older files.
    """

    active: int
    ahead: int
    free: int
    bytes_on_disk: int
    pinned: int


class Histogram(Record, frozen=True):
    """How often a value lay where.

    Attributes:
        bounds: Upper bounds of the buckets.
        counts: Values by bucket; one more than there are bounds.
        total: Sum of the values.
    """

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    total: int


class Image(Record, frozen=True):
    """The journal's image in memory; a slab is its unit.

    Attributes:
        slabs_total: Slabs allocated.
        slabs_free: Those of them that hold nothing.
        slabs_max: Most that will be allocated.
    """

    slabs_total: int
    slabs_free: int
    slabs_max: int


class Aio(Record, frozen=True):
    """Asynchronous I/O of the machine.

    Attributes:
        max_nr: `fs.aio-max-nr`; null if it cannot be read.
        nr: `fs.aio-nr`, in use by everyone; null if it cannot be read.
        demand: Requests that this broker reserves.
    """

    max_nr: int | None
    nr: int | None
    demand: int


class Retention(Record, frozen=True):
    """Kept copies of full journal files.

    Attributes:
        copies: Copies in the folder.
        copies_bytes: Size of them.
        files_waiting: Full journal files without a copy: they can't be freed.
        bodies: Bodies of large messages kept beside them.
        bodies_bytes: Size of them.
        bodies_waiting: Bodies that nobody needs, without a copy: their files stay.
        copied: Copies of files made since the start.
        removed: Copies removed since the start, by age or size, bodies too.
        blocked_reason: Why copies wait; null while they are made.
    """

    copies: int
    copies_bytes: int
    files_waiting: int
    bodies: int
    bodies_bytes: int
    bodies_waiting: int
    copied: int
    removed: int
    blocked_reason: str | None


class Ownership(Record, frozen=True):
    """Whose the journal is, as the block in its volume says.

    Attributes:
        epoch: Number of this owner; one more with every start.
        lease_s: Seconds for which confirms leave after a look at the block.
        age_s: Seconds since the latest good look at it began.
        waiting_reason: Why confirms wait for a look; null while they need not.
    """

    epoch: int
    lease_s: float
    age_s: float
    waiting_reason: str | None


class Compaction(Record, frozen=True):
    """Compaction of the journal: moving messages out of nearly empty files.

    Attributes:
        is_running: Whether files are being emptied now.
        waiting_files: Files that are worth emptying.
        waiting_bytes: What is live in them.
        files: Files that were emptied.
        moved_bytes: Bytes written for that.
        moved_messages: Messages that were moved, one for each queue that they are in.
        step_us: Times for which compaction, or a checkpoint that frees files, held the event loop,
            in microseconds.
        step_us_max: The longest of them.
    """

    is_running: bool
    waiting_files: int
    waiting_bytes: int
    files: int
    moved_bytes: int
    moved_messages: int
    step_us: Histogram
    step_us_max: int


class JournalFile(Record, frozen=True):
    """One file of the message journal that is in use.

    Attributes:
        id: Its id.
        name: Its name.
        state: full, filling, or ahead (made ready, not begun).
        size_bytes: Its size.
        live_places: Live messages in it, counted once for each queue.
        live_pages: Pages with live messages that need a record in it.
        transactions: Prepared transactions that need it.
        live_bytes: Size of the messages and of the records of pages.
        live_ids: Duplicate ids in it that still count.
        kept_by: Why it is not freed, as a clause; empty if it goes with the next checkpoint.
    """

    id: int
    name: str
    state: str
    size_bytes: int
    live_places: int
    live_pages: int
    transactions: int
    live_bytes: int
    live_ids: int
    kept_by: str


class JournalFilePage(Record, frozen=True):
    """Some files of the journal, by id.

    Attributes:
        items: The files.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[JournalFile, ...]
    next: str | None


class Journal(Record, frozen=True):
    """The message journal; counters begin at the broker's start.

    Attributes:
        engine: Effective engine: ASYNCIO, IO_URING, NIO or MEMORY.
        asked_engine: Engine of the configuration.
        fallback_reason: Why the two differ; null if they do not.
        durability: What a confirm is worth: D0 memory, D1 survives kill -9, D2 survives power loss.
        writes: Writes that ended well.
        written_bytes: Bytes of these, padding included.
        blocks: Blocks of these.
        records: Records added.
        payload_bytes: Bytes of these.
        flush_bounds_us: Upper bounds of the buckets of `flushCounts`, in microseconds.
        flush_counts: Writes by the time they took; one bucket more than there are bounds.
        flush_sum_us: Sum of these times, in microseconds.
        slab_loads: Parts of files that were read back into memory.
        files: Files by state.
        image: Its image in memory.
        files_made: Files created.
        preallocation_fallbacks: Of these, made by another strategy than the one asked for.
        files_reclaimed: Files freed.
        sequence_durable: Highest durable block.
        unwritten_bytes: Sealed and not yet durable.
        live_bytes: What is live in the files.
        live_percent: Its share of the files in use, those ahead excepted.
        compaction: Moving messages out of nearly empty files.
        failed_reason: The failure that fenced the journal; null while it works.
        blocked_reason: Why no file can be made; null while there is room.
        reserve_bytes: What the disk reserve takes; 0 if there is none, or it was given up.
        reserve_owed_bytes: What the disk reserve gave up for a start on a full disk, and gets back.
        retention: Kept copies of full files; null where none are kept.
        append_us: Microseconds from when the first record of a write was staged until all of them
            were durable, for each write.
        write_records: Records of each write.
        write_bytes: Bytes of each write.
        recovery_s: Seconds that reading the journal back took at the start.
        requests_in_flight: Reads and writes that the disk has to end.
        requests_max: Most of them at once.
        ownership: Whose it is; null without persistence.
        aio: Asynchronous I/O of the machine.
    """

    engine: str
    asked_engine: str
    fallback_reason: str | None
    durability: str
    writes: int
    written_bytes: int
    blocks: int
    records: int
    payload_bytes: int
    flush_bounds_us: tuple[int, ...]
    flush_counts: tuple[int, ...]
    flush_sum_us: int
    slab_loads: int
    files: Files
    image: Image
    files_made: int
    preallocation_fallbacks: int
    files_reclaimed: int
    sequence_durable: int
    unwritten_bytes: int
    live_bytes: int
    live_percent: float
    compaction: Compaction
    failed_reason: str | None
    blocked_reason: str | None
    reserve_bytes: int
    reserve_owed_bytes: int
    retention: Retention | None
    append_us: Histogram
    write_records: Histogram
    write_bytes: Histogram
    recovery_s: float
    requests_in_flight: int
    requests_max: int
    ownership: Ownership | None
    aio: Aio
