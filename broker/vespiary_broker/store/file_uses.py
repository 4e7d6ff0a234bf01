"""What keeps each file of a running journal: for administrators, in the words of `journal info`.

Owns: the reasons and their sentences. Must never decide what is freed: `reclaim` does, by the same
facts. Called by `keeper`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from vespiary_broker.store.files import FilePool
from vespiary_native.abc import Core

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUse:
    """One file in use.

    Attributes:
        id: Its id.
        name: Its name.
        state: full, filling, or ahead (made ready, not begun).
        size_bytes: Its size.
        live_places: Live messages in it, one for each queue, and one for each prepared branch that
            needs it.
        live_bytes: What the messages count for.
        live_ids: Duplicate ids in it that still count.
        kept_by: Why it is not freed, as a clause; empty if it goes with the next checkpoint.
    """

    id: int
    name: str
    state: str
    size_bytes: int
    live_places: int = 0
    live_bytes: int = 0
    live_ids: int = 0
    kept_by: str = "it is ready to be written to"


def file_uses(
    pool: FilePool,
    core: Core,
    *,
    first_ahead: int,
    live_records: Callable[[int], int],
    is_waiting: Callable[[int], bool],
    after_id: int,
    limit: int,
) -> list[FileUse]:
    """Return what keeps the files in use, by id.

    Args:
        pool: The files.
        core: Says what is live in them.
        first_ahead: The first file that the core has not begun, as long as it has begun none; 0 if
            there is no such file.
        live_records: `KeptRecords.live_records`.
        is_waiting: Whether a file's copy for the retention is not there yet.
        after_id: Begin behind this file; 0 begins with the first.
        limit: Most files to return; each costs a few calls into the core.
    """
    current = core.current_file()
    begin_ahead = current + 1 if current else first_ahead
    active = pool.active_ids
    present = frozenset(active)
    found: list[FileUse] = []
    for file_id in [each for each in active if each > after_id]:
        if len(found) == limit:
            break
        file = pool.find(file_id)
        if file is None:
            continue  # the worker freed it just now
        # Without one to write to, one that is open is on its way to the core.
        is_ahead = file_id >= begin_ahead if begin_ahead else file.handle is not None
        if is_ahead:  # the core need not have it yet
            use = FileUse(
                id=file_id, name=file.path.name, state="ahead", size_bytes=file.size_bytes
            )
        else:
            places, ids = core.live_places(file_id), live_records(file_id)
            ends_of = [e for e in core.cancels(file_id) if e in present and e != file_id]
            is_full = file_id != current
            clause = kept_by(
                live_places=places,
                live_ids=ids,
                is_prepared=core.prepared_in(file_id),
                ends_of=ends_of,
                is_waiting=is_waiting(file_id),
            )
            use = FileUse(
                id=file_id,
                name=file.path.name,
                state="full" if is_full else "filling",
                size_bytes=file.size_bytes,
                live_places=places,
                live_bytes=core.live_bytes(file_id),
                live_ids=ids,
                kept_by=clause if is_full else "it is being written to",
            )
        found.append(use)
    return found


def kept_by(
    *,
    live_places: int,
    live_ids: int,
    is_prepared: bool,
    ends_of: Sequence[int],
    is_waiting: bool,
) -> str:
    """Return why a full file is not freed, as a clause; empty if nothing keeps it.

    Args:
        live_places: Live messages in it, and prepared branches that need it.
        live_ids: Duplicate ids in it that still count.
        is_prepared: Whether a prepared branch needs it.
        ends_of: Files in use whose messages its records end.
        is_waiting: Whether its copy for the retention is not there yet.
    """
    reasons = []
    if live_places:
        what = "live messages or needs of prepared transactions" if is_prepared else "live messages"
        reasons.append(f"{live_places} {what}")
    if live_ids:
        reasons.append(f"{live_ids} duplicate ids")
    if is_waiting:
        reasons.append("it has no kept copy yet")
    if ends_of:
        more = f" and {len(ends_of) - _SHOWN} more" if len(ends_of) > _SHOWN else ""
        reasons.append(f"ends messages of file {', '.join(map(str, ends_of[:_SHOWN]))}{more}")
    return "; ".join(reasons)
