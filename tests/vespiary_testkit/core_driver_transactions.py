"""Random transactions and branches on both cores: a part of `Driver`.

Owns `TransactionCalls`. Used by `core_driver` alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from vespiary_codec.journal.duplicate import DuplicateId, DuplicateRecord, duplicate_body
from vespiary_native.abc import NoRoom


class TransactionCalls:
    """What is staged together, and how it ends."""

    random: random.Random
    core: Any
    consumers: dict[int, int]
    given: list[tuple[int, int]]
    last_transaction: int
    publish: Callable[[int], None]
    end_as_member: Callable[[int], None]
    add_file: Callable[[], None]
    flush: Callable[[], None]

    def transaction(self) -> None:
        pick = self.random
        self.last_transaction += 1
        name = self.last_transaction
        members = pick.randint(0, 12)
        is_branch = pick.random() < 0.5
        size = pick.choice([1000, 30_000, 31_000 * members])
        self.core.begin(name, size, members * 3, branch=is_branch)
        for _ in range(members):
            try:
                if pick.random() < 0.2:
                    self.core.append_record(11, self.duplicate(name), flags=1)
                elif pick.random() < 0.4 and self.given and self.consumers:
                    sequence = pick.choice(self.given)[1]
                    consumer = pick.choice(sorted(self.consumers))
                    self.core.acknowledge(consumer, sequence, transaction=name)
                elif pick.random() < 0.2:
                    self.end_as_member(name)
                else:
                    self.publish(name)
            except (NoRoom, ValueError):
                pass  # both said the same
        data = pick.randbytes(pick.choice([0, 20, 300]))
        end = partial(self.core.prepare, name, data) if is_branch else None
        end = end or partial(self.core.commit, name)
        try:
            end()
        except NoRoom:
            self.add_file()
            self.flush()
            end()

    def resolve(self) -> None:
        """End a prepared branch, or try to."""
        known = [facts.transaction for facts in self.core.branches()]
        transaction = self.random.choice(known or [self.last_transaction])
        self.core.resolve(transaction, commit=self.random.random() < 0.6)

    def duplicate(self, transaction: int) -> bytes:
        """Return the body of a DUPLICATE record; now and then of another transaction."""
        pick = self.random
        name = transaction if pick.random() < 0.95 else transaction + 1
        ids = tuple(
            DuplicateId(pick.randint(1, 99), pick.randbytes(pick.choice([0, 1, 36])))
            for _ in range(pick.choice([0, 1, 1, 3]))
        )
        return duplicate_body(DuplicateRecord("orders", ids, name))
