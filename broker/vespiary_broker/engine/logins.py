"""Logins: who comes in, how often somebody may fail, and what spares the CPU.

Owns the decision, whatever the mechanism (`mechanisms`, `scram`). A password is checked in two
steps, so that the server can do the hashing away from the event loop: `begin` answers at once when
it can, else with a `Check` whose `is_good` takes some tenths of a second; `finish` takes its
result. A password that was checked is remembered as a hash that is keyed with random bytes of this
process, in memory alone, so clients that come back are not hashed again. Failures are
counted for (peer, user), for the peer and for the user, in tables of bounded size; a peer that has
logged in as the user before is not shut out by the failures of others. Must never log or keep a
password. Called by the server's sessions and the admin API; owner: the event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from vespiary_broker.engine.login_queue import Rank
from vespiary_broker.engine.networks import network_of
from vespiary_broker.engine.users import User
from vespiary_spec.errors import LoginRefused
from vespiary_spec.security import ANONYMOUS_ROLE

ANONYMOUS: Final = ANONYMOUS_ROLE
FAILURES_PER_PAIR: Final = 5
FAILURES_PER_PEER: Final = 50
FAILURES_PER_USER: Final = 50
WINDOW_S: Final = 60.0
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
GUEST: Final = Principal(ANONYMOUS, frozenset((ANONYMOUS_ROLE,)))
"""Who comes in without a login because `allow-anonymous` says so; no administrator."""


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
        return network_of(self.peer)

    def __repr__(self) -> str:
        return f"Check(name={self.name!r}, peer={self.peer!r})"

    def is_good(self) -> bool:
        """Hash the password and compare; takes the same time whether the user exists."""
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

    def has(self, key: object) -> bool:
        return key in self._times

    def clear(self, key: object) -> None:
        self._times.pop(key, None)


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
        self._by_pair = _Failures(FAILURES_PER_PAIR)
        self._by_peer = _Failures(FAILURES_PER_PEER)
        self._by_user = _Failures(FAILURES_PER_USER)
        self._stand_ins = _StandIns({}, b"")
        self.refused = 0

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
        user, is_known = self.find(name, peer, now_s)
        digest = self._digest(password)
        check = Check(user, name, password, peer, is_known=is_known, digest=digest)
        verdict = self.verdict(check)
        if verdict is None:
            return check
        if not verdict:
            raise self.failed(name, peer, now_s)
        return self.let_in(user, peer)

    def verdict(self, check: Check) -> bool | None:
        """Return whether a password is right, as far as that is known without hashing it."""
        if check.is_known and self._is_remembered(check.user, check.digest):
            return True
        return False if check.key in self._wrong else None

    def find(self, name: str, peer: str, now_s: float) -> tuple[User, bool]:
        """Return a user, or a stand-in that nobody can tell from one, and which of the two it is.

        Args:
            name: The name that was given.
            peer: Address of the client's machine.
            now_s: A monotonic clock, in seconds.

        Raises:
            LoginRefused: There are no users at all, or somebody has failed too often.
        """
        users = self._users()
        if not users and self.is_login_optional:
            raise self.refuse(
                "there are no users to log in as", cure="send neither a user name nor a password"
            )
        if not users:
            raise self._login_needed()
        self.check_rate(name, peer, now_s)
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
            for table in (self._remembered, self._successors):
                for name in table.keys() - self._users().keys():
                    del table[name]  # type: ignore[attr-defined]
            self._remembered[check.name] = (user.stored_key, check.digest)

    def rank_of(self, check: Check) -> Rank:
        """Return how soon a check is made, compared with others."""
        if (check.peer, check.name) in self._friends:
            return Rank.FRIEND
        return Rank.SUSPECT if self._by_peer.has(check.peer) else Rank.STRANGER

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
        self._by_pair.add((peer, name), now_s)
        self._by_peer.add(peer, now_s)
        self._by_user.add(name, now_s)
        return self.refuse(_WRONG)

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
        pair = (peer, user.name)
        self._by_pair.clear(pair)
        self._friends[pair] = None
        self._friends.move_to_end(pair)
        if len(self._friends) > _TABLE_ENTRIES_MAX:
            self._friends.popitem(last=False)
        return Principal(user.name, user.roles)

    def check_rate(self, name: str, peer: str, now_s: float) -> None:
        """Refuse who has failed too often.

        Raises:
            LoginRefused: It has, or others have failed as that user or from that machine.
        """
        pair = (peer, name)
        wait_s = self._by_pair.wait_s(pair, now_s)
        if pair not in self._friends:
            wait_s = max(
                wait_s, self._by_peer.wait_s(peer, now_s), self._by_user.wait_s(name, now_s)
            )
        if wait_s > 0:
            raise self.refuse(
                "too many failed logins", cure=f"try again in {max(1, round(wait_s))} seconds"
            )

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
