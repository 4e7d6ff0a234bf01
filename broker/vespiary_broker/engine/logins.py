"""Logins: who comes in, what failures cost, and what spares the CPU.

Owns the decision, whatever the mechanism (`mechanisms`, `scram`). A password is checked in two
steps, so that the server can do the hashing away from the event loop: `begin` answers at once when
it can, else with a `Check` whose `is_good` takes some tenths of a second; `finish` takes its
result. A password that was checked is remembered as a hash that is keyed with random bytes of this
process, in memory alone, so clients that come back are not hashed again. Failures
are counted for each pair of user and network (an IPv4 address, or a /64 of IPv6), in tables of
bounded size: they delay the next logins of that pair and reject none, so that nobody can lock a
user out. Must never log or keep a password. Owner: the event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from vespiary_broker.engine.login_queue import Rank
from vespiary_broker.engine.networks import network_of
from vespiary_broker.engine.users import User
from vespiary_spec.errors import LoginRefused
from vespiary_spec.security import ANONYMOUS_ROLE

ANONYMOUS: Final = ANONYMOUS_ROLE
FAILURES_FREE: Final = 5
"""Failed logins of one user from one network in a window that delay nothing."""
PAUSE_FIRST_S: Final = 0.25
PAUSE_MAX_S: Final = 8.0
WINDOW_S: Final = 60.0
"""Time after which a failed login is forgotten."""
_FAILURES_MAX: Final = 16
"""Failures that are kept for each pair; the pause has long reached its maximum by then."""
_NAME_CHARACTERS_MAX: Final = 200
"""Longer names are no users'; what is kept of them is cut."""
_TABLE_ENTRIES_MAX: Final = 10_000
_WRONG_ENTRIES_MAX: Final = 1000
_WRONG: Final = "user name or password are wrong"
LOCKOUT_CURE: Final = (
    "add a user with `vespiary user add NAME --role admin`, or set security.allow-anonymous"
)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a connection acts for.

    Attributes:
        name: Name of the user, or `anonymous`.
        roles: Roles of the user.
        is_anonymous: Whether it came in without a login because the broker is open: it may do
            everything.
    """

    name: str
    roles: frozenset[str] = frozenset()
    is_anonymous: bool = False


NOBODY: Final = Principal(ANONYMOUS, frozenset((ANONYMOUS_ROLE,)), is_anonymous=True)


def guest(role: str = ANONYMOUS_ROLE) -> Principal:
    """Return who comes in without a login because `allow-anonymous` says so; no administrator.

    Args:
        role: As `anonymous-role` says.
    """
    return Principal(ANONYMOUS, frozenset((role,)))


@dataclass(frozen=True, slots=True)
class Check:
    """A password check that is still to be made.

    Attributes:
        user: The user, or a stand-in of the same cost when there is none of that name.
        name: The name that was given.
        password: The password that was given.
        peer: Address of the client's machine.
        is_known: Whether there is such a user.
        digest: Keyed hash of the password, by which equal ones are known.
    """

    user: User
    name: str
    password: str
    peer: str
    is_known: bool
    digest: bytes

    @property
    def key(self) -> object:
        """What checks have in common that have the same result."""
        return self.name, self.user.stored_key, self.digest

    @property
    def network(self) -> str:
        """What the client's address counts as."""
        return _pair(self.name, self.peer)[0]

    def __repr__(self) -> str:
        return f"Check(name={self.name!r}, peer={self.peer!r})"

    def is_good(self) -> bool:
        """Hash the password and compare; takes the same time whether the user exists."""
        return self.user.is_password(self.password) and self.is_known


def _pair(name: str, peer: str) -> tuple[str, str]:
    """Return what logins are counted by: the client's network, and the name that it gave."""
    return network_of(peer) or peer, name[:_NAME_CHARACTERS_MAX]


class _Failures:
    """Times of each key's failures; when full, the key that failed longest ago is forgotten."""

    def __init__(self) -> None:
        self._times: OrderedDict[object, deque[float]] = OrderedDict()

    def add(self, key: object, now_s: float) -> None:
        self._times.setdefault(key, deque(maxlen=_FAILURES_MAX)).append(now_s)
        self._times.move_to_end(key)
        if len(self._times) > _TABLE_ENTRIES_MAX:
            self._times.popitem(last=False)

    def count(self, key: object, now_s: float) -> int:
        """Return how many failures of a key are not forgotten."""
        return sum(now_s - time_s < WINDOW_S for time_s in self._times.get(key, ()))


