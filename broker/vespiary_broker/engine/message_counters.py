"""Message counters of queues and addresses, with a history by hour and day.

Owns what was counted at each sample, and its history in bounded memory. Must never count a message:
the core and the queues have the figures, and a sample only looks at them. Sampled by
`app.counting_messages`; owner: the event loop.

    added         messages that came into the queue
    delivered     messages given to consumers, again those that came back
    acknowledged  messages that ended in the queue: by consumers, purged, removed, replaced
    expired       messages that expired
    killed        dead letters (the reference system's word)

All of an address are the sums over its queues, temporary ones included. Nothing of it is kept over
a restart, as in the reference system. Days and hours are those of UTC.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.core import Core
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.queues import CHANGED, Queue

HOURS_MAX: Final = 100_000
"""Hours of history over all queues and addresses, about 300 bytes each; the oldest go first."""
_STEP: Final = 64
_HOUR_MS: Final = 3_600_000
_DAY_HOURS: Final = 24


class Counts(NamedTuple):
    """What was counted in some time."""

    added: int = 0
    delivered: int = 0
    acknowledged: int = 0
    expired: int = 0
    killed: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sum of both."""
        return Counts(*(own + more for own, more in zip(self, other, strict=True)))

    def minus(self, other: Counts) -> Counts:
        """Return what this is more than another."""
        return Counts(*(own - less for own, less in zip(self, other, strict=True)))


NOTHING: Final = Counts()


class HourCounts(NamedTuple):
    """An hour in which something happened.

    Attributes:
        hour: 0 to 23.
        counts: What happened.
    """

    hour: int
    counts: Counts


class DayCounts(NamedTuple):
    """A day on which something happened.

    Attributes:
        date: As `2026-11-22`.
        counts: What happened.
        hours: By hour; those without anything are left out.
    """

    date: str
    counts: Counts
    hours: tuple[HourCounts, ...]


class MessageCounter:
    """The counter of one queue or address.

    Attributes:
        total: Since the start, or since it was reset.
        delta: Between the last two samples.
        last_add_ms: Sample that found the last message added, milliseconds since 1970; 0: none.
        last_ack_ms: Sample that found the last message acknowledged; 0: none.
        updated_ms: When it was sampled last; 0: never.
    """

    __slots__ = ("delta", "hours", "last_ack_ms", "last_add_ms", "seen", "total", "updated_ms")

    def __init__(self) -> None:
        self.hours: dict[int, Counts] = {}
        self.seen = NOTHING  # of a queue: what it had counted at the last sample
        self.updated_ms = 0
        self.reset()

    def reset(self) -> None:
        """Begin anew; the history goes too."""
        self.total = self.delta = NOTHING
        self.last_add_ms = self.last_ack_ms = 0
        self.hours.clear()

    def enter(self, delta: Counts, now_ms: int) -> None:
        """Enter what happened since the last sample, without history."""
        self.delta, self.updated_ms = delta, now_ms
        if delta == NOTHING:
            return
        self.total = self.total.plus(delta)
        if delta.added:
            self.last_add_ms = now_ms
        if delta.acknowledged:
            self.last_ack_ms = now_ms

    def days(self) -> tuple[DayCounts, ...]:
        """Return the history, oldest day first."""
        by_day: dict[int, list[HourCounts]] = {}
        for index, counts in sorted(self.hours.items()):
            day, hour = divmod(index, _DAY_HOURS)
            by_day.setdefault(day, []).append(HourCounts(hour, counts))
        return tuple(
            DayCounts(_date(day), _sum(each.counts for each in hours), tuple(hours))
            for day, hours in by_day.items()
        )


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY_HOURS * _HOUR_MS / 1000, UTC).date().isoformat()


def _sum(all_counts: Iterator[Counts]) -> Counts:
    total = NOTHING
    for counts in all_counts:
        total = total.plus(counts)
    return total


