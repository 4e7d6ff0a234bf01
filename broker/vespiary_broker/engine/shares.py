"""Budgets that are divided among those that need them: who holds little leaves his to the others.

Owns the division, and how old the answer may be. Must never say what a budget is for. Called by
`address_memory` (all addresses) and `app.paging` (the queues of an address); owner: the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

PERIOD_S: Final = 0.1
"""So long an answer holds: what is measured changes with each message, and there may be very many
of those that are measured."""


def share_of(held_bytes: Iterable[int], budget_bytes: int) -> int:
    """Return what each may hold for all of them to hold no more than a budget.

    Args:
        held_bytes: What each holds now, 0 or more.
        budget_bytes: 0 or more; all of it is the share of each while they hold no more together.
    """
    above = sorted(size for size in held_bytes if size)
    left = budget_bytes
    for index, size in enumerate(above):
        more = len(above) - index
        if size > left // more:
            return left // more
        left -= size
    return budget_bytes


class Share:
    """The share of each in a budget, as it was lately.

    Args:
        measure: Returns the share of each in a budget.
        clock_s: Seconds that only grow.
    """

    def __init__(
        self, measure: Callable[[int], int], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._measure = measure
        self._clock_s = clock_s
        self._until_s = float("-inf")
        self._budget_bytes = self._share_bytes = 0

    def of(self, budget_bytes: int) -> int:
        """Return the share of each in a budget."""
        now_s = self._clock_s()
        if now_s >= self._until_s or budget_bytes != self._budget_bytes:
            self._until_s = now_s + PERIOD_S
            self._budget_bytes = budget_bytes
            self._share_bytes = self._measure(budget_bytes)
        return self._share_bytes
