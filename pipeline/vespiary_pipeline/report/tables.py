"""What a report is made of: small tables, filled by a job.

Owns: the shape of the report's input. Every list is bounded by who fills it: `Top` holds the first
rows and says how many more there were and what they came to. Must never import Spark, and never
read a file. Called by the jobs, which fill it, and by the rest of this package, which shows it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

Row = TypeVar("Row")

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR

SIZE_EDGES: Final = (0.0, *(float(64 * 4**n) for n in range(13)))
"""Edges of bins of sizes, in bytes: 0, 64 B, 256 B, 1 KiB, … 1 GiB."""

AGE_EDGES: Final = (
    0.0,
    1.0,
    10.0,
    60.0,
    600.0,
    _HOUR,
    6 * _HOUR,
    _DAY,
    7 * _DAY,
    30 * _DAY,
    365 * _DAY,
)
"""Edges of bins of ages, in seconds, from 0 to a year."""

DEAD_CAUSES: Final = ("acknowledged", "rolled back", "moved", "bookkeeping", "padding")
"""Why bytes of a file are dead, in the order in which they are shown. Others may be named too."""

FILE_STATES: Final = ("used", "ahead", "free", "leftover", "unfinished")
"""States of files, as in `schema.FILES`."""


@dataclass(frozen=True, slots=True)
class Top(Generic[Row]):
    """The first rows of a table, and what was left out.

    Attributes:
        rows: The rows, the most important first.
        more: How many rows were left out.
        rest: What those come to, in the unit by which the table is sorted.
    """

    rows: tuple[Row, ...] = ()
    more: int = 0
    rest: float = 0

    def first(self, count: int, measure: Callable[[Row], float] = lambda _: 0.0) -> Top[Row]:
        """Return at most so many rows; what goes is added to what was left out.

        Args:
            count: How many rows may stay.
            measure: What one row comes to.
        """
        gone = self.rows[count:]
        if not gone:
            return self
        return Top(
            self.rows[:count], self.more + len(gone), self.rest + sum(measure(row) for row in gone)
        )

    @property
    def count(self) -> int:
        """How many rows there were in all."""
        return len(self.rows) + self.more


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One damaged place.

    Attributes:
        path: The file.
        offset: Where in it, bytes; None: the whole file.
        what: What is wrong, a sentence.
    """

    path: str
    offset: int | None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The facts of the run.

    Attributes:
        path: What was read, as the user named it.
        made_at: When, an aware time. Ages are counted from it.
        seconds: How long it took.
        read_bytes: Bytes of files that were read.
        journal_end: Where the journal ended, as `activemq-data-7.hq:1228800`; empty: no block.
        end_reason: Why there, a clause: `nobody has the journal open`, `a broker runs on it`, ….
        torn_bytes: Bytes after the end that were never confirmed.
        versions: Versions of what took part, by name.
        damage: Damaged places.
    """

    path: str
    made_at: datetime
    seconds: float = 0.0
    read_bytes: int = 0
    journal_end: str = ""
    end_reason: str = ""
    torn_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    damage: Top[Damage] = Top()


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over everything that was read.

    Attributes:
        live_messages: Messages that are in at least one queue.
        live_places: Places in queues; a message in three queues has three.
        live_bytes: Bytes of live messages with their large bodies and what is paged.
        oldest_arrival: When the oldest live message came in; None: there is none.
        records: Records that were read.
    """

    live_messages: int = 0
    live_places: int = 0
    live_bytes: int = 0
    oldest_arrival: datetime | None = None
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """What went through an address in one stretch of time.

    Attributes:
        start: When the stretch begins, an aware time.
        address: The address; None: all that are not named.
        adds: Messages that came in.
        acks: Messages that were acknowledged.
        bytes_in: Bytes of messages that came in.
        bytes_out: Bytes of messages that were acknowledged.
    """

    start: datetime
    address: str | None
    adds: int = 0
    acks: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Traffic by address over time.

    Attributes:
        width_s: Length of a stretch, seconds.
        rows: One row for each stretch and address that had traffic, in any order.
        more_addresses: How many addresses stand behind the rows without a name.
    """

    width_s: int = 60
    rows: tuple[TrafficRow, ...] = ()
    more_addresses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One column of a histogram.

    Attributes:
        low: Its lower edge, inclusive; None: no bound (ages below 0: the clock was wrong).
        high: Its upper edge, exclusive; None: no bound.
        live: Live messages in it.
        dead: Messages in it that were acknowledged or void.
    """

    low: float | None
    high: float | None
    live: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What keeps a file from being reclaimed.

    Attributes:
        why: `live messages`, `prepared transactions` or `acknowledgements`.
        queue: Name of the queue; None: unknown, or it is not about a queue.
        messages: How many messages.
        sequence: Sequence of the oldest of them in the queue.
        oldest: When the oldest of them came in.
    """

    why: str = "live messages"
    queue: str | None = None
    messages: int = 0
    sequence: int | None = None
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUse:
    """What one file of the journal holds.

    Attributes:
        name: Its name without the folder.
        file_id: Its id; 0: it has none.
        state: One of `FILE_STATES`.
        size_bytes: Its size.
        used_bytes: Bytes of blocks that count.
        live_bytes: Bytes of live messages in it.
        dead: Dead bytes by cause (`DEAD_CAUSES`).
        pins: What keeps it, the most stubborn first.
    """

    name: str
    file_id: int = 0
    state: str = "used"
    size_bytes: int = 0
    used_bytes: int = 0
    live_bytes: int = 0
    dead: Mapping[str, int] = field(default_factory=dict)
    pins: Top[Pin] = Top()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """What is in a queue.

    Attributes:
        queue: Its name; None: only its number is known.
        queue_id: Its number in the journal.
        address: Its address.
        messages: Live messages.
        live_bytes: Their bytes.
        prepared: Messages that a branch in doubt adds or ends.
        paged: Messages of it that stand in pages.
        oldest: When the oldest came in.
    """

    queue: str | None
    queue_id: int = 0
    address: str = ""
    messages: int = 0
    live_bytes: int = 0
    prepared: int = 0
    paged: int = 0
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Dead letters of one origin and reason.

    Attributes:
        reason: Why: `deliveries`, `expired`, ….
        origin: The address that they come from.
        address: The address where they are.
        messages: How many.
        oldest: When the oldest of them came in.
    """

    reason: str
    origin: str = ""
    address: str = ""
    messages: int = 0
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HotSpot:
    """A message that comes back again and again.

    Attributes:
        queue: The queue.
        sequence: Its number there.
        deliveries: How often it was given out.
        arrival: When it came in.
        body_bytes: Its size.
    """

    queue: str | None
    sequence: int
    deliveries: int
    arrival: datetime | None = None
    body_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Transactions of one outcome: committed, rolled_back, prepared, open or void."""

    outcome: str
    transactions: int = 0
    members: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A prepared transaction.

    Attributes:
        transaction: Its id.
        branch: Its XID as text; empty: unknown.
        prepared_at: When it was prepared.
        members: Its adds and acknowledgements.
    """

    transaction: int
    branch: str = ""
    prepared_at: datetime | None = None
    members: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedAddress:
    """Pages of one address.

    Attributes:
        address: The address.
        pages: Page files.
        messages: Messages in them.
        page_bytes: Their bytes.
        done: Messages in them that are acknowledged by now.
    """

    address: str
    pages: int = 0
    messages: int = 0
    page_bytes: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTables:
    """All that a report shows; only `run` is needed.

    Attributes:
        run: The facts of the run.
        totals: Sums.
        files: Files of the journal, in the order of the journal.
        traffic: Traffic by address over time.
        sizes: Histogram of message sizes, bytes.
        ages: Histogram of the ages of live messages, seconds.
        depth: Queues, the deepest first; `rest` counts messages.
        dead_letters: The most frequent first; `rest` counts messages.
        hot_spots: The most often delivered first.
        outcomes: Transactions by outcome.
        prepared: Prepared transactions, the oldest first.
        pages: Addresses with pages, most bytes first; `rest` counts bytes.
    """

    run: Run
    totals: Totals = field(default_factory=Totals)
    files: Top[FileUse] = Top()
    traffic: Traffic = field(default_factory=Traffic)
    sizes: tuple[Bin, ...] = ()
    ages: tuple[Bin, ...] = ()
    depth: Top[QueueDepth] = Top()
    dead_letters: Top[DeadLetters] = Top()
    hot_spots: Top[HotSpot] = Top()
    outcomes: tuple[Outcome, ...] = ()
    prepared: Top[Branch] = Top()
    pages: Top[PagedAddress] = Top()


def bin_edges(edges: Iterable[float]) -> tuple[tuple[float | None, float | None], ...]:
    """Return the bins between edges, with one below the first and one from the last on.

    Args:
        edges: Rising numbers, as `SIZE_EDGES` or `AGE_EDGES`.
    """
    given: list[float | None] = [None, *edges, None]
    return tuple(itertools.pairwise(given))
