"""Rates of queues: messages a second, from samples of counters that are kept anyway.

Owns the last sample of each queue that ever had a message. Must never be called for a message:
nothing else costs anything. Sampled by `stall_watch`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.queues import CHANGED, Queue


class Rates(NamedTuple):
    """Messages a second between the last two samples of a queue.

    Attributes:
        in_per_s: That came in.
        out_per_s: That left it: acknowledged, expired, moved, removed.
    """

    in_per_s: float
    out_per_s: float


NO_RATES: Final = Rates(0.0, 0.0)


class Counts(NamedTuple):
    """Counters of a queue at one moment.

    Attributes:
        added: Messages that ever came in.
        left: Messages that ever left.
        delivered: Messages that were given to consumers, again those that came back.
    """

    added: int
    left: int
    delivered: int


@dataclass(slots=True)
class _Sample:
    """The last sample of a queue.

    Attributes:
        at_s: When it was taken.
        counts: What it found.
        rates: Between it and the one before; None: there was none.
        has_moved: Whether messages went out or left between the two; True if there was none.
    """

    at_s: float
    counts: Counts
    rates: Rates | None = None
    has_moved: bool = True


class QueueRates:
    """The rates of all queues.

    Args:
        core: The core.
        clock_s: A monotonic clock.
    """

    def __init__(self, core: Core, clock_s: Callable[[], float]) -> None:
        self._core = core
        self._clock_s = clock_s
        self._samples: dict[Queue, _Sample] = {}

    def of(self, queue: Queue) -> Rates | None:
        """Return the rates of a queue; None until it was sampled twice."""
        sample = self._samples.get(queue)
        if sample is not None:
            return sample.rates
        return None if any(self._counts(queue)) else NO_RATES

    def has_moved(self, queue: Queue) -> bool:
        """Whether messages went out of a queue or left it lately: since the last sample but one.

        True also for a queue that was not sampled twice yet.
        """
        sample = self._samples.get(queue)
        if sample is None or sample.has_moved:
            return True
        return self._counts(queue)[1:] != sample.counts[1:]

    def forget_deleted(self) -> None:
        """Drop the samples of queues that were deleted."""
        self._samples = {
            queue: sample for queue, sample in self._samples.items() if not queue.is_deleted
        }

    def sample(self, queue: Queue) -> None:
        """Take a sample of a queue; to be called every few seconds."""
        counts = self._counts(queue)
        before = self._samples.get(queue)
        if before is None:
            if any(counts) or self._has_messages(queue):  # of an earlier run, perhaps
                self._samples[queue] = _Sample(self._clock_s(), counts)
            return
        now_s = self._clock_s()
        passed_s = now_s - before.at_s
        if passed_s <= 0:
            return
        before.rates = Rates(
            (counts.added - before.counts.added) / passed_s,
            (counts.left - before.counts.left) / passed_s,
        )
        before.has_moved = counts[1:] != before.counts[1:]
        before.at_s, before.counts = now_s, counts

    def _has_messages(self, queue: Queue) -> bool:
        found = self._core.queue_statistics(queue.id)
        return found.ready + found.paged + found.delivering > 0

    def _counts(self, queue: Queue) -> Counts:
        statistics = self._core.queue_statistics(queue.id)
        changed = queue.departed(CHANGED)
        return Counts(
            statistics.added - changed, statistics.acknowledged - changed, queue.delivered
        )
