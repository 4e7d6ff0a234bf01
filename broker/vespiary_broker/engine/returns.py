"""What the registry hands on: who takes messages back, and who takes those that no queue wants.

Owns the Protocols; `redelivery.Redelivery` and `dead_letters.DeadLetters` keep them. Must never
decide anything.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.routing import Route


class Returns(Protocol):
    """Takes messages back from consumers."""

    def give_back(self, consumer: Consumer, sequence: int) -> int:
        """Take back what a NACK means; return how many messages.

        Args:
            consumer: Who holds it.
            sequence: The message; of a cumulative consumer all up to it too.
        """

    def release(self, consumer: Consumer, sequence: int) -> int:
        """Take back a message that the consumer has not looked at: that counts as no delivery."""

    def reject(self, consumer: Consumer, sequence: int, note: bytes) -> int:
        """Take back a message that nobody is to be given again: it is a dead letter.

        Args:
            consumer: Who holds it.
            sequence: The message.
            note: Header lines that say why.
        """

    def marked(self, consumer: Consumer, sequence: int = 0) -> list[tuple[int, int]]:
        """Return the messages that will not simply be delivered again once they are given back.

        Args:
            consumer: Who holds them.
            sequence: Of those that a NACK of this message means; 0: of all.

        Returns:
            Sequences, and how often each was delivered then.
        """

    def decide(self, queue: Queue, marked: list[tuple[int, int]]) -> None:
        """Do what is due with messages that were given back.

        Args:
            queue: Their queue.
            marked: What `marked` has returned.
        """


class UnroutedTarget(NamedTuple):
    """Where a message goes that no queue of its address takes.

    Attributes:
        address: The dead letter address.
        route: The route there; None: the place must be made first.
    """

    address: str
    route: Route | None


class Unrouted(Protocol):
    """Takes messages that no queue of their address takes."""

    def unrouted_target(self, address: str) -> UnroutedTarget | None:
        """Return where such a message goes; None: nowhere.

        Args:
            address: Name of the address that it was sent to.
        """

    async def make_unrouted(self, address: str) -> None:
        """Make the place that `unrouted_target` says is missing.

        Durability: on return its queues survive a power loss.
        """
