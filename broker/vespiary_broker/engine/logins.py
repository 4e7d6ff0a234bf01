"""Logins: who comes in, how often somebody may fail, and what spares the CPU.

Owns the decision. A password is checked in two steps, so that the server can do the hashing away
from the event loop: `begin` answers at once when it can, else with a `Check` whose `is_good` takes
milliseconds; `finish` takes its result. A good password is remembered as a keyed hash, so clients
that come back do not hash again. Failures are counted for (peer, user), for the peer and for the
user, in tables of bounded size; a peer that has logged in as the user before is not shut out by
the failures of others. Must never log or keep a password. Called by the server's sessions and the
admin API; owner: the event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from vespiary_broker.engine.users import DEFAULT_ITERATIONS, User, make_user
from vespiary_spec.errors import LoginRefused
from vespiary_spec.security import ANONYMOUS_ROLE

ANONYMOUS: Final = ANONYMOUS_ROLE
FAILURES_PER_PAIR: Final = 5
FAILURES_PER_PEER: Final = 50
FAILURES_PER_USER: Final = 50
WINDOW_S: Final = 60.0
_TABLE_ENTRIES_MAX: Final = 10_000
_WRONG: Final = "user name or password are wrong"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a connection acts for.

    Attributes:
        name: Name of the user, or `anonymous`.
        roles: Roles of the user.
        is_anonymous: Whether it came in without a login.
    """

    name: str
    roles: frozenset[str] = frozenset()
    is_anonymous: bool = False


_NOBODY: Final = Principal(ANONYMOUS, frozenset((ANONYMOUS_ROLE,)), is_anonymous=True)


@dataclass(frozen=True, slots=True)
class Check:
    """A password check that is still to be made.

    Attributes:
        user: The user, or a stand-in of the same cost when there is none of that name.
        name: The name that was given.
        password: The password that was given.
        peer: Address of the client's machine.
        is_known: Whether there is such a user.
    """

    user: User
    name: str
    password: str
    peer: str
    is_known: bool

    def __repr__(self) -> str:
        return f"Check(name={self.name!r}, peer={self.peer!r})"

    def is_good(self) -> bool:
        """Hash the password and compare; takes the same milliseconds whether the user exists."""
        return self.user.is_password(self.password) and self.is_known


class _Failures:
    """Times of each key's failures; when full, the key that failed longest ago is forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._times: OrderedDict[object, deque[float]] = OrderedDict()

    def add(self, key: object, now_s: float) -> None:
        times = self._times.setdefault(key, deque(maxlen=self._limit))
        times.append(now_s)
        self._times.move_to_end(key)
        if len(self._times) > _TABLE_ENTRIES_MAX:
            self._times.popitem(last=False)

    def wait_s(self, key: object, now_s: float) -> float:
        """Return how long the key has to wait; 0 when it need not."""
        times = self._times.get(key)
        if times is None or len(times) < self._limit:
            return 0.0
        return max(0.0, times[0] + WINDOW_S - now_s)

    def clear(self, key: object) -> None:
        self._times.pop(key, None)


class Logins:
    """Decides who comes in.

    Args:
        users: Returns the users by name, as they are now.
        is_anonymous_allowed: Whether clients come in without a login while there are no users.
    """

    def __init__(
        self, users: Callable[[], Mapping[str, User]], *, is_anonymous_allowed: bool
    ) -> None:
        self._users = users
        self._is_anonymous_allowed = is_anonymous_allowed
        self._key = secrets.token_bytes(32)
        self._remembered: dict[str, tuple[bytes, bytes]] = {}
        self._friends: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._by_pair = _Failures(FAILURES_PER_PAIR)
        self._by_peer = _Failures(FAILURES_PER_PEER)
        self._by_user = _Failures(FAILURES_PER_USER)
        self._stand_in: User | None = None
        self.refused = 0

    def begin(
        self, name: str | None, password: str | None, peer: str, now_s: float
    ) -> Principal | Check:
        """Decide at once, or return the check that decides.

        Args:
            name: User name; None if the client gave none.
            password: Password; None if the client gave none.
            peer: Address of the client's machine.
            now_s: A monotonic clock, in seconds.

        Raises:
            LoginRefused: No entry, and why.
        """
        users = self._users()
        if not users and self._is_anonymous_allowed:
            return _NOBODY
        if not users:
            self.refused += 1
            raise LoginRefused(
                "nobody may log in: this broker has no users, and it listens beyond loopback",
                cure="add one with `vespiary user add`",
            )
        if not name or not password:
            self.refused += 1
            raise LoginRefused(
                "this broker needs a login",
                cure="send the headers login and passcode in the CONNECT frame",
            )
        self._check_rate(name, peer, now_s)
        user = users.get(name)
        if user is not None and self._is_remembered(user, password):
            return self._let_in(user, peer)
        if user is None:
            return Check(self._make_stand_in(), name, password, peer, is_known=False)
        return Check(user, name, password, peer, is_known=True)

    def finish(self, check: Check, *, is_good: bool, now_s: float) -> Principal:
        """Take the result of a check.

        Raises:
            LoginRefused: The password was wrong, or there is no such user: one sentence for both.
        """
        if not is_good:
            self._by_pair.add((check.peer, check.name), now_s)
            self._by_peer.add(check.peer, now_s)
            self._by_user.add(check.name, now_s)
            self.refused += 1
            raise LoginRefused(_WRONG)
        self._remembered[check.name] = (check.user.stored_key, self._digest(check.password))
        return self._let_in(check.user, check.peer)

    def _let_in(self, user: User, peer: str) -> Principal:
        pair = (peer, user.name)
        self._by_pair.clear(pair)
        self._friends[pair] = None
        self._friends.move_to_end(pair)
        if len(self._friends) > _TABLE_ENTRIES_MAX:
            self._friends.popitem(last=False)
        return Principal(user.name, user.roles)

    def _check_rate(self, name: str, peer: str, now_s: float) -> None:
        pair = (peer, name)
        wait_s = self._by_pair.wait_s(pair, now_s)
        if pair not in self._friends:
            wait_s = max(
                wait_s, self._by_peer.wait_s(peer, now_s), self._by_user.wait_s(name, now_s)
            )
        if wait_s > 0:
            self.refused += 1
            raise LoginRefused(
                "too many failed logins", cure=f"try again in {max(1, round(wait_s))} seconds"
            )

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), hashlib.sha256)

    def _is_remembered(self, user: User, password: str) -> bool:
        stored_key, digest = self._remembered.get(user.name, (b"", b""))
        return stored_key == user.stored_key and hmac.compare_digest(digest, self._digest(password))

    def _make_stand_in(self) -> User:
        if self._stand_in is None:
            self._stand_in = make_user("-", secrets.token_hex(16), iterations=DEFAULT_ITERATIONS)
        return self._stand_in
