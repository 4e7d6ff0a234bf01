"""Whose queues are: those of durable subscriptions and of MQTT sessions belong to a user.

Owns the rule, for every protocol and the HTTP API alike. A client id is neither secret nor proven,
so it protects nothing: the queues of a client belong to the user who made them. Administrators may
use the queues of all users; while nobody has to log in, no queue has an owner. Queues without a
client id are shared by all who have the permissions. Must never make or change a queue: `registry`
does. Owner: the event loop.

| the queue | its owner |
|---|---|
| of a durable subscription, of an MQTT session | who made it |
| of a shared subscription of one AMQP container | who made it |
| of these, made by a client without a login | nobody, until a user comes: it is that user's then |
| any other | nobody, ever |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from vespiary_broker.engine.permissions import Permissions
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.subscription_names import check_chosen
from vespiary_spec.errors import NotOwner
from vespiary_spec.security import ANONYMOUS_ROLE
from vespiary_spec.settings import Permission

_NOBODY: Final = frozenset(("", ANONYMOUS_ROLE))


class QueueOwners:
    """Says which queues are whose.

    Args:
        permissions: Knows administrators, and counts refusals.
        is_open: Whether nobody has to log in, so that queues have no owners.
    """

    def __init__(self, permissions: Permissions, is_open: Callable[[], bool]) -> None:
        self._permissions = permissions
        self._is_open = is_open

    def check(self, queue: Queue, user: str) -> None:
        """Refuse a queue to all but its owner and administrators.

        Args:
            queue: The queue.
            user: Who wants to read it, to take from it or to delete it; empty is nobody.

        Raises:
            NotOwner: It belongs to another user.
        """
        if is_ownable(queue):
            self.check_made(queue, user)

    def check_made(self, queue: Queue, user: str) -> None:
        """Refuse a queue to all but who made it and administrators, whatever queue it is.

        Args:
            queue: The queue.
            user: Who wants it; empty is nobody.

        Raises:
            NotOwner: Another user made it.
        """
        maker = queue.traits.user
        if maker in _NOBODY or maker == user:
            return
        if self._is_open() or self._permissions.is_administrator(user):
            return
        self._permissions.refused += 1
        raise NotOwner(user, queue.name)

    def may_use(self, queue: Queue, user: str) -> bool:
        """Return whether the queue of a subscription is one that a user may go on with.

        It is the user's own, or nobody else's and at an address where the user may consume.

        Args:
            queue: The queue.
            user: Who comes with the name of the subscription; empty is nobody.
        """
        maker = queue.traits.user
        if maker == user or self._is_open():
            return True
        if maker not in _NOBODY and not self._permissions.is_administrator(user):
            return False
        return self._permissions.may_subscribe(user, Permission.CONSUME, queue.address.name)

    def preferred(self, queues: Sequence[Queue], user: str) -> Queue | None:
        """Return the queue of a subscription that a user goes on with, its own one first.

        Args:
            queues: Those that have a name of the subscription, the usual one first.
            user: Who comes with the name of the subscription; empty is nobody.

        Returns:
            None: the user may use none of them.
        """
        usable = [queue for queue in queues if self.may_use(queue, user)]
        own = (queue for queue in usable if queue.traits.user == user)
        return next(own, usable[0] if usable else None)

    def check_chosen(self, name: str, user: str) -> None:
        """Refuse a name that a user may not choose for a queue.

        Administrators may choose any, and so may all while nobody has to log in.

        Raises:
            InvalidName: The broker has such names for subscriptions.
        """
        if not (self._is_open() or self._permissions.is_administrator(user)):
            check_chosen(name)

    def is_adopted(self, queue: Queue, user: str) -> bool:
        """Return whether a queue becomes that of a user who begins to consume from it."""
        return is_ownable(queue) and self.may_adopt(queue.traits.user, user)

    def may_adopt(self, maker: str, user: str) -> bool:
        """Return whether what somebody made becomes a user's: it was nobody who logged in.

        Args:
            maker: Who made it; empty is nobody.
            user: Who wants it.
        """
        return maker in _NOBODY and user not in _NOBODY and not self._is_open()


def belongs_to_other(queue: Queue, user: str) -> bool:
    """Return whether a queue belongs to a user, and what a user made elsewhere is not that one's.

    Args:
        queue: The queue.
        user: Who made a queue of its name in another broker; empty is nobody.
    """
    maker = queue.traits.user
    return is_ownable(queue) and not _NOBODY & {maker, user} and maker != user


def is_ownable(queue: Queue) -> bool:
    """Return whether a queue belongs to one user."""
    return bool(queue.client_id) or queue.traits.is_owned
