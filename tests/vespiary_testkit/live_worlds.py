"""Many journals in one table, and what must come of each: oracles of the pipeline's live places.

`Worlds` lays journals side by side, each with queues, files, pages and transactions of its own, so
that one Spark job resolves hundreds of them. The oracles are the live set of the journal tools, and
a core as a broker has it after its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from vespiary_broker.store.live_set import LiveSet
from vespiary_codec.journal.record import AddLayout
from vespiary_native.twin import TwinCore
from vespiary_testkit.journal_rows import RowSink, table
from vespiary_testkit.journal_workload import FILE_BYTES, QUEUES

WORLD_BITS = 44
"""Ids of one journal of many are below this, or folded so."""


class Held(NamedTuple):
    """A place as a broker has it after a recovery."""

    queue_id: int
    sequence: int
    state: str
    file_id: int | None
    offset: int | None
    page_id: int | None


class Worlds:
    """Rows of many journals, with ids that say whose they are. Owner: the test."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.number = 0
        self._folded: dict[int, int] = {}

    def add(self, rows: list[dict[str, Any]]) -> int:
        """Take in a journal; return its number."""
        world = self.number
        self.number += 1
        for row in rows:
            shifted = dict(row)
            for name in ("file_id", "position"):
                if row[name] is not None:
                    shifted[name] = self.id(world, row[name])
            for name in ("page_id", "transaction"):
                if row[name] is not None:
                    # Any id is as good as another, and these are too long.
                    folded = self._folded.setdefault(row[name], len(self._folded) + 1)
                    shifted[name] = self.id(world, folded)
            if row["places"] is not None:
                shifted["places"] = [
                    {**place, "queue_id": self.id(world, place["queue_id"])}
                    for place in row["places"]
                ]
            self.rows.append(shifted)
        return world

    @staticmethod
    def id(world: int, number: int) -> int:
        """Return an id of a journal as it stands in the table."""
        assert number >> WORLD_BITS == 0, number
        return world << WORLD_BITS | number

    def split(self, found: Iterable[Any]) -> dict[int, set[Held]]:
        """Return the rows of `live` by journal, with its own ids."""
        mask = (1 << WORLD_BITS) - 1
        pages = {folded: number for number, folded in self._folded.items()}
        held: dict[int, set[Held]] = {world: set() for world in range(self.number)}
        for row in found:
            file_id = None if row["file_id"] is None else row["file_id"] & mask
            page_id = None if row["page_id"] is None else pages[row["page_id"] & mask]
            queue_id, sequence = row["queue_id"] & mask, row["sequence"]
            place = Held(queue_id, sequence, row["state"], file_id, row["offset"], page_id)
            world = row["queue_id"] >> WORLD_BITS
            assert place not in held[world], "twice"
            held[world].add(place)
        return held


# --- oracles --------------------------------------------------------------------------------------


def held_by_tools(live: LiveSet) -> set[Held]:
    """Return what the journal tools find live."""
    locked: list[tuple[int, int, int]] = []
    found: set[Held] = set()
    for entry in live.transactions.values():
        for file_id, offset, record in entry.members if entry.is_prepared else ():
            if isinstance(record, AddLayout):
                found |= {
                    Held(*place, "prepared", file_id, offset, None) for place in record.places
                }
            elif record is not None:
                locked += [(record.queue_id, first, count) for first, count in record.ranges]

    def state(queue_id: int, sequence: int) -> str:
        of = any(q == queue_id and first <= sequence < first + n for q, first, n in locked)
        return "locked" if of else "live"

    for place in live.places():
        key = (place.queue_id, place.sequence)
        found.add(Held(*key, state(*key), place.file_id, place.offset, None))
    for queue_id, extents in live.pages._extents.items():
        for page_id, extent in extents.items():
            for sequence in range(extent.first, extent.first + len(extent.flags)):
                if extent.is_live(sequence):
                    key = (queue_id, sequence)
                    found.add(Held(*key, state(*key), None, None, page_id))
    return found


def held_by_core(core: TwinCore) -> dict[Held, int]:
    """Return what a core has after a recovery, with the number of deliveries."""
    found: dict[Held, int] = {}
    for queue_id, queue in core._queues.items():
        for sequence, message in queue.entries.items():
            state = "prepared" if sequence in queue.reserved else "live"
            state = "locked" if sequence in queue.locked else state
            slab, record_at = message[0], message[6]
            offset = (slab.index << core._image.slab_shift) + record_at
            held = Held(queue_id, sequence, state, slab.file.file_id, offset, None)
            found[held] = queue.deliveries.get(sequence, 0)
        for extent in queue.extents.all:
            for sequence in extent.live:
                state = "locked" if sequence in extent.locked else "live"
                held = Held(queue_id, sequence, state, None, None, extent.page.page_id)
                found[held] = extent.deliveries.get(sequence, 0)
    return found


# --- all of it together ---------------------------------------------------------------------------


class World(NamedTuple):
    """One journal, and what its tools and a core find in it."""

    name: str
    tools: set[Held]
    core: dict[Held, int]


class Many:
    """Journals and their oracles, until Spark is asked about all of them. Owner: the test."""

    def __init__(self) -> None:
        self.worlds = Worlds()
        self.known: list[World] = []

    def add(self, name: str, feed: Callable[[Any], Any], queue_ids: Iterable[int] = QUEUES) -> None:
        """Take in a journal.

        Args:
            name: For failures.
            feed: Gives its blocks to a sink of the recovery.
            queue_ids: The queues that a core knows.
        """
        rows, tools = RowSink(), LiveSet()
        core = TwinCore(slab_bytes=FILE_BYTES, slabs_max=64, record_bytes_max=24 * 1024)
        for queue_id in queue_ids:
            core.open_queue(queue_id)
        for sink in (rows, tools, core):
            feed(sink)
        core.restore_done()
        self.worlds.add(rows.rows)
        self.known.append(World(name, held_by_tools(tools), held_by_core(core)))

    def table(self) -> pa.Table:
        """Return all their records."""
        return table(self.worlds.rows)

    def check(self, found: list[Any]) -> None:
        """Compare rows of `live` with the oracles, journal by journal and row by row."""
        held = self.worlds.split(found)
        mask = (1 << WORLD_BITS) - 1
        deliveries = {
            (row["queue_id"] >> WORLD_BITS, row["queue_id"] & mask, row["sequence"]): row
            for row in found
        }
        for number, world in enumerate(self.known):
            assert held[number] == world.tools, world.name
            assert held[number] == world.core.keys(), world.name
            for place, count in world.core.items():
                said = deliveries[number, place.queue_id, place.sequence]["deliveries"]
                # What a PAGE record says of deliveries is in no column.
                assert said == count or (said is None and place.page_id is not None), world.name
