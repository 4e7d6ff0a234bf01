"""Large messages: bodies that stand in files of their own (journal-format §3.5).

Owns how many places each body has left, and which ones nobody needs any more. Never touches a
file: those are the store's. Called by staging and by the recovery.
"""

from __future__ import annotations

from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_native.abc import LargeBody
from vespiary_native.twin.state import LargeMessage, Queue


class LargeMessages:
    """The bodies that live messages refer to, and those that wait for the end to be durable."""

    def __init__(self) -> None:
        self._live: dict[int, LargeMessage] = {}
        self._done: list[LargeMessage] = []

    def place(self, queue: Queue, sequence: int, reference: bytes | memoryview) -> None:
        """Note that a place of a queue refers to a body."""
        body = LargeBody(*decode_large_reference(reference))
        old = queue.large.get(sequence)
        if old is not None and old.body.large_id == body.large_id:
            return  # the same place, moved to a newer file
        if old is not None:
            self.ended(queue, sequence, 0)
        message = self._live.get(body.large_id)
        if message is None:
            message = self._live[body.large_id] = LargeMessage(body)
        message.places += 1
        queue.large[sequence] = message

    def ended(self, queue: Queue, sequence: int, block: int | None) -> None:
        """Note that a place is done.

        Args:
            queue: Its queue.
            sequence: Its sequence.
            block: Block that everything so far waits for; 0 for nothing, None for the COMMIT of the
                transaction that is being staged.
        """
        message = queue.large.pop(sequence, None)
        if message is None:
            return
        if block is None:
            message.block = None
        elif message.block is not None:
            message.block = max(message.block, block)
        message.places -= 1
        if not message.places:
            del self._live[message.body.large_id]
            self._done.append(message)

    def void(self, queue: Queue, sequence: int) -> None:
        """Forget a place that an aborted transaction added; its body may be nobody's again."""
        message = queue.large.pop(sequence, None)
        if message is None:
            return
        message.places -= 1
        if not message.places:
            del self._live[message.body.large_id]

    def committed(self, block: int) -> None:
        """Note where the COMMIT stands that some wait for."""
        for message in (*self._live.values(), *self._done):
            if message.block is None:
                message.block = block

    def take_done(self, durable_sequence: int) -> list[int]:
        """Return the bodies that nobody needs any more, durably; each once."""
        taken: list[int] = []
        waiting = []
        for message in self._done:
            if message.block is not None and message.block <= durable_sequence:
                taken.append(message.body.large_id)
            else:
                waiting.append(message)
        self._done = waiting
        return taken

    def forget_done(self) -> None:
        """Forget what ended before the recovery did: the folder shows it."""
        self._done.clear()

    def live(self) -> list[LargeBody]:
        """Return the bodies that live messages refer to."""
        return [message.body for message in self._live.values()]
