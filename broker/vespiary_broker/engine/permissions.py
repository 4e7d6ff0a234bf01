"""Permissions: who may do what at which address, for every protocol and the HTTP API alike.

Owns the decision. The most specific match of `security-settings` that covers an address decides
alone, as in the reference system; an address that none covers is nobody's. A wildcard stands for
many addresses, so each match that may decide about one of them has to permit what is asked for.
Subscribers and browsers need only some of them, unless `wildcard-subscriptions` is REJECT
(`check_subscribing`): whoever serves them has to leave out the rest (`takes_from`, `guards`). Who
makes an ANYCAST queue needs all of them: it takes the rest as well.
Roles are looked up by the user's name, so a changed users file counts for connections that are
open. Must never know a connection or a protocol. Asked by `publishing`, `subscriptions` and
`registry`, where things are made and used, and by the admin API; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.address_settings import covers, width
from vespiary_broker.engine.names import OWN_PREFIX
from vespiary_broker.engine.users import User
from vespiary_broker.engine.wildcards import (
    DEFAULT_SYNTAX,
    Pattern,
    WildcardSyntax,
    contains,
    overlaps,
)
from vespiary_spec.errors import NotPermitted
from vespiary_spec.model import kebab
from vespiary_spec.security import ADMIN_ROLE, ANONYMOUS_ROLE
from vespiary_spec.settings import Permission, RoutingType, SecuritySettings

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address

_CACHE_ENTRIES_MAX: Final = 10_000
_PERMITTED: Final = None


class Permissions:
    """The permissions of all users.

    Attributes:
        refused: How often something was refused since the start.
        withheld: Messages that were left out for subscribers of wildcards since the start, beside
            those that the core and the switches count.
        is_filtering: Whether subscribers of wildcards get what they may have; False: they need the
            permission for all that a wildcard covers.

    Args:
        matches: Roles by match, as in `security-settings` of the configuration; empty permits all.
        syntax: What wildcards look like.
        users: Returns the users by name, as they are now.
        anonymous_role: Role of clients without a login.
        is_filtering: Whether subscribers of wildcards get what they may have; False: they need the
            permission for all that a wildcard covers.
    """

    def __init__(
        self,
        matches: Mapping[str, SecuritySettings] | None = None,
        syntax: WildcardSyntax = DEFAULT_SYNTAX,
        users: Callable[[], Mapping[str, User]] = dict,
        *,
        anonymous_role: str = ANONYMOUS_ROLE,
        is_filtering: bool = True,
    ) -> None:
        self.refused = self.withheld = 0
        self._anonymous_roles = frozenset((anonymous_role,))
        self.is_filtering = is_filtering
        self._syntax = syntax
        self._users = users
        self._matches: list[tuple[Pattern, SecuritySettings]] = []
        self._decided: dict[tuple[str, Permission, str], str | None] = {}
        self._in_part: dict[tuple[str, Permission, str], bool] = {}
        self.replace(matches or {})

    @property
    def is_on(self) -> bool:
        """Whether there are any rules; without, whoever is logged in may do everything."""
        return bool(self._matches)

    def replace(self, matches: Mapping[str, SecuritySettings]) -> None:
        """Take other rules from now on."""
        narrow_first = sorted(matches, key=lambda match: width(match, self._syntax))
        self._matches = [(Pattern(match, self._syntax), matches[match]) for match in narrow_first]
        self.forget()

    def forget(self) -> None:
        """Decide anew from now on: users have changed."""
        self._decided.clear()
        self._in_part.clear()

    def is_administrator(self, user: str) -> bool:
        """Return whether a user is an administrator now, by its role.

        Args:
            user: Its name; empty is nobody.
        """
        return ADMIN_ROLE in self._roles(user)

    def check(self, user: str, permission: Permission, address: str) -> None:
        """Refuse what a user may not do.

        Args:
            user: Its name; empty is nobody, who may do nothing once there are rules.
            permission: What it wants to do.
            address: Where; a name or a wildcard.

        Raises:
            NotPermitted: It may not; names the match that decided.
        """
        if not self._matches:
            return
        match = self._decide(user, permission, address)
        if match is not _PERMITTED:
            self.refused += 1
            raise NotPermitted(user, kebab(permission.value), address, match)

    def is_permitted(self, user: str, permission: Permission, address: str) -> bool:
        """Return whether `check` would let it pass."""
        return not self._matches or self._decide(user, permission, address) is _PERMITTED

    def check_subscribing(self, user: str, permission: Permission, address: str) -> None:
        """Refuse a subscriber or browser who may have nothing of an address.

        Args:
            user: Its name; empty is nobody.
            permission: What it wants to do.
            address: Where; of a wildcard some of what it covers is enough.

        Raises:
            NotPermitted: It may not; names the match that decided, if it is one.
        """
        if self.may_subscribe(user, permission, address):
            return
        if self._is_filtered(address) and not address.startswith(OWN_PREFIX):
            self.refused += 1
            raise NotPermitted(user, kebab(permission.value), address, None)
        self.check(user, permission, address)

    def may_subscribe(self, user: str, permission: Permission, address: str) -> bool:
        """Return whether `check_subscribing` would let it pass."""
        return self._is_permitted_in_part(user, permission, address)

    def is_split(self, user: str, permission: Permission, address: str) -> bool:
        """Return whether a user may have a part of what an address stands for, but not all."""
        return (
            self._is_filtered(address)
            and not self.is_permitted(user, permission, address)
            and self._is_permitted_in_part(user, permission, address)
        )

    def is_filtered(self, address: str) -> bool:
        """Return whether queues that users make at an address take what these may have alone."""
        return self.is_filtering and self._syntax.is_wildcard(address)

    def is_gone(self, user: str) -> bool:
        """Return whether a user was removed: there are others, and it is none of them."""
        users = self._users()
        return bool(users) and user != ANONYMOUS_ROLE and user not in users

    def takes_from(self, user: str, address: str, *, is_durable: bool) -> bool:
        """Return whether a user's queue at a wildcard takes the messages of an address.

        It does where the user could have the same queue for that address alone. The queue of a
        user who is gone takes nothing: nobody has the permissions that it was made with.

        Args:
            user: Who made it.
            address: The address, plain.
            is_durable: Whether the queue survives a restart.
        """
        if not self._matches or not self.is_filtering:
            return True
        if user != ANONYMOUS_ROLE and not self._users():
            return True  # without users nobody was removed
        making = queue_permission(is_made=True, is_durable=is_durable)
        return self.is_permitted(user, Permission.CONSUME, address) and self.is_permitted(
            user, making, address
        )

    def _is_filtered(self, address: str) -> bool:
        return bool(self._matches) and self.is_filtered(address)

    def _is_permitted_in_part(self, user: str, permission: Permission, address: str) -> bool:
        """Return whether some match that may decide about a part of a wildcard permits it."""
        if not self._is_filtered(address) or address.startswith(OWN_PREFIX):
            return self.is_permitted(user, permission, address)
        key = (user, permission, address)
        found = self._in_part.get(key)
        if found is None:
            roles, syntax = self._roles(user), self._syntax
            found = any(
                not roles.isdisjoint(getattr(settings, permission.value))
                for pattern, settings in self._matches
                if overlaps(pattern.text, address, syntax)
            )
            if len(self._in_part) >= _CACHE_ENTRIES_MAX:
                self._in_part.clear()
            self._in_part[key] = found
        return found

    def check_making(
        self,
        user: str,
        name: str,
        address: Address | None,
        routing_type: RoutingType,
        *,
        is_durable: bool | None = None,
    ) -> None:
        """Refuse to make what a user may not make.

        What is ANYCAST takes everything that a wildcard covers, whoever made it, and a queue may
        outlive its consumers: so a part of the wildcard is not enough.

        Args:
            user: Its name; empty is nobody.
            name: Name of the address.
            address: The address; None has to be made.
            routing_type: What it has to serve; it is made to, if it does not yet.
            is_durable: Whether a queue of it is made that survives a restart; None: no queue is.

        Raises:
            NotPermitted: It may not.
        """
        check = self.check if routing_type is RoutingType.ANYCAST else self.check_subscribing
        if address is None or routing_type not in address.routing_types:
            check(user, Permission.CREATE_ADDRESS, name)
        if is_durable is not None:
            check(user, queue_permission(is_made=True, is_durable=is_durable), name)

    def _decide(self, user: str, permission: Permission, address: str) -> str | None:
        """Return `_PERMITTED`, or the match that does not permit it; empty if there is none."""
        key = (user, permission, address)
        if key in self._decided:
            return self._decided[key]
        roles = self._roles(user)
        rules = self._rules(address)
        found: str | None = _PERMITTED if rules else ""
        for match, settings in rules:
            if roles.isdisjoint(getattr(settings, permission.value)):
                found = match
                break
        if len(self._decided) >= _CACHE_ENTRIES_MAX:
            self._decided.clear()
        self._decided[key] = found
        return found

    def _roles(self, user: str) -> frozenset[str]:
        if user == ANONYMOUS_ROLE:  # clients without a login, whatever a users file says
            return self._anonymous_roles
        found = self._users().get(user)
        return frozenset() if found is None else found.roles

    def _rules(self, address: str) -> list[tuple[str, SecuritySettings]]:
        """Return the rules that decide about an address; none if there is an uncovered one."""
        if address.startswith(OWN_PREFIX):
            return []  # no match covers what the broker keeps there of all other addresses
        syntax = self._syntax
        if not syntax.is_wildcard(address):
            for pattern, settings in self._matches:
                if covers(pattern, address):
                    return [(pattern.text, settings)]
            return []
        found = []
        for pattern, settings in self._matches:
            if overlaps(pattern.text, address, syntax):
                found.append((pattern.text, settings))
                if contains(pattern.text, address, syntax):
                    return found  # wider ones decide about nothing that it covers
        return []


def queue_permission(*, is_made: bool, is_durable: bool) -> Permission:
    """Return what making or deleting a queue needs."""
    if is_durable:
        return Permission.CREATE_DURABLE_QUEUE if is_made else Permission.DELETE_DURABLE_QUEUE
    if is_made:
        return Permission.CREATE_NON_DURABLE_QUEUE
    return Permission.DELETE_NON_DURABLE_QUEUE
