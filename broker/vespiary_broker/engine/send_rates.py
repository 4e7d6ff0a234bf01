"""How fast messages may come: buckets of messages and bytes for addresses, of messages for users.

Owns the buckets. A message is taken from those of its address and its user, which may go below
zero; until they are filled up again the next one waits. So nothing is dropped or refused, and who
sends elsewhere does not wait. Counted by message, so the core is taught no destination for which
there is such a rate. Must never touch a connection. Called by `publishing` and the server's
senders; owner: the event loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.naming import EVERYBODY, UserLimit
from vespiary_spec.settings import AddressSettings

_BURST_S: Final = 1.0
"""What may come at once after a silence: what may come in this time, and one message at least."""
_BUCKETS_MAX: Final = 10_000

_Key = tuple[str, str]


@dataclass(slots=True)
class _Bucket:
    """What may come now.

    Attributes:
        level: Messages or bytes; below zero the next message has to wait.
        filled_at_s: When that was so.
        rate: How many a second.
    """

    level: float
    filled_at_s: float
    rate: int

    def fill(self, now_s: float, rate: int) -> None:
        """Add what has come since, at a rate that may be another one than before."""
        gained = (now_s - self.filled_at_s) * rate
        self.level = min(self.level + gained, _full_level(rate))
        self.filled_at_s, self.rate = now_s, rate


def _full_level(rate: int) -> float:
    """Return the level after a silence: one less than may come, as one may come at zero."""
    return max(rate * _BURST_S, 1.0) - 1 if rate else -1.0


class SendRates:
    """The rates of all addresses and users.

    Args:
        users: Limits by user; EVERYBODY stands for those without, each for itself.
    """

    def __init__(self, users: Mapping[str, UserLimit] | None = None) -> None:
        self._buckets: dict[_Key, _Bucket] = {}
        self._held: Counter[str] = Counter()
        self.change(users or {})

    def change(self, users: Mapping[str, UserLimit]) -> None:
        """Take other limits of users from now on."""
        self._users = users
        self._has_users = any(limit.messages_per_s >= 0 for limit in users.values())

    def is_limited(self, destination: Destination, settings: AddressSettings) -> bool:
        """Return whether messages to a destination are counted.

        Args:
            destination: Where to, and whose they are.
            settings: Of its address.
        """
        return any(True for _ in self._rates(destination, settings))

    def wait_s(self, destination: Destination, settings: AddressSettings, now_s: float) -> float:
        """Return the seconds for which the next message has to wait; 0 for none.

        Args:
            destination: Where to, and whose it is.
            settings: Of its address.
            now_s: A monotonic clock, in seconds.
        """
        longest_s = 0.0
        for key, rate, _ in self._rates(destination, settings):
            bucket = self._bucket(key, rate, now_s)
            if bucket.level < 0:
                longest_s = max(longest_s, -bucket.level / rate if rate else math.inf)
        return longest_s

    def held(self, address: str) -> int:
        """Return how many producers wait for a rate before they may send to an address."""
        return self._held[address]

    @contextmanager
    def holding(self, address: str) -> Iterator[None]:
        """Count a producer that waits to send to an address, in a `with` block."""
        self._held[address] += 1
        try:
            yield
        finally:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]

    def take(
        self, destination: Destination, settings: AddressSettings, size_bytes: int, now_s: float
    ) -> None:
        """Count a message.

        Args:
            destination: Where to, and whose it is.
            settings: Of its address.
            size_bytes: Its properties and its body.
            now_s: A monotonic clock, in seconds.
        """
        for key, rate, is_bytes in self._rates(destination, settings):
            self._bucket(key, rate, now_s).level -= size_bytes if is_bytes else 1

    def _rates(
        self, destination: Destination, settings: AddressSettings
    ) -> Iterator[tuple[_Key, int, bool]]:
        """Yield what counts: the bucket, its rate, and whether that is in bytes."""
        if destination.is_trusted:
            return
        messages, size = settings.producer_message_rate, settings.producer_byte_rate
        assert messages is not None
        assert size is not None
        if messages >= 0:
            yield ("messages", destination.address), messages, False
        if size >= 0:
            yield ("bytes", destination.address), size, True
        if self._has_users and destination.user:
            limit = self._users.get(destination.user) or self._users.get(EVERYBODY)
            if limit is not None and limit.messages_per_s >= 0:
                yield ("user", destination.user), limit.messages_per_s, False

    def _bucket(self, key: _Key, rate: int, now_s: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._drop_full(now_s)
            bucket = self._buckets[key] = _Bucket(_full_level(rate), now_s, rate)
        else:
            bucket.fill(now_s, rate)
        return bucket

    def _drop_full(self, now_s: float) -> None:
        """Forget the buckets that are full by now: a new one is, too."""
        for key, bucket in list(self._buckets.items()):
            bucket.fill(now_s, bucket.rate)
            if bucket.level >= _full_level(bucket.rate):
                del self._buckets[key]
