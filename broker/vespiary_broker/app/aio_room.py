"""Waiting for room in `fs.aio-max-nr`, instead of taking a slower engine.

Owns: when the node is looked at again, and what is retried once there is room. The number is the
whole node's, so what was free a moment ago may be another broker's now.
Never: raises the number; opens anything itself. Called by `broker`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from vespiary_broker.store.volumes import aio_limits
from vespiary_broker.store.volumes.aio_limits import AioLimits
from vespiary_broker.store.volumes.report import Report
from vespiary_spec.errors import EngineUnavailable
from vespiary_spec.settings import JournalType

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S: Final = 0.5
"""How often the node's numbers are read: two small files."""


def is_aio_proved(report: Report | None) -> bool:
    """Return whether the verification found that the journal's engine can be ASYNCIO."""
    return report is not None and report.answer.engine == JournalType.ASYNCIO.value


class AioRoom:
    """What a broker does while its node lacks AIO requests.

    Args:
        stop: Set when the broker is to end.
        on_wait: Told what is waited for, and `idle` when that is over.
        idle: What to say then.
        read: Reads the node's numbers against a demand.
        poll_s: How often.
    """

    def __init__(
        self,
        stop: asyncio.Event,
        on_wait: Callable[[str], None],
        *,
        idle: str = "the broker is starting",
        read: Callable[[int], AioLimits] = aio_limits.read,
        poll_s: float = POLL_S,
    ) -> None:
        self._stop = stop
        self._on_wait = on_wait
        self._idle = idle
        self._read = read
        self._poll_s = poll_s

    async def verified(self, report: Report, again: Callable[[], Awaitable[Report]]) -> Report:
        """Return a verification that has nothing to wait for.

        Args:
            report: The one that there is.
            again: Verifies once more.

        Raises:
            EngineUnavailable: The broker is to end, and there was no room yet.
            VespiaryError: As of `again`.
        """
        while report.answer.waits:
            await self._wait(report.answer.aio.demand, report.answer.waits)
            report = await again()
        return report

    async def opened(self, open_it: Callable[[], Awaitable[T]]) -> T:
        """Open what reserves AIO requests; wait, and try again, where another one was faster.

        Args:
            open_it: Opens it, or closes what it had opened.

        Raises:
            EngineUnavailable: For another reason, or the broker is to end.
            VespiaryError: As of `open_it`.
        """
        while True:
            try:
                return await open_it()
            except EngineUnavailable as error:
                if error.errno != errno.EAGAIN:
                    raise
                # How many it wanted is its own affair; that it is tried again tells.
                await self._wait(1, str(error))

    async def _wait(self, demand: int, sentence: str) -> None:
        log.warning("journal: %s", sentence)
        self._on_wait(sentence)
        while True:
            try:
                await asyncio.wait_for(self._stop.wait(), self._poll_s)
            except TimeoutError:
                if self._read(demand).is_enough:
                    self._on_wait(self._idle)
                    return
                continue
            raise EngineUnavailable(
                f"the broker was told to end while it waited: {sentence}", errno.EAGAIN
            )
