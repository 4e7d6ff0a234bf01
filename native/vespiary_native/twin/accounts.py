"""What messages cost in memory, by account (contract: `vespiary_native.abc_accounts`).

Owns the accounts and the counting. Never decides what becomes of a message: it says "full" to the
scanner, which then leaves the frame to Python. Called by the core, its staging and its recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vespiary_codec.journal.record import ADD, PLACE
from vespiary_native.twin.tables import Tables
from vespiary_native.values import AccountLimits, AccountStatistics

if TYPE_CHECKING:
    from vespiary_native.twin.image import Slab
    from vespiary_native.twin.state import Message, Queue, Route

_PLACE_BYTES: Final = PLACE.size + 24
"""A place in its record, and its entry in the queue's ring (which only the C core has)."""
_ALONE_BYTES: Final = PLACE.size + ADD.size
"""What a place counts for in its file, the content aside, if its message has no other."""


class Account:
    """What the messages of some queues cost.

    Attributes:
        handle: Its handle.
        queues: Number of queues in it.
        places: Live places of messages in several queues, by slab and position.
    """

    __slots__ = ("handle", "is_full", "limits", "messages", "places", "queues", "size_bytes")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.size_bytes = self.messages = self.queues = 0
        self.is_full = False
        self.limits = AccountLimits()
        self.places: dict[tuple[Slab, int], int] = {}

    @property
    def is_too_large(self) -> bool:
        """Whether it holds what it may, or more."""
        size, count = self.limits.max_bytes, self.limits.max_messages
        return (size is not None and self.size_bytes >= size) or (
            count is not None and self.messages >= count
        )

    @property
    def is_low(self) -> bool:
        """Whether it holds so little that it is no longer full; never if it may hold nothing."""
        size, count = self.limits.low_bytes, self.limits.low_messages
        return (
            (size is None or self.size_bytes <= size)
            and (count is None or self.messages <= count)
            and not self.is_too_large
        )