class Logins:
    """Decides who comes in.

    Args:
        users: Returns the users by name, as they are now.
        closed_reason: Returns why nobody comes in without a login although there are no users, as
            a clause; empty if everybody does.
        anonymous: Who clients without a login are, while users exist too; None: they are rejected.
        secret: Returns what the salts of unknown users follow from, at least 32 bytes that nobody
            else knows and that stay over a restart; empty: they follow from the users' keys, and
            change with those.
    """

    def __init__(
        self,
        users: Callable[[], Mapping[str, User]],
        *,
        closed_reason: Callable[[], str] = lambda: "",
        anonymous: Principal | None = None,
        secret: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._users = users
        self._closed_reason = closed_reason
        self._anonymous = anonymous
        self._secret = secret
        self._key = secrets.token_bytes(32)
        self._remembered: dict[str, tuple[bytes, bytes]] = {}
        self._successors: dict[str, tuple[bytes, bytes]] = {}
        self._wrong: OrderedDict[object, None] = OrderedDict()
        self._friends: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._by_pair = _Failures()
        self._by_network = _Failures()
        self._pausing: Counter[tuple[str, str]] = Counter()
        self._stand_ins = _StandIns({}, b"")
        self.refused = 0
        self.delayed = 0

    @property
    def is_open(self) -> bool:
        """Whether everybody comes in and may do everything: no user has ever existed."""
        return self._anonymous is None and not self._users() and not self._closed_reason()

    @property
    def is_login_optional(self) -> bool:
        """Whether a client without a login comes in."""
        return self.is_open or self._anonymous is not None

    @property
    def lockout(self) -> str:
        """Why nobody can log in, as a sentence without a full stop; empty if somebody can."""
        if self._users() or self.is_login_optional:
            return ""
        return f"nobody can log in: this broker has no users, and {self._closed_reason()}"

    def without_login(self) -> Principal:
        """Return who a client without a login is.

        Raises:
            LoginRefused: It has to log in.
        """
        if self.is_open:
            return NOBODY
        if self._anonymous is not None:
            return self._anonymous
        raise self._login_needed()

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
        if self.is_open or not (name or password):
            return self.without_login()
        if not name or not password:
            raise self._login_needed()
        user, is_known = self.find(name)
        digest = self._digest(password)
        check = Check(user, name, password, peer, is_known=is_known, digest=digest)
        verdict = self.verdict(check)
        if verdict is None or self.pause_s(name, peer, now_s):
            return check
        if not verdict:
            raise self.failed(name, peer, now_s)
        return self.let_in(user, peer)

    def verdict(self, check: Check) -> bool | None:
        """Return whether a password is right, as far as that is known without hashing it."""
        if check.is_known and self._is_remembered(check.user, check.digest):
            return True
        return False if check.key in self._wrong else None

    def find(self, name: str) -> tuple[User, bool]:
        """Return a user, or a stand-in that nobody can tell from one, and which of the two it is.

        Args:
            name: The name that was given.

        Raises:
            LoginRefused: There are no users at all.
        """
        users = self._users()
        if not users and self.is_login_optional:
            raise self.refuse(
                "there are no users to log in as", cure="send neither a user name nor a password"
            )
        if not users:
            raise self._login_needed()
        stand_in = self._stand_in(users, name)  # in any case: it takes time
        user = users.get(name)
        return (stand_in, False) if user is None else (user, True)

    def by_certificate(self, name: str, peer: str) -> Principal:
        """Let a client in that has shown a good certificate, without a password.

        Args:
            name: The user whom the certificate stands for, not empty.
            peer: Address of the client's machine.

        Raises:
            LoginRefused: There is no such user.
        """
        if self.is_open:
            return NOBODY
        user = self._users().get(name)
        if user is None:
            raise self.refuse(
                f"the client certificate stands for {name[:200]!a}, who is no user here",
                cure="add the user with `vespiary user add`, or map the certificate's subject to "
                "one with certificate-users of the acceptor's TLS",
            )
        return self.let_in(user, peer)

    def finish(self, check: Check, *, is_good: bool, now_s: float) -> Principal:
        """Take the result of a check.

        Raises:
            LoginRefused: The password was wrong, or there is no such user: one sentence for both.
        """
        self.learn(check, is_good=is_good)
        user = self.current(check.user) if is_good else None
        if user is None:  # wrong; or it was removed, or has another password, since the check began
            raise self.failed(check.name, check.peer, now_s)
        return self.let_in(user, check.peer)

    def learn(self, check: Check, *, is_good: bool) -> None:
        """Remember the result of a check, so that the same password is not hashed again.

        Args:
            check: The check.
            is_good: Whether the password is right.
        """
        if not is_good:
            self._wrong[check.key] = None
            if len(self._wrong) > _WRONG_ENTRIES_MAX:
                self._wrong.popitem(last=False)
        elif (user := self.current(check.user)) is not None:
            self._remembered[check.name] = (user.stored_key, check.digest)
            self._forget_removed()

    def _forget_removed(self) -> None:
        """Forget users that are gone, as soon as more are remembered than there are."""
        users = self._users()
        for table in (self._remembered, self._successors):
            if len(table) > len(users):
                for name in table.keys() - users.keys():
                    del table[name]

    def rank_of(self, check: Check, now_s: float) -> Rank:
        """Return how soon a check is made, compared with others.

        Args:
            check: The check.
            now_s: A monotonic clock, in seconds.
        """
        pair = _pair(check.name, check.peer)
        if pair in self._friends and not self._by_pair.count(pair, now_s):
            return Rank.FRIEND
        has_failed = self._by_network.count(check.network, now_s)
        return Rank.SUSPECT if has_failed else Rank.STRANGER

    def pause_s(self, name: str, peer: str, now_s: float) -> float:
        """Return how long a login has to wait for its check; the right password waits as long.

        The time doubles with every failure, and with every login that waits already, of the same
        user from the same network. Others do not wait.

        Args:
            name: The name that was given.
            peer: Address of the client's machine.
            now_s: A monotonic clock, in seconds.
        """
        pair = _pair(name, peer)
        excess = self._by_pair.count(pair, now_s) - FAILURES_FREE
        if excess < 0:
            return 0.0
        doublings = min(excess + self._pausing[pair], _FAILURES_MAX)
        return float(min(PAUSE_FIRST_S * 2**doublings, PAUSE_MAX_S))

    @contextmanager
    def pausing(self, name: str, peer: str) -> Iterator[None]:
        """Count a login as one that waits, in a `with` block."""
        pair = _pair(name, peer)
        self.delayed += 1
        self._pausing[pair] += 1
        try:
            yield
        finally:
            self._pausing[pair] -= 1
            if not self._pausing[pair]:
                del self._pausing[pair]

    def expect(self, old: User, new: User) -> None:
        """Take note that a user's hash is about to be replaced by one of the same password.

        Logins that have begun with the old hash end well with the new one.

        Args:
            old: The user as it is.
            new: The same user with another hash.
        """
        self._successors[old.name] = (old.stored_key, new.stored_key)

    def _is_of(self, stored_key: bytes, user: User) -> bool:
        """Return whether a hash is the user's, or was until it was replaced by a stronger one."""
        is_now = stored_key == user.stored_key
        return is_now or self._successors.get(user.name) == (stored_key, user.stored_key)

    def refuse(self, sentence: str, *, cure: str = "") -> LoginRefused:
        """Count a login that is refused for no guess; return the error."""
        self.refused += 1
        return LoginRefused(sentence, cure=cure)

    def _login_needed(self) -> LoginRefused:
        if lockout := self.lockout:
            return self.refuse(lockout, cure=LOCKOUT_CURE)
        return self.refuse(
            "this broker needs a login",
            cure="send a user name and a password (STOMP: the headers login and passcode)",
        )

    def failed(self, name: str, peer: str, now_s: float) -> LoginRefused:
        """Count a failed guess; return the error, the same whether there is such a user."""
        pair = _pair(name, peer)
        self._by_pair.add(pair, now_s)
        self._by_network.add(pair[0], now_s)
        error = self.refuse(_WRONG)
        error.user = name
        return error

    def current(self, user: User) -> User | None:
        """Return a user that was found as it is now; None if it is gone, or has other keys."""
        found = self._users().get(user.name)
        return found if found is not None and self._is_of(user.stored_key, found) else None

    def is_current(self, name: str) -> bool:
        """Return whether a connection may stay that acts for a user: it has not been removed.

        Args:
            name: Name of the user, or `anonymous`.
        """
        users = self._users()
        return name in users or (name == ANONYMOUS and self.is_login_optional)

    def let_in(self, user: User, peer: str) -> Principal:
        """Take note that a user came in from a machine; return who it is."""
        pair = _pair(user.name, peer)
        self._friends[pair] = None
        self._friends.move_to_end(pair)
        if len(self._friends) > _TABLE_ENTRIES_MAX:
            self._friends.popitem(last=False)
        return Principal(user.name, user.roles)

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), hashlib.sha256)

    def _is_remembered(self, user: User, digest: bytes) -> bool:
        stored_key, known = self._remembered.get(user.name, (b"", b""))
        return self._is_of(stored_key, user) and hmac.compare_digest(digest, known)

    def _stand_in(self, users: Mapping[str, User], name: str) -> User:
        """Return a user that is none: with the same salt as long as there is such a hash.

        Salt and iterations are told to whoever begins an exchange, so both are like those of a user
        that there is, also over a restart and when other users change. What they are made from is
        known to nobody outside. As users' hashes are replaced by stronger ones, so is this one, and
        then its salt is another one too.
        """
        if self._stand_ins.users is not users:
            self._stand_ins = _StandIns(users, self._secret())
        return self._stand_ins.user(name)


class _StandIns:
    """What users that there are not look like, while those that there are stay the same."""

    def __init__(self, users: Mapping[str, User], secret: bytes) -> None:
        self.users = users
        keys = secret or b"".join(users[each].server_key for each in sorted(users))
        self._secret = hashlib.sha256(b"stand-in" + keys).digest()
        # As many of each kind as there are users of it, the weakest first: a name goes from weak
        # to strong, as users do, while strong hashes take the place of weak ones.
        self._kinds = sorted((user.iterations, len(user.salt)) for user in users.values())

    def user(self, name: str) -> User:
        share = int.from_bytes(self._derived("kind", name)[:8], "big")
        iterations, salt_bytes = self._kinds[share * len(self._kinds) >> 64]
        salt, keys = self._derived(f"salt {iterations}", name), self._derived("keys", name)
        return User(name, salt[:salt_bytes], iterations, keys[:32], keys[32:])

    def _derived(self, what: str, name: str) -> bytes:
        return hmac.digest(self._secret, f"{what} {name}".encode(), hashlib.sha512)
