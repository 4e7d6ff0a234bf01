"""Which messages a request of the HTTP API wants, within the time that a turn of the loop has.

Owns the selector of one request, and when it has to wait for the next turn. Must never change a
message. Used by `browsing`, `counting` and `message_acts`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vespiary_broker.engine.core import MessageView
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.message_values import Extractor
from vespiary_broker.engine.selection.selector import Selector, compile_selector
from vespiary_broker.engine.turn_time import TurnTime, evaluation_us

_PLAIN_US: Final = 1.0


class WantedMessages:
    """Tells which messages of a queue are wanted.

    Attributes:
        selector: What they match; None: all do.

    Args:
        queue: The queue.
        filter_text: The selector; empty for all.
        turn_time: What a turn of the event loop has for such work.
        is_shown: Whether messages that are wanted are taken apart, headers and all.

    Raises:
        InvalidSelector: The filter is none.
    """

    def __init__(
        self, queue: Queue, filter_text: str, turn_time: TurnTime, *, is_shown: bool = False
    ) -> None:
        self.selector: Selector | None = compile_selector(filter_text) if filter_text else None
        self._turn_time = turn_time
        self._is_costly = is_shown or self.selector is not None
        self._cost_us = 0.0 if self.selector is None else self.selector.cost_us
        self._values_of = Extractor(
            self.selector.names if self.selector is not None else (), address=queue.address.name
        ).values_of

    def look(
        self,
        messages: list[MessageView],
        found: Callable[[MessageView], bool],
        takes: Callable[[MessageView], bool] = lambda _: True,
    ) -> int:
        """Look at messages until time is over.

        Args:
            messages: The messages.
            found: Called with each that is wanted; True: that is enough.
            takes: Whether one may be wanted at all; asked before the selector.

        Returns:
            How many were looked at; fewer than there are: the others in a later turn, or `found`
            had enough with the last one.
        """
        share = self._turn_time.share(self)
        looked = 0
        try:
            for view in messages:
                if not share.has_time:
                    break
                looked += 1
                is_wanted = takes(view) and self._matches(view)
                share.did(
                    evaluation_us(self._cost_us, len(view.properties))
                    if self._is_costly
                    else _PLAIN_US
                )
                if is_wanted and found(view):
                    break
            return looked
        finally:
            share.end()

    def _matches(self, view: MessageView) -> bool:
        selector = self.selector
        return selector is None or selector.matches(self._values_of(view))
