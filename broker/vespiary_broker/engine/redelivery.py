"""What becomes of messages that come back: at once, after a delay, or never again.

Owns the way back of every message that a consumer held: NACK, in transactions too, and lost
connections. (A client that goes in an orderly way gives back what it did not get to: that counts as
no delivery, and is not looked at here.) A message that was delivered `max-delivery-attempts` times
is set aside and handed to `moves`; one whose address has a `redelivery-delay` is set aside until
that is over. Nobody is given either of them in between. All else stays with the core alone: of a
message that may be delivered again at once nothing is looked at here.

Both are memory only: after a restart such a message is deliverable at once, with its count of
deliveries. Delays are measured by a clock that nobody sets.
Called by the sessions, `subscriptions` and `transactions`; owner: the event loop.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.due_times import DueTimes
from vespiary_broker.engine.moves import Mover, Reason
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_spec.settings import AddressSettings

_CAP_FACTOR: Final = 10
_KEPT_DELAY_MS: Final = 1000
_KEPT_DELAY_MAX_MS: Final = 60_000
_PUT_BACK_AT_ONCE: Final = 256


def redelivery_delay_ms(settings: AddressSettings, deliveries: int, chance: float) -> int:
    """Return how long a message waits until it is given out again.

    Args:
        settings: Of its address; no field is None.
        deliveries: How often it was given out and came back, 1 or more.
        chance: A random number from 0 to 1, below 1.
    """
    delay_ms, cap_ms = settings.redelivery_delay, settings.max_redelivery_delay
    multiplier = settings.redelivery_delay_multiplier
    spread = settings.redelivery_collision_avoidance_factor
    assert delay_ms is not None and cap_ms is not None  # noqa: PT018
    assert multiplier is not None and spread is not None  # noqa: PT018
    if not delay_ms:
        return 0
    most_ms = delay_ms * _CAP_FACTOR if cap_ms < 0 else cap_ms
    wanted_ms = float(delay_ms)
    for _ in range(min(deliveries - 1, 64)):
        if multiplier == 1.0 or wanted_ms >= most_ms:
            break
        wanted_ms *= multiplier
    wanted_ms *= 1 + spread * (2 * chance - 1)
    return int(min(wanted_ms, most_ms))


def kept_delay_ms(settings: AddressSettings, deliveries: int) -> int:
    """Return how long a message waits that was delivered too often and has nowhere to go.

    A second, and twice as long with each delivery more, up to a minute. 0 if it was not delivered
    too often: somebody asked for its move.

    Args:
        settings: Of its address; no field is None.
        deliveries: How often it was given out and came back.
    """
    attempts = settings.max_delivery_attempts
    assert attempts is not None
    if attempts <= 0 or deliveries < attempts:
        return 0
    doublings = min(deliveries - attempts, 16)
    return min(_KEPT_DELAY_MS << doublings, _KEPT_DELAY_MAX_MS)


class Redelivery:
    """Takes messages back from consumers.

    Attributes:
        delayed: Messages that wait for their delay to be over.
        kept: Messages that could not be moved, and wait until they are delivered again.

    Args:
        core: The core.
        settings_for: Returns the settings of an address by its name.
        mover: Takes dead letters, and hands back those that have nowhere to go.
        steady_ms: Milliseconds of a clock that nobody sets.
        chance: Returns a random number from 0 to 1.
    """

    def __init__(
        self,
        core: Core,
        settings_for: Callable[[str], AddressSettings],
        mover: Mover,
        steady_ms: Callable[[], int],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.delayed = DueTimes()
        self.kept = DueTimes()
        self._core = core
        self._settings_for = settings_for
        self._mover = mover
        self._steady_ms = steady_ms
        self._chance = chance
        mover.keep = self.keep

    def give_back(self, consumer: Consumer, sequence: int) -> int:
        """Take back what a NACK means; return how many messages.

        Args:
            consumer: Who holds it.
            sequence: The message; of a cumulative consumer all up to it too.
        """
        if consumer.view is not None:
            return consumer.view.give_back(sequence)
        marked = self.marked(consumer, sequence)
        count = self._core.give_back(consumer.handle, sequence)
        consumer.given_back += count
        self.decide(consumer.queue, marked)
        return count

    def release(self, consumer: Consumer, sequence: int) -> int:
        """Take back what a consumer has not looked at: that counts as no delivery.

        Args:
            consumer: Who holds it.
            sequence: The message.
        """
        if consumer.view is not None:
            return consumer.view.give_back(sequence)
        count = self._core.give_back(consumer.handle, sequence, counted=False)
        consumer.given_back += count
        return count

    def reject(self, consumer: Consumer, sequence: int, note: bytes) -> int:
        """Take back what nobody is to be given again: it is a dead letter.

        Args:
            consumer: Who holds it.
            sequence: The message.
            note: Header lines that say why.
        """
        if consumer.view is not None:
            return consumer.view.acknowledge(sequence)
        count = self._core.give_back(consumer.handle, sequence)
        consumer.given_back += count
        if count and self._core.set_aside(consumer.queue.id, sequence):
            self._mover.add(consumer.queue, sequence, Reason.DELIVERIES, note=note)
        return count

    def marked(self, consumer: Consumer, sequence: int = 0) -> list[tuple[int, int]]:
        """Return the messages that will not simply be delivered again (see `Returns.marked`)."""
        settings = self._settings_for(consumer.queue.address.name)
        attempts = settings.max_delivery_attempts
        assert attempts is not None
        if settings.redelivery_delay:
            least = 0
        elif attempts > 0:
            least = attempts - 1
        else:
            return []
        held = self._core.held(consumer.handle, sequence, deliveries=least)
        return [(one, deliveries + 1) for one, deliveries in held]

    def decide(self, queue: Queue, marked: list[tuple[int, int]]) -> None:
        """Set messages aside that were given back: for a while, or to be moved."""
        if not marked:
            return
        settings = self._settings_for(queue.address.name)
        attempts = settings.max_delivery_attempts or -1
        now_ms = self._steady_ms()
        for sequence, deliveries in marked:
            if not self._core.set_aside(queue.id, sequence):
                continue  # it went with its consumer: a queue that is gone, or AUTO
            if 0 < attempts <= deliveries:
                self._mover.add(queue, sequence, Reason.DELIVERIES)
                continue
            due_ms = now_ms + redelivery_delay_ms(settings, deliveries, self._chance())
            self.delayed.add_late(due_ms, queue.id, sequence, now_ms)

    def keep(self, queue: Queue, sequence: int, deliveries: int, least_ms: int = 0) -> None:
        """Have a message that is set aside delivered again, after a delay: it cannot be moved.

        Args:
            queue: Its queue.
            sequence: Its sequence there.
            deliveries: How often it was given out and came back.
            least_ms: It waits for so long at least.
        """
        settings = self._settings_for(queue.address.name)
        wait_ms = max(kept_delay_ms(settings, deliveries), least_ms)
        if not wait_ms:
            self._core.put_back(queue.id, sequence)
            return
        wait_ms = max(wait_ms, redelivery_delay_ms(settings, deliveries, self._chance()))
        now_ms = self._steady_ms()
        self.kept.add_late(now_ms + wait_ms, queue.id, sequence, now_ms)

    @property
    def next_ms(self) -> int | None:
        """When a delay is over next, by the steady clock; None: nothing waits."""
        times = [time for time in (self.delayed.next_ms, self.kept.next_ms) if time is not None]
        return min(times, default=None)

    def forget(self, queue_id: int) -> None:
        """Forget the messages of a queue: it is gone, or empty."""
        self.delayed.forget(queue_id)
        self.kept.forget(queue_id)

    def put_back_due(self) -> None:
        """Let messages be delivered whose delay is over, a bounded part of them."""
        for waiting in (self.delayed, self.kept):
            due = waiting.take_due(self._steady_ms(), _PUT_BACK_AT_ONCE)
            if due is not None:
                key, sequences = due
                for sequence in sequences:
                    self._core.put_back(key.queue_id, sequence)
