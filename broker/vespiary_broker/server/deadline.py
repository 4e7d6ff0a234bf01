"""Time limits for clients, judged by everything that they sent before the limit.

Must never be used for work that judges nobody: a plain timer is enough there. Owner: the event
loop.

After a pause (a stopped process, a suspended virtual machine, a long turn of the loop) timers are
overdue while sockets hold what clients sent in time, and uvloop runs timers before it polls. So a
deadline that passes is judged only after the loop has polled once more. There is no test of how
late a timer is: a timer that became due at the end of a pause is hardly late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """A timer whose action runs after the loop has read its sockets once more.

    The action is called with the loop's clock from before that read. To measure a client's silence
    by a later clock would count a turn of the loop, in which nothing is read, against the client.

    Args:
        loop: The event loop.
        delay_s: Seconds until the deadline.
        judge: Called once, with the loop's clock (seconds) when the deadline was found to be over.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay_s: float, judge: Callable[[float], None]
    ) -> None:
        self._loop = loop
        self._judge = judge
        self._handle: asyncio.Handle = loop.call_later(delay_s, self._pass)

    def cancel(self) -> None:
        """Cancel it: `judge` is not called."""
        self._handle.cancel()

    def _pass(self) -> None:
        # The first of the two callbacks may run before the loop polls; it polls between them.
        self._handle = self._loop.call_soon(self._poll, self._loop.time())

    def _poll(self, now_s: float) -> None:
        self._handle = self._loop.call_soon(self._judge, now_s)
