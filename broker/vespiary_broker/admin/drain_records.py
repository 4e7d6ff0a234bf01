"""What the API says of a drain, and what it takes to begin one.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `drain` and
`drain_routes`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from vespiary_broker.admin import records
from vespiary_broker.admin.journal_records import Record
from vespiary_spec.limits import AUTHORITIES_CHARACTERS_MAX


class Drain(Record, frozen=True):
    """The drain of this broker into another one.

    Attributes:
        phase: `none` (clients are let in), `cordoned` (they are not, and nothing is moved now),
            `draining`, `drained` (nothing is left) or `failed`.
        target: URL of the other broker; empty if none was named since the start.
        reason: What it waits for, or why it failed, as a sentence; else empty.
        moved: Messages moved since it was begun or resumed.
        moved_bytes: Bytes of these.
        seen_before: Messages of these that the other broker had already.
        messages_left: Messages in all queues.
        queues_left: Queues that hold some.
        prepared: Distributed transactions that wait for their decision.
        started_ms: When it was begun or resumed, in milliseconds since 1970.
        ended_ms: When it ended; 0 while it runs.
    """

    phase: str
    target: str
    reason: str
    moved: int
    moved_bytes: int
    seen_before: int
    messages_left: int
    queues_left: int
    prepared: int
    started_ms: int
    ended_ms: int


class NewDrain(records.Body, frozen=True):
    """Where all messages are to go.

    Attributes:
        target: URL of the other broker's HTTP listener, without a login.
        user: An administrator there; empty for nobody.
        password: The user's password; it is held in memory alone.
        authorities: PEM certificates that an https target's own has to be or come from; empty:
            those of the system's authorities.
        server_name: Name that the target's certificate has to be for; empty: the URL's host.
    """

    target: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    user: Annotated[str, msgspec.Meta(max_length=256)] = ""
    password: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    authorities: Annotated[str, msgspec.Meta(max_length=AUTHORITIES_CHARACTERS_MAX)] = ""
    server_name: Annotated[str, msgspec.Meta(max_length=253, pattern=r"^([^.].*)?$")] = ""
