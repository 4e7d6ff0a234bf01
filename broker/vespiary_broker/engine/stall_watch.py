"""The watch over what is not moving: samples, warnings, and since when.

Owns one scan over all queues and addresses every `PERIOD_S`, in steps, which also samples the rates
of queues. Must never decide what a stall is: that is `stalls`. A stall is logged as a WARNING when
two scans in a row find it, or as INFO if it is a normal state (`_CALM`); each name at most once a
minute, also if it is made again, and at most `_LINES_MAX` in a minute and level, addresses first.
The end of each stall that was named is logged as INFO, also if its place was deleted. Run by a
timer of the server; owner: the event loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.stalls import Stall, StallReason, Stalls

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine

PERIOD_S: Final = 5.0
"""Seconds between two scans."""
_STEP: Final = 32
"""Places in one turn of the loop: less than a millisecond, even if all of them are stalled."""
_CHECKS: Final = 1024
"""Stalled places in one turn that are only checked for having been deleted."""
_LOOKS_EACH: Final = 4
"""Places that are looked at again for each that is asked for: some move by now."""
_RANKS: Final = 4
_QUIET_S: Final = 60.0
"""Seconds in which one queue or address is named at most once."""
_LINES_MAX: Final = 20
"""Stalls of one level that the log names in `_QUIET_S`; the others are counted in one line."""
_CALM: Final = frozenset({StallReason.SCHEDULED})
"""Reasons that are normal states: somebody asked for them."""

Place = Queue | Address
_Key = tuple[str, str]
"""Kind and name: a queue that is made again is the same one to whoever reads the log."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    """A queue or an address that is stalled.

    Attributes:
        place: It; another one may have its name by now.
        stall: Why, as of the last scan.
        since_s: When a scan first found that reason.
        is_told: Whether the log names it or counts it.
        is_named: Whether the log names it.
    """

    place: Place
    stall: Stall
    since_s: float
    is_told: bool = False
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class StalledPlace:
    """A queue or an address that is not moving.

    Attributes:
        kind: `queue` or `address`.
        name: Its name.
        address: Name of its address; of an address its own.
        stall: Why.
        age_s: Seconds since a scan first found it.
    """

    kind: str
    name: str
    address: str
    stall: Stall
    age_s: float


class StallWatch:
    """Watches all queues and addresses.

    Attributes:
        period_s: Seconds between two scans.

    Args:
        engine: The engine.
        stalls: Says what is stalled.
        clock_s: A monotonic clock.
    """

    def __init__(self, engine: Engine, stalls: Stalls, clock_s: Callable[[], float]) -> None:
        self.period_s = PERIOD_S
        self._registry = engine.registry
        self._rates = engine.rates
        self._stalls = stalls
        self._clock_s = clock_s
        self._watched: dict[_Key, _Watched] = {}
        self._named_s: dict[_Key, float] = {}  # when the log named it last, if a minute ago
        self._lines: Counter[int] = Counter()  # of a level, since `_lines_begin_s`
        self._lines_begin_s = self._counted_s = -_QUIET_S
        self._unnamed: Counter[StallReason] = Counter()

    # --- looking ----------------------------------------------------------------------------------

    def counts(self) -> tuple[Counter[StallReason], Counter[StallReason]]:
        """Return how many queues, and how many addresses, are stalled for which reason."""
        queues: Counter[StallReason] = Counter()
        addresses: Counter[StallReason] = Counter()
        for watched in self._watched.values():
            is_queue = isinstance(watched.place, Queue)
            (queues if is_queue else addresses)[watched.stall.reason] += 1
        return queues, addresses

    def stalled(self, limit: int, addresses: Iterable[str] = ()) -> list[StalledPlace]:
        """Return what is stalled as of now, what has been so for longest first.

        Full addresses come first, then other addresses, then queues. Addresses that wait for the
        disk alone come last, since that stalls them all.

        Args:
            limit: Most of them.
            addresses: Addresses to look at whatever the last scan found.
        """
        now_s, count_max = self._clock_s(), _LOOKS_EACH * limit
        ranks: list[list[tuple[Place, float]]] = [[] for _ in range(_RANKS)]
        for watched in self._watched.values():  # the oldest comes first
            rank = ranks[_rank(watched.place, watched.stall)]
            if len(rank) < count_max:
                rank.append((watched.place, watched.since_s))
        for name in addresses:
            address = self._registry.addresses.get(name)
            known = self._watched.get(("address", name))
            is_known = known is not None and known.place is address
            if address is not None and not is_known and len(ranks[0]) < count_max:
                ranks[0].append((address, now_s))
        found: list[StalledPlace] = []
        for place, since_s in islice(chain.from_iterable(ranks), count_max):
            stall = self._stalls.why(place) if self._exists(place) else None
            if stall is not None:
                found.append(_stalled_place(place, stall, now_s - since_s))
        return found[:limit]

    # --- scanning ---------------------------------------------------------------------------------

    def scan(self) -> Iterator[int]:
        """Look at all queues and addresses, and sample the queues.

        Yields:
            After each step, 0: nothing has changed.
        """
        if self._clock_s() - self._lines_begin_s >= _QUIET_S:
            self._lines_begin_s = self._clock_s()
            self._lines.clear()
        places: list[Place] = [*self._registry.addresses.values()]  # these are named first
        places += self._registry.queues_by_id.values()
        for begin in range(0, len(places), _STEP):
            for place in places[begin : begin + _STEP]:
                self._look(place)
            yield 0
        found = [*self._watched.values()]
        for begin in range(0, len(found), _CHECKS):
            for watched in found[begin : begin + _CHECKS]:
                if not self._exists(watched.place):
                    self._end(watched, self._clock_s())
            yield 0
        self._rates.forget_deleted()
        now_s = self._clock_s()
        self._named_s = {
            key: at_s for key, at_s in self._named_s.items() if now_s - at_s < _QUIET_S
        }
        self._count_unnamed(now_s)

    def _count_unnamed(self, now_s: float) -> None:
        """Log how many stalls were not named, at most once a minute."""
        if not self._unnamed or now_s - self._counted_s < _QUIET_S:
            return
        reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(self._unnamed.items()))
        log.log(
            _level(*self._unnamed),
            "more queues and addresses are stalled count=%d reasons=%r cure=%r",
            self._unnamed.total(),
            reasons,
            "`vespiary status` and `vespiary queue list`",
        )
        self._unnamed.clear()
        self._counted_s = now_s

    def _look(self, place: Place) -> None:
        if not self._exists(place):
            return
        if isinstance(place, Queue):
            self._rates.sample(place)
        stall = self._stalls.why(place)
        key = (_kind(place), place.name)
        watched = self._watched.get(key)
        now_s = self._clock_s()
        if watched is not None and (
            stall is None or watched.place is not place or watched.stall.reason is not stall.reason
        ):
            self._end(watched, now_s)
            watched = None
        if stall is None:
            return
        if watched is None:
            self._watched[key] = _Watched(place, stall, now_s)
        else:
            watched.stall = stall
            if not watched.is_told:
                self._tell(key, watched, now_s)

    def _tell(self, key: _Key, watched: _Watched, now_s: float) -> None:
        """Log that something is stalled, unless it was named less than a minute ago."""
        if key in self._named_s and now_s - self._named_s[key] < _QUIET_S:
            return
        watched.is_told = True
        level = _level(watched.stall.reason)
        if self._lines[level] == _LINES_MAX:
            self._unnamed[watched.stall.reason] += 1
            return
        self._lines[level] += 1
        watched.is_named = True
        self._named_s[key] = now_s
        kind, name = key
        log.log(
            level,
            "%s is stalled %s=%s reason=%s text=%r cure=%r",
            *(kind, kind, name, watched.stall.reason, watched.stall.text, watched.stall.cure),
        )

    def _end(self, watched: _Watched, now_s: float) -> None:
        """Forget a stall; log its end if the log has its begin, whatever ended it."""
        place, kind = watched.place, _kind(watched.place)
        del self._watched[kind, place.name]
        if watched.is_named:
            ended = f"{kind} is no longer stalled"
            if not self._exists(place):
                ended = f"stalled {kind} was deleted"
            log.info(
                "%s %s=%s reason=%s seconds=%.0f",
                *(ended, kind, place.name, watched.stall.reason, now_s - watched.since_s),
            )

    def _exists(self, place: Place) -> bool:
        if isinstance(place, Queue):
            return not place.is_deleted
        return self._registry.addresses.get(place.name) is place


def _rank(place: Place, stall: Stall) -> int:
    """Return which places are shown first: one of `_RANKS` numbers from 0."""
    if isinstance(place, Queue):
        return 2
    if stall.reason in (StallReason.FULL, StallReason.MEMORY):
        return 0
    if stall.reason is StallReason.DISK:
        return 0 if stall.blocked_producers else 3  # it is full as well
    return 1


def _kind(place: Place) -> str:
    return "queue" if isinstance(place, Queue) else "address"


def _stalled_place(place: Place, stall: Stall, age_s: float) -> StalledPlace:
    address = place.address.name if isinstance(place, Queue) else place.name
    return StalledPlace(_kind(place), place.name, address, stall, age_s)


def _level(*reasons: StallReason) -> int:
    return logging.INFO if _CALM.issuperset(reasons) else logging.WARNING
