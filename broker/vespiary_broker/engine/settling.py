"""What dispatch asks about a message that is not like all others before anybody is given it.

Owns the form of the question; `fates.Fates` answers. Must never decide anything. Used by
`dispatch`, `examined` and `registry`.
"""

from __future__ import annotations

from typing import Final, Protocol

from vespiary_broker.engine.core import MessageView
from vespiary_broker.engine.queues import Queue

NOT_TO_BE_GIVEN: Final = -1


class Judge(Protocol):
    """Decides about special messages, and about those that were delivered too often."""

    def now_ms(self) -> int:
        """Return the clock that expiry is judged by, in milliseconds since 1970."""

    def is_due(self, view: MessageView) -> bool:
        """Whether `settle` would find something to be done with a special message now."""

    def settle(self, queue: Queue, view: MessageView) -> int:
        """Do what is due with a deliverable special message.

        Args:
            queue: Its queue.
            view: The message.

        Returns:
            `NOT_TO_BE_GIVEN` if it is not deliverable any more. Else it may be given before this
            time (milliseconds since 1970), 0: at any time.
        """

    def retire(self, queue: Queue, sequence: int) -> bool:
        """Take a deliverable message away that was delivered too often: it is a dead letter.

        Args:
            queue: The queue.
            sequence: Its sequence there.

        Returns:
            False if it is not deliverable; nothing was changed.
        """
