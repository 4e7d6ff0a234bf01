"""Random calls about accounts to both cores.

Owns the accounts: a mix-in of `core_driver.Driver`.
"""

from __future__ import annotations

import random

from vespiary_native.abc_accounts import AccountLimits
from vespiary_testkit.core_pair import Both


class AccountCalls:
    """Makes, fills, limits and closes accounts."""

    core: Both
    random: random.Random
    queues: dict[int, bool]
    accounts: list[int]

    def account(self) -> None:
        """Make, fill, limit and close accounts."""
        pick = self.random
        act = pick.randint(0, 9)
        if act == 0 or len(self.accounts) < 3:
            self.accounts.append(self.core.open_account())
        elif act == 1:
            account = pick.choice(self.accounts)
            self.core.close_account(account)
            self.accounts.remove(account)
        elif act < 5:
            self.core.join_account(pick.choice(sorted(self.queues)), pick.choice(self.accounts))
        else:
            size = pick.choice([None, 0, 1000, 60_000, 400_000])
            count = pick.choice([None, None, 1, 20])
            limits = AccountLimits(
                size, size and size * 4 // 5, count, count and count // 2, pick.random() < 0.6
            )
            self.core.limit_account(pick.choice(self.accounts), limits)
