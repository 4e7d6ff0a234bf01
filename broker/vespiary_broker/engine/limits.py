"""How many addresses, queues, subscriptions and sessions there may be, in all and for each user.

Owns the bounds and the counts by user. Must never make or end anything: who does asks first, and
tells afterwards. Called by `registry` and the server's sessions; owner: the event loop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from vespiary_broker.engine.naming import EVERYBODY, NamingRules
from vespiary_broker.engine.rates import Rates
from vespiary_broker.engine.send_rates import SendRates
from vespiary_spec.errors import LimitExceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class NamingStatistics:
    """What has a name, and how much more may.

    Attributes:
        addresses_max: Most addresses; 0 for any number.
        queues_max: Most queues; 0 for any number.
        refused: Addresses, queues, subscriptions and sessions that were refused since the start.
        permissions_refused: How often a user lacked a permission since the start.
        permissions_withheld: Messages that subscribers of wildcards did not get since the start,
            for their users may not consume them.
        throttled: How often a connection was not read for a while since the start: its user sent
            too fast.
        addresses_deleted: Addresses that scans have deleted since the start.
        queues_deleted: Queues that scans have deleted since the start.
    """

    addresses_max: int
    queues_max: int
    refused: int
    permissions_refused: int
    permissions_withheld: int
    throttled: int
    addresses_deleted: int
    queues_deleted: int


class Limits:
    """The bounds.

    Attributes:
        subscriptions: How many there are; who opens and ends them counts.
        durable_sessions: Sessions that outlive their connection.
        rates: How fast users may send, in bytes.
        sends: How fast messages may come, by address and by user.

    Args:
        rules: What they are.
    """

    def __init__(self, rules: NamingRules) -> None:
        self.rates = Rates()
        self.sends = SendRates()
        self.change(rules)
        self.subscriptions = 0
        self.refused = 0
        self._sessions: Counter[str] = Counter()
        self._queues: Counter[str] = Counter()
        self.durable_sessions = 0
        self._durable_sessions: Counter[str] = Counter()

    def change(self, rules: NamingRules) -> None:
        """Take other bounds; what is there beyond them stays."""
        self.addresses_max = rules.addresses_max
        self.queues_max = rules.queues_max
        self.subscriptions_max = rules.subscriptions_max
        self._by_user = rules.users
        self.rates.change(rules.users)
        self.sends.change(rules.users)

    def is_full(self, addresses: int) -> bool:
        """Return whether there is no room for one more address beside so many."""
        return 0 < self.addresses_max <= addresses

    def refuse_address(self, name: str, addresses: int) -> LimitExceeded:
        """Return the error for an address that finds no room beside so many."""
        self.refused += 1
        return LimitExceeded(
            f"there is no room for the address {name}",
            measured=f"{addresses + 1} addresses",
            allowed=f"at most {self.addresses_max} (max-addresses)",
            cure="delete some, or raise max-addresses",
        )

    def check_queue(self, name: str, user: str, queues: int) -> None:
        """Refuse one more queue than there may be.

        Args:
            name: Its name.
            user: Who makes it; empty for nobody who is counted.
            queues: Queues that there are.

        Raises:
            LimitExceeded: There is no room, in all or for the user.
        """
        if 0 < self.queues_max <= queues:
            self.refused += 1
            raise LimitExceeded(
                f"there is no room for the queue {name}",
                measured=f"{queues + 1} queues",
                allowed=f"at most {self.queues_max} (max-queues)",
                cure="delete some, or raise max-queues",
            )
        allowed = self._allowed(user, "queues_max")
        if 0 <= allowed <= self._queues[user]:
            self.refused += 1
            raise LimitExceeded(
                f"the user {user} may have no further queue, such as {name}",
                measured=f"{self._queues[user] + 1} queues",
                allowed=f"at most {allowed} (max-queues of resource-limit-settings)",
                cure="delete some, or raise the limit",
            )

    def check_subscription(self) -> None:
        """Refuse one more subscription than there may be.

        Raises:
            LimitExceeded: There is no room.
        """
        if 0 < self.subscriptions_max <= self.subscriptions:
            self.refused += 1
            raise LimitExceeded(
                "there is no room for the subscription",
                measured=f"{self.subscriptions + 1} subscriptions of all connections",
                allowed=f"at most {self.subscriptions_max} (max-subscriptions)",
                cure="end some, or raise max-subscriptions",
            )

    def queue_made(self, user: str) -> None:
        """Count a queue."""
        if user:
            self._queues[user] += 1

    def queue_gone(self, user: str) -> None:
        """Count a queue no more."""
        if user:
            self._queues[user] -= 1
            if not self._queues[user]:
                del self._queues[user]

    def begin_session(self, user: str) -> None:
        """Count a session; `end_session` follows.

        Raises:
            LimitExceeded: The user has as many as it may.
        """
        allowed = self._allowed(user, "sessions_max")
        if 0 <= allowed <= self._sessions[user]:
            self.refused += 1
            raise LimitExceeded(
                f"the user {user} has as many sessions as it may",
                measured=f"{self._sessions[user] + 1} sessions",
                allowed=f"at most {allowed} (max-sessions of resource-limit-settings)",
                cure="end one, or raise the limit",
            )
        self._sessions[user] += 1

    def end_session(self, user: str) -> None:
        """Count a session no more."""
        self._sessions[user] -= 1
        if not self._sessions[user]:
            del self._sessions[user]

    def check_durable_session(self, user: str, most: int) -> None:
        """Refuse one more session that outlives its connection than there may be.

        Args:
            user: Whose it is; empty for nobody who is counted.
            most: How many there may be, of all users; -1 for any number.

        Raises:
            LimitExceeded: There is no room, in all or for the user.
        """
        if 0 <= most <= self.durable_sessions:
            self.refused += 1
            raise LimitExceeded(
                "there is no room for a further session that outlives its connection",
                measured=f"{self.durable_sessions + 1} sessions",
                allowed=f"at most {most} (max-sessions of the acceptor's mqtt)",
                cure="connect with a clean session (no session expiry), or raise max-sessions",
            )
        allowed = self._allowed(user, "durable_sessions_max")
        if 0 <= allowed <= self._durable_sessions[user]:
            self.refused += 1
            raise LimitExceeded(
                f"the user {user} has as many sessions that outlive their connection as it may",
                measured=f"{self._durable_sessions[user] + 1} sessions",
                allowed=f"at most {allowed} (max-mqtt-sessions of resource-limit-settings)",
                cure="connect with a clean session (no session expiry), or raise the limit",
            )

    def durable_session_made(self, user: str) -> None:
        """Count a session that outlives its connection."""
        self.durable_sessions += 1
        self._durable_sessions[user] += 1

    def durable_session_gone(self, user: str) -> None:
        """Count a session that outlives its connection no more."""
        self.durable_sessions -= 1
        self._durable_sessions[user] -= 1
        if not self._durable_sessions[user]:
            del self._durable_sessions[user]

    def _allowed(self, user: str, what: str) -> int:
        """Return how many a user may have, -1 for any number."""
        limit = self._by_user.get(user) or self._by_user.get(EVERYBODY)
        return -1 if not user or limit is None else int(getattr(limit, what))
