"""The values that the core's inspection calls speak in.

Owns plain values only; what they mean stands with the methods that give them, in
`vespiary_native.abc_inspection`. Used by both implementations of the core.
"""

from __future__ import annotations

from typing import NamedTuple

LOOK_LIVE_MAX = 16384
"""Live messages that one `look` goes through, wanted or not: a turn of the loop stays short."""

LOOK_BYTES_MAX = 1024 * 1024
"""Bytes of properties that one `look` gathers; the first message's always."""


class MessageView(NamedTuple):
    """A message in a queue, as it stands; its body is asked for by itself (`Core.body`).

    Attributes:
        sequence: Its sequence in the queue.
        is_returned: Deliverable again: it came back, or was set aside.
        is_held: A consumer holds it.
        is_aside: It is set aside.
        deliveries: How often it was given out and came back.
        priority: Of its record, 0 to 9.
        protocol: Of its sender (journal-format.md §3.2).
        time_ms: When it was staged, milliseconds since 1970.
        is_journalled: It survives a restart.
        is_special: It was published as one that Python looks at before it is given.
        is_large: Its body is in a file: the record holds a reference.
        is_escaped: `properties` contain escapes.
        body_length: Bytes of the body; of a large one, of the reference (24).
        properties: Header lines as stored: `name:value` and a line feed each.
    """

    sequence: int
    is_returned: bool
    is_held: bool
    is_aside: bool
    deliveries: int
    priority: int
    protocol: int
    time_ms: int
    is_journalled: bool
    is_special: bool
    is_large: bool
    is_escaped: bool
    body_length: int
    properties: bytes


class Look(NamedTuple):
    """What one `Core.look` found.

    Attributes:
        messages: Ascending by sequence.
        next_sequence: Where to go on; `available` of the queue when its end was reached.
        absent: (file id, slab index) that `next_sequence` needs: load it and go on. None if nothing
            is missing.
    """

    messages: list[MessageView]
    next_sequence: int
    absent: tuple[int, int] | None
