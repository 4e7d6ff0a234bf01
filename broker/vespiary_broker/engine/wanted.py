"""What an administrator asks for: an act on messages of a queue.

Owns plain values. Must never do anything. Made by the HTTP API, read by `app.message_acts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Act(StrEnum):
    """What is done."""

    MOVE = "move"
    COPY = "copy"
    CHANGE_EXPIRY = "change-expiry"
    CHANGE_PRIORITY = "change-priority"
    REMOVE = "remove"
    RETRY = "retry"
    DEAD_LETTER = "send-to-dead-letter"
    EXPIRE = "expire"
    DELIVER = "deliver-scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an administrator asks for.

    Attributes:
        queue: Name of the queue whose messages it is about.
        act: What is to be done.
        to: Name of the queue that they go to, for MOVE and COPY.
        filter_text: Selector that they match; empty for all.
        ids: Their `message-id`s; empty for all.
        limit: Most messages; 0 for any number.
        expires_ms: For CHANGE_EXPIRY: milliseconds since 1970, 0 never.
        priority: For CHANGE_PRIORITY: 0 to 9.
        user: Who asks, and needs `send` wherever messages go; empty: who may send everywhere.
    """

    queue: str
    act: Act
    to: str = ""
    filter_text: str = ""
    ids: tuple[str, ...] = ()
    limit: int = 0
    expires_ms: int | None = None
    priority: int | None = None
    user: str = ""
