"""Why messages that are set aside to leave their queue stay: for people, and with what to do.

Owns the sentences, and the last obstacle of each queue. Must never decide anything. Called by
`moves`, which finds them, and by `stalls`, which shows them; owner: the event loop.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Obstacle(NamedTuple):
    """Why messages cannot be moved now.

    Attributes:
        text: Goes on after "2 messages cannot be moved".
        cure: What makes them movable, as a sentence without a full stop.
    """

    text: str
    cure: str


NO_ROOM: Final = Obstacle(
    ": the journal has no room for the move",
    "enlarge the volume, or consume messages of other queues",
)
NO_DEAD_LETTER_ADDRESS: Final = Obstacle(
    ": they were delivered too often, and no other address takes them",
    "repair the consumer that fails with them, remove them, or set dead-letter-address; if one is "
    "set, the log says why it cannot be made",
)
NOT_MADE: Final = Obstacle(
    ": the address for them cannot be made",
    "the log says why (auto-create-queues, limits, a full disk); create it and a queue for it",
)


def full(to: str) -> Obstacle:
    """Return the obstacle of an address that has no room, or refuses what comes."""
    return Obstacle(
        f" to {to}, which is full",
        f"consume messages of {to}, raise its limit, or change its address-full-policy",
    )


def untaken(to: str) -> Obstacle:
    """Return the obstacle of an address none of whose queues takes the messages."""
    return Obstacle(
        f" to {to}: no queue there takes them",
        f"give {to} a queue without a filter, or with one that lets them in",
    )


def too_large(to: str, why: str) -> Obstacle:
    """Return the obstacle of messages that their new place makes too large for the journal."""
    return Obstacle(
        f" to {to}: {why}",
        f"consume or remove them, raise journal-buffer-size, or leave {to} fewer queues",
    )


def rejected(to: str, why: str) -> Obstacle:
    """Return the obstacle of messages that the core does not take."""
    return Obstacle(
        f" to {to}: {why}",
        "consume or remove them, or give them another place to go",
    )
