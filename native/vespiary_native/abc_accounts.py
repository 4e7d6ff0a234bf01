"""The part of the core's contract that is about what messages cost in memory.

Owns the Protocol; `abc.Core` has it, and its terms. Both implementations keep it. Which account
belongs to which address, what it may hold, and what becomes of messages when it is full, is decided
by `vespiary_broker.engine.address_memory`.

An account counts the messages of the queues that joined it. A live place costs 40 bytes (16 in its
record, 24 in the queue's ring). A message costs 24 bytes, its properties and its body once for each
account whose queues have a live place of its record, however many those are; of a large message the
reference counts. It is counted from its staging to the end of its last place there; a copy that
compaction made is another record. Account 0 is the sum of all, and has the queues that joined none.
"""

from __future__ import annotations

from typing import Protocol

from vespiary_native.values import AccountLimits as AccountLimits
from vespiary_native.values import AccountStatistics as AccountStatistics


class CoreAccounts(Protocol):
    """See the module's docstring."""

    def open_account(self) -> int:
        """Make an account without limits; handles are small ints, and are used again."""

    def close_account(self, account: int) -> None:
        """Forget an account.

        Raises:
            ValueError: It is account 0, or queues are in it.
        """

    def join_account(self, queue_id: int, account: int) -> None:
        """Have a queue's messages count for this account from now on, those in it too.

        Takes time in proportion to what the queue holds; none for a queue without messages.
        """

    def limit_account(self, account: int, limits: AccountLimits) -> None:
        """Set what the account may hold; it is full, or no longer, at once.

        Limits that are raised do not end the fullness of an account above its low marks.

        Raises:
            ValueError: A low mark is above its limit or without one, or account 0 is to hold SENDs.
        """

    def account_statistics(self, account: int) -> AccountStatistics:
        """Return what the account holds."""

    def is_held(self, route: int) -> bool:
        """Whether the scanner leaves SENDs that lead here to Python, now.

        So it is while one of the route's queues is in an account that `is_holding` and is full, or
        has messages while account 0 is full.
        """

    def take_changed_accounts(self) -> list[int]:
        """Return the accounts that became full, or are no longer, since the last call; ascending.

        An account that was full in between, and is not, is named too.
        """

    def queue_totals(self) -> tuple[int, int]:
        """Return the sums of `added` and of `acknowledged` of all open queues.

        It costs some nanoseconds for each queue, where `queue_statistics` costs microseconds.
        """

    def account_share(self, budget_bytes: int) -> int:
        """Return what each account may hold for all of them to hold no more than a budget.

        Accounts that hold less leave theirs to the others: a few large ones beside thousands of
        small ones have nearly all of it. It is never too much, and never less than half of what
        would do. It is the budget while they hold less than that together. Account 0 is not
        counted.

        Args:
            budget_bytes: 0 to 2**62.
        """
