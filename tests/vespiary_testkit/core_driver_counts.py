"""Random calls about counted deliveries to both cores.

Owns nothing: a mix-in of `core_driver.Driver`.
"""

from __future__ import annotations

import random

from vespiary_testkit.core_pair import Both


class CountingCalls:
    """Says when deliveries are journalled, and how many there may be."""

    core: Both
    random: random.Random
    connections: dict[int, tuple[int, bytearray]]
    queues: dict[int, bool]
    choosers: dict[int, int]

    def begin_counting(self) -> None:
        """Choose for one life; half of them leave it as it is."""
        self.is_ahead = self.random.random() < 0.4
        if self.is_ahead or self.random.random() < 0.2:
            records_max = self.random.choice([None, 0, 1, 3, 10])
            self.core.count_deliveries(ahead=self.is_ahead, records_max=records_max)

    def count(self) -> None:
        """Limit the deliveries of a queue, and ask what waits."""
        pick = self.random
        self.core.limit_deliveries(pick.choice(sorted(self.queues)), pick.choice([0, 1, 1, 2, 5]))
        for connection in self.connections:
            self.core.output_waiting(connection)

    def take_worn(self, consumer: int) -> bool:
        """Take away the message that a consumer is not given; return whether it may go on."""
        queue_id = self.choosers.get(consumer)
        if queue_id is None:
            return False
        sequence = self.core.next_deliverable(queue_id)
        assert self.core.set_aside(queue_id, sequence)
        if self.random.random() < 0.5:
            self.core.put_back(queue_id, sequence)
        return True
