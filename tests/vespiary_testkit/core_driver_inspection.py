"""Random inspection calls to both cores (`vespiary_native.abc_inspection`): a part of `Driver`.

Owns `InspectionCalls`. Used by `core_driver` alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from vespiary_native.abc import AckMode, DeliverStatus


class InspectionCalls:
    """What Python does to queues whose order or fate it decides."""

    random: random.Random
    core: Any
    queues: dict[int, bool]
    consumers: dict[int, int]
    connections: dict[int, tuple[int, bytearray]]
    given: list[tuple[int, int]]
    choosers: dict[int, int]
    load_slab: Callable[[int, int], bool]
    note_given: Callable[[int, bytes], None]

    def inspect(self) -> None:
        """Look at a queue, and do something to what was seen or guessed."""
        pick = self.random
        queue = pick.choice(sorted(self.queues))
        sequences = self.look(queue)
        acts = [
            self.give, self.give, self.finish, self.finish_held, self.set_aside, self.set_aside,
            self.put_back, self.ask, self.copy_range, self.copy_range, self.finish_below,
        ]  # fmt: skip
        pick.choice(acts)(queue, sequences)

    def look(self, queue: int) -> list[int]:
        """Return some sequences of a queue, seen or not, in any order."""
        pick = self.random
        state = self.core.queue_statistics(queue)
        sequence = pick.choice([0, 0, state.head, state.next, pick.randint(1, state.tail + 3)])
        how = {pick.choice(["everything", "everything", "returned_only", ""]): True}
        how |= {"special_only": pick.random() < 0.2}
        how.pop("", None)
        seen: list[int] = []
        for _ in range(4):
            number = pick.choice([1, 3, 40, 10**6])
            look = self.core.look(queue, sequence, number, **how)
            found = [view.sequence for view in look.messages]
            assert found == sorted(found)
            available = self.core.queue_statistics(queue).available
            assert look.next_sequence <= available
            seen += found
            sequence = look.next_sequence
            if look.absent is not None and not self.load_slab(*look.absent):
                break
        seen += [pick.randint(1, state.tail + 1) for _ in range(2)]
        return pick.sample(seen, min(len(seen), pick.choice([1, 2, 9])))

    def chooser(self, queue: int) -> int:
        """Return a consumer of a queue."""
        pick = self.random
        known = [one for one, of in self.choosers.items() if of == queue and one in self.consumers]
        if known and pick.random() < 0.8:
            return pick.choice(known)
        connection = pick.choice(sorted(self.connections))
        mode = AckMode(pick.choice([0, 1, 1, 2]))
        handle: int = self.core.open_consumer(
            connection, queue, mode, pick.choice([2, 30]), b"s", pick.choice([0, 10, 11, 12])
        )
        self.consumers[handle] = connection
        self.choosers[handle] = queue
        return handle

    def give(self, queue: int, sequences: list[int]) -> None:
        consumer = self.chooser(queue)
        if self.random.random() < 0.5:
            sequences = sorted(sequences)
        room = self.random.choice([1, 3000, 10**6])
        status, _, passed, frames = self.core.give(consumer, sequences, room)
        self.note_given(consumer, frames)
        if status == DeliverStatus.ABSENT:
            place = self.core.absent_for(queue, sequences[passed])
            assert place != (0, 0)
            self.load_slab(*place)
        elif status == DeliverStatus.LARGE:
            given = self.core.give_large(consumer, sequences[passed])
            if given is not None:
                self.note_given(consumer, given.head)

    def decide(self, consumer: int) -> bool:
        """Do something to the special message that a consumer would be given."""
        queue = self.choosers.get(consumer, 0)
        if queue not in self.queues or self.random.random() < 0.1:
            return False
        sequence = self.core.next_deliverable(queue)
        self.random.choice([self.give, self.set_aside, self.finish])(queue, [sequence])
        if self.random.random() < 0.5:
            self.core.specials_seen(queue)
        return consumer in self.consumers

    def finish(self, queue: int, sequences: list[int], transaction: int = 0) -> None:
        self.core.finish(queue, sequences, transaction=transaction)

    def finish_held(self, queue: int, sequences: list[int], transaction: int = 0) -> None:
        if self.consumers:
            sequence = self.random.choice([*sequences, *(s for q, s in self.given if q == queue)])
            holders = {self.core.holder(c, queue, sequence) for c in self.connections} - {-1}
            consumer = self.random.choice(sorted(holders or self.consumers))
            self.core.finish_held(consumer, sequence, transaction=transaction)

    def end_as_member(self, transaction: int) -> None:
        """End something in a transaction."""
        queue = self.random.choice(sorted(self.queues))
        tail = self.core.queue_statistics(queue).tail
        sequences = [self.random.randint(1, tail) for _ in range(self.random.choice([1, 3, 9]))]
        self.random.choice([self.finish, self.finish_held])(queue, sequences, transaction)

    def copy_range(self, queue: int, sequences: list[int]) -> None:
        """Copy a range of a queue to its end, as a reader does."""
        pick = self.random
        at, end = min(sequences), max(sequences) + pick.choice([0, 1, 50])
        room = pick.choice([0, 400, 5000, 10**6])
        for _ in range(6):
            copied = self.core.copy_range(
                queue, at, end, room,
                is_first_whole=pick.random() < 0.8, runs_max=pick.choice([1, 2, 1024]),
            )  # fmt: skip
            at = copied.next_sequence
            if copied.absent is not None and not self.load_slab(*copied.absent):
                break

    def finish_below(self, queue: int, sequences: list[int]) -> None:
        if self.random.random() < 0.3:
            self.core.finish_below(queue, self.random.choice(sequences), self.random.choice([1, 9]))

    def set_aside(self, queue: int, sequences: list[int]) -> None:
        for sequence in sequences:
            self.core.set_aside(queue, sequence)

    def put_back(self, queue: int, sequences: list[int]) -> None:
        look = self.core.look(queue, 0, 100, everything=True)
        aside = [view.sequence for view in look.messages if view.is_aside]
        for sequence in self.random.sample(aside, len(aside) // 2) + sequences:
            self.core.put_back(queue, sequence)

    def ask(self, queue: int, sequences: list[int]) -> None:
        self.core.next_deliverable(queue)
        for consumer in sorted(self.consumers):
            assert self.core.held_count(consumer) == len(self.core.held(consumer))
        for sequence in sequences:
            self.core.body(queue, sequence)
            self.core.absent_for(queue, sequence)
