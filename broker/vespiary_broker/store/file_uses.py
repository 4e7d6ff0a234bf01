"""What keeps each file of a journal from being freed: for administrators, and for `journal info`.

Owns: the reasons and their wording. Must never decide what is freed: `reclaim` does, by the same
facts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from vespiary_broker.store.files import FilePool
from vespiary_codec.journal.page import PAGE_BIT
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
    live_places: int = 0
    live_pages: int = 0
    transactions: int = 0
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
            recorded, cancels = core.pages_in(file_id), core.cancels(file_id)
            pages = {*recorded, *(each & ~PAGE_BIT for each in cancels if each & PAGE_BIT)}
            transactions = len(core.branches_in(file_id))
            places = core.live_places(file_id) - len(recorded) - transactions
            ids = live_records(file_id)
            is_full = file_id != current
            clause = kept_by(
                live_places=places,
                live_pages=len(pages),
                transactions=transactions,
                live_ids=ids,
                ends_of=[each for each in cancels if each in present and each != file_id],
                is_waiting=is_waiting(file_id),
            )
            use = FileUse(
                id=file_id,
                name=file.path.name,
                state="full" if is_full else "filling",
                size_bytes=file.size_bytes,
                live_places=places,
                live_pages=len(pages),
                transactions=transactions,
                live_bytes=core.live_bytes(file_id),
                live_ids=ids,
                kept_by=clause if is_full else "it is being written to",
            )
        found.append(use)
    return found


def kept_by(
    *,
    live_places: int,
    live_pages: int,
    transactions: int,
    ends_of: Sequence[int],
    live_ids: int = 0,
    is_waiting: bool = False,
) -> str:
    """Return why a full file is not freed, as a clause; empty if nothing keeps it.

    Args:
        live_places: Live messages in it.
        live_pages: Pages with live messages that need a record in it.
        transactions: Prepared transactions that need it.
        ends_of: Files in use that hold messages which its records acknowledge.
        live_ids: Duplicate ids in it that still count.
        is_waiting: Whether its copy for the retention is not there yet.
    """
    reasons = [
        _counted(live_places, "live message"),
        _counted(live_pages, "page"),
        _counted(transactions, "prepared transaction"),
        _counted(live_ids, "duplicate id"),
        "it has no kept copy yet" if is_waiting else "",
    ]
    if ends_of:
        more = f" and {len(ends_of) - _SHOWN} more" if len(ends_of) > _SHOWN else ""
        names = ", ".join(map(str, ends_of[:_SHOWN]))
        reasons.append(f"acknowledges messages of file {names}{more}")
    return "; ".join(filter(None, reasons))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}" if number else ""
