"""The part of the core's contract for routes: the queues that a message goes to.

Owns the Protocol; `abc.Core` has it. Both implementations keep it. A queue that is dropped leaves
all of its routes.
"""

from __future__ import annotations

from typing import Protocol


class CoreRoutes(Protocol):
    """See the module's docstring. Handles are small ints; the lowest free one is given."""

    def open_route(self, queue_ids: list[int]) -> int:
        """Make a route to these queues; an empty list discards what is sent there."""

    def set_route(self, route: int, queue_ids: list[int]) -> None:
        """Replace the queues of a route; senders that were taught it need not be told."""

    def extend_route(self, route: int, queue_id: int) -> bool:
        """Lead a route to one queue more, behind those that it has; they are not looked up again.

        Returns:
            False if it led there already.

        Raises:
            ValueError: The route is not open, or a switch, or the queue is not open.
        """

    def withhold(self, route: int, queues: int) -> None:
        """Note how many queues do not get a route's messages: their users may not consume there.

        Args:
            route: The route; `open_route` makes it with none, `set_route` leaves the number.
            queues: How many, 0 or more.

        Raises:
            ValueError: The route is not open, or a switch.
        """

    def withheld(self) -> int:
        """Return how many messages queues did not get so, each queue counted, since the start."""

    def close_route(self, route: int) -> None:
        """Forget a route, and how many messages it lost; who was taught it asks again (`FRAME`)."""

    def take_unrouted(self) -> list[tuple[int, int]]:
        """Return the messages that were sent to routes without queues since the last call.

        Returns:
            The number of messages by route, sorted by route; routes without any are left out.
        """
