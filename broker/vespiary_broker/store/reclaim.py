"""Which files may be freed, and the records that must be durable before one is (journal-format §5).

Owns: the choice, which is pure, and the bodies of the checkpoint records FILES and QUEUES. Must
never free a file itself: `files` does, when `writer` knows that the checkpoint is durable. Called
by `writer` after every roll and in its idle rounds.

Why through a checkpoint: docs/decisions/0002-reclaim-through-checkpoints.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from vespiary_broker.store.turns import Allowance, Work
from vespiary_codec.journal.record import (
    QUEUE_STATE,
    START,
    FileRun,
    FilesRecord,
    encode_record,
)

_COST_OF_A_FILE = 8
"""Calls into the core and elsewhere for one file, as operations of a turn."""

_ENTRIES_PER_RECORD = 2048
"""Queues in one QUEUES record: 48 KiB, so that a checkpoint fits into the smallest file's rest."""


def choosing_files(
    file_ids: Iterable[int],
    *,
    current_id: int,
    live_places: Callable[[int], int],
    live_records: Callable[[int], int],
    cancels: Callable[[int], list[int]],
    is_busy: Callable[[int], bool],
) -> Work[list[int]]:
    """Choose, in turns, the files that may be freed, in the order in which they must be.

    A file may go when nothing in it is live and every file whose messages its records end is
    gone or goes before it: else the messages there would rise again at the next start. Records only
    ever end what stands in older files, so one pass in ascending order finds them all.

    Messages are served between the turns, and that changes nothing of what was found before: a
    full file takes no records, so one in which nothing is live stays so, and what it ends can only
    become less.

    Args:
        file_ids: The journal's files in use.
        current_id: The file being filled; it and those after it stay.
        live_places: `Core.live_places`.
        live_records: `KeptRecords.live_records`.
        cancels: `Core.cancels`.
        is_busy: Whether a file is being read or written just now.

    Returns:
        Work that ends with the ids; each turn looks at `turns.OPERATIONS_MAX` files and dependences
        at most, and at one file more.
    """
    turn = Allowance()
    chosen: list[int] = []
    gone: set[int] = set()
    for file_id in sorted(file_ids):
        if turn.spend(_COST_OF_A_FILE):
            yield
        if file_id >= current_id:
            break
        # First what a backlog has in all its files: they are looked at with every roll.
        if live_places(file_id) or live_records(file_id) or is_busy(file_id):
            continue
        others = cancels(file_id)
        if turn.spend(len(others)):
            yield
        gone.add(file_id)  # it may end its own
        if gone.issuperset(others):
            chosen.append(file_id)
        else:
            gone.remove(file_id)
    return chosen


def files_record(file_ids: Iterable[int]) -> FilesRecord:
    """Return the FILES record that lists these files, neighbours as one run."""
    runs: list[FileRun] = []
    first = last = -1
    for file_id in sorted(file_ids):
        if file_id != last + 1 or last < 0:
            if last >= 0:
                runs.append(FileRun(first, last))
            first = file_id
        last = file_id
    if last >= 0:
        runs.append(FileRun(first, last))
    return FilesRecord(tuple(runs))


def files_body(file_ids: Iterable[int]) -> bytes:
    """Return that record without its 8-byte start, for `Core.append_record`."""
    return encode_record(files_record(file_ids))[START.size :]


def queues_bodies(states: bytes) -> Iterator[bytes]:
    """Yield the bodies of QUEUES records for all entries that `Core.queue_states` returned."""
    step = QUEUE_STATE.size * _ENTRIES_PER_RECORD
    for start in range(0, len(states), step):
        part = states[start : start + step]
        yield struct.pack("<II", len(part) // QUEUE_STATE.size, 0) + part
