"""Duplicate ids: what each address has seen, in memory and in the message journal.

Owns the caches: per address the ids of the last `id-cache-size` messages that had one. Must never
confirm anything: an id enters the cache when its message is staged, so a message that comes again
meets it at once, and its receipt waits for everything staged before, the first message included.
Called by `transactions` (which stages ids as members of the message's own transaction, so that a
crash leaves both or neither), by `app` when an administrator deletes an address, and by the store
as the owner of DUPLICATE records (`store.kept`).

In the journal (journal-format §3.7) ids have numbers, ascending by address. The highest
`id-cache-size` numbers of an address count, so neither the order of records nor their absence
matters: an id that was displaced needs no tombstone, and one whose file has to go is appended again
under its number. A mark (an id of no bytes) says that an address was cleared.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from vespiary_broker.engine.core import Core, NoRoom
from vespiary_broker.engine.duplicate_cache import AddressCache
from vespiary_codec.journal.duplicate import (
    ID_OVERHEAD_BYTES,
    DuplicateId,
    DuplicateRecord,
    decode_duplicate,
    duplicate_body,
)
from vespiary_codec.journal.record import RecordFlag, RecordType

log = logging.getLogger(__name__)

HEADER = "_AMQ_DUPL_ID"
ID_BYTES_MAX = 1024
CACHES_MAX = 10_000
"""Caches, above which those of addresses that are gone are forgotten."""
_LOOKED_AT = 100
_REWRITE_BYTES = 16 * 1024
"""Ids in one rewritten record: few enough that it fits what a full file has left."""
_REWRITE_LOOKED_AT = 50_000
"""Numbers looked at in one call of `rewrite`: a millisecond or two."""
_REWRITE_RECORD_COST = 250
_REWRITE_ID_COST = 50
"""What a record that is appended, and an id in it, cost in numbers looked at."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """An address was cleared: its ids with numbers up to this one are void.

    Attributes:
        number: Highest void number.
        file_id: File that the mark stands in; 0 while it is not written.
        until_file: Void ids stand in files up to this one.
    """

    number: int
    file_id: int
    until_file: int


@dataclass(slots=True)
class _Budget:
    """What one call of `rewrite` may still do: bytes to append, numbers to look at."""

    size_bytes: int
    looked_at: int


@dataclass(frozen=True, slots=True)
class DuplicateState:
    """The cache of one address.

    Attributes:
        address: The address.
        size: Ids that are remembered at most.
        ids: Ids that are remembered.
        discarded: Messages discarded since the start.
        newest: The newest ids, newest first.
    """

    address: str
    size: int
    ids: int
    discarded: int
    newest: tuple[str, ...]


class DuplicateIds:
    """The caches of all addresses. Owner: the event loop (during a recovery, the worker thread).

    Invariant: `live_records` of a file counts exactly the ids and marks whose latest record stands
    there.

    Args:
        size_for: Returns the `id-cache-size` of an address; 0 switches detection off.
        is_persistent: `persist-id-cache`, and persistence at all.

    Attributes:
        discarded: Messages discarded since the start, over all addresses.
    """

    def __init__(self, size_for: Callable[[str], int], *, is_persistent: bool) -> None:
        self.discarded = 0
        self._size_for = size_for
        self._is_persistent = is_persistent
        self._core: Core | None = None
        self._exists: Callable[[str], bool] = lambda _: True
        self._caches: dict[str, AddressCache] = {}
        self._marks: dict[str, _Mark] = {}
        self._files: dict[int, Counter[str]] = defaultdict(Counter)
        self._bytes: Counter[int] = Counter()
        self._records: Counter[int] = Counter()
        self._marked: dict[int, set[str]] = defaultdict(set)
        self._seen_files: set[int] = set()
        self._pending: dict[int, list[tuple[int, DuplicateRecord]]] = {}
        # Where `rewrite` goes on, by file and address: what is below does not stand there any more.
        self._looked_to: dict[int, dict[str, int]] = defaultdict(dict)

    # --- deciding -------------------------------------------------------------------------------

    def change_sizes(self, size_for: Callable[[str], int]) -> None:
        """Remember more or fewer ids from now on; what is too much goes with the next id."""
        self._size_for = size_for
        for address, cache in self._caches.items():
            cache.size = size_for(address)

    def is_on(self, address: str) -> bool:
        """Return whether messages of an address are looked at."""
        return self._size_for(address) > 0

    def is_seen(self, address: str, text: bytes) -> bool:
        """Return whether an address has seen an id, durable or not."""
        cache = self._caches.get(address)
        return cache is not None and text in cache

    def discard(self, address: str) -> None:
        """Count a message that came again; the first of an address is logged."""
        self.discarded += 1
        cache = self._caches[address]
        cache.discarded += 1
        if cache.discarded == 1:
            log.warning(
                "a message with a duplicate id was discarded address=%s; "
                "the next ones are only counted",
                address,
            )

    def numbered(
        self, ids: Iterable[tuple[str, bytes, bool]]
    ) -> list[tuple[DuplicateRecord, bool]]:
        """Return records for ids that are new: one for each address, and kind of message.

        Args:
            ids: Address, id, and whether its message is journalled; none seen before.

        Returns:
            Each record with whether it goes to the journal: the id of a message that is lost in a
            crash must be lost too, or the message could not be sent again.
        """
        groups: dict[tuple[str, bool], list[DuplicateId]] = defaultdict(list)
        following: dict[str, int] = {}
        for address, text, is_journalled in ids:
            number = following.get(address) or self._following(address)
            following[address] = number + 1
            groups[address, is_journalled and self._is_persistent].append(DuplicateId(number, text))
        return [
            (DuplicateRecord(address, tuple(members)), is_journalled)
            for (address, is_journalled), members in groups.items()
        ]

    def enter(self, staged: Iterable[tuple[DuplicateRecord, int]]) -> None:
        """Remember the ids of records that were staged together.

        Args:
            staged: What `numbered` returned, each with the file that it stands in; 0 if it is not
                journalled.
        """
        entries = sorted(
            (number, record.address, text, file_id)
            for record, file_id in staged
            for number, text in record.ids
        )
        for number, address, text, file_id in entries:
            self._count(address, file_id, text)
            for old_file, old in self._cache(address).add(number, text, file_id):
                self._uncount(address, old_file, old)

    def clear(self, address: str) -> int:
        """Forget all ids of an address, also after a restart; return how many.

        Durability: the mark in the journal is staged, and nobody waits for it.
        """
        cache = self._caches.pop(address, None)
        if cache is None:
            return 0
        entries = list(cache.entries())
        for _, text, file_id in entries:
            self._uncount(address, file_id, text)
        mark = self._marks.get(address)
        if self._is_persistent and cache.last and (mark is None or cache.last > mark.number):
            # Void ids stand in files that are known by now; later ones have higher numbers.
            self._set_mark(address, _Mark(cache.last, 0, max(self._seen_files, default=0)))
            self._write_marks((address,))
        return len(entries)

    def state(self, address: str, limit: int) -> DuplicateState:
        """Return the state of the cache of an address, with at most `limit` of its ids."""
        cache = self._caches.get(address)
        if cache is None:
            return DuplicateState(address, self._size_for(address), 0, 0, ())
        newest = tuple(text.decode() for text in cache.newest(limit))
        return DuplicateState(address, cache.size, len(cache), cache.discarded, newest)

    @property
    def count(self) -> int:
        """Ids remembered, over all addresses."""
        return sum(len(cache) for cache in self._caches.values())

    def _cache(self, address: str) -> AddressCache:
        cache = self._caches.get(address)
        if cache is None:
            self._make_room()
            cache = AddressCache(self._size_for(address), self._following(address))
            self._caches[address] = cache
        return cache

    def _make_room(self) -> None:
        """Forget the cache of an address that is gone, if there are too many.

        An address that goes by itself with its last consumer keeps its cache: its producers may
        still send again what they got no receipt for.
        """
        for address in list(islice(self._caches, _LOOKED_AT if self._is_full else 0)):
            if not self._exists(address):
                self.clear(address)
                return
            self._caches[address] = self._caches.pop(address)

    @property
    def _is_full(self) -> bool:
        return len(self._caches) >= CACHES_MAX

    def _following(self, address: str) -> int:
        """Return the number of the next id of an address."""
        cache = self._caches.get(address)
        if cache is not None and cache.last:
            return cache.last + 1
        mark = self._marks.get(address)
        return 1 if mark is None else mark.number + 1

    # --- the owner of DUPLICATE records (store.kept) -------------------------------------------

    def restore(self, file_id: int, type_: int, body: bytes) -> None:
        """See `store.kept.KeptRecords.restore`."""
        if not self._is_persistent:
            return
        if type_ == RecordType.DUPLICATE:
            record = decode_duplicate(body)
            self._seen_files.add(file_id)
            if record.transaction:
                self._pending.setdefault(record.transaction, []).append((file_id, record))
            else:
                self._restore(file_id, record)
        elif type_ == RecordType.COMMIT:
            for member_file, record in self._pending.pop(int.from_bytes(body[:8], "little"), ()):
                self._restore(member_file, record)

    def _restore(self, file_id: int, record: DuplicateRecord) -> None:
        cache = self._cache(record.address)
        for number, text in record.ids:
            if text:
                cache.restore(number, text, file_id)
            else:
                known = self._marks.get(record.address)
                if known is None or number >= known.number:
                    # Which files the void ids stand in is not known: any of those there are.
                    self._marks[record.address] = _Mark(number, file_id, file_id)

    def start(self, core: Core, exists: Callable[[str], bool]) -> None:
        """Take the core after a recovery; what was found counts from now on.

        Args:
            core: The core.
            exists: Returns whether there is an address of a name.
        """
        self._core = core
        self._exists = exists
        self._pending.clear()
        newest_file = max(self._seen_files, default=0)
        for address, mark in self._marks.items():
            self._marks[address] = _Mark(mark.number, mark.file_id, newest_file)
            self._files[mark.file_id][address] += 1
            self._records[mark.file_id] += 1
            self._marked[mark.file_id].add(address)
        for address, cache in self._caches.items():
            floor = self._marks[address].number if address in self._marks else 0
            cache.settle(floor)
            for _, text, file_id in cache.entries():
                self._count(address, file_id, text)

    def live_records(self, file_id: int) -> int:
        """See `store.kept.KeptRecords.live_records`.

        Until `start` nobody knows which ids count, and the journal's keeper is at work already: any
        file with a record stays.
        """
        if self._core is None:
            return int(file_id in self._seen_files)
        marked = self._marked.get(file_id, ())
        idle = sum(1 for address in marked if self._is_idle_mark(address, file_id))
        return self._records[file_id] - idle

    def _is_idle_mark(self, address: str, file_id: int) -> bool:
        """Return whether an address' mark stands in the file and voids nothing any more."""
        mark = self._marks.get(address)
        return (
            mark is not None
            and mark.file_id == file_id
            and not any(o <= mark.until_file for o in self._seen_files if o != file_id)
        )

    def live_bytes(self, file_id: int) -> int:
        """See `store.kept.KeptRecords.live_bytes`."""
        return self._bytes[file_id]

    def rewrite(self, file_id: int, limit_bytes: int) -> bool:
        """See `store.kept.KeptRecords.rewrite`."""
        if self._core is None:
            return False  # see `live_records`
        budget = _Budget(limit_bytes, _REWRITE_LOOKED_AT)
        for address in list(self._files.get(file_id, ())):
            mark = self._marks.get(address)
            is_here = mark is not None and mark.file_id == file_id
            is_needed = is_here and not self._is_idle_mark(address, file_id)
            if is_needed:
                if budget.looked_at <= 0 or not self._write_marks((address,)):
                    return False
                budget.looked_at -= _REWRITE_RECORD_COST
            if not self._rewrite_ids(address, file_id, budget):
                return False
        return not self.live_records(file_id)

    def _rewrite_ids(self, address: str, file_id: int, budget: _Budget) -> bool:
        """Append the ids of an address that stand in a file again; False: it has to go on later."""
        assert self._core is not None
        cache = self._caches.get(address)
        if cache is None:
            return True
        number = max(self._looked_to[file_id].get(address, 0), cache.first)
        while number <= cache.last:
            if budget.size_bytes <= 0 or budget.looked_at <= 0:
                return False
            found, following = cache.standing_in(
                file_id,
                number,
                size_bytes=min(_REWRITE_BYTES, budget.size_bytes),
                overhead_bytes=ID_OVERHEAD_BYTES,
                looked_at=budget.looked_at,
            )
            budget.looked_at -= following - number
            if found:
                ids = tuple(DuplicateId(*each) for each in found)
                body = duplicate_body(DuplicateRecord(address, ids))
                try:
                    self._core.append_record(RecordType.DUPLICATE, body, urgent=False)
                except NoRoom:
                    return False
                self._moved(address, ids, file_id)
                budget.size_bytes -= len(body)
                budget.looked_at -= _REWRITE_RECORD_COST + _REWRITE_ID_COST * len(ids)
            number = self._looked_to[file_id][address] = following
        return True

    def _moved(self, address: str, ids: tuple[DuplicateId, ...], old_file: int) -> None:
        new_file = self._current_file()
        cache = self._caches[address]
        for number, text in ids:
            cache.move(number, new_file)
            self._uncount(address, old_file, text)
            self._count(address, new_file, text)

    def forget_file(self, file_id: int) -> None:
        """See `store.kept.KeptRecords.forget_file`."""
        self._seen_files.discard(file_id)
        self._looked_to.pop(file_id, None)
        for address in list(self._files.pop(file_id, ())):
            mark = self._marks.get(address)
            if mark is not None and mark.file_id == file_id:
                del self._marks[address]  # it went with the last ids that it voids
        self._bytes.pop(file_id, None)
        self._records.pop(file_id, None)
        self._marked.pop(file_id, None)
        if self._core is None:
            return
        self._write_marks(name for name, mark in self._marks.items() if not mark.file_id)

    # --- counting by file -------------------------------------------------------------------

    def _current_file(self) -> int:
        assert self._core is not None
        return self._core.current_file()

    def _count(self, address: str, file_id: int, text: bytes) -> None:
        if file_id:
            self._seen_files.add(file_id)
            self._files[file_id][address] += 1
            self._records[file_id] += 1
            self._bytes[file_id] += len(text) + ID_OVERHEAD_BYTES

    def _uncount(self, address: str, file_id: int, text: bytes) -> None:
        if file_id:
            counts = self._files[file_id]
            counts[address] -= 1
            self._records[file_id] -= 1
            if not counts[address]:
                del counts[address]
            if not counts:
                del self._files[file_id]
            self._bytes[file_id] -= len(text) + ID_OVERHEAD_BYTES

    def _set_mark(self, address: str, mark: _Mark) -> None:
        """Replace the mark of an address in the table and in the counts of its file."""
        before = self._marks.get(address)
        if before is not None:
            self._uncount(address, before.file_id, b"")
            self._marked[before.file_id].discard(address)
        self._marks[address] = mark
        self._count(address, mark.file_id, b"")
        if mark.file_id:
            self._marked[mark.file_id].add(address)

    def _write_marks(self, addresses: Iterable[str]) -> bool:
        """Append marks; False if there was no room: the next file that is freed tries again."""
        assert self._core is not None
        for address in list(addresses):
            mark = self._marks[address]
            record = DuplicateRecord(address, (DuplicateId(mark.number, b""),))
            try:
                self._core.append_record(RecordType.DUPLICATE, duplicate_body(record), urgent=False)
            except NoRoom:
                return False
            self._set_mark(address, _Mark(mark.number, self._current_file(), mark.until_file))
        return True


def member_of(record: DuplicateRecord, transaction: int) -> tuple[bytes, int]:
    """Return body and flags of a record as a transaction's member."""
    member = record._replace(transaction=transaction)
    return duplicate_body(member), RecordFlag.TRANSACTIONAL
