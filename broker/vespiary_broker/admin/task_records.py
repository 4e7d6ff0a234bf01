"""What the API says of work in the background, and what it takes to begin some.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `departures`,
`tasks` and the modules of routes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from vespiary_broker.admin import records
from vespiary_broker.admin.journal_records import Record

IDS_MAX = 1000
_TIME_MS_MAX = 2**53
_FILTER_CHARACTERS_MAX = 32_768

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Ids = Annotated[tuple[Id, ...], msgspec.Meta(max_length=IDS_MAX)]
Filter = Annotated[str, msgspec.Meta(max_length=_FILTER_CHARACTERS_MAX)]
Limit = Annotated[int, msgspec.Meta(ge=0, le=_TIME_MS_MAX)]
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=_TIME_MS_MAX)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=9)]


class Task(Record, frozen=True):
    """Work on the messages of a queue, in the background.

    Attributes:
        id: Its number.
        act: What it does: `move`, `copy`, `change-expiry`, `change-priority`, `remove`, `retry`,
            `send-to-dead-letter`,
            `expire` or `deliver-scheduled`.
        queue: The queue whose messages it is about.
        to: The queue that they go to, or the dead letter or expiry address; empty for none: then
            messages that expire are deleted.
        filter_string: Selector of the messages; empty for all.
        total: Messages that waited when it began, about.
        looked: Messages that it has looked at.
        messages: Messages with which it was done.
        kept: Messages that were chosen and stay, since no queue takes them.
        kept_reason: For `retry`: which of their queues are missing and could not be made, how to
            make them, and where the user may not send; else
            empty.
        state: `running`, `done`, `cancelled` or `failed`.
        reason: Why it failed or was cancelled, as a sentence; else empty.
        started_ms: When it began, in milliseconds since 1970.
        ended_ms: When it ended; 0 while it runs.
    """

    id: int
    act: str
    queue: str
    to: str
    filter_string: str
    total: int
    looked: int
    messages: int
    kept: int
    kept_reason: str
    state: str
    reason: str
    started_ms: int
    ended_ms: int


class TaskPage(Record, frozen=True):
    """Tasks that run, and those that ended last.

    Attributes:
        items: The tasks, oldest first.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Task, ...]
    next: str | None


class Choice(records.Body, frozen=True):
    """Which of the messages that wait in a queue.

    Attributes:
        filter: Selector that they match; empty for all.
        messages: Their ids (`message-id`); none for all.
        limit: Most messages; 0 for any number.
    """

    filter: Filter = ""
    messages: Ids = ()
    limit: Limit = 0


class Transfer(Choice, frozen=True, kw_only=True):
    """Messages that go to another queue.

    Attributes:
        to: Name of the queue.
        filter: Selector that they match; empty for all.
        messages: Their ids (`message-id`); none for all.
        limit: Most messages; 0 for any number.
    """

    to: records.Name


class ExpiryChange(Choice, frozen=True, kw_only=True):
    """Messages that get another time of expiry: one of the two times has to be given.

    Attributes:
        expires_ms: When they expire, in milliseconds since 1970; 0 for never.
        time_to_live_ms: They expire so many milliseconds from now.
        filter: Selector that they match; empty for all.
        messages: Their ids (`message-id`); none for all.
        limit: Most messages; 0 for any number.
    """

    expires_ms: TimeMs | None = None
    time_to_live_ms: TimeMs | None = None


class PriorityChange(Choice, frozen=True, kw_only=True):
    """Messages that get another priority.

    Attributes:
        priority: 0 to 9.
        filter: Selector that they match; empty for all.
        messages: Their ids (`message-id`); none for all.
        limit: Most messages; 0 for any number.
    """

    priority: Priority
