"""The part of the core's contract for how often messages were given out, and what of it is kept.

Owns the Protocol; `abc.Core` has it, and its terms. Both implementations keep it. Without a call
of `count_deliveries` a COUNT is staged whenever a message comes back and counts as delivered.

With `ahead` the COUNT of a journalled message is staged when a consumer is given it (`deliver`,
`give`, `take_large`, `give_large`; not to AUTO, which acknowledges then, but for large ones), and
says one delivery more than there were. So it is the caller's to hand frames on only when that is
durable: `receipt` does it. Without room for the record the message is not given: `deliver` and
`give` answer LIMIT, `take_large` and `give_large` None. What comes back counted needs no record
then; what comes back uncounted has one that says so again.

A message that a recovery or a page brought in, and that was given out too often already, is given
to nobody by `deliver`: it answers WORN, and `next_deliverable` is that message. One that came back
since then, or was put back, is given whatever its deliveries.
"""

from __future__ import annotations

from typing import Protocol


class CoreCounts(Protocol):
    """See the module's docstring."""

    def count_deliveries(self, *, ahead: bool, records_max: int | None) -> None:
        """Say when deliveries are journalled, and up to which one; before any consumer is opened.

        Args:
            ahead: Before a message is given out, not when it comes back.
            records_max: Deliveries behind so many of one message have no record, 0 or more; None:
                all have. Copies of the message that compaction makes have their counts all the
                same.
        """

    def limit_deliveries(self, queue_id: int, attempts: int) -> None:
        """Set from how many deliveries on `deliver` answers WORN (see above).

        Args:
            queue_id: The queue.
            attempts: How many, below 2**31; 0: any number.
        """

    def output_waiting(self, connection: int) -> int:
        """Return how many bytes given to `receipt` wait on a connection for something durable."""
