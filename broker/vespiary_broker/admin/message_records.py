"""What the API says of single messages.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `messages` and
`routes`.
"""

from __future__ import annotations

from vespiary_broker.admin.journal_records import Record


class Message(Record, frozen=True):
    """A message as it stands in its queue.

    Attributes:
        id: What consumers see as `message-id`.
        sequence: Its sequence in the queue.
        state: `ready`, `delivering` (a consumer holds it), `scheduled` (its time has not come) or
            `aside` (not to be given out now for another reason).
        deliveries: How often it was given out and came back.
        priority: 0 to 9.
        time_ms: When it came, in milliseconds since 1970.
        is_persistent: Whether it survives a restart.
        is_large: Whether its body is in a file of its own; such a body is not shown.
        body_bytes: Length of its body.
        headers: Its headers; of a repeated one the first.
        body: The body's beginning as text; null if it is no UTF-8.
        body_base64: The same as base64 if it is no UTF-8, else null.
    """

    id: str
    sequence: int
    state: str
    deliveries: int
    priority: int
    time_ms: int
    is_persistent: bool
    is_large: bool
    body_bytes: int
    headers: dict[str, str]
    body: str | None
    body_base64: str | None


class MessagePage(Record, frozen=True):
    """Some messages of a queue, oldest first.

    Attributes:
        items: The messages; there may be none although more follow.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Message, ...]
    next: str | None


class MessageCount(Record, frozen=True):
    """How many messages a queue has, or a part of it.

    Attributes:
        messages: Messages that match, in the part that was looked at.
        next: Give it as `after` to go on behind that part; null: it reaches to the end.
    """

    messages: int
    next: str | None
