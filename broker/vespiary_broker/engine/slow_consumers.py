"""Slow consumers: those that acknowledge less than they have to, though there is enough to be had.

Owns the measuring, period by period, and what becomes of those that are too slow. Must never look
at a message. Runs in steps, by a timer of the server; costs nothing where no address has a
threshold. Owner: the event loop.

The rule (the reference system's, but for the last condition)
    Over a period of `slow-consumer-check-period` a consumer is slow if
    - it acknowledged fewer messages than the threshold asks for in that time, and
    - the queue had enough for all of its consumers to reach the threshold: what was there when the
      period began, and what came since, and
    - it holds messages that it has not acknowledged, or its connection does not take more. One that
      has done all that it was given is not slow: its selector, its priority, or others left it
      nothing.
    A consumer that came during the period, and a queue that is paused, are not measured.
    An acknowledgement counts when it is staged; for a consumer that acknowledges automatically what
    left the broker counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_spec.consumers import SlowConsumerPolicy, SlowConsumerUnit

if TYPE_CHECKING:
    from vespiary_broker.engine.address_settings import AddressSettingsTable
    from vespiary_broker.engine.registry import Registry
    from vespiary_spec.settings import AddressSettings

STEP_QUEUES: Final = 500
_TICK_S: Final = 1.0
_UNITS: Final = {unit: unit.value.rpartition("_")[2].lower() for unit in SlowConsumerUnit}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowConsumerStatistics:
    """What was found since the start.

    Attributes:
        detected: Periods in which a consumer was slow.
        killed: Connections that were ended for it.
    """

    detected: int
    killed: int


@dataclass(slots=True)
class _Period:
    """A queue's measurement that is under way.

    Attributes:
        begun_s: When it began.
        due_s: When it ends.
        had: Messages that had come into the queue until then, less those that had gone.
        added: Messages that had ever come in.
        done: What each consumer had acknowledged.
    """

    begun_s: float
    due_s: float
    had: int
    added: int
    done: dict[Consumer, int]


class SlowConsumers:
    """Measures the consumers of all queues of addresses with a threshold.

    Attributes:
        period_s: Seconds between two scans; 0 when no address has a threshold.
        detected: Periods in which a consumer was slow.
        killed: Connections that were ended for it.

    Args:
        core: The core.
        registry: Addresses and queues.
        settings: Settings by address; say whether there is any threshold.
        clock_s: A monotonic clock.
    """

    def __init__(
        self,
        core: Core,
        registry: Registry,
        settings: AddressSettingsTable,
        clock_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self.settings_changed()
        self.detected = 0
        self.killed = 0
        self._core = core
        self._registry = registry
        self._clock_s = clock_s
        self._periods: dict[Queue, _Period] = {}
        self._told: set[Consumer] = set()

    def settings_changed(self) -> None:
        """Take note of whether any address has a threshold now."""
        self.period_s = _TICK_S if self._settings.has_slow_consumer_thresholds else 0.0

    def statistics(self) -> SlowConsumerStatistics:
        """Return the counters."""
        return SlowConsumerStatistics(detected=self.detected, killed=self.killed)

    def scan(self) -> Iterator[int]:
        """End the periods that are over, and begin the next ones.

        Yields:
            After each step, how many connections were ended in it.
        """
        queues = iter(list(self._registry.queues_by_id.values()))
        while step := list(islice(queues, STEP_QUEUES)):
            before = self.killed
            for queue in step:
                if queue.consumers and not queue.is_deleted:
                    self._look(queue)
                else:
                    self._periods.pop(queue, None)
            yield self.killed - before
        self._told = {consumer for consumer in self._told if consumer.is_open}
        self._periods = {
            queue: period for queue, period in self._periods.items() if not queue.is_deleted
        }

    def _look(self, queue: Queue) -> None:
        settings = self._registry.settings_for(queue.address.name)
        threshold = settings.slow_consumer_threshold
        if threshold is None or threshold <= 0 or queue.is_held:
            self._periods.pop(queue, None)
            return
        now_s = self._clock_s()
        period = self._periods.get(queue)
        if period is not None and now_s < period.due_s:
            return
        if period is not None:
            self._judge(queue, period, settings, now_s)
        if not queue.is_deleted:
            self._periods[queue] = self._begin(queue, settings, now_s)

    def _begin(self, queue: Queue, settings: AddressSettings, now_s: float) -> _Period:
        assert settings.slow_consumer_check_period is not None
        counters = self._core.queue_statistics(queue.id)
        return _Period(
            now_s,
            now_s + settings.slow_consumer_check_period,
            counters.ready + counters.delivering + counters.paged,
            counters.added,
            {consumer: self._done(consumer) for consumer in queue.consumers},
        )

    def _done(self, consumer: Consumer) -> int:
        """Return how many messages a consumer has acknowledged."""
        if consumer.view is not None:
            return consumer.view.acknowledged
        held = self._core.held_count(consumer.handle)
        return consumer.given - consumer.given_back - held

    def _judge(
        self, queue: Queue, period: _Period, settings: AddressSettings, now_s: float
    ) -> None:
        threshold, unit = (
            settings.slow_consumer_threshold,
            settings.slow_consumer_threshold_measurement_unit,
        )
        assert threshold is not None
        assert unit is not None
        elapsed_s = now_s - period.begun_s
        wanted = threshold * elapsed_s / unit.seconds
        had = period.had + self._core.queue_statistics(queue.id).added - period.added
        takers = 1 if queue.views is not None else len(queue.consumers)
        if had < wanted * takers:
            return
        for consumer in list(queue.consumers):
            before = period.done.get(consumer)
            if before is None:
                continue
            done = self._done(consumer) - before
            if done >= wanted or not self._is_behind(consumer):
                self._told.discard(consumer)
            else:
                rate = done * unit.seconds / elapsed_s
                self._act(consumer, rate, threshold, unit, settings.slow_consumer_policy)

    def _is_behind(self, consumer: Consumer) -> bool:
        """Whether a consumer has something to do, or does not read."""
        view = consumer.view
        held = self._core.held_count(consumer.handle) if view is None else view.held
        return held > 0 or consumer.output.room_bytes() <= 0

    def _act(
        self,
        consumer: Consumer,
        rate: float,
        threshold: int,
        unit: SlowConsumerUnit,
        policy: SlowConsumerPolicy | None,
    ) -> None:
        self.detected += 1
        per = _UNITS[unit]
        found = f"{rate:.3g} messages acknowledged a {per}, where {threshold} are asked for"
        if consumer not in self._told:
            self._told.add(consumer)
            log.warning(
                "a consumer is slow queue=%s subscription=%s connection=%d policy=%s found=%r",
                consumer.queue.name,
                consumer.subscription,
                consumer.output.handle,
                policy,
                found,
            )
        if policy is SlowConsumerPolicy.KILL:
            self.killed += 1
            consumer.output.refuse(
                f"the consumer {consumer.subscription[:100]!a} of the queue {consumer.queue.name} "
                f"is slow: {found} (slow-consumer-threshold)"
            )
