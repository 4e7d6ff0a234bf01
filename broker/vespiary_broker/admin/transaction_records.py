"""What the API says of distributed transactions.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `transactions`
and `routes`.
"""

from __future__ import annotations

from vespiary_broker.admin.records import Record


class TransactionMembers(Record, frozen=True):
    """What a branch of a distributed transaction holds in one queue.

    Attributes:
        queue: Name of the queue; `#ID` if there is no such queue.
        added: Messages that it adds.
        acknowledged: Messages that it acknowledges.
    """

    queue: str
    added: int
    acknowledged: int


class Transaction(Record, frozen=True):
    """A branch of a distributed transaction that is in doubt, or was decided here.

    Attributes:
        xid: Format id, global transaction id and branch qualifier, the last two in hexadecimal.
        state: `prepared`, `quarantined`, `heuristic-commit`, `heuristic-rollback` or
            `heuristic-mixed`.
        user: Whose it is.
        prepared_at_ms: When it was prepared, in milliseconds since 1970.
        age_s: Seconds since then.
        reason: Why it is in quarantine; empty otherwise.
        members: What it holds, by queue; nothing once it is decided.
    """

    xid: str
    state: str
    user: str
    prepared_at_ms: int
    age_s: float
    reason: str
    members: tuple[TransactionMembers, ...]


class TransactionPage(Record, frozen=True):
    """Some branches, by XID.

    Attributes:
        items: The branches.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Transaction, ...]
    next: str | None