class MessageCounters:
    """The counters of all queues and addresses.

    Invariant: there are at most `hours_max` hours in all histories together.

    Args:
        core: The core.
        queues: Queues by number.
        addresses: Addresses by name.
        history_days: Returns how many days of an address are kept, today included.
        hours_max: Most hours of history in memory.
    """

    def __init__(
        self,
        core: Core,
        queues: Mapping[int, Queue],
        addresses: Mapping[str, Address],
        history_days: Callable[[str], int],
        *,
        hours_max: int = HOURS_MAX,
    ) -> None:
        self._core = core
        self._queues = queues
        self._addresses = addresses
        self._history_days = history_days
        self._hours_max = hours_max
        self._by_queue: dict[int, MessageCounter] = {}
        self._by_address: dict[str, MessageCounter] = {}
        self._order: deque[tuple[int, MessageCounter]] = deque()  # hours as they were begun

    @property
    def hours(self) -> int:
        """Hours of history in memory, those that went by their age not yet counted off."""
        return len(self._order)

    def of_queue(self, queue: Queue) -> MessageCounter:
        """Return the counter of a queue."""
        return self._by_queue.get(queue.id) or MessageCounter()

    def of_address(self, name: str) -> MessageCounter:
        """Return the counter of an address."""
        return self._by_address.get(name) or MessageCounter()

    def reset(self, counter: MessageCounter | None = None) -> None:
        """Have a counter begin anew; None: all of them."""
        if counter is not None:
            counter.reset()
            return
        for known in (*self._by_queue.values(), *self._by_address.values()):
            known.reset()

    def sample(self, now_ms: int) -> Iterator[None]:
        """Look at what was counted since the last sample.

        Args:
            now_ms: Milliseconds since 1970.

        Yields:
            After each bounded step.
        """
        deltas: dict[str, Counts] = {}
        for index, queue in enumerate(list(self._queues.values())):
            if index % _STEP == _STEP - 1:
                yield
            if not queue.is_deleted:
                delta = self._sample_queue(queue, now_ms)
                name = queue.address.name
                deltas[name] = deltas.get(name, NOTHING).plus(delta)
        for index, (name, delta) in enumerate(deltas.items()):
            if index % _STEP == _STEP - 1:
                yield
            counter = self._by_address.setdefault(name, MessageCounter())
            self._enter(counter, name, delta, now_ms)
        yield from self._forget_gone()
        self._trim()

    def _sample_queue(self, queue: Queue, now_ms: int) -> Counts:
        counter = self._by_queue.get(queue.id)
        if counter is None:
            counter = self._by_queue[queue.id] = MessageCounter()
        now = self._counts(queue)
        delta, counter.seen = now.minus(counter.seen), now
        self._enter(counter, queue.address.name, delta, now_ms)
        return delta

    def _counts(self, queue: Queue) -> Counts:
        facts = self._core.queue_statistics(queue.id)
        return Counts(
            added=facts.added - queue.departed(CHANGED),
            delivered=queue.delivered,
            acknowledged=facts.acknowledged - queue.departed_in_all,
            expired=queue.departed(Reason.EXPIRED),
            killed=queue.departed(Reason.DELIVERIES),
        )

    def _enter(self, counter: MessageCounter, address: str, delta: Counts, now_ms: int) -> None:
        counter.enter(delta, now_ms)
        days = self._history_days(address)
        hour = now_ms // _HOUR_MS
        first = (hour // _DAY_HOURS - days + 1) * _DAY_HOURS
        for old in [index for index in counter.hours if index < first]:
            del counter.hours[old]
        if delta != NOTHING and days > 0:
            before = counter.hours.get(hour)
            if before is None:
                self._order.append((hour, counter))
            counter.hours[hour] = delta if before is None else before.plus(delta)

    def _forget_gone(self) -> Iterator[None]:
        """Forget the counters of queues and addresses that are gone."""
        for queue_id in [each for each in self._by_queue if each not in self._queues]:
            self._by_queue.pop(queue_id).reset()
        yield
        for name in [each for each in self._by_address if each not in self._addresses]:
            self._by_address.pop(name).reset()

    def _trim(self) -> None:
        """Let the oldest hours go until there are few enough."""
        order = self._order
        if len(order) > self._hours_max:  # those that went otherwise take no room
            # An hour that was begun again after a reset stands here twice.
            there = dict.fromkeys(each for each in order if each[0] in each[1].hours)
            order = self._order = deque(there)
        while len(order) > self._hours_max:
            hour, counter = order.popleft()
            del counter.hours[hour]
