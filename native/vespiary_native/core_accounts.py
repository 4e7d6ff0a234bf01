"""The accounts of `NativeCore`: the contract of `vespiary_native.abc_accounts` over the C core.

Owns nothing: every method is one call into C (native/src/accounts.c). Base class of
`vespiary_native.core.NativeCore`, and never used alone.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final

from vespiary_native.loader import ffi, lib
from vespiary_native.values import AccountLimits, AccountStatistics

_BATCH: Final = 1024
_NONE: Final = 2**64 - 1


def _check(result: int, what: str) -> int:
    if result >= 0:
        return result
    if result == -errno.ENOMEM:
        raise MemoryError(f"{what}: no memory")
    raise ValueError(f"{what}: {os.strerror(-result)}")


def _limit(value: int | None) -> int:
    return _NONE if value is None else value


class NativeAccounts:
    """See the module's docstring."""

    _core: Any

    def __init__(self) -> None:
        self._account_limits = ffi.new("vespiary_account_limits *")
        self._account = ffi.new("vespiary_account_statistics *")
        self._changed = ffi.new(f"uint32_t[{_BATCH}]")

    def open_account(self) -> int:
        """See `CoreAccounts.open_account`."""
        return _check(lib.vespiary_core_open_account(self._core), "open_account")

    def close_account(self, account: int) -> None:
        """See `CoreAccounts.close_account`."""
        _check(lib.vespiary_core_close_account(self._core, account), f"close_account {account}")

    def join_account(self, queue_id: int, account: int) -> None:
        """See `CoreAccounts.join_account`."""
        _check(
            lib.vespiary_core_join_account(self._core, queue_id, account),
            f"join_account {account}, queue {queue_id}",
        )

    def limit_account(self, account: int, limits: AccountLimits) -> None:
        """See `CoreAccounts.limit_account`."""
        into = self._account_limits
        into.bytes_max, into.bytes_low = _limit(limits.max_bytes), _limit(limits.low_bytes)
        into.messages_max = _limit(limits.max_messages)
        into.messages_low = _limit(limits.low_messages)
        into.is_holding = limits.is_holding
        _check(
            lib.vespiary_core_limit_account(self._core, account, into),
            f"limit_account {account} {limits}",
        )

    def account_statistics(self, account: int) -> AccountStatistics:
        """See `CoreAccounts.account_statistics`."""
        found = self._account
        _check(
            lib.vespiary_core_account_statistics(self._core, account, found),
            f"account_statistics {account}",
        )
        return AccountStatistics(found.bytes, found.messages, bool(found.is_full))

    def is_held(self, route: int) -> bool:
        """See `CoreAccounts.is_held`."""
        return bool(_check(lib.vespiary_core_is_held(self._core, route), f"is_held {route}"))

    def take_changed_accounts(self) -> list[int]:
        """See `CoreAccounts.take_changed_accounts`."""
        changed: list[int] = []
        while count := lib.vespiary_core_take_changed_accounts(self._core, self._changed, _BATCH):
            changed.extend(self._changed[0:count])
        return sorted(changed)

    def queue_totals(self) -> tuple[int, int]:
        """See `CoreAccounts.queue_totals`."""
        added, acknowledged = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.vespiary_core_queue_totals(self._core, added, acknowledged)
        return int(added[0]), int(acknowledged[0])

    def account_share(self, budget_bytes: int) -> int:
        """See `CoreAccounts.account_share`."""
        return int(lib.vespiary_core_account_share(self._core, budget_bytes))
