"""Links by which clients receive, by name: a client that attaches again takes its link back.

Owns who has which name. A link's name is unique between two containers, so the second attach of one
means that the first is over, even if its connection has not noticed yet: the client vanished, or
its old connection is about to close. Shared subscriptions and browsers are not among these links:
several of one name are what their clients want. Owner: the event loop.

Source: AMQP 1.0 (OASIS, 2012) §2.6.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vespiary_broker.server.amqp.conditions import Condition, told

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.sending import OutgoingLink


class Identity(NamedTuple):
    """What makes two links one.

    Attributes:
        user: The user, so that nobody takes the link of another one.
        container: The client's container id.
        name: The link's name.
    """

    user: str
    container: str
    name: str


class Receivers:
    """The links of all connections, by what identifies them."""

    def __init__(self) -> None:
        self._links: dict[Identity, OutgoingLink] = {}

    def steal(self, identity: Identity) -> None:
        """Detach the link that has a name, if there is one; what it held goes back.

        Args:
            identity: That of the link which is about to be attached.
        """
        before = self._links.get(identity)
        if before is not None:
            sentence = f"the link {identity.name[:100]!a} was attached again"
            before.session.cycle.count_error("taken-over")
            before.session.connection.note_line(
                "link taken over by another attach peer=%s container=%a link=%a",
                *(identity.container[:100], identity.name[:100]),
            )
            before.detach_for(told(Condition.STOLEN, sentence))

    def take(self, identity: Identity, link: OutgoingLink) -> None:
        """Give an open link its name.

        Args:
            identity: What identifies it; links of a client without a container id have no name.
            link: The link.
        """
        if identity.container:
            link.identity = identity
            self._links[identity] = link

    def leave(self, link: OutgoingLink) -> None:
        """Forget a link that is closed."""
        identity, link.identity = link.identity, None
        if identity is not None and self._links.get(identity) is link:
            del self._links[identity]