class Accounts:
    """All accounts. Attributes: `total` is account 0, the sum of all."""

    def __init__(self) -> None:
        self.total = Account(0)
        self._accounts: dict[int, Account] = {0: self.total}
        self._changed: set[int] = set()
        self._full = 0
        self._free_from = 1

    def open(self) -> int:
        """Make an account."""
        handle = self._free_from
        while handle in self._accounts:
            handle += 1
        self._accounts[handle] = Account(handle)
        self._free_from = handle + 1
        return handle

    def close(self, handle: int) -> None:
        """Forget an account without queues."""
        account = self.get(handle)
        if account is self.total or account.queues:
            raise ValueError(f"account {handle} with {account.queues} queues cannot be closed")
        if account.is_full:
            self._set_full(account, is_full=False)
        del self._accounts[handle]
        self._free_from = min(self._free_from, handle)

    def get(self, handle: int) -> Account:
        """Return an account."""
        account = self._accounts.get(handle)
        if account is None:
            raise ValueError(f"account {handle} is not open")
        return account

    def limit(self, handle: int, limits: AccountLimits) -> None:
        """Set what an account may hold."""
        account = self.get(handle)
        pairs = (
            (limits.low_bytes, limits.max_bytes),
            (limits.low_messages, limits.max_messages),
        )
        is_wrong = any(most is not None and (low is None or low > most) for low, most in pairs)
        if is_wrong or (limits.is_holding and account is self.total):
            raise ValueError(f"account {handle} cannot have {limits}")
        account.limits = limits
        self._check(account)

    def statistics(self, handle: int) -> AccountStatistics:
        """Return what an account holds."""
        account = self.get(handle)
        return AccountStatistics(account.size_bytes, account.messages, account.is_full)

    def join(self, queue: Queue, handle: int) -> None:
        """Move a queue and what it holds to an account."""
        account = self.get(handle)
        if queue.account is account:
            return
        for message in queue.entries.values():
            self.leave(queue.account, message)
            self.enter(account, message)
        queue.account.queues -= 1
        account.queues += 1
        queue.account = account

    def is_held(self, route: Route) -> bool:
        """Whether a SEND to this route is Python's, because it is full there."""
        if not self._full:
            return False
        is_all = self.total.is_full
        return any(
            account.limits.is_holding and (account.is_full or (is_all and account.messages > 0))
            for account in (queue.account for queue in route.queues)
        )

    def take_changed(self) -> list[int]:
        """Return the accounts that changed."""
        changed, self._changed = sorted(self._changed & self._accounts.keys()), set()
        return changed

    def share(self, budget_bytes: int) -> int:
        """Return what each account may hold for all of them to hold no more than a budget."""
        held = [account.size_bytes for account in self._accounts.values()]
        above = [size for size in held[1:] if size]
        left = budget_bytes
        for length in range(1, 64):
            same = [size for size in above if size.bit_length() == length]
            more = len(above) - len(same)
            if above and (sum(same) > left or more << length > left - sum(same)):
                return left // len(above)
            left -= sum(same)
            above = [size for size in above if size.bit_length() > length]
        return budget_bytes

    # --- counting ---------------------------------------------------------------------------------
    def enter(self, account: Account, message: Message) -> None:
        """Count a place that is live now."""
        content_bytes = message[2] + message[3]
        cost, is_message = _PLACE_BYTES, True
        if message[5] != _ALONE_BYTES + content_bytes:
            key = message[:2]
            places = account.places[key] = account.places.get(key, 0) + 1
            is_message = places == 1
        if is_message:
            cost += ADD.size + content_bytes
        for counted in (account, self.total) if account is not self.total else (account,):
            counted.size_bytes += cost
            counted.messages += is_message
            if not counted.is_full and counted.is_too_large:
                self._set_full(counted, is_full=True)

    def leave(self, account: Account, message: Message) -> None:
        """Count a place that is no longer live."""
        content_bytes = message[2] + message[3]
        cost, is_message = _PLACE_BYTES, True
        if message[5] != _ALONE_BYTES + content_bytes:
            key = message[:2]
            places = account.places.pop(key) - 1
            if places:
                account.places[key] = places
            is_message = not places
        if is_message:
            cost += ADD.size + content_bytes
        for counted in (account, self.total) if account is not self.total else (account,):
            counted.size_bytes -= cost
            counted.messages -= is_message
            if counted.is_full and counted.is_low:
                self._set_full(counted, is_full=False)

    def _check(self, account: Account) -> None:
        if account.is_low if account.is_full else account.is_too_large:
            self._set_full(account, is_full=not account.is_full)

    def _set_full(self, account: Account, *, is_full: bool) -> None:
        account.is_full = is_full
        self._full += 1 if is_full else -1
        self._changed.add(account.handle)


class AccountCalls(Tables):
    """The calls of `abc_accounts.CoreAccounts`; base class of `TwinCore`."""

    def open_account(self) -> int:
        """See `CoreAccounts.open_account`."""
        return self._staging.accounts.open()

    def close_account(self, account: int) -> None:
        """See `CoreAccounts.close_account`."""
        self._staging.accounts.close(account)

    def join_account(self, queue_id: int, account: int) -> None:
        """See `CoreAccounts.join_account`."""
        self._staging.accounts.join(self._queue(queue_id), account)

    def limit_account(self, account: int, limits: AccountLimits) -> None:
        """See `CoreAccounts.limit_account`."""
        self._staging.accounts.limit(account, limits)

    def account_statistics(self, account: int) -> AccountStatistics:
        """See `CoreAccounts.account_statistics`."""
        return self._staging.accounts.statistics(account)

    def is_held(self, route: int) -> bool:
        """See `CoreAccounts.is_held`."""
        return self._staging.accounts.is_held(self._route(route))

    def take_changed_accounts(self) -> list[int]:
        """See `CoreAccounts.take_changed_accounts`."""
        return self._staging.accounts.take_changed()

    def account_share(self, budget_bytes: int) -> int:
        """See `CoreAccounts.account_share`."""
        return self._staging.accounts.share(budget_bytes)
