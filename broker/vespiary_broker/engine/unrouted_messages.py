"""Messages that no queue accepted: counted in all and by address, and logged.

Owns the core's routes by handle, each with the address that it is for: the core counts what is sent
to a route without queues, whichever way the message came. What the broker sends itself is not
counted. Must never decide where a message goes. Owner: the event loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.names import is_reserved

ADDRESSES_MAX: Final = 1000
"""Addresses whose messages are counted and logged apart: those that lost one last."""
OTHERS: Final = "(others)"
"""Those before them share one count, so clients with ever new names take no memory."""
LOG_PERIOD_S: Final = 60.0
"""An address is logged once in so long, at most."""
LOG_LINES_MAX: Final = 50
"""In that time; what is left is logged in the next one, with what has come since."""

log = logging.getLogger(__name__)


class Explanation(NamedTuple):
    """Why no queue of an address accepts messages.

    Attributes:
        cause: The reason, as a sentence without a full stop.
        cure: What to do next, likewise.
        is_expected: Whether this is nothing unusual, as for a topic without subscribers.
    """

    cause: str
    cure: str
    is_expected: bool = False


_OF_OTHERS: Final = Explanation(
    "there are too many addresses to name each", "`vespiary address list` shows the counts"
)


class UnroutedMessages:
    """Counts them.

    Args:
        core: The core.
        delimiter: Character between the words of an address.
        clock_s: Seconds of a clock that nobody sets.
        explain: Returns why no queue of an address accepts messages.
    """

    def __init__(
        self,
        core: Core,
        delimiter: str,
        clock_s: Callable[[], float],
        explain: Callable[[str], Explanation],
    ) -> None:
        self._core = core
        self._delimiter = delimiter
        self._clock_s = clock_s
        self._explain = explain
        self._names: dict[int, str] = {}
        self._counts: dict[str, int] = {}  # the one that lost a message last comes last
        self._others = 0
        self._unlogged: Counter[str] = Counter()
        self._logged_s: dict[str, float] = {}
        self._period_s = clock_s()
        self._lines = 0

    # --- routes -----------------------------------------------------------------------------------

    def open_route(self, address: str, queue_ids: Sequence[int]) -> int:
        """Open a route of the core.

        Args:
            address: Where its messages are sent to.
            queue_ids: The queues that it leads to.

        Returns:
            Its handle.
        """
        handle = self._core.open_route(list(queue_ids))
        self._names[handle] = address
        return handle

    def close_route(self, handle: int) -> None:
        """Close a route of the core; what it has counted is kept."""
        self._collect()
        del self._names[handle]
        self._core.close_route(handle)

    # --- counting ---------------------------------------------------------------------------------

    def _collect(self) -> None:
        for route, messages in self._core.take_unrouted():
            address = self._names.get(route)
            if address is not None and not is_reserved(address, self._delimiter):
                self._add(address, messages)

    def _add(self, address: str, messages: int) -> None:
        self._counts[address] = self._counts.pop(address, 0) + messages
        self._unlogged[address] += messages
        if len(self._counts) > ADDRESSES_MAX:
            oldest = next(iter(self._counts))
            self._others += self._counts.pop(oldest)
            if oldest in self._unlogged:
                self._unlogged[OTHERS] += self._unlogged.pop(oldest)

    @property
    def total(self) -> int:
        """Messages that no queue accepted since the start."""
        self._collect()
        return self._others + sum(self._counts.values())

    def by_address(self) -> dict[str, int]:
        """Return the messages by address, most first; `OTHERS` come last, if there are any."""
        self._collect()
        found = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return dict(found) | ({OTHERS: self._others} if self._others else {})

    def count_of(self, address: str) -> int:
        """Return the messages to one address, without those that are counted with `OTHERS`."""
        self._collect()
        return self._counts.get(address, 0)

    # --- logging ----------------------------------------------------------------------------------

    def report(self) -> None:
        """Log the addresses that lost messages; called about once a second."""
        self._collect()
        if not self._unlogged:
            return
        now_s = self._clock_s()
        if now_s - self._period_s >= LOG_PERIOD_S:
            self._period_s, self._lines = now_s, 0
            late_s = now_s - LOG_PERIOD_S
            self._logged_s = {name: at_s for name, at_s in self._logged_s.items() if at_s > late_s}
        for name in list(self._unlogged):
            if self._lines >= LOG_LINES_MAX:
                return
            if now_s - self._logged_s.get(name, now_s - LOG_PERIOD_S) >= LOG_PERIOD_S:
                self._logged_s[name] = now_s
                self._lines += 1
                self._log(name, self._unlogged.pop(name))

    def _log(self, name: str, messages: int) -> None:
        """Log one address: a topic without subscribers is nothing unusual."""
        why = _OF_OTHERS if name == OTHERS else self._explain(name)
        log.log(
            logging.INFO if why.is_expected else logging.WARNING,
            "no queue accepted messages that were confirmed address=%s messages=%d cause=%r "
            "cure=%r",
            *(name, messages, why.cause, why.cure),
        )
