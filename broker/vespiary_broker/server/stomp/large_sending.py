"""Sending a large message: its body is in a file before its reference is staged.

Owns the order of the two, and that a body that no message refers to in the end is removed. Must
never confirm by itself: the session does. Called by `connection` and `session`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.engine.transactions import Outgoing, refer_to
from vespiary_codec.wire.stomp import Frame
from vespiary_spec.errors import DiskFull, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.stomp.session import StompSession
    from vespiary_broker.store.large_writer import LargeWriter


async def send_from_memory(session: StompSession, cycle: Cycle, frame: Frame, body: bytes) -> None:
    """Send a message that is large with its headers, or came through the decoder."""
    assert cycle.large is not None
    writer = cycle.large.begin()
    writer.put(body)
    await send_large(session, cycle, frame, writer)


def is_body_dropped(cycle: Cycle, message: Outgoing, full: DiskFull) -> bool:
    """Return what the policy of its address says of a body that finds no room on the disk.

    Args:
        cycle: What all connections share.
        message: The message; its body is not needed.
        full: What is full.

    Returns:
        True if the message is dropped, and counted; False if its sender waits.

    Raises:
        JournalFull: It is refused.
    """
    return cycle.engine.full_disk.is_dropped(message.destination.address, full)


async def send_large(
    session: StompSession, cycle: Cycle, frame: Frame, writer: LargeWriter
) -> None:
    """Send a message whose body went to a file while it came.

    Args:
        session: Of the sender.
        cycle: What all connections share.
        frame: The frame; its body is the writer's.
        writer: The body, all of it taken in.

    Raises:
        VespiaryError: The body could not be stored, or the frame is not what it should be;
            nothing is left of the body.

    Durability: the body is flushed before its reference is staged.
    """
    large = cycle.large
    assert large is not None
    try:
        message = session.sending.outgoing(frame)
    except VespiaryError:
        writer.discard()
        raise
    session.sending.count_dropped(frame)
    writer.on_full = lambda full: is_body_dropped(cycle, message, full)
    writer.on_failed = lambda _: None  # `finish` tells it
    session.storing = writer
    try:
        body = await writer.finish(is_persistent=message.is_persistent)
    finally:
        session.storing = None
    if body is None:
        if writer.is_dropped:
            session.confirm(frame)
        return
    is_taken = False
    try:
        message = refer_to(message, body)
        transaction = frame.get("transaction")
        if transaction is None:
            is_taken = await session.sending.send_later(frame, message)
        elif session.is_open:
            session.sending.add_member(transaction, message)
            is_taken = True
            session.confirm(frame)
    finally:
        if not is_taken:
            large.remove([body.large_id])
