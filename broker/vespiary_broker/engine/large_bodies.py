"""Large messages as the engine sees them: references to bodies that the store keeps in files.

Owns the quarantine: messages whose body is lost are set aside in their queues, so that they block
nobody, and nothing of them is acknowledged. Must never open a file. Called by dispatch and
registry; the bodies themselves are the store's (`LargeBodies`).
"""

from __future__ import annotations

from typing import Protocol

from vespiary_broker.engine.core import AckMode, Core, LargeBody
from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference

_CREDIT_MAX = 2**31 - 1


class LargeBodies(Protocol):
    """The files, as far as the engine cares."""

    def is_damaged(self, large_id: int) -> bool:
        """Whether a body is known to be lost."""

    def adopt(self, body: LargeBody) -> None:
        """Note that a staged message refers to a body."""

    def remove(self, large_ids: list[int]) -> None:
        """Remove bodies that no message refers to, after any crash."""

    def hold_removals(self) -> None:
        """Remove nothing for now."""

    def release_removals(self) -> None:
        """Take one `hold_removals` back."""

    def look(self) -> None:
        """Have the core asked soon for bodies that are done: a queue went."""


def reference_of(body: LargeBody) -> bytes:
    """Return what stands in the journal in place of a body."""
    return encode_large_reference(LargeReference(body.large_id, body.size_bytes, body.crc))


class Quarantine:
    """Consumers of nobody, who hold the messages that cannot be delivered.

    What they hold counts as given out. After a restart the messages are ready again, and are set
    aside again if their bodies are still lost.

    Args:
        core: The core.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._connection = -1
        self._consumers: dict[int, int] = {}

    def take(self, queue_id: int) -> bool:
        """Set the next message of a queue aside, which is large; False if it cannot be now."""
        core = self._core
        if self._connection < 0:
            self._connection = core.open_connection()
        consumer = self._consumers.get(queue_id)
        if consumer is None:
            consumer = self._consumers[queue_id] = core.open_consumer(
                self._connection, queue_id, AckMode.INDIVIDUAL, _CREDIT_MAX, b"", 12
            )
        return core.take_large(consumer) is not None

    def release(self, queue_id: int) -> None:
        """Give a queue back what was set aside: it is purged, or deleted."""
        consumer = self._consumers.pop(queue_id, None)
        if consumer is not None:
            self._core.close_consumer(consumer)
