"""Scheduled messages: set aside until their time comes.

Owns which ones are held here, in eight bytes each (`due_times`); when each is due stands in the
message itself, so nothing is lost with this table: after a restart the messages are met again, and
held again. Must never deliver. Called by `fates`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.due_times import DueTimes
from vespiary_broker.engine.message_times import read_times
from vespiary_broker.engine.unreadable_parts import UnreadableParts

_AT_ONCE: Final = 16
_LOAD_AGAIN_MS: Final = 50


class Schedule:
    """Messages that are set aside until a time.

    Attributes:
        waiting: Which ones, and when to look at them.
        on_released: Called with a queue and messages of it that may be due now.

    Args:
        core: The core.
        load_slab: Begins to read a slab that is not in memory.
        unreadable: Parts of files that will not come: what stands there waits for the next start.
    """

    def __init__(
        self, core: Core, load_slab: Callable[[int, int], None], unreadable: UnreadableParts
    ) -> None:
        self.waiting = DueTimes()
        self.on_released: Callable[[int, Iterable[int]], None] = lambda _queue, _sequences: None
        self._core = core
        self._load_slab = load_slab
        self._unreadable = unreadable

    def hold(self, queue_id: int, sequence: int, until_ms: int, now_ms: int) -> bool:
        """Set a deliverable message aside until a time; False: it is not deliverable.

        Args:
            queue_id: Its queue.
            sequence: Its sequence there.
            until_ms: Milliseconds since 1970, after `now_ms`.
            now_ms: The clock.
        """
        if not self._core.set_aside(queue_id, sequence):
            return False
        self.waiting.add_early(until_ms, queue_id, sequence, now_ms)
        return True

    def discard_left(self, queue_id: int, sequences: Iterable[int]) -> None:
        """Forget scheduled messages that have left their queue, or are about to.

        Args:
            queue_id: Their queue.
            sequences: Their sequences there; they were held here.
        """
        for sequence in sequences:
            self.waiting.discard(queue_id, sequence)

    def release_due(self, now_ms: int) -> bool:
        """Let messages be delivered that are due; return whether there may be more of them."""
        due = self.waiting.take_due(now_ms, _AT_ONCE)
        if due is None:
            return False
        key, sequences = due
        loads: set[tuple[int, int]] = set()
        for sequence in sequences:
            if key.is_exact:
                self._core.put_back(key.queue_id, sequence)
            else:
                self._look(key.queue_id, sequence, now_ms, loads)
        self.on_released(key.queue_id, sequences)
        return True

    def _look(self, queue_id: int, sequence: int, now_ms: int, loads: set[tuple[int, int]]) -> None:
        """Let a message go whose bucket is due, or put it into a narrower one."""
        look = self._core.look(queue_id, sequence, 1, everything=True)
        if look.absent is not None and look.next_sequence <= sequence:
            if look.absent in self._unreadable:
                return
            # One slab at a time: they may be many more than there is memory for.
            if not loads:
                loads.add(look.absent)
                self._load_slab(*look.absent)
            self.waiting.add_again(now_ms + _LOAD_AGAIN_MS, queue_id, sequence)
            return
        view = look.messages[0] if look.messages else None
        if view is None or view.sequence != sequence or not view.is_aside:
            return  # it was ended meanwhile, by an administrator or by its expiry
        until_ms = read_times(view.properties).deliver_at_ms
        if until_ms > now_ms:
            self.waiting.add_early(until_ms, queue_id, sequence, now_ms)
        else:
            self._core.put_back(queue_id, sequence)
