"""Message counters at work: the clock of their samples, and what the API may ask of them.

Owns the loop that samples, in short turns. Must never count. Made by `broker`; owner: the event
loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vespiary_broker.engine.message_counters import DayCounts, MessageCounter, MessageCounters
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Configuration

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterState:
    """A counter; see `admin.counter_records.MessageCounter`."""

    name: str
    added: int
    delivered: int
    acknowledged: int
    expired: int
    killed: int
    added_delta: int
    delivered_delta: int
    acknowledged_delta: int
    expired_delta: int
    killed_delta: int
    last_add_ms: int
    last_ack_ms: int
    updated_ms: int
    days: tuple[DayCounts, ...]


class CountingMessages:
    """The message counters of a broker.

    Args:
        engine: The engine.
        settings: The configuration.
        clock_ms: Milliseconds since 1970.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Configuration,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._registry = engine.registry
        self._clock_ms = clock_ms
        self._wanted = asyncio.Event()
        self.change(settings)
        self._counters = MessageCounters(
            engine.core,
            engine.registry.queues_by_id,
            engine.registry.addresses,
            self._history_days,
        )

    def _history_days(self, address: str) -> int:
        own = self._registry.settings_for(address).message_counter_history_day_limit
        return min(own, self._days_max) if own else self._days_max

    def change(self, settings: Configuration) -> None:
        """Sample as a configuration says from now on; a pause that has begun is not cut short."""
        self._period_s = settings.message_counter_sample_period / 1000
        self._days_max = settings.message_counter_max_day_history
        self._is_enabled = settings.message_counter_enabled
        if self._is_enabled:
            self._wanted.set()
        else:
            self._wanted.clear()

    async def run(self) -> None:
        """Sample for ever, while counters are wanted."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(self._period_s)
            if not self._is_enabled:
                continue
            for _ in self._counters.sample(self._clock_ms()):
                await asyncio.sleep(0)

    def queue(self, name: str) -> CounterState | None:
        """Return the counter of a queue; None: there is no such queue.

        Raises:
            RemoteProtocolError: There are no counters.
        """
        counter = self._of_queue(name)
        return None if counter is None else state_of(name, counter)

    def address(self, name: str) -> CounterState | None:
        """Return the counter of an address; None: there is no such address.

        Raises:
            RemoteProtocolError: There are no counters.
        """
        counter = self._of_address(name)
        return None if counter is None else state_of(name, counter)

    def reset_queue(self, name: str) -> bool:
        """Have the counter of a queue begin anew; False: there is no such queue.

        Raises:
            RemoteProtocolError: There are no counters.
        """
        return self._reset(self._of_queue(name))

    def reset_address(self, name: str) -> bool:
        """Have the counter of an address begin anew; False: there is no such address.

        Raises:
            RemoteProtocolError: There are no counters.
        """
        return self._reset(self._of_address(name))

    def reset_all(self) -> None:
        """Have all counters begin anew.

        Raises:
            RemoteProtocolError: There are no counters.
        """
        self._check_enabled()
        self._counters.reset()

    def _reset(self, counter: MessageCounter | None) -> bool:
        if counter is not None:
            self._counters.reset(counter)
        return counter is not None

    def _of_queue(self, name: str) -> MessageCounter | None:
        self._check_enabled()
        queue = self._registry.queues.get(name)
        return None if queue is None else self._counters.of_queue(queue)

    def _of_address(self, name: str) -> MessageCounter | None:
        self._check_enabled()
        return self._counters.of_address(name) if name in self._registry.addresses else None

    def _check_enabled(self) -> None:
        if not self._is_enabled:
            raise RemoteProtocolError(
                "there are no message counters",
                measured="message-counter-enabled: false",
                cure="set message-counter-enabled, and start the broker again",
            )


def state_of(name: str, counter: MessageCounter) -> CounterState:
    """Return a counter as the API shows it."""
    deltas = {f"{field}_delta": value for field, value in counter.delta._asdict().items()}
    return CounterState(
        name=name,
        **counter.total._asdict(),
        **deltas,
        last_add_ms=counter.last_add_ms,
        last_ack_ms=counter.last_ack_ms,
        updated_ms=counter.updated_ms,
        days=counter.days(),
    )
