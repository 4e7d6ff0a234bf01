"""Ids of messages.

Owns what the `message-id` and `ack` headers of a MESSAGE frame say and an ACK or NACK repeats: the
form `queue-sequence`, two decimal numbers, the number of the queue and the message's place in it.
It needs no table, is unique in the broker, and is found in one step. Must never accept a second
spelling of an id. Called by the broker's engine and by its encoder.
"""

from __future__ import annotations

import re
from typing import Final

from vespiary_codec.wire.stomp.errors import LocalProtocolError, RemoteProtocolError, Violation

MAX_QUEUE_ID: Final = 2**32 - 1
MAX_SEQ: Final = 2**64 - 1

_MESSAGE_ID: Final = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,19})")


def format_message_id(queue_id: int, seq: int) -> str:
    """Return the id of a message.

    Args:
        queue_id: Number of the queue, 0 to 2**32 - 1.
        seq: Place of the message in the queue, 0 to 2**64 - 1.

    Raises:
        LocalProtocolError: A number is out of range.
    """
    if not (0 <= queue_id <= MAX_QUEUE_ID and 0 <= seq <= MAX_SEQ):
        raise LocalProtocolError(
            f"no message id for queue {queue_id}, sequence {seq}: out of range"
        )
    return f"{queue_id}-{seq}"


def parse_message_id(text: str) -> tuple[int, int]:
    """Return queue number and sequence number of a message id.

    Args:
        text: The id, as a client sent it.

    Raises:
        RemoteProtocolError: It is not an id that this broker gives: other characters, leading
            zeros, out of range.
    """
    match = _MESSAGE_ID.fullmatch(text)
    if match is not None:
        queue_id, seq = int(match[1]), int(match[2])
        if queue_id <= MAX_QUEUE_ID and seq <= MAX_SEQ:
            return queue_id, seq
    raise RemoteProtocolError(
        Violation.INVALID_VALUE,
        f"{text[:40]!a} is not a message id of this broker; ids have the form 7-1234",
    )
