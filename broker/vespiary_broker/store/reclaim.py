"""Which files may be freed, and the records that must be durable before one is (journal-format §5).

Owns: the choice, which is pure, and the bodies of the checkpoint records FILES and QUEUES. Must
never free a file itself: `files` does, when `writer` knows that the checkpoint is durable. Called
by `writer` after every roll and in its idle rounds.

Why through a checkpoint: docs/decisions/0002-reclaim-through-checkpoints.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

QUEUE_ENTRY_BYTES = 24
_ENTRIES_PER_RECORD = 2048
"""Queues in one QUEUES record: 48 KiB, so that a checkpoint fits into the smallest file's rest."""


def choose_files(
    file_ids: Iterable[int],
    *,
    current_id: int,
    live_places: Callable[[int], int],
    cancels: Callable[[int], list[int]],
    is_busy: Callable[[int], bool],
) -> list[int]:
    """Return the files that may be freed, in the order in which they must be.

    A file may go when no message in it is live and every file whose messages its records end is
    gone or goes before it: else the messages there would rise again at the next start. Records only
    ever end what stands in older files, so one pass in ascending order finds them all.

    Args:
        file_ids: The journal's files in use.
        current_id: The file being filled; it and those after it stay.
        live_places: `Core.live_places`.
        cancels: `Core.cancels`.
        is_busy: Whether a file is being read or written just now.
    """
    chosen: list[int] = []
    gone: set[int] = set()
    for file_id in sorted(file_ids):
        if file_id >= current_id or live_places(file_id) or is_busy(file_id):
            continue
        if all(other in gone or other == file_id for other in cancels(file_id)):
            chosen.append(file_id)
            gone.add(file_id)
    return chosen


def files_body(file_ids: Iterable[int]) -> bytes:
    """Return the body of a FILES record: u32 runs, u32 zero, then u64 first, u64 last per run."""
    runs: list[list[int]] = []
    for file_id in sorted(file_ids):
        if runs and file_id == runs[-1][1] + 1:
            runs[-1][1] = file_id
        else:
            runs.append([file_id, file_id])
    return struct.pack("<II", len(runs), 0) + b"".join(struct.pack("<QQ", *run) for run in runs)


def listed_files(body: bytes) -> list[tuple[int, int]]:
    """Return the runs (first id, last id) of a FILES record's body.

    Raises:
        ValueError: The body is shorter than its number of runs says.
    """
    if len(body) < 8:
        raise ValueError(f"a FILES record of {len(body)} bytes: at least 8 are needed")
    (count,) = struct.unpack_from("<I", body)
    if len(body) < 8 + 16 * count:
        raise ValueError(f"a FILES record of {len(body)} bytes for {count} runs")
    return [struct.unpack_from("<QQ", body, 8 + 16 * index) for index in range(count)]


def queues_bodies(states: bytes) -> Iterator[bytes]:
    """Yield the bodies of QUEUES records for all entries that `Core.queue_states` returned."""
    step = QUEUE_ENTRY_BYTES * _ENTRIES_PER_RECORD
    for start in range(0, len(states), step):
        part = states[start : start + step]
        yield struct.pack("<II", len(part) // QUEUE_ENTRY_BYTES, 0) + part
