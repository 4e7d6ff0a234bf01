"""How fast users may send: a bucket of bytes for each user with a limit, whatever the protocol.

Owns the buckets. What a user's connections read is taken from the user's bucket, which may go below
zero; until it is filled up again these connections are not read. So nothing is dropped, and nobody
else waits. Counted once for each read, never for a message. Must never touch a connection. Called
by the server's connections; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vespiary_broker.engine.naming import EVERYBODY, UserLimit

_BURST_S: Final = 1.0
"""A user that was silent may send so much at once: what it may send in this time."""
_BUCKETS_MAX: Final = 10_000


@dataclass(slots=True)
class _Bucket:
    """What a user may send now.

    Attributes:
        level: Bytes; below zero the user has to wait.
        filled_at_s: When that was so.
    """

    level: float
    filled_at_s: float


class Rates:
    """The rates of all users.

    Attributes:
        throttled: How often a connection was not read for a while since the start.

    Args:
        limits: Limits by user; EVERYBODY stands for those without, each for itself.
    """

    def __init__(self, limits: Mapping[str, UserLimit] | None = None) -> None:
        self.throttled = 0
        self._limits: Mapping[str, UserLimit] = {}
        self._buckets: dict[str, _Bucket] = {}
        self.change(limits or {})

    def change(self, limits: Mapping[str, UserLimit]) -> None:
        """Take other limits from now on; all buckets are full."""
        self._limits = limits
        self._buckets.clear()
        self._is_on = any(limit.bytes_per_s >= 0 for limit in limits.values())

    @property
    def is_on(self) -> bool:
        """Whether any user has a limit."""
        return self._is_on

    def take(self, user: str, size_bytes: int, now_s: float) -> float:
        """Take bytes that a user has sent.

        Args:
            user: Its name; empty before the login, which is not limited.
            size_bytes: How many.
            now_s: A monotonic clock, in seconds.

        Returns:
            Seconds for which its connections are not to be read; 0 for none.
        """
        rate = self._rate(user)
        if rate < 0:
            return 0.0
        bucket = self._buckets.get(user)
        if bucket is None:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._drop_full(now_s)
            bucket = self._buckets[user] = _Bucket(rate * _BURST_S, now_s)
        gained = (now_s - bucket.filled_at_s) * rate
        bucket.level = min(bucket.level + gained, rate * _BURST_S) - size_bytes
        bucket.filled_at_s = now_s
        return -bucket.level / rate if bucket.level < 0 else 0.0

    def _rate(self, user: str) -> int:
        """Return the bytes a second that a user may send; -1 for any number."""
        limit = self._limits.get(user) or self._limits.get(EVERYBODY)
        return -1 if not user or limit is None else limit.bytes_per_s

    def _drop_full(self, now_s: float) -> None:
        """Forget the buckets that are full by now: a new one is, too."""
        for user, bucket in list(self._buckets.items()):
            rate = self._rate(user)
            if bucket.level + (now_s - bucket.filled_at_s) * rate >= rate * _BURST_S:
                del self._buckets[user]
